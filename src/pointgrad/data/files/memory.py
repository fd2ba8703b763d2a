"""A file that says it is huge must not be believed before it is checked."""

import os
import stat
from pathlib import Path

from .errors import FileError

DEFLATE = 1032  # bytes that one byte of zlib, gzip or ZIP becomes at most
MOST_COLUMNS = 10_000  # each takes a kilobyte, however few points it has


def check_regular(path: Path) -> None:
    """A `FileError` for what is no file, such as a pipe, which may never end or never begin."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise FileError("expected a file, found a folder")
    if not stat.S_ISREG(mode):
        raise FileError("expected a file, found a device or a pipe")


def check_file(path: Path) -> None:
    """The same, and for an empty one."""
    check_regular(path)
    if not path.stat().st_size:
        raise FileError("expected a file with points, found an empty one")


def check_fits(size: int, what: str) -> None:
    """A `FileError` if so many bytes are more than this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise FileError(f"expected {what} to fit in memory ({memory / 2**30:.3g} GiB), found {size / 2**30:.3g} GiB")


def check_unpacked(size: int, packed: int, most: int, what: str) -> None:
    """A `FileError` if so many bytes cannot come out of `packed` ones, each of which gives at most `most`."""
    if size > packed * most:
        raise FileError(
            f"expected {what} of at most {packed * most} bytes, as {packed} in the file can hold, found {size}"
        )


def check_columns(count: int) -> None:
    if count > MOST_COLUMNS:
        raise FileError(f"expected at most {MOST_COLUMNS} columns, found {count}")
