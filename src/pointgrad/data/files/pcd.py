"""PCD of PCL: ascii, binary and LZF-compressed; packed colours are taken apart.

Written through pypcd4. Its reader is not used: it returns fewer points without a word where a binary file is cut."""

import struct
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from .errors import FileError
from .memory import check_unpacked
from .rows import decode, load_rows, write_rows
from .table import Array, Table, axes, from_columns, scalars

ENCODINGS = ("binary_compressed", "binary", "ascii")
KEYS = ("VERSION", "FIELDS", "COLUMNS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA")
NORMALS = {"normal_x": "nx", "normal_y": "ny", "normal_z": "nz"}
PADDING = b"\0\n"  # PCL fills compressed files up to whole pages
LZF = 88  # bytes that one compressed byte becomes at most: three say "264 bytes as before"
MOST = 100_000  # numbers in one field, as in descriptors and histograms
COLOURS = {"red": 16, "green": 8, "blue": 0, "alpha": 24}  # bits of the packed number


class Header(NamedTuple):
    version: str
    encoding: str
    points: int
    row: np.dtype[Any]  # of one point; padding has names that begin with a blank


def read(path: Path) -> Table:
    with open(path, "rb") as stream:
        header = _header(stream)
        body = stream.read()
    if header.encoding == "ascii":
        data = load_rows(decode(body).splitlines(), header.row, header.points, "points")
    else:
        data = (_binary if header.encoding == "binary" else _compressed)(body, header)
    columns: dict[str, Array] = {}
    for name in header.row.names or ():
        packed = name in ("rgb", "rgba") and header.row[name].itemsize == 4 and data[name].ndim == 1
        if packed:
            columns |= _unpack(data[name], name == "rgba")
        elif not name.startswith(" "):
            columns[NORMALS.get(name, name)] = data[name]
    return from_columns(columns, kind=f"PCD {header.version}, {header.encoding}")


def write(stream: IO[bytes], table: Table, encoding: str) -> None:
    from pypcd4 import Encoding, PointCloud

    names = {name: field for field, name in NORMALS.items()}
    columns = {names.get(name, name): column for name, column in _pack({**axes(table), **scalars(table)}).items()}
    columns = {name: column.astype(np.uint8) if column.dtype == bool else column for name, column in columns.items()}
    cloud = PointCloud.from_points(tuple(columns.values()), tuple(columns), [c.dtype for c in columns.values()])
    if encoding == "ascii":  # pypcd4 writes ten decimals, which is too few for small numbers
        stream.write(cloud.metadata.compose_header(Encoding.ASCII).encode())
        write_rows(stream, columns, " ")
    else:
        cloud.save(stream, Encoding(encoding))  # type: ignore[arg-type]  # any binary stream will do


def _header(stream: IO[bytes]) -> Header:
    lines = {"VERSION": ["0.7"], "HEIGHT": ["1"]}
    while "DATA" not in lines:
        raw = stream.readline(4096)
        words = raw.decode("ascii", "replace").partition("#")[0].split()
        if words and words[0] in KEYS:
            lines[words[0]] = words[1:]
        elif words or not raw:
            found = repr(raw[:40]) if raw else "the end of the file"
            raise FileError(f"expected a PCD header up to DATA, found {found}")
    fields = lines.get("FIELDS") or lines.get("COLUMNS") or []  # the second in versions before 0.5
    lines.setdefault("COUNT", ["1"] * len(fields))
    for key in ("SIZE", "TYPE", "COUNT"):
        if len(lines.get(key, [])) != len(fields):
            raise FileError(f"expected {key} for each of the fields {' '.join(fields)}, found {lines.get(key)}")
    sizes = {key: _count(key, lines) for key in ("WIDTH", "HEIGHT", "POINTS")}
    if sizes["WIDTH"] * sizes["HEIGHT"] != sizes["POINTS"]:
        raise FileError(f"expected WIDTH times HEIGHT points, found {sizes}")
    encoding = " ".join(lines["DATA"])
    if encoding not in ENCODINGS:
        raise FileError(f"expected DATA {', '.join(ENCODINGS)}, found {encoding}")
    columns = zip(fields, lines["TYPE"], lines["SIZE"], lines["COUNT"], strict=True)
    row = [(f" {place}" if c[0] == "_" else c[0], *_type(*c[1:])) for place, c in enumerate(columns)]
    return Header(" ".join(lines["VERSION"]), encoding, sizes["POINTS"], np.dtype(row))


def _count(key: str, lines: dict[str, list[str]]) -> int:
    value = " ".join(lines.get(key, ["nothing"]))
    if not value.isdigit() or len(value) > 18:
        raise FileError(f"expected a number at {key}, found {value[:40]}")
    return int(value)


def _type(kind: str, size: str, count: str) -> tuple[str, tuple[int, ...]]:
    if kind not in "FIU" or size not in (("4", "8") if kind == "F" else ("1", "2", "4", "8")):
        raise FileError(f"expected numbers of type F, I or U and 1, 2, 4 or 8 bytes, found {kind} and {size}")
    if not count.isdigit() or not 1 <= int(count) <= MOST:
        raise FileError(f"expected a COUNT of 1 to {MOST}, found {count}")
    return f"<{kind.lower()}{size}", (int(count),) if int(count) > 1 else ()


def _binary(body: bytes, header: Header) -> Array:
    need = header.points * header.row.itemsize
    if len(body) < need or body[need:].strip(PADDING):
        raise FileError(f"expected {header.points} points, found bytes for {len(body) // header.row.itemsize}")
    return np.frombuffer(body, header.row, header.points)


def _compressed(body: bytes, header: Header) -> Array:
    """Column after column, not point after point."""
    import lzf  # of pypcd4

    if len(body) < 8:
        raise FileError("expected the sizes of compressed points, the file ends before")
    packed, size = struct.unpack("<II", body[:8])
    if size != header.points * header.row.itemsize:
        raise FileError(f"expected {header.points} points in {header.points * header.row.itemsize} bytes, found {size}")
    if packed > len(body) - 8 or body[8 + packed :].strip(PADDING):
        raise FileError(f"expected {packed} compressed bytes, found {len(body) - 8}")
    check_unpacked(size, packed, LZF, "points")
    plain = lzf.decompress(body[8 : 8 + packed], size)
    if plain is None or len(plain) != size:
        raise FileError(f"expected {size} bytes to come out of {packed} compressed ones, found others")
    data, start = np.empty(header.points, header.row), 0
    for name in header.row.names or ():
        data[name] = np.frombuffer(plain, header.row[name], header.points, start)
        start += header.row[name].itemsize * header.points
    return data


def _unpack(packed: Array, alpha: bool) -> dict[str, Array]:
    """red, green, blue (and alpha) as uint8, from a number whose bytes they are, whatever its type says."""
    bits = np.ascontiguousarray(packed).view(np.uint32)
    return {name: (bits >> shift).astype(np.uint8) for name, shift in COLOURS.items() if alpha or name != "alpha"}


def _pack(columns: dict[str, Array]) -> dict[str, Array]:
    """8-bit colours as the packed number that other programs of PCD look for."""
    colours = {name: columns[name] for name in COLOURS if name in columns}
    if not {"red", "green", "blue"} <= colours.keys() or any(column.dtype != np.uint8 for column in colours.values()):
        return columns
    bits = np.zeros(len(columns["x"]), np.uint32)
    for name, column in colours.items():
        bits |= column.astype(np.uint32) << COLOURS[name]
    packed = {"rgba" if "alpha" in colours else "rgb": bits}
    return {**{name: column for name, column in columns.items() if name not in colours}, **packed}
