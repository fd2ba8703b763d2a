"""Lines of numbers, as several formats have them."""

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import FileError
from .table import Array

ROWS = 1 << 16  # written at once
_filters = threading.Lock()  # what warnings do is one setting of the whole process


def read_text(path: Path) -> str:
    return decode(path.read_bytes())


def decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"expected text, found the byte {raw[error.start]:#04x} at {error.start}") from error


def load_rows(lines: Sequence[str], dtype: Any, count: int, what: str) -> Array:
    """Exactly `count` lines, blank ones aside, of the numbers of dtype: (N,) if it has fields, else (N, C)."""
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
    """`np.loadtxt`. A fraction in place of a whole number is an error also where NumPy, before 2.4, only warns."""
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        return np.loadtxt(source, **options)
    with _filters, warnings.catch_warnings():
        warnings.filterwarnings("error", r"loadtxt\(\): Parsing an integer via a float", DeprecationWarning)
        return np.loadtxt(source, **options)


def write_rows(stream: IO[bytes], columns: Mapping[str, Array], comma: str) -> None:
    """Each number in the fewest digits that read back as the same number of its own dtype: `doubles` for files that
    declare none."""
    for start in range(0, len(next(iter(columns.values()))), ROWS):
        rows = zip(*(_texts(column[start : start + ROWS]) for column in columns.values()), strict=True)
        stream.write("".join(comma.join(row) + "\n" for row in rows).encode())


def _texts(column: Array) -> Iterable[str]:
    if column.dtype == bool:
        column = column.astype(np.uint8)
    if column.dtype in (np.float64, np.int64):  # the same digits as NumPy's, several times faster
        return map(repr, column.tolist())
    return column.astype(str).tolist()


def doubles(columns: Mapping[str, Array]) -> dict[str, Array]:
    """float32 as float64, as which text without types is read: 0.1 in float32 is 0.10000000149011612, not 0.1."""
    return {name: column.astype(np.float64) if column.dtype.kind == "f" else column for name, column in columns.items()}
