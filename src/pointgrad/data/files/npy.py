"""NumPy's own: NPY, an (N, C) array or one with named fields; NPZ, named arrays of one length. Nothing is unpickled."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from .arrays import Spec, arrange, named_arrays
from .errors import FileError
from .memory import check_fits
from .table import Array, Table, axes, default_names, from_columns, name_columns, records


def read_npy(path: Path, columns: Sequence[str] | None = None) -> Table:
    with open(path, "rb") as stream:
        _check(stream, path.stat().st_size, "the array")
    data = np.load(path, allow_pickle=False)
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
    with zipfile.ZipFile(path) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        specs = {}
        for name, entry in members.items():
            with archive.open(entry) as stream:
                specs[name] = _check(stream, entry.file_size, name)
        check_fits(sum(spec.nbytes for spec in specs.values()), "arrays")

        def load(name: str) -> Array:
            with archive.open(members[name]) as stream:
                return npy.read_array(stream, allow_pickle=False)

        return arrange(specs, load, kind="NPZ")


def write_npz(stream: IO[bytes], table: Table) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in named_arrays(table).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, array, allow_pickle=False)


def _check(stream: IO[bytes], size: int, what: str) -> Spec:
    """Shape and dtype from the first bytes; the `size` of the whole must be what they say."""
    version = npy.read_magic(stream)
    shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
    spec = Spec(shape, dtype)
    if dtype.hasobject:
        raise FileError(f"expected numbers, found Python objects in {what}")
    if spec.nbytes != size - stream.tell():
        raise FileError(f"expected {spec.nbytes} bytes for {what} {shape}, found {size - stream.tell()}")
    return spec
