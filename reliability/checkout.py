"""The commit of this checkout. `python -m reliability.checkout` prints it. Needs only the standard library."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commit() -> str | None:
    """Short hash of the current commit, or None outside a checkout or without git.

    A "+" is appended if tracked files differ from the commit, not counting reliability/results.
    """
    try:
        head = _git("rev-parse", "--verify", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!reliability/results")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+" if changed else head


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    print(commit() or "")
