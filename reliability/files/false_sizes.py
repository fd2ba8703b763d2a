"""Small files that declare huge sizes, or would take long to read, for `corpus.py` and tests under a memory limit."""

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch

from pointgrad import data
from pointgrad.train import checkpoint

LARGE = 64 << 20  # bytes of memory that reading any of these files must stay below
HUGE = 10**12


class FalseSize(NamedTuple):
    declared: str
    subject: str
    raw: bytes


def _ply(*lines: str, body: bytes = b"", encoding: str = "binary_little_endian") -> bytes:
    return "\n".join(("ply", f"format {encoding} 1.0", *lines, "end_header\n")).encode() + body


def _pcd(points: int, encoding: str, body: bytes, counts: str = "1 1 1") -> bytes:
    head = f"FIELDS x y z\nSIZE 8 8 8\nTYPE F F F\nCOUNT {counts}\nWIDTH {points}\nHEIGHT 1\nPOINTS {points}\n"
    return f"{head}DATA {encoding}\n".encode() + body


def _npy(shape: tuple[int, ...], dtype: str = "<f8", body: bytes = b"") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue() + body


def _npz(name: str, way: int = zipfile.ZIP_STORED) -> bytes:
    """An archive whose directory and array header declare 3 GB."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", way) as archive:
        archive.writestr(f"{name}.npy", _npy((1 << 27, 3)) + bytes(100))
    raw = bytearray(stream.getvalue())
    struct.pack_into("<I", raw, raw.index(b"PK\1\2") + 24, len(_npy((1 << 27, 3))) + (24 << 27))
    return bytes(raw)


def _h5(fill: Callable[[Any], object]) -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        fill(file)
    return stream.getvalue()


def _empty(file: Any) -> None:
    file.create_dataset("points", (10**9, 3), "f8", chunks=(99, 3))


def _large_chunk(file: Any) -> None:
    """A dataset with a huge chunk, of which almost nothing is stored."""
    points = file.create_dataset("points", (4, 3), "f8", chunks=(40_000_000, 3), maxshape=(None, 3), compression="gzip")
    points.id.write_direct_chunk((0, 0), b"x" * 40)


def _mixed(file: Any) -> None:
    """Many datasets, and many links to one of them."""
    file["points"] = np.zeros((3, 3))
    for number in range(20_000):
        file[f"p{number}"] = h5py.SoftLink("/points")
        if number < 10_001:
            file.create_dataset(f"c{number}", (3,), "u1")


@cache
def _inflated_bytes() -> bytes:
    return zlib.compress(bytes(200 << 20), 9)


def _inflated(file: Any) -> None:
    """A small chunk that decompresses to far more than its size."""
    points = file.create_dataset("points", (4, 3), "f8", chunks=(4, 3), compression="gzip")
    points.id.write_direct_chunk((0, 0), _inflated_bytes())


def _compressed_twice(file: Any) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((4, 3))
    for _ in range(2):
        properties.set_deflate(9)
    space = h5py.h5s.create_simple((4, 3))
    h5py.h5d.create(file.id, b"points", h5py.h5t.IEEE_F64LE, space, properties)
    file["points"].id.write_direct_chunk((0, 0), zlib.compress(_inflated_bytes(), 9))


def _nested(file: Any) -> None:
    file["points"] = np.zeros((3, 3))
    for _ in range(3000):
        file = file.create_group("g")


def _one_name() -> bytes:
    """A list of 10,000 class names that all refer to one text of 100 kB."""
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["points"], file["label"] = np.zeros((2, 5, 3), "f4"), np.zeros(2, int)
        names = file.create_dataset("classes", (10_000,), h5py.string_dtype())
        names[0] = "x" * 100_000
        start = names.id.get_offset()
    raw = bytearray(stream.getvalue())
    raw[start : start + 160_000] = raw[start : start + 16] * 10_000
    return bytes(raw)


def _saved(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def _with_member(raw: bytes, name: str, member: bytes) -> bytes:
    stream = io.BytesIO(raw)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr(f"{name}.npy", member)
    return stream.getvalue()


def torch_archive(structure: bytes) -> bytes:
    """The archive of a checkpoint with a given pickle."""
    good, out = io.BytesIO(), io.BytesIO()
    torch.save({}, good)
    with zipfile.ZipFile(good) as archive, zipfile.ZipFile(out, "w") as forged:
        for entry in archive.infolist():
            forged.writestr(entry.filename, structure if entry.filename.endswith("data.pkl") else archive.read(entry))
    return out.getvalue()


def _upper_case(structure: bytes) -> bytes:
    """An archive with a second pickle, which torch's reader takes for the first one."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as forged:
        for name, content in (("DATA.PKL", structure), ("data.pkl", pickle.dumps({}, 2)), ("version", b"3\n")):
            forged.writestr(f"archive/{name}", content)
    return out.getvalue()


class _Buffer:
    """Unpickles to a gigabyte of zeros, which torch allows."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (1 << 30,)


def _wide(**state: torch.Tensor) -> bytes:
    """A checkpoint of a network of many gigabytes, without its weights."""
    content = checkpoint.content_of(torch.nn.Module(), state, "classification", ("a",), data.Prepare())
    content["model"] = {"name": "pointnet", "classes": 3, "width": 300.0}
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def _nested_aliases(first: str, line: str) -> bytes:
    return "\n".join([first, *(line.format(i, i - 1) for i in range(1, 40)), "epochs: *a39"]).encode()


def false_sizes() -> list[FalseSize]:
    face = ("element face 1", "property list {} double vertex_indices", "element vertex 1", "property float x")
    rows = [f"property double p{number}" for number in range(10_000)]
    clouds = {"points": np.zeros((2, 5, 3)), "label": np.zeros(2, int)}
    found = [
        ("10^12 vertices", "ply mesh", _ply(f"element vertex {HUGE}", "property float x")),
        ("10^12 faces", "ply mesh", _ply("element vertex 1", "property float x", f"element face {HUGE}")),
        ("a list of 2^32", "ply mesh", _ply(*(f.format("uint") for f in face), body=b"\xff" * 200)),
        ("a list of -1", "ply mesh", _ply(*(f.format("int") for f in face), body=b"\xff" * 200)),
        ("rows of 80 kB", "ply ascii", _ply("element vertex 90000", *rows, encoding="ascii")),
        ("rows of 80 kB", "ply big-endian", _ply("element vertex 90000", *rows)),
        ("60,000 columns", "ply little-endian", _ply(
            "element vertex 1", *(f"property uchar p{n}" for n in range(20_000)), body=bytes(20_000))),
        ("10^12 points", "pcd binary", _pcd(HUGE, "binary", bytes(100))),
        ("10^12 points", "pcd ascii", _pcd(HUGE, "ascii", b"1 2 3\n")),
        ("rows of 2 MB", "pcd ascii", _pcd(10_000, "ascii", b"1 2 3\n" * 10_000, "100000 100000 100000")),
        ("4 GB of 100 bytes", "pcd compressed", _pcd(
            170_000_000, "binary_compressed", struct.pack("<II", 100, 4_080_000_000) + bytes(100))),
        ("10^12 vertices", "off", f"OFF\n{HUGE} 0 0\n0 0 0\n".encode()),
        ("10^12 corners", "off", f"OFF\n1 1 0\n0 0 0\n{HUGE} 0 0\n".encode()),
        ("vertex 10^36", "off", f"OFF\n1 1 0\n0 0 0\n3 0 0 {HUGE**3}\n".encode()),
        ("vertex 10^36", "obj", f"v 1 2 3\nf 1 1 {HUGE**3}\n".encode()),
        ("2^32 triangles", "stl", bytes(80) + b"\xff" * 4 + bytes(50)),
        ("100,000 columns", "xyz", b"0 " * 100_000),
        ("a line of one number", "csv", b"1" * 500_000),
        ("a long name", "csv", b"x" * 500_000 + b",y\n1,2\n"),
        ("10^12 points", "npy", _npy((HUGE, 3))),
        ("10^9 characters", "npy", _npy((1, 3), "<U1000000000")),
        ("a header of 4 GB", "npy", b"\x93NUMPY\2\0" + b"\xff" * 4 + bytes(100)),
        ("100,000 columns", "npy", _npy((1, 100_000), "<f4", bytes(400_000))),
        ("(-1, -3) numbers", "npy", _npy((-1, -3), "<f8", bytes(24))),
        ("3 GB stored", "npz", _npz("points")),
        ("3 GB deflated", "npz", _npz("points", zipfile.ZIP_DEFLATED)),
        ("3 GB of bzip2", "npz", _npz("points", zipfile.ZIP_BZIP2)),
        ("3 GB", "data set npz", _npz("points")),
        ("3 GB", "evaluation", _npz("format")),
        ("10^12 labels", "labels", _npy((HUGE,), "<i8")),
        ("10^9 points, none stored", "h5", _h5(_empty)),
        ("10^9 points, none stored", "data set h5", _h5(_empty)),
        ("a chunk of 1 GB", "h5", _h5(_large_chunk)),
        ("20,000 data sets", "h5 compressed", _h5(_mixed)),
        ("a chunk of 200 MB instead of 96 bytes", "h5", _h5(_inflated)),
        ("a chunk of 200 MB, compressed twice", "h5", _h5(_compressed_twice)),
        ("10,000 names of 100 kB", "data set h5", _one_name()),
        ("10^9 names without letters", "data set npz", _with_member(
            _saved(**clouds), "classes", _npy((10**9,), "|S0"))),
        ("10^12 classes", "data set npz", _saved(points=clouds["points"], label=np.array([0, 10**12]))),
        ("40,000 elements", "ply mesh", _ply(*(f"element e{number} 0" for number in range(40_000)))),
        ("300,000 empty lines", "stl ascii", b"solid a\n" + b"\n" * 300_000),
        ("3,000 nested groups", "h5", _h5(_nested)),
        ("a list of 500,000 numbers", "config", b"a: [" + b"0," * 500_000 + b"0]"),
        ("a number of 10^5 digits", "config", b"seed: 0x" + b"f" * 100_000),
        ("a number of 30,000 parts", "config", b"seed: 1" + b":1" * 30_000),
        ("lists of any length", "h5", _h5(lambda file: file.create_dataset("points", (4,), h5py.vlen_dtype(float)))),
        ("a bytearray of 1 GB", "checkpoint", torch_archive(pickle.dumps({"format": _Buffer()}, 2))),
        ("a bytearray of 1 GB", "checkpoint", _upper_case(pickle.dumps({"format": _Buffer()}, 2))),
        ("a wide network", "checkpoint", _wide()),
        ("a wide network", "checkpoint", _wide(weight=torch.zeros(1).expand(10**11))),
        ("2^40 values", "config", _nested_aliases("a0: &a0 [x, x]", "a{0}: &a{0} [*a{1}, *a{1}]")),
        ("2^40 merged", "config", _nested_aliases("a0: &a0 {x: 1}", "a{0}: &a{0} {{<<: [*a{1}, *a{1}]}}")),
        ("10^5 levels", "config", b"epochs: " + b"[" * 100_000),
        ("10^5 levels", "json list", b"[" * 100_000),
    ]  # fmt: skip
    return [FalseSize(*each) for each in found]
