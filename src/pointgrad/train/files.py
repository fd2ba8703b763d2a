"""Writing files so that a kill at any moment leaves the old content or the new one, never half of it."""

from pathlib import Path

from pointgrad.writing import replace_bytes


class WriteError(RuntimeError):
    """A file could not be written; what it held before is intact."""


def write_atomically(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Puts it in place of the old content in one move, as `pointgrad.writing` does. previous: where the old file goes
    instead of being lost."""
    try:
        replace_bytes(path, content, previous)
    except OSError as error:
        kept = "; what it held before is intact" if path.exists() else ""
        raise WriteError(f"{path}: cannot be written: {error.strerror}{kept}") from error
