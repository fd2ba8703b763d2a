"""How everything is written: whole or not at all, and never through a link.

The file or folder that a user names may lie behind links. What is written in it may not: a link that somebody left
there must not lead out of it. A new file gets a fresh name beside its place and is then moved there, which replaces a
link and leaves alone what it points to; a folder or a log that is a link is refused.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path, previous: Path | None = None) -> Iterator[IO[bytes]]:
    """A stream whose content takes the file's place when all of it is on the disk, with the mode that the file had. If
    anything fails, what was there before is still there. previous: where the old file goes instead of being lost; a
    kill between the two moves leaves only that. Raises OSError."""
    if path.exists() and not path.is_file():  # also behind a link: /dev/stdout is one
        raise _no_file(path)
    draft = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.part")
    try:
        with open(draft, "x+b") as stream:  # fails if there is anything of that name, a link too
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if path.is_file() and not path.is_symlink():
            draft.chmod(path.stat().st_mode)
        if previous is not None and path.exists():
            os.replace(path, previous)
        try:
            os.replace(draft, path)
        except OSError:
            if previous is not None and not path.exists():
                os.replace(previous, path)
            raise
        _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def replace_bytes(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Writes a file that is in memory already."""
    with replacing(path, previous) as stream:
        stream.write(content)


def append(path: Path, content: bytes) -> None:
    """Adds to a file, or begins it. A link, a pipe or a device of that name is an OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would wait for its reader
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        raise _link(path) if path.is_symlink() else error from None
    with os.fdopen(handle, "ab") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _no_file(path)
        file.write(content)


def make_folder(root: Path, inside: str | Path = "") -> Path:
    """Makes the folder `inside` another one, and both if need be. The root may be a link, those in it may not."""
    root.mkdir(parents=True, exist_ok=True)
    folder = root
    for part in Path(inside).parts:
        folder = folder / part
        if folder.is_symlink() or part in ("..", os.sep):
            raise _link(folder)
        folder.mkdir(exist_ok=True)
    return folder


def _no_file(path: Path) -> OSError:
    return OSError(errno.EINVAL, "a folder or a device of that name", str(path))


def _link(path: Path) -> OSError:
    return OSError(errno.ELOOP, "a link, which may lead out of its folder", str(path))


def _sync(folder: Path) -> None:
    """Or a power cut may undo the move."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
