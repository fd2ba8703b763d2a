"""Files that appear under their name only when they are complete."""

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pointgrad.writing import make_folder

from .errors import FileError


@contextmanager
def workspace(target: Path, place: Path) -> Iterator[Path]:
    """A new hidden folder in `place` for what is needed to make a file; removed at the end, whatever happens.

    Folders that a killed process left for the same file are removed too. A lock, which dies with its process, tells
    them from those that another process is using.
    """
    pattern = f".{target.name[:40]}.pointgrad-"
    _remove_left(place, pattern)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=pattern, dir=place))
        lock = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: nothing is ever taken for left
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            break
        os.close(lock)  # another process took it for left, just before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def publish(made: Path, target: Path, overwrite: bool) -> None:
    """Gives a complete file its name. Another one of that name is replaced as a whole, or kept: then an error."""
    with writing(target):
        with open(made, "rb") as file:
            os.fsync(file.fileno())
        if overwrite:
            os.replace(made, target)
            return
        try:
            os.link(made, target)  # the only way that fails if there is one by now
        except FileExistsError:
            raise exists(target) from None
        except OSError:  # a file system without links
            if target.exists():
                raise exists(target) from None
            os.replace(made, target)


def publish_bytes(path: Path, content: bytes, overwrite: bool) -> None:
    """Writes a small file, as a whole or not at all."""
    with writing(path):
        make_folder(path.parent)
        with workspace(path, path.parent) as drafts:
            (drafts / path.name).write_bytes(content)
            publish(drafts / path.name, path, overwrite)


def exists(target: Path) -> FileError:
    return FileError(f"{target}: exists already and is not overwritten unless asked for")


def _remove_left(place: Path, pattern: str) -> None:
    for name in glob.glob(glob.escape(pattern) + "*", root_dir=place) if place.is_dir() else ():
        with suppress(OSError):
            lock = os.open(place / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # else it is none of ours
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place / name, ignore_errors=True)
            finally:
                os.close(lock)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Gives the name of the file to errors of the disk."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path}: expected a file that can be written, got: {error.strerror or error}") from error
