"""What goes wrong with files, as one sentence that begins with the file's path."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import NoReturn

LONGEST = 1000  # characters of a message


class FileError(ValueError):
    """A file that cannot be read or written. One line: the path, what was expected, what was found."""


@contextmanager
def naming(path: str | PathLike[str], task: str) -> Iterator[None]:
    """Turns whatever a format, its library or the disk raises into a `FileError` that begins with the path.

    task: what was tried, for errors that do not say, as in "a.ply: expected a PLY file that can be read, got ...".
    """
    try:
        yield
    except FileError as error:
        raise FileError(f"{path}: {_short(str(error))}") from error.__cause__
    except ModuleNotFoundError as error:  # nothing is wrong with the file
        raise ModuleNotFoundError(f"{path}: needs {error.name}: pip install 'pointgrad[io]'", name=error.name) from None
    except OSError as error:
        raise FileError(f"{path}: expected {task}, got: {error.strerror or _line(error)}") from error
    except MemoryError as error:
        raise FileError(f"{path}: expected {task}, got more than fits in memory") from error
    except Exception as error:
        _foreign(path, task, error)
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # of libraries in Rust; not an Exception
            _foreign(path, task, error)
        raise


def _foreign(path: str | PathLike[str], task: str, error: BaseException) -> NoReturn:
    raise FileError(f"{path}: expected {task}, got: {_line(error)}") from error


def _short(text: str) -> str:
    """In one line, and not endless: names in files have any sign and any length."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _line(error: BaseException) -> str:
    first = _short((str(error).splitlines() or [""])[0])
    return first if " " in first else f"{type(error).__name__} {first}".strip()  # a KeyError is only the key
