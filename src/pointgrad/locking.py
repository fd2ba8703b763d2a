"""Exclusive file locks on POSIX and Windows."""

import errno
import os
from types import ModuleType
from typing import Literal

fcntl: ModuleType | None
msvcrt: ModuleType | None
try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None
try:
    import msvcrt
except ModuleNotFoundError:  # POSIX
    msvcrt = None

LOCKED = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)  # errors that mean "held by another owner"
OFFSET = 1 << 30  # byte locked on Windows, beyond the content: locked bytes cannot be read there


def try_lock(handle: int, owner: Literal["process", "handle"] = "process") -> bool:
    """Lock an open file exclusively, without waiting.

    The lock is released when `handle` is closed, or when the process ends for any reason.

    Args:
        handle: Descriptor of a file that is open for writing. On POSIX an owner of `"handle"` may also lock a folder.
        owner: `"process"`: the lock is not inherited by forked children, and a second call of the same process
            succeeds. `"handle"`: the lock also excludes other descriptors of the same process. Windows has only the
            second kind, without inheritance.

    Returns:
        Whether the lock was obtained; False if another owner holds it.

    Raises:
        OSError: The platform or the file system does not support locks.
    """
    try:
        if fcntl is not None:
            lock = fcntl.lockf if owner == "process" else fcntl.flock
            lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            position = os.lseek(handle, 0, os.SEEK_CUR)
            os.lseek(handle, OFFSET, os.SEEK_SET)
            try:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(handle, position, os.SEEK_SET)
        else:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    except OSError as error:
        if error.errno in LOCKED:
            return False
        raise
    return True
