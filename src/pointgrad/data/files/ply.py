"""PLY, through plyfile: ascii and binary of both byte orders, the vertices with all their properties, and faces."""

import io
import os
import re
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import FileError
from .mesh import fan
from .rows import write_rows
from .table import Array, Table, axes, from_columns, records, scalars

ENCODINGS = ("binary_little_endian", "binary_big_endian", "ascii")
HEADER_LIMIT = 1 << 20  # bytes; a header is text of a few lines
INDICES = ("vertex_indices", "vertex_index")  # of a face
INT32 = np.iinfo(np.int32)


def read(path: Path) -> Table:
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        start = stream.read(HEADER_LIMIT)
        _check_counts(start, size)
        stream.seek(0)
        if re.search(rb"^format\s+ascii", start, re.MULTILINE):
            text = stream.read()
            ply = _parse(io.BytesIO(text))
            _check_lines(text, sum(element.count for element in ply))
        else:
            ply = _parse(stream)
            if rest := size - stream.tell():
                raise FileError(f"expected the end of the file after the last element, found {rest} more bytes")
    if "vertex" not in ply:
        raise FileError(f"expected an element vertex, found {', '.join(e.name for e in ply) or 'none'}")
    data = ply["vertex"].data
    lists = [name for name in data.dtype.names if data.dtype[name].hasobject]
    if lists:
        raise FileError(f"expected single numbers for each vertex, found the list {lists[0]}")
    encoding = "ascii" if ply.text else {"<": "binary little-endian", ">": "binary big-endian"}[ply.byte_order]
    faces = None
    if "face" in ply and len(ply["face"].data):
        names = ply["face"].data.dtype.names
        index = next((name for name in INDICES if name in names), None)
        if index is None:
            raise FileError(f"expected vertex_indices in the element face, found {', '.join(names)}")
        faces = fan(ply["face"].data[index], len(data))
    return from_columns({name: data[name] for name in data.dtype.names}, faces=faces, kind=f"PLY, {encoding}")


def write(stream: IO[bytes], table: Table, encoding: str) -> None:
    from plyfile import PlyData, PlyElement

    columns = {name: _storable(name, column) for name, column in {**axes(table), **scalars(table)}.items()}
    vertex = PlyElement.describe(records(columns), "vertex")
    if encoding == "ascii":  # plyfile's own text has 18 digits where fewer say the same
        stream.write(PlyData([vertex], text=True).header.encode("ascii") + b"\n")
        write_rows(stream, columns, " ")
    else:
        PlyData([vertex], byte_order="<" if encoding == "binary_little_endian" else ">").write(stream)


def _parse(stream: IO[bytes]) -> Any:
    """Maps the file where all faces are triangles, as most are; plyfile reads others one by one."""
    from plyfile import PlyData, PlyElementParseError

    try:
        try:
            return PlyData.read(stream, known_list_len={"face": dict.fromkeys(INDICES, 3)})
        except PlyElementParseError as error:
            if error.message != "unexpected list length":
                raise
        stream.seek(0)
        return PlyData.read(stream)
    except PlyElementParseError as error:
        if error.message != "early end-of-file":
            raise
        count, name = error.element.count, error.element.name
        raise FileError(f"expected {count} rows of {name}, the file ends after {error.row}") from error


def _check_counts(start: bytes, size: int) -> None:
    """Every row takes at least a byte: a larger count is wrong, and must not be allocated."""
    if not re.match(rb"ply\r?\n", start):
        raise FileError(f"expected a PLY file, which begins with the line ply, found {start[:10]!r}")
    header = start.partition(b"end_header")[0]
    for name, count in re.findall(rb"^element[ \t]+(\S+)[ \t]+(\S+)", header, re.MULTILINE):
        number = int(count) if count.isdigit() and len(count) < 20 else -1
        if not 0 <= number <= size:
            raise FileError(f"expected a count of {name.decode('ascii', 'replace')} that fits in {size} bytes, "
                            f"found {count.decode('ascii', 'replace')}")  # fmt: skip


def _check_lines(text: bytes, rows: int) -> None:
    """plyfile stops after the last row that the header counts."""
    _, _, body = text.partition(b"end_header")
    found = sum(1 for line in body.splitlines()[1:] if line.strip())
    if found != rows:
        raise FileError(f"expected {rows} rows in all elements, found {found}")


def _storable(name: str, column: Array) -> Array:
    """PLY has no 64-bit integers and no booleans."""
    if column.dtype == bool:
        return column.astype(np.uint8)
    if column.dtype.kind not in "iu" or column.dtype.itemsize < 8:
        return column
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    if INT32.min <= low and high <= INT32.max:
        return column.astype(np.int32)
    if max(-low, high) <= 2**53:
        return column.astype(np.float64)
    raise FileError(f"expected integers that PLY can store in {name}, got up to {max(-low, high)}")
