"""Writing files so that a kill at any moment leaves the old content or the new one, never half of it."""

import contextlib
import os
from pathlib import Path


class WriteError(RuntimeError):
    """A file could not be written; what it held before is intact."""


def write_atomically(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Writes beside the file, forces it to the disk, and puts it in place of the old one in one move. previous: where
    the old one goes instead of being lost; a kill between the two moves leaves only that."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # or a power cut may undo the move
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        with contextlib.suppress(OSError):
            if previous is not None and not path.exists():  # between the two moves
                os.replace(previous, path)
        kept = "; what it held before is intact" if path.exists() else ""
        raise WriteError(f"{path}: cannot be written: {error.strerror}{kept}") from error
