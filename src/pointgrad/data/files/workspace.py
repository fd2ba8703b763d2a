"""Temporary folders for files in progress, and publishing of complete files with `pointgrad.writing`."""

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pointgrad import writing
from pointgrad.locking import try_lock

from .errors import FileError

# Flags that Windows lacks. A pipe or link with the name of an abandoned folder is neither opened nor followed.
FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def workspace(target: Path, parent: Path) -> Iterator[Path]:
    """Create a hidden temporary folder in `parent` for making a file; it is removed at the end.

    Folders that killed processes left behind for the same file are removed too. A folder in use is locked, and the
    system releases the lock when its process ends. Without support for locks, abandoned folders are not removed.

    Args:
        target: The file to be made.
        parent: The parent of the temporary folder.

    Yields:
        The temporary folder.
    """
    prefix = f".{target.name[:40]}.pointgrad-"
    _remove_abandoned(parent, prefix)
    with ExitStack() as handles:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            with suppress(OSError):
                if not handles.enter_context(_locked(folder)):
                    continue  # another process took it for abandoned and is removing it
            if folder.exists():
                break
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def publish(made: Path, target: Path, overwrite: bool) -> None:
    """Move a complete file to its name, atomically.

    Raises:
        FileError: If the target exists and `overwrite` is false, or the file cannot be moved.
    """
    with disk_errors(target):
        try:
            writing.publish(made, target, overwrite=overwrite)
        except FileExistsError:
            raise exists(target) from None


def publish_bytes(path: Path, content: bytes, overwrite: bool) -> None:
    """Write a small file atomically, and create its folder if necessary.

    Raises:
        FileError: If the file exists and `overwrite` is false, or it cannot be written.
    """
    with disk_errors(path):
        writing.make_folder(path.parent)
        try:
            writing.replace_bytes(path, content, overwrite=overwrite)
        except FileExistsError:
            raise exists(path) from None


def exists(target: Path) -> FileError:
    return FileError(f"{target}: already exists; set overwrite to replace it")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert an `OSError` into a `FileError` that names the file."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path}: expected a file that can be written, got: {error.strerror or error}") from error


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for name in glob.glob(glob.escape(prefix) + "*", root_dir=parent) if parent.is_dir() else ():
        with suppress(OSError), _locked(parent / name) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(parent / name, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Try to lock a folder. Yields whether the lock was obtained; raises `OSError` without support for locks."""
    handle = os.open(folder, FOLDER)
    try:
        yield try_lock(handle, "handle")
    finally:
        os.close(handle)
