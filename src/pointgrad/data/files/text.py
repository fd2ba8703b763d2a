"""XYZ, TXT and CSV, also gzipped: numbers separated by spaces, tabs, commas or semicolons, with optional header."""

import gzip
import io
import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from .errors import FileError
from .memory import check_columns, check_fits
from .rows import decode, doubles, parse_rows, write_rows
from .table import Array, Table, axes, default_names, from_columns, scalars

GZIP = b"\x1f\x8b"  # first bytes of gzip files
COMMENTS = ("#", "//", "%")
INTEGER = re.compile(r"[+-]?\d+")


def read(path: Path, columns: Sequence[str] | None = None) -> Table:
    with open(path, "rb") as stream:
        packed = stream.read(2) == GZIP
    text = decode(_unpacked(path) if packed else path.read_bytes())
    heads, first, start = _start(text)
    delimiter = next((sign for sign in (";", ",") if sign in first), None)
    tokens = _split(first, delimiter)
    check_columns(len(tokens))
    names = list(columns or _names(heads, delimiter, len(tokens)) or default_names(len(tokens)))
    if len(names) != len(tokens):
        raise FileError(f"expected {len(names)} columns ({' '.join(names)}), found {len(tokens)}: {first[:60]!r}")
    if len(set(names)) < len(names):
        raise FileError(f"expected unique column names, found {' '.join(names)}")
    values = _parse(text, start, delimiter, len(tokens))
    found: dict[str, Array] = {name: values[:, position] for position, name in enumerate(names)}
    for position, (name, token) in enumerate(zip(names, tokens, strict=True)):
        column = values[:, position]
        if name.lower() in ("x", "y", "z") or not INTEGER.fullmatch(token) or not (column == np.floor(column)).all():
            continue
        if np.abs(column).max() < 2**53:
            found[name] = column.astype(np.int64)
        else:  # not exact in float64; the column stays float64 if int64 cannot hold it either
            with suppress(FileError):
                found[name] = _parse(text, start, delimiter, 1, position)[:, 0]
    kind = {None: "blanks", ",": "commas", ";": "semicolons"}[delimiter]
    return from_columns(found, kind=f"text, {kind}" + (", gzipped" if packed else ""))


def write(stream: IO[bytes], table: Table, *, delimiter: str, packed: bool) -> None:
    columns = doubles({**axes(table), **scalars(table)})
    if delimiter == " ":  # a comment, which programs without header support skip; not needed for x y z alone
        head = "" if len(columns) == 3 else "# " + " ".join(columns) + "\n"
    else:
        head = delimiter.join(columns) + "\n"
    zipped = gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=6, mtime=0, filename="") if packed else None
    with zipped or nullcontext(stream) as out:  # closes the gzip file before its stream, also after an error
        out.write(head.encode())
        write_rows(out, columns, delimiter)  # type: ignore[arg-type]


def _unpacked(path: Path) -> bytes:
    parts, total = [], 0
    with gzip.open(path, "rb") as stream:
        while part := stream.read(1 << 24):
            total += len(part)
            check_fits(2 * total, "text")
            parts.append(part)
    return b"".join(parts)


def _start(text: str) -> tuple[list[str], str, int]:
    """Return the header lines, the first line of numbers, and its line index."""
    heads: list[str] = []
    for number, line in enumerate(io.StringIO(text)):
        line = line.strip()
        if line and not line.startswith(COMMENTS):
            if _is_numbers(line):
                return heads, line, number
            if any(not head.startswith(COMMENTS) for head in heads):
                raise FileError(f"expected numbers, found line {number + 1}: {line[:60]!r}")
        if line:
            heads.append(line)
    raise FileError("expected lines of numbers, found none")


def _is_numbers(line: str) -> bool:
    try:
        return all(np.isreal(float(token)) for token in re.split(r"[\s,;]+", line))
    except ValueError:
        return False


def _split(line: str, delimiter: str | None) -> list[str]:
    return [token.strip().strip('"') for token in line.split(delimiter)]


def _names(heads: list[str], delimiter: str | None, count: int) -> list[str] | None:
    """Column names from the header. A comment counts as header if it has `count` names that include x, y and z."""
    for head in reversed(heads):
        names = _split(head.lstrip("#/% \t"), delimiter)
        if not head.startswith(COMMENTS):
            if len(names) != count:
                raise FileError(f"expected {len(names)} columns, as named in the header, found {count}")
            return names
        if len(names) == count and {"x", "y", "z"} <= {name.lower() for name in names}:
            return names
    return None


def _parse(text: str, start: int, delimiter: str | None, width: int, only: int | None = None) -> NDArray[np.generic]:
    """Parse all columns to float64 (N, width), or the column `only` to int64 (N, 1)."""
    comments = [sign for sign in COMMENTS if sign in text]
    try:
        return parse_rows(
            io.StringIO(text),
            dtype=np.float64 if only is None else np.int64,
            delimiter=delimiter,
            skiprows=start,
            comments=comments or None,
            usecols=only,
            ndmin=2,
        )
    except ValueError as error:
        reason = str(error).partition(";")[0]
        raise FileError(f"expected {width} numbers on every line, found: {reason}") from error
