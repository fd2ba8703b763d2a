"""Which file reads and writes which suffix."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import las, npy, off, ply, text
from .errors import FileError
from .table import Table


class Format(NamedTuple):
    """read(path), or read(path, columns) where `unnamed`. write(stream, table), and with `encodings` one of them. Where
    not `wide` only coordinates are written."""

    read: Callable[..., Table]
    write: Callable[..., None] | None
    encodings: Sequence[str] = ()
    unnamed: bool = False
    wide: bool = True


def _text(comma: str, packed: bool) -> Format:
    return Format(text.read, partial(text.write, comma=comma, packed=packed), unnamed=True)


FORMATS = {
    "ply": Format(ply.read, ply.write, ply.ENCODINGS),
    "las": Format(las.read, partial(las.write, packed=False)),
    "laz": Format(las.read, partial(las.write, packed=True)),
    "off": Format(off.read, off.write, wide=False),
    "xyz": _text(" ", False),
    "txt": _text(" ", False),
    "csv": _text(",", False),
    "xyz.gz": _text(" ", True),
    "txt.gz": _text(" ", True),
    "csv.gz": _text(",", True),
    "npy": Format(npy.read_npy, npy.write_npy, unnamed=True),
    "npz": Format(npy.read_npz, npy.write_npz),
}


def choose(path: Path, name: str | None) -> Format:
    """The format of that name, or of the file's suffix."""
    name = name.lower().lstrip(".") if name is not None else _suffix(path)
    if name not in FORMATS:
        raise FileError(f"expected one of the formats {', '.join(FORMATS)}, got {name or 'no suffix'}")
    return FORMATS[name]


def _suffix(path: Path) -> str:
    """The longest known end of the name: pcd.bin before bin."""
    parts = path.name.lower().split(".")[1:]
    ends = [".".join(parts[start:]) for start in range(len(parts))]
    return next((end for end in ends if end in FORMATS), parts[-1] if parts else "")
