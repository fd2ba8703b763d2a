"""Writing the files of a run with `pointgrad.writing`; errors of the disk become `WriteError`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pointgrad.errors import PrintableError
from pointgrad.writing import replace_bytes


class WriteError(PrintableError, RuntimeError):
    """A file could not be written; its previous content is intact."""


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk into a `WriteError` that names the file."""
    try:
        yield
    except OSError as error:
        intact = "; its previous content is intact" if path.is_file() else ""
        raise WriteError(f"{path}: cannot be written: {error.strerror}{intact}") from error


def write_atomically(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Replace a file as a whole.

    Args:
        path: File to write.
        content: New content.
        previous: Where to keep the old file.

    Raises:
        WriteError: The file cannot be written.
    """
    with write_errors(path):
        replace_bytes(path, content, previous)
