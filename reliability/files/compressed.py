"""Highly compressed files, read by `corpus.py` and by tests where little memory is left.

Each holds many equal points. It is read, or refused, without using more memory than is left.
"""

import gzip
import io
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import laspy
import lzf
import numpy as np

LIMIT = 64 << 20  # bytes of memory left to the reader
SHARES = (600, 160, 50)  # bytes of memory per point: files of the first share must be read, of the last one refused


def _text(line: bytes, head: bytes = b"") -> Callable[[int], bytes]:
    return lambda rows: gzip.compress(head + line * rows, 6, mtime=0)


def _arrays(rows: int, **dtypes: str) -> dict[str, np.ndarray]:
    """Arrays of one cloud; coordinates of floating point are far from zero, which takes the most memory."""
    values = {name: 5000 if np.dtype(dtype).kind == "f" else 3 for name, dtype in dtypes.items()}
    widths = {"points": (3,), "descriptor": (20,)}
    return {name: np.full((rows, *widths.get(name, ())), values[name], kind) for name, kind in dtypes.items()}


def _clouds(rows: int, **dtypes: str) -> dict[str, np.ndarray]:
    """Arrays of a data set of clouds of a hundred points."""
    shapes = {"points": (rows // 100, 100, 3), "category": (rows // 100,)}
    return {name: np.zeros(shapes.get(name, (rows // 100, 100)), dtype) for name, dtype in dtypes.items()}


def _npz(make: Callable[..., dict[str, np.ndarray]], **dtypes: str) -> Callable[[int], bytes]:
    def build(rows: int) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in make(rows, **dtypes).items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, array)
        return stream.getvalue()

    return build


def _h5(make: Callable[..., dict[str, np.ndarray]], chunks: int = 4096, **dtypes: str) -> Callable[[int], bytes]:
    def build(rows: int) -> bytes:
        stream = io.BytesIO()
        with h5py.File(stream, "w") as file:
            for name, array in make(rows, **dtypes).items():
                shape = (min(chunks, len(array)), *array.shape[1:])
                file.create_dataset(name, data=array, compression="gzip", chunks=shape)
        return stream.getvalue()

    return build


def _pcd(fields: str, kind: str, size: int) -> Callable[[int], bytes]:
    def build(rows: int) -> bytes:
        count = len(fields.split())
        plain = bytes(rows * count * size)
        packed = lzf.compress(plain)
        head = (
            f"FIELDS {fields}\nSIZE {f'{size} ' * count}\nTYPE {f'{kind} ' * count}\nWIDTH {rows}\nHEIGHT 1\n"
            f"POINTS {rows}\nDATA binary_compressed\n"
        ).encode()
        return head + np.array([len(packed), len(plain)], "<u4").tobytes() + packed

    return build


def _laz(number: int, extra: int = 0) -> Callable[[int], bytes]:
    def build(rows: int) -> bytes:
        header: Any = laspy.LasHeader(point_format=number, version="1.2" if number < 6 else "1.4")
        for position in range(extra):
            header.add_extra_dim(laspy.ExtraBytesParams(f"extra{position}", "f8"))
        las = laspy.LasData(header, laspy.ScaleAwarePointRecord.zeros(rows, header=header))
        stream = io.BytesIO()
        las.write(stream, do_compress=True)
        return stream.getvalue()

    return build


def _examples(rows: int) -> bytes:
    """An evaluation with too many empty clouds."""
    names = ("sizes", "source", "kind", "right", "truth", "confidence")
    arrays = {name: np.zeros(rows, "U1" if name == "source" else "i8") for name in names}
    plain = {"format": 1, "epoch": 1, "task": "segmentation", "classes": ["a"], "confusion": [[1]], "clouds": 1}
    labels = {name: np.zeros(0, "i4") for name in ("target", "predicted")}
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays, **plain, **labels, points=np.zeros((0, 3), "f4"))  # type: ignore[arg-type]
    return stream.getvalue()


# By kind of content: the kind of file that reads it, and a function that makes a file of any number of points.
KINDS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "xyz.gz": ("txt.gz", _text(b"0 0 0\n")),
    "integers": ("txt.gz", _text(b"0 0 0 1 2 3\n")),
    "csv.gz": ("txt.gz", _text(b"2000.5,3000.5,0.5,7\n", b"x,y,z,label\n")),
    "npz": ("npz", _npz(_arrays, points="f8")),
    "npz of bytes": ("npz", _npz(_arrays, points="u1", label="u1", ring="u2", height="f2")),
    "npz of descriptors": ("npz", _npz(_arrays, points="f4", descriptor="f4")),
    "npz data set": ("data set npz", _npz(_clouds, points="f2", label="u1")),
    "npz parts": ("data set npz", _npz(_clouds, points="f4", label="u1", category="u1", height="f4")),
    "h5": ("h5", _h5(_arrays, points="f8")),
    "h5 of bytes": ("h5", _h5(_arrays, points="u1", label="u1", ring="u2", height="f2")),
    "h5 of one chunk": ("h5", _h5(_arrays, 1 << 30, points="f4")),
    "h5 data set": ("data set h5", _h5(_clouds, points="f4", label="u1", category="u1")),
    "pcd": ("pcd compressed", _pcd("x y z", "F", 8)),
    "pcd of bytes": ("pcd compressed", _pcd("x y z label a b", "U", 1)),
    "laz": ("laz", _laz(0)),
    "laz 1.4": ("laz 1.4", _laz(6, extra=2)),
    "evaluation": ("evaluation", _examples),
}


def compressed(shares: tuple[int, ...] = SHARES) -> Iterator[tuple[str, int, str, bytes]]:
    """Make files of every kind: kind, share, kind of file, and content."""
    for kind, (subject, make) in KINDS.items():
        for share in shares:
            yield kind, share, subject, make(LIMIT // share // 100 * 100)
