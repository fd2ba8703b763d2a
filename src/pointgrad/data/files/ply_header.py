"""The header of a PLY file: encoding, elements and their properties."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .errors import FileError

ENCODINGS = ("binary_little_endian", "binary_big_endian", "ascii")
LIMIT = 1 << 20  # maximum bytes of a header
TYPES = {"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4",
         "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
         "float32": "f4", "float64": "f8"}  # fmt: skip
WRITTEN = {code: name for name, code in reversed(TYPES.items())}  # the older names, which every reader supports


class Property(NamedTuple):
    """A property with its NumPy type code; `length` is the type code of a list's size, empty for single numbers."""

    name: str
    type: str
    length: str


@dataclass
class Element:
    name: str
    count: int
    properties: list[Property]

    @property
    def has_lists(self) -> bool:
        return any(each.length for each in self.properties)

    def row(self, order: str) -> np.dtype[Any]:
        return np.dtype([(each.name, order + each.type) for each in self.properties])


def ends(element: Element, rows: int) -> NoReturn:
    raise FileError(f"expected {element.count} rows of {element.name}, but the file ends after {rows}")


def compose_header(encoding: str, count: int, types: Mapping[str, np.dtype[Any]]) -> bytes:
    """Write the header of a file with `count` vertices that have the given properties."""
    for name in types:
        if not name or not name.isascii():
            raise FileError(f"expected column names in ASCII, because PLY cannot store others, got {name!r}")
    properties = "".join(f"property {WRITTEN[dtype.str[1:]]} {name}\n" for name, dtype in types.items())
    return f"ply\nformat {encoding} 1.0\nelement vertex {count}\n{properties}end_header\n".encode("ascii")


def read_header(raw: bytes) -> tuple[str, list[Element], int]:
    """Read the encoding, the elements, and the position of their first row."""
    if not re.match(rb"ply\r?\n", raw):
        raise FileError(f"expected a PLY file, which begins with the line ply, found {raw[:10]!r}")
    encoding, elements, start = "", dict[str, Element](), raw.index(b"\n") + 1
    last: Element | None = None
    while True:
        end = raw.find(b"\n", start, LIMIT)
        if end < 0:
            raise FileError("expected a PLY header that ends with end_header, found no such line")
        line = raw[start:end].decode("ascii", "replace")
        words, start = line.split(), end + 1
        if words == ["end_header"] and encoding:
            return encoding, list(elements.values()), start
        if words[:1] == ["format"] and not encoding and words[2:] == ["1.0"] and words[1] in ENCODINGS:
            encoding = words[1]
        elif words[:1] == ["element"] and encoding and len(words) == 3:
            if words[1] in elements:
                raise FileError(f"expected unique element names, found {words[1]} twice")
            last = elements[words[1]] = Element(words[1], _count(words[1], words[2], len(raw)), [])
        elif words[:1] == ["property"] and last is not None:
            last.properties.append(_property(words[1:], line))
        elif words and words[0] not in ("comment", "obj_info"):
            raise FileError(f"expected a line of a PLY header, found {line[:60]!r}")


def _count(name: str, word: str, size: int) -> int:
    number = int(word) if word.isdecimal() and word.isascii() and len(word) < 20 else -1
    if not 0 <= number <= size:  # a row has at least one byte
        raise FileError(f"expected a number of {name} rows that fits in {size} bytes, found {word[:40]}")
    return number


def _property(words: list[str], line: str) -> Property:
    length = ""
    if len(words) == 4 and words[0] == "list":
        length, words = TYPES.get(words[1], ""), words[2:]
    if (
        len(words) != 2
        or words[0] not in TYPES
        or (length or "i")[0] == "f"
        or (not length and "list" in line.split()[1])
    ):
        raise FileError(f"expected a PLY property, found {line[:60]!r}")
    return Property(words[1], TYPES[words[0]], length)
