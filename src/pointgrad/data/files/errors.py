"""`FileError`, and the conversion of library errors into it."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import NoReturn

from pointgrad.errors import PrintableError, one_line, printable

EXTRAS = {"pye57": "e57"}  # by package; all others are in io
MAX_LENGTH = 1000  # characters of a message, which may contain names from a file


class FileError(PrintableError, ValueError):
    """A file cannot be read or written. The message is one line: path, expected content, actual content."""


@contextmanager
def naming(path: str | PathLike[str], task: str) -> Iterator[None]:
    """Convert any exception into a `FileError` whose message begins with the path.

    Args:
        path: The file being read or written.
        task: Expected content, for exceptions that are not a `FileError`: "a.ply: expected <task>, got: <exception>".

    Raises:
        FileError: For every exception in the block, except missing packages and interrupts.
        ModuleNotFoundError: If a package is missing; the message names the extra that installs it.
    """
    try:
        yield
    except FileError as error:
        raise FileError(f"{path}: {one_line(error, limit=MAX_LENGTH)}") from error.__cause__
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "", "io")
        raise ModuleNotFoundError(
            f"{printable(path)}: needs {error.name}: pip install 'pointgrad[{extra}]'", name=error.name
        ) from None
    except OSError as error:
        raise FileError(f"{path}: expected {task}, got: {error.strerror or _line(error)}") from error
    except MemoryError as error:
        raise FileError(f"{path}: expected {task}, got more than fits in memory") from error
    except Exception as error:
        _raise_converted(path, task, error)
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # raised by Rust libraries; not a subclass of Exception
            _raise_converted(path, task, error)
        raise


def _raise_converted(path: str | PathLike[str], task: str, error: BaseException) -> NoReturn:
    raise FileError(f"{path}: expected {task}, got: {_line(error)}") from error


def _line(error: BaseException) -> str:
    is_sentence = " " in str(error)  # the message of a KeyError is only the key
    return one_line(error, first=True, with_type=not is_sentence, limit=MAX_LENGTH)
