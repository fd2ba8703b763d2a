"""Lines of numbers, as several formats have them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import FileError
from .table import Array

ROWS = 1 << 16  # written at once


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
        return np.loadtxt(rows, dtype, comments=None, ndmin=1 if np.dtype(dtype).names else 2)
    except ValueError as error:
        raise FileError(f"expected {what} as numbers, found: {str(error).partition(';')[0]}") from error


def write_rows(stream: IO[bytes], columns: Mapping[str, Array], comma: str) -> None:
    """Each number in the fewest digits that read back as the same number of its own dtype."""
    plain = [column.astype(np.uint8) if column.dtype == bool else column for column in columns.values()]
    for start in range(0, len(plain[0]), ROWS):
        rows = zip(*(column[start : start + ROWS].astype(str).tolist() for column in plain), strict=True)
        stream.write("".join(comma.join(row) + "\n" for row in rows).encode())
