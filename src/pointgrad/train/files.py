"""Writing files so that a kill at any moment leaves the old content or the new one, never half of it."""

import contextlib
import glob
from pathlib import Path

from pointgrad.writing import replace_bytes


class WriteError(RuntimeError):
    """A file could not be written; what it held before is intact."""


def write_atomically(path: Path, content: bytes) -> None:
    """Puts it in place of the old content in one move, as `pointgrad.writing` does."""
    try:
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):  # of a run that was killed while it wrote
            with contextlib.suppress(OSError):
                left.unlink()
        replace_bytes(path, content)
    except OSError as error:
        kept = "; what it held before is intact" if path.exists() else ""
        raise WriteError(f"{path}: cannot be written: {error.strerror}{kept}") from error
