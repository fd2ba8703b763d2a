"""Lines of numbers, shared by the text formats."""

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import FileError
from .table import Array

ROWS = 1 << 16  # written at once
_filters = threading.Lock()  # warning filters are global to the process


def read_text(path: Path) -> str:
    return decode(path.read_bytes())


def decode(raw: bytes, position: int = 0) -> str:
    """Decode text that begins at a position of a file."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_text(error, position) from error


def not_text(error: UnicodeDecodeError, position: int) -> FileError:
    return FileError(f"expected text, found the byte {error.object[error.start]:#04x} at {position + error.start}")


def load_rows(lines: Sequence[str], dtype: Any, count: int, what: str) -> Array:
    """Parse exactly `count` lines, not counting blank ones, to (N,) if `dtype` has fields, else to (N, C)."""
    rows = [line for line in lines if line and not line.isspace()]
    if len(rows) != count:
        raise FileError(f"expected {count} {what}, found {len(rows)}")
    if not count:
        return np.empty(0, dtype)
    try:
        return parse_rows(rows, dtype=dtype, comments=None, ndmin=1 if np.dtype(dtype).names else 2)
    except ValueError as error:
        raise FileError(f"expected {what} as numbers, found: {str(error).partition(';')[0]}") from error


def parse_rows(source: Any, **options: Any) -> Array:
    """`np.loadtxt`, except that a fraction in an integer column is an error in every version (NumPy < 2.4 warns)."""
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        return np.loadtxt(source, **options)
    with _filters, warnings.catch_warnings():
        warnings.filterwarnings("error", r"loadtxt\(\): Parsing an integer via a float", DeprecationWarning)
        return np.loadtxt(source, **options)


def write_rows(stream: IO[bytes], columns: Mapping[str, Array], delimiter: str) -> None:
    """Write each number with the fewest digits that restore it in its dtype; see `doubles` for files without dtypes."""
    for start in range(0, len(next(iter(columns.values()))), ROWS):
        rows = zip(*(_texts(column[start : start + ROWS]) for column in columns.values()), strict=True)
        stream.write("".join(delimiter.join(row) + "\n" for row in rows).encode())


def _texts(column: Array) -> Iterable[str]:
    if column.dtype == bool:
        column = column.astype(np.uint8)
    if column.dtype in (np.float64, np.int64):  # same digits as NumPy, several times faster
        return map(repr, column.tolist())
    return column.astype(str).tolist()


def doubles(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Convert floats to float64, in which untyped text is read: float32 0.1 is 0.10000000149011612, not 0.1."""
    return {name: column.astype(np.float64) if column.dtype.kind == "f" else column for name, column in columns.items()}
