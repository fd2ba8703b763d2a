"""Checks of file type and declared sizes, so that a damaged header cannot exhaust memory."""

import os
import stat
from pathlib import Path

from .errors import FileError

DEFLATE = 1032  # maximum compression ratio of zlib, gzip and ZIP
MAX_COLUMNS = 10_000  # each takes about a kilobyte, even with few points


def check_regular(path: Path) -> None:
    """Raise `FileError` unless the path is a regular file. Reading a pipe could block forever."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise FileError("expected a file, found a folder")
    if not stat.S_ISREG(mode):
        raise FileError("expected a file, found a device or a pipe")


def check_file(path: Path) -> None:
    """Raise `FileError` unless the path is a regular file that is not empty."""
    check_regular(path)
    if not path.stat().st_size:
        raise FileError("expected a file with points, found an empty one")


def check_fits(size: int, what: str) -> None:
    """Raise `FileError` if `size` bytes exceed the machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise FileError(f"expected {what} to fit in memory ({memory / 2**30:.3g} GiB), found {size / 2**30:.3g} GiB")


def check_unpacked(size: int, packed: int, most: int, what: str) -> None:
    """Raise `FileError` if `packed` bytes cannot decompress to `size` bytes at the maximum ratio `most`."""
    if size > packed * most:
        raise FileError(
            f"expected {what} of at most {packed * most} bytes, which {packed} compressed bytes can hold, found {size}"
        )


def check_columns(count: int) -> None:
    if count > MAX_COLUMNS:
        raise FileError(f"expected at most {MAX_COLUMNS} columns, found {count}")
