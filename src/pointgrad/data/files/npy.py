"""NPY, an (N, C) array or one with named fields, and NPZ, named arrays of equal length. Nothing is unpickled."""

import io
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from .arrays import Spec, arrange, check_spec, named_arrays
from .errors import FileError
from .memory import DEFLATE, check_columns, check_fits, check_regular, check_unpacked
from .table import Array, Table, axes, default_names, from_columns, name_columns, records

HEADER_LIMIT = 1 << 16  # bytes; the limit of NumPy itself


def load_array(path: Path) -> Array:
    """Read the array of an NPY file, after comparing the declared size with the size of the file."""
    check_regular(path)
    with open(path, "rb") as stream:
        _check(stream, os.fstat(stream.fileno()).st_size, "the array")
        stream.seek(0)
        return _plain(npy.read_array(stream, allow_pickle=False))


@contextmanager
def open_archive(path: Path) -> Iterator[tuple[dict[str, Spec], Callable[[str], Array]]]:
    """Open an NPZ file and yield the shapes and dtypes of its arrays, and a function that loads an array by name.

    Declared sizes are first compared with the stored bytes.
    """
    check_regular(path)
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        check_columns(len(entries))
        members = {entry.filename.removesuffix(".npy"): entry for entry in entries}
        if len(members) < len(entries):
            raise FileError("expected unique names of arrays, found one twice")
        packed = sum(entry.compress_size for entry in members.values())
        if packed > (size := os.fstat(file.fileno()).st_size):
            raise FileError(f"expected arrays that fit in {size} bytes, found {packed}")
        specs = {}
        for name, entry in members.items():
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FileError(f"expected {name} stored or deflated, found compression {entry.compress_type}")
            check_unpacked(entry.file_size, entry.compress_size, DEFLATE if entry.compress_type else 1, name)
            with archive.open(entry) as stream:
                specs[name] = _check(stream, entry.file_size, name)
        check_fits(sum(spec.nbytes for spec in specs.values()), "arrays")

        def load(name: str) -> Array:
            with archive.open(members[name]) as stream:
                return _plain(npy.read_array(stream, allow_pickle=False))

        yield specs, load


def read_npy(path: Path, columns: Sequence[str] | None = None) -> Table:
    data = load_array(path)
    kind = f"NPY, {data.dtype if data.dtype.names is None else 'named fields'}"
    if data.dtype.names is not None:
        if columns or data.ndim != 1:
            raise FileError(f"expected one row per point, found {data.shape} with the fields {data.dtype.names}")
        table = from_columns({name: data[name] for name in data.dtype.names})
    else:
        if data.ndim != 2 or data.shape[1] < 3:
            raise FileError(f"expected an array (N, 3) or more columns, found {data.shape}")
        table = name_columns(data, list(columns or default_names(data.shape[1])))
    table.kind = kind
    return table


def write_npy(stream: IO[bytes], table: Table) -> None:
    np.save(stream, records({**axes(table), **table.columns}) if table.columns else table.xyz, allow_pickle=False)


def read_npz(path: Path) -> Table:
    with open_archive(path) as (specs, load):
        return arrange(specs, load, kind="NPZ")


def write_npz(stream: IO[bytes], table: Table) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in named_arrays(table).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


def _check(stream: IO[bytes], size: int, what: str) -> Spec:
    """Read shape and dtype from the header, which must agree with the `size` of the whole member in bytes."""
    version = npy.read_magic(stream)
    width = 2 if version == (1, 0) else 4
    head = stream.read(width)
    length = int.from_bytes(head, "little")
    if len(head) < width or length > HEADER_LIMIT:
        raise FileError(f"expected a header of at most {HEADER_LIMIT} bytes for {what}, found {length}")
    header = io.BytesIO(head + stream.read(length))
    shape, _, dtype = (npy.read_array_header_1_0 if width == 2 else npy.read_array_header_2_0)(header)
    spec = Spec(shape, dtype)
    if dtype.hasobject:
        raise FileError(f"expected numbers, found Python objects in {what}")
    if spec.nbytes != size - stream.tell():
        raise FileError(f"expected {spec.nbytes} bytes for {what} {shape}, found {size - stream.tell()}")
    return check_spec(what, spec)


def _plain(array: Array) -> Array:
    """Return the array, after checking that all characters are valid Unicode: others would raise on every access."""
    if array.dtype.kind == "U" and array.size:
        codes = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).view(np.uint32)
        if codes.max() > sys.maxunicode:
            raise FileError(f"expected Unicode text, found the character {codes.max():#x}")
    return array
