"""PLY: ascii and binary of both byte orders, vertices with all their properties, and faces."""

import struct
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import FileError
from .memory import check_columns
from .mesh import triangles
from .ply_header import ENCODINGS as ENCODINGS
from .ply_header import Element, compose_header, ends, read_header
from .rows import decode, load_rows, write_rows
from .table import Array, Table, axes, from_columns, records, scalars

INDICES = ("vertex_indices", "vertex_index")  # names of the list of corners of a face
INT32 = np.iinfo(np.int32)
_ORDER: dict[str, Literal["<", ">"]] = {"binary_little_endian": "<", "binary_big_endian": ">"}


class Lists(NamedTuple):
    """R integer lists: their sizes (R,) and their concatenated values."""

    sizes: NDArray[np.int64]
    values: NDArray[np.int64]


def read(path: Path) -> Table:
    raw = path.read_bytes()
    encoding, elements, start = read_header(raw)
    found = {element.name: element for element in elements}
    if "vertex" not in found:
        raise FileError(f"expected an element vertex, found {', '.join(found) or 'none'}")
    if lists := [each.name for each in found["vertex"].properties if each.length]:
        raise FileError(f"expected vertex properties that are single numbers, found the list {lists[0]}")
    check_columns(len(found["vertex"].properties))
    index = None
    if "face" in found and found["face"].count:
        index = next((each for each in found["face"].properties if each.length and each.name in INDICES), None)
        if index is None or index.type[0] == "f":
            names = ", ".join(each.name for each in found["face"].properties)
            raise FileError(f"expected an integer list vertex_indices in the element face, found {names}")
    wanted = "" if index is None else index.name
    vertices, faces = (_text if encoding == "ascii" else _binary)(raw, start, elements, encoding, wanted)
    corners = None if faces is None else triangles(faces.sizes, faces.values, len(vertices))
    words = {"ascii": "ascii", "binary_little_endian": "binary little-endian"}.get(encoding, "binary big-endian")
    return from_columns(
        {name: vertices[name] for name in vertices.dtype.names or ()}, faces=corners, kind=f"PLY, {words}"
    )


def write(stream: IO[bytes], table: Table, encoding: str) -> None:
    columns = {name: _storable(name, column) for name, column in {**axes(table), **scalars(table)}.items()}
    stream.write(compose_header(encoding, len(table), {name: column.dtype for name, column in columns.items()}))
    if encoding == "ascii":
        write_rows(stream, columns, " ")
    else:
        stream.write(records(columns, _ORDER[encoding]).data)


def _binary(raw: bytes, start: int, elements: list[Element], encoding: str, wanted: str) -> tuple[Array, Lists | None]:
    order = _ORDER[encoding]
    vertices: Array = np.empty(0)
    faces = None
    for element in elements:
        if element.has_lists:
            keep = wanted if element.name == "face" else ""
            lists, start = _binary_lists(raw, start, element, order, keep)
            faces = lists if keep else faces
            continue
        row = element.row(order)
        if element.count * row.itemsize > len(raw) - start:
            ends(element, (len(raw) - start) // row.itemsize)
        if element.name == "vertex":
            vertices = np.frombuffer(raw, row, element.count, start)
        start += element.count * row.itemsize
    if start < len(raw):
        raise FileError(f"expected the end of the file after the last element, found {len(raw) - start} more bytes")
    return vertices, faces


def _text(raw: bytes, start: int, elements: list[Element], _encoding: str, wanted: str) -> tuple[Array, Lists | None]:
    lines = [line for line in decode(raw[start:]).splitlines() if line and not line.isspace()]
    vertices: Array = np.empty(0)
    faces, position = None, 0
    for element in elements:
        rows = lines[position : position + element.count]
        position += element.count
        if len(rows) < element.count:
            ends(element, len(rows))
        if element.has_lists:
            keep = wanted if element.name == "face" else ""
            lists = _text_lists(rows, element, keep)
            faces = lists if keep else faces
        elif element.name == "vertex":
            vertices = load_rows(rows, element.row("="), element.count, "rows of vertex")
    if position < len(lines):
        raise FileError(f"expected {position} rows in all elements, found {len(lines)}")
    return vertices, faces


def _binary_lists(raw: bytes, start: int, element: Element, order: str, wanted: str) -> tuple[Lists, int]:
    """Read the lists called `wanted` of an element. Returns them and the position after its last row."""
    steps, gap = list[_Step](), 0
    kind = np.dtype("u1")
    for each in element.properties:
        number = np.dtype(order + each.type)
        gap += number.itemsize
        if each.length:
            count = np.dtype(order + each.length)
            steps.append(_Step(gap - number.itemsize, count, number.itemsize, each.name == wanted))
            gap = 0
        kind = number if each.name == wanted else kind
    begins, sizes, end = _alike(raw, start, element, steps, gap) or _walk(raw, start, element, steps, gap)
    position = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
    positions = np.repeat(begins, sizes) + position * kind.itemsize
    numbers = np.frombuffer(raw, np.uint8)[positions[:, None] + np.arange(kind.itemsize)].view(kind).reshape(-1)
    return Lists(sizes, numbers.astype(np.int64)), end


class _Step(NamedTuple):
    """A list in a row: bytes between it and the list before, dtype of its length, and bytes per value."""

    gap: int
    length: np.dtype[Any]
    width: int
    wanted: bool


_Found = tuple[NDArray[np.int64], NDArray[np.int64], int]  # starts and sizes of the wanted lists, end of the element


def _alike(raw: bytes, start: int, element: Element, steps: list[_Step], gap: int) -> _Found | None:
    """Locate all lists at once if rows have one list each, of equal size, as in most meshes; otherwise None."""
    step = steps[0]
    first = start + step.gap
    if len(steps) > 1 or not element.count or first + step.length.itemsize > len(raw):
        return None
    size = int(np.frombuffer(raw, step.length, 1, first)[0])
    stride = step.gap + step.length.itemsize + size * step.width + gap
    if size < 0 or element.count * stride > len(raw) - start:
        return None
    if (np.ndarray(element.count, step.length, raw, first, (stride,)) != size).any():
        return None
    begins = first + step.length.itemsize + stride * np.arange(element.count if step.wanted else 0)
    return begins, np.full(len(begins), size), start + element.count * stride


def _walk(raw: bytes, start: int, element: Element, steps: list[_Step], gap: int) -> _Found:
    """Locate lists row by row, because the size of each determines the position of the next."""
    keep = any(step.wanted for step in steps)
    begins, sizes = (np.zeros(element.count if keep else 0, np.int64) for _ in range(2))
    lengths = [struct.Struct(step.length.byteorder.replace("|", "<") + step.length.char) for step in steps]
    position = start
    for row in range(element.count):
        for step, length in zip(steps, lengths, strict=True):
            begin = position + step.gap + length.size
            if begin > len(raw):
                ends(element, row)
            (size,) = length.unpack_from(raw, begin - length.size)
            position = begin + size * step.width
            if not begin <= position <= len(raw):
                ends(element, row)
            if step.wanted:
                begins[row], sizes[row] = begin, size
        position += gap
    if position > len(raw):
        ends(element, element.count - 1)
    return begins, sizes, position


def _text_lists(rows: Sequence[str], element: Element, wanted: str) -> Lists:
    found: list[list[str]] = []
    for line in rows:
        words, position = line.split(), 0
        for each in element.properties:
            size = int(words[position]) if each.length and position < len(words) and words[position].isdecimal() else 0
            position += 1 + size
            if each.name == wanted:
                found.append(words[position - size : position])
        if position != len(words):
            raise FileError(
                f"expected a row of {element.name} with the size of each list before it, found {line[:60]!r}"
            )
    try:
        numbers = np.array([int(word) for word in chain.from_iterable(found)], np.int64)
    except (ValueError, OverflowError):
        raise FileError(f"expected integers in {wanted}, found other values") from None
    return Lists(np.array([len(words) for words in found], np.int64), numbers)


def _storable(name: str, column: Array) -> Array:
    """Convert a column to a PLY type: the format has no 64-bit integers and no booleans."""
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
