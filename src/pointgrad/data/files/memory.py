"""A file that says it is huge must not be believed before it is checked."""

import os

from .errors import FileError


def check_fits(size: int, what: str) -> None:
    """A `FileError` if so many bytes are more than this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise FileError(f"expected {what} to fit in memory ({memory / 2**30:.3g} GiB), found {size / 2**30:.3g} GiB")
