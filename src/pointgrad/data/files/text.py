"""XYZ, TXT and CSV, also gzipped: numbers separated by spaces, tabs, commas or semicolons, with optional header."""

import codecs
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from .errors import FileError
from .memory import check_columns, check_fits
from .rows import decode, doubles, not_text, parse_rows, write_rows
from .table import Array, Table, axes, default_names, from_columns, peak_bytes, scalars

GZIP = b"\x1f\x8b"  # first bytes of gzip files
COMMENTS = ("#", "//", "%")
LINE = 1 << 20  # maximum bytes of a line, and of all lines before the first numbers
INTEGER = re.compile(r"[+-]?\d+")


def read(path: Path, columns: Sequence[str] | None = None) -> Table:
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP
    heads, first, start = _start(path)
    delimiter = next((sign for sign in (";", ",") if sign in first), None)
    tokens = _split(first, delimiter)
    check_columns(len(tokens))
    names = list(columns or _names(heads, delimiter, len(tokens)) or default_names(len(tokens)))
    if len(names) != len(tokens):
        raise FileError(f"expected {len(names)} columns ({' '.join(names)}), found {len(tokens)}: {first[:60]!r}")
    if len(set(names)) < len(names):
        raise FileError(f"expected unique column names, found {' '.join(names)}")
    comments = _scan(path, len(tokens))
    values = _parse(path, start, delimiter, comments, len(tokens))
    found: dict[str, Array] = {name: values[:, position] for position, name in enumerate(names)}
    for position, (name, token) in enumerate(zip(names, tokens, strict=True)):
        column = values[:, position]
        if name.lower() in ("x", "y", "z") or not INTEGER.fullmatch(token) or not (column == np.floor(column)).all():
            continue
        if np.abs(column).max() < 2**53:
            found[name] = column.astype(np.int64)
        else:  # not exact in float64; the column stays float64 if int64 cannot hold it either
            with suppress(FileError):
                found[name] = _parse(path, start, delimiter, comments, 1, position)[:, 0]
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


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if it is gzipped."""
    with open(path, "rb") as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        with gzip.GzipFile(fileobj=file) if packed else nullcontext(file) as stream:
            yield stream  # type: ignore[misc]


def _start(path: Path) -> tuple[list[str], str, int]:
    """Return the header lines, the first line of numbers, and its line index."""
    heads: list[str] = []
    with _open(path) as stream:
        position = number = 0
        while raw := stream.readline(LINE + 1):
            line = decode(raw, position).strip()
            position += len(raw)
            _check_line(len(raw))
            if line and not line.startswith(COMMENTS):
                if _is_numbers(line):
                    return heads, line, number
                if any(not head.startswith(COMMENTS) for head in heads):
                    raise FileError(f"expected numbers, found line {number + 1}: {line[:60]!r}")
            if line:
                heads.append(line)
            if position > LINE:
                raise FileError(f"expected numbers within {LINE} bytes, found none")
            number += 1
    raise FileError("expected lines of numbers, found none")


def _scan(path: Path, width: int) -> list[str]:
    """Check the encoding, the length of lines, and the memory for rows of `width` numbers; return comment signs."""
    signs, decoder = set[str](), codecs.getincrementaldecoder("utf-8-sig")()
    position = rows = rest = 0  # rest: bytes after the last line break
    last = ""
    with _open(path) as stream:
        while True:
            raw = stream.read(LINE)
            try:
                text = last + decoder.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                raise not_text(error, position - (len(error.object) - len(raw))) from error
            signs.update(sign for sign in COMMENTS if sign in text)
            last = text[-1:]
            if not raw:
                return [sign for sign in COMMENTS if sign in signs]
            position += len(raw)
            rows += raw.count(b"\n")
            _check_line(rest + (raw.find(b"\n") if b"\n" in raw else len(raw)))
            rest = len(raw) - raw.rfind(b"\n") - 1 if b"\n" in raw else rest + len(raw)
            # Columns of integers are converted once more, and the array of all rows grows in steps of a quarter.
            check_fits(peak_bytes(rows, 10 * width * rows, 16 * max(width - 3, 0) * rows), "points")


def _check_line(length: int) -> None:
    if length > LINE:
        raise FileError(f"expected lines of at most {LINE} bytes, found a longer one")


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


def _parse(
    path: Path, start: int, delimiter: str | None, comments: list[str], width: int, only: int | None = None
) -> NDArray[np.generic]:
    """Parse all columns to float64 (N, width), or the column `only` to int64 (N, 1)."""
    try:
        with _open(path) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="\n") as text:
            return parse_rows(
                text,
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
