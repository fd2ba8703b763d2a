"""Checks of file type and declared sizes, so that a damaged header cannot exhaust memory."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from .errors import FileError

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

CGROUPS = Path("/sys/fs/cgroup")
PAGE = 4096  # bytes, where the system does not report it

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


def memory_limit() -> int:
    """Return the bytes that this process may use: the memory of the machine or of its control group (a container), or
    what is left of its address space (`ulimit -v`)."""
    limits = []
    page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else PAGE
    with suppress(AttributeError, ValueError, OSError):
        limits.append(page * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError, IndexError):
        own = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2].strip("/")
        for group in (CGROUPS / own, *(CGROUPS / own).parents):
            with suppress(OSError, ValueError):  # "max" is no limit
                limits.append(int((group / "memory.max").read_text()))
            if group == CGROUPS:
                break
    with suppress(OSError, ValueError):  # version 1 of control groups
        limits.append(int((CGROUPS / "memory" / "memory.limit_in_bytes").read_text()))
    if resource is not None:
        space = resource.getrlimit(resource.RLIMIT_AS)[0]
        with suppress(OSError, ValueError):
            if space != resource.RLIM_INFINITY:
                limits.append(space - page * int(Path("/proc/self/statm").read_text().split()[0]))
    return max(0, min(limits, default=1 << 62))


def check_fits(size: int, what: str) -> None:
    """Raise `FileError` if `size` bytes, the peak of reading and converting a file, exceed the memory limit."""
    memory = memory_limit()
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
