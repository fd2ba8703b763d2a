"""PCD, the format of PCL: ascii, binary and LZF-compressed. Packed colors become separate columns."""

import math
import struct
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from .errors import FileError
from .memory import check_fits, check_unpacked
from .rows import decode, load_rows, write_rows
from .table import Array, Table, axes, converted_size, from_columns, peak_bytes, records, scalars

ENCODINGS = ("binary_compressed", "binary", "ascii")
KEYS = ("VERSION", "FIELDS", "COLUMNS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA")
NORMALS = {"normal_x": "nx", "normal_y": "ny", "normal_z": "nz"}
PADDING = b"\0\n"  # PCL pads compressed files to whole pages
LZF = 88  # maximum compression ratio: 3 bytes encode a back-reference of 264 bytes
MAX_COUNT = 100_000  # numbers in one field, as in descriptors and histograms
COLORS = {"red": 16, "green": 8, "blue": 0, "alpha": 24}  # bit offsets in the packed number


class Header(NamedTuple):
    version: str
    encoding: str
    points: int
    row: np.dtype[Any]  # dtype of one point; names of padding begin with a space


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
    names = {name: field for field, name in NORMALS.items()}
    columns = {names.get(name, name): column for name, column in _pack({**axes(table), **scalars(table)}).items()}
    columns = {name: column.astype(np.uint8) if column.dtype == bool else column for name, column in columns.items()}
    compressed = _compress(columns) if encoding == "binary_compressed" else None
    if encoding == "binary_compressed" and compressed is None:
        encoding = "binary"
    stream.write(_compose_header(columns, len(table), encoding))
    if encoding == "ascii":
        write_rows(stream, columns, " ")
    elif compressed is not None:
        stream.writelines(compressed)
    else:
        stream.write(records(columns, "<").data)


def _compose_header(columns: dict[str, Array], count: int, encoding: str) -> bytes:
    lines = {
        "VERSION": ["0.7"],
        "FIELDS": columns,
        "SIZE": [column.dtype.itemsize for column in columns.values()],
        "TYPE": [column.dtype.kind.upper() for column in columns.values()],
        "COUNT": [1] * len(columns),
        "WIDTH": [count],
        "HEIGHT": [1],
        "VIEWPOINT": ["0.0", "0.0", "0.0", "1.0", "0.0", "0.0", "0.0"],
        "POINTS": [count],
        "DATA": [encoding],
    }
    return "".join(f"{key} {' '.join(map(str, values))}\n" for key, values in lines.items()).encode()


def _compress(columns: dict[str, Array]) -> tuple[bytes, bytes] | None:
    """Return the two sizes and the compressed columns, or None if compression would not make them smaller."""
    import lzf

    plain = b"".join(column.astype(column.dtype.newbyteorder("<")).tobytes() for column in columns.values())
    packed = lzf.compress(plain)
    return None if packed is None else (struct.pack("<II", len(packed), len(plain)), packed)


def _header(stream: IO[bytes]) -> Header:
    lines = {"VERSION": ["0.7"], "HEIGHT": ["1"]}
    while "DATA" not in lines:
        raw = stream.readline(4096)
        words = raw.decode("ascii", "replace").partition("#")[0].split()
        if words and words[0] in KEYS:
            lines[words[0]] = words[1:]
        elif words or not raw:
            found = repr(raw[:40]) if raw else "the end of the file"
            raise FileError(f"expected a PCD header that ends with DATA, found {found}")
    fields = lines.get("FIELDS") or lines.get("COLUMNS") or []  # COLUMNS in versions before 0.5
    lines.setdefault("COUNT", ["1"] * len(fields))
    for key in ("SIZE", "TYPE", "COUNT"):
        if len(lines.get(key, [])) != len(fields):
            raise FileError(f"expected one {key} for each of the fields {' '.join(fields)}, found {lines.get(key)}")
    sizes = {key: _count(key, lines) for key in ("WIDTH", "HEIGHT", "POINTS")}
    if sizes["WIDTH"] * sizes["HEIGHT"] != sizes["POINTS"]:
        raise FileError(f"expected WIDTH times HEIGHT points, found {sizes}")
    encoding = " ".join(lines["DATA"])
    if encoding not in ENCODINGS:
        raise FileError(f"expected DATA {', '.join(ENCODINGS)}, found {encoding}")
    columns = zip(fields, lines["TYPE"], lines["SIZE"], lines["COUNT"], strict=True)
    row = [(f" {position}" if c[0] == "_" else c[0], *_type(*c[1:])) for position, c in enumerate(columns)]
    return Header(" ".join(lines["VERSION"]), encoding, sizes["POINTS"], np.dtype(row))


def _count(key: str, lines: dict[str, list[str]]) -> int:
    value = " ".join(lines.get(key, ["nothing"]))
    if not value.isdigit() or len(value) > 18:
        raise FileError(f"expected a number for {key}, found {value[:40]}")
    return int(value)


def _type(kind: str, size: str, count: str) -> tuple[str, tuple[int, ...]]:
    if kind not in "FIU" or size not in (("4", "8") if kind == "F" else ("1", "2", "4", "8")):
        raise FileError(f"expected numbers of type F, I or U and 1, 2, 4 or 8 bytes, found {kind} and {size}")
    if not count.isdigit() or not 1 <= int(count) <= MAX_COUNT:
        raise FileError(f"expected a COUNT from 1 to {MAX_COUNT}, found {count}")
    return f"<{kind.lower()}{size}", (int(count),) if int(count) > 1 else ()


def _binary(body: bytes, header: Header) -> Array:
    need = header.points * header.row.itemsize
    if len(body) < need or body[need:].strip(PADDING):
        raise FileError(f"expected {header.points} points, found bytes for {len(body) // header.row.itemsize}")
    return np.frombuffer(body, header.row, header.points)


def _compressed(body: bytes, header: Header) -> Array:
    """Decompress points, which are stored column by column."""
    import lzf

    if len(body) < 8:
        raise FileError("expected the sizes of the compressed points, but the file ends before them")
    packed, size = struct.unpack("<II", body[:8])
    if size != header.points * header.row.itemsize:
        raise FileError(f"expected {header.points} points in {header.points * header.row.itemsize} bytes, found {size}")
    if packed > len(body) - 8 or body[8 + packed :].strip(PADDING):
        raise FileError(f"expected {packed} compressed bytes, found {len(body) - 8}")
    check_unpacked(size, packed, LZF, "points")
    features = sum(converted_size(each.base) * math.prod(each.shape) for each, *_ in (header.row.fields or {}).values())
    check_fits(len(body) + peak_bytes(header.points, size, max(size, features * header.points)), "points")
    plain = lzf.decompress(body[8 : 8 + packed], size)
    if plain is None or len(plain) != size:
        raise FileError(f"expected {packed} compressed bytes that decompress to {size}, found damaged data")
    data, start = np.empty(header.points, header.row), 0
    for name in header.row.names or ():
        data[name] = np.frombuffer(plain, header.row[name], header.points, start)
        start += header.row[name].itemsize * header.points
    return data


def _unpack(packed: Array, alpha: bool) -> dict[str, Array]:
    """Split 4-byte numbers of any type into red, green, blue (and alpha) as uint8."""
    bits = np.ascontiguousarray(packed).view(np.uint32)
    return {name: (bits >> shift).astype(np.uint8) for name, shift in COLORS.items() if alpha or name != "alpha"}


def _pack(columns: dict[str, Array]) -> dict[str, Array]:
    """Combine 8-bit colors into the packed number that other programs expect in PCD files."""
    colors = {name: columns[name] for name in COLORS if name in columns}
    if not {"red", "green", "blue"} <= colors.keys() or any(column.dtype != np.uint8 for column in colors.values()):
        return columns
    bits = np.zeros(len(columns["x"]), np.uint32)
    for name, column in colors.items():
        bits |= column.astype(np.uint32) << COLORS[name]
    packed = {"rgba" if "alpha" in colors else "rgb": bits}
    return {**{name: column for name, column in columns.items() if name not in colors}, **packed}
