"""Atomic file writing: a file is written completely or not at all, and never through a symbolic link.

The file or folder that a user names may lie behind symbolic links. Links inside that folder are not followed, because
they could lead out of it. A new file is written under a temporary name beside its target and then moved into place,
which replaces a link instead of following it. A link in place of a folder or a log is an error.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has neither of these
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe would wait for its reader


@contextmanager
def replacing(path: Path, previous: Path | None = None, *, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """Open a stream whose content replaces a file once all of it is on the disk.

    The new file keeps the mode of the old one. If anything fails, the old file is unchanged.

    Args:
        path: File to write.
        previous: Where to keep the old file. A kill between the two moves leaves only this one.
        overwrite: Whether an existing file is replaced.

    Yields:
        A binary stream, open for reading and writing.

    Raises:
        FileExistsError: The file exists and `overwrite` is False.
        OSError: The file cannot be written, or `path` is a folder or a device.
    """
    if path.exists() and not path.is_file():  # also behind a link, such as /dev/stdout
        raise _not_a_file(path)
    draft = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.part")
    try:
        with open(draft, "x+b") as stream:  # fails if the name exists, even as a link
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if path.is_file() and not path.is_symlink():
            draft.chmod(path.stat().st_mode)
        _move(draft, path, previous, overwrite)
    finally:
        draft.unlink(missing_ok=True)


def replace_bytes(path: Path, content: bytes, previous: Path | None = None, *, overwrite: bool = True) -> None:
    """Write `content` to a file; arguments and errors as for `replacing`."""
    with replacing(path, previous, overwrite=overwrite) as stream:
        stream.write(content)


def publish(draft: Path, path: Path, *, overwrite: bool = True) -> None:
    """Move a complete file, on the same file system, to its final name.

    Raises:
        FileExistsError: The target exists and `overwrite` is False.
        OSError: The file cannot be moved.
    """
    with open(draft, "r+b") as file:
        os.fsync(file.fileno())
    _move(draft, path, None, overwrite)


def append(path: Path, content: bytes) -> None:
    """Append to a file, or create it; after an error the file is as long as before.

    Raises:
        OSError: The disk is full, or `path` is a symbolic link, a pipe or a device.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_FOLLOW | NO_WAIT, 0o666)
    except OSError as error:
        raise _link(path) if path.is_symlink() else error from None
    size = None
    try:
        with os.fdopen(handle, "ab") as file:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise _not_a_file(path)
            size = state.st_size
            file.write(content)
    except OSError:
        if size is not None:
            with suppress(OSError):
                os.truncate(path, size)
        raise


def make_folder(root: Path, inside: str | Path = "") -> Path:
    """Create a folder below `root`, with its parents. `root` may be a symbolic link, folders below it may not.

    Raises:
        OSError: A folder cannot be created, or is a symbolic link.
    """
    root.mkdir(parents=True, exist_ok=True)
    folder = root
    for part in Path(inside).parts:
        folder = folder / part
        if folder.is_symlink() or part in ("..", os.sep):
            raise _link(folder)
        folder.mkdir(exist_ok=True)
    return folder


def _move(draft: Path, path: Path, previous: Path | None, overwrite: bool) -> None:
    if overwrite:
        if previous is not None and path.exists():
            os.replace(path, previous)
        try:
            os.replace(draft, path)
        except OSError:
            if previous is not None and not path.exists():
                os.replace(previous, path)
            raise
    else:
        try:
            os.link(draft, path)  # fails if the target exists by now, unlike a check before a move
            draft.unlink()
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            os.replace(draft, path)
    _sync(path.parent)


def _not_a_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "Is a folder or a device", str(path))


def _link(path: Path) -> OSError:
    return OSError(errno.ELOOP, "Is a symbolic link, which is not followed", str(path))


def _sync(folder: Path) -> None:
    """Write the folder to the disk; otherwise a power failure may undo a move."""
    if os.name == "nt":  # where folders cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
