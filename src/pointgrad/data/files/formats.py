"""File formats by suffix."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import e57, hdf5, kitti, las, npy, obj, off, pcd, ply, stl, text
from .errors import FileError
from .table import Table

LAS = ("las", "laz")


class Format(NamedTuple):
    """Reader and writer of a file format.

    Attributes:
        read: Called as `read(path)`, or as `read(path, columns)` if `unnamed`.
        write: Called as `write(stream, table)`, or as `write(stream, table, encoding)` if there are `encodings`. None
            if the format cannot be written.
        encodings: Encodings of the format; the first is the default.
        unnamed: Whether files lack column names.
        holds: Columns that can be written besides x, y, z. None: all.
        single: Whether coordinates and columns are written as float32.
        sampled: Default number of points sampled from the faces. 0: the vertices are the points.
    """

    read: Callable[..., Table]
    write: Callable[..., None] | None
    encodings: Sequence[str] = ()
    unnamed: bool = False
    holds: Sequence[str] | None = None
    single: bool = False
    sampled: int = 0


def _text(delimiter: str, packed: bool = False) -> Format:
    return Format(text.read, partial(text.write, delimiter=delimiter, packed=packed), unnamed=True)


def _sweep(names: tuple[str, ...]) -> Format:
    reader, writer = partial(kitti.read, names=names), partial(kitti.write, names=names)
    return Format(reader, writer, unnamed=True, holds=names[3:], single=True)


FORMATS = {
    "ply": Format(ply.read, ply.write, ply.ENCODINGS),
    "pcd": Format(pcd.read, pcd.write, pcd.ENCODINGS),
    "las": Format(las.read, partial(las.write, packed=False)),
    "laz": Format(las.read, partial(las.write, packed=True)),
    "e57": Format(e57.read, None),
    "off": Format(off.read, off.write, holds=()),
    "obj": Format(obj.read, obj.write, holds=()),
    "stl": Format(stl.read, None, sampled=10_000),
    "xyz": _text(" "),
    "txt": _text(" "),
    "csv": _text(","),
    "xyz.gz": _text(" ", packed=True),
    "txt.gz": _text(" ", packed=True),
    "csv.gz": _text(",", packed=True),
    "npy": Format(npy.read_npy, npy.write_npy, unnamed=True),
    "npz": Format(npy.read_npz, npy.write_npz),
    "bin": _sweep(kitti.KITTI),
    "pcd.bin": _sweep(kitti.NUSCENES),
    "h5": Format(hdf5.read, hdf5.write),
    "hdf5": Format(hdf5.read, hdf5.write),
}


def choose(path: Path, name: str | None) -> str:
    """Return the format called `name`, or the format of the file's suffix if `name` is None."""
    chosen = name.lower().lstrip(".") if name is not None else _suffix(path)
    if chosen not in FORMATS:
        raise FileError(f"expected one of the formats {', '.join(FORMATS)}, got {chosen or 'no suffix'}")
    return chosen


def _suffix(path: Path) -> str:
    """Return the longest known suffix: pcd.bin takes precedence over bin."""
    parts = path.name.lower().split(".")[1:]
    ends = [".".join(parts[start:]) for start in range(len(parts))]
    return next((end for end in ends if end in FORMATS), parts[-1] if parts else "")
