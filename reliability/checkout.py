"""What was tried: the commit of this checkout; `python -m reliability.checkout` prints it. Needs Python only."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commit() -> str | None:
    """None outside of a checkout, or without git. A + means that files differ from it; results, which the programs
    write themselves, do not count."""
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
