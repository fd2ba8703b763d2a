"""Readers for the text, NPZ and HDF5 files of datasets."""

import io
from pathlib import Path

import numpy as np

from pointgrad.data.files import FileError, hdf5, npy
from pointgrad.data.files.arrays import Spec
from pointgrad.data.files.errors import naming
from pointgrad.data.files.memory import check_fits, check_regular
from pointgrad.data.files.table import converted_size

PER_LABEL = 64  # bytes for converting a label and comparing it with its category
PER_NAME = 200  # bytes for converting a text
# Control characters except line ends: one file of S3DIS has such a character between two numbers.
_CONTROL = bytes.maketrans(bytes(c for c in range(32) if c not in b"\n\r"), b" " * 30)


def read_rows(path: Path, columns: int, separator: str | None = None) -> np.ndarray:
    """Read a text file of numbers to (N, columns) float64."""
    try:
        with naming(path, "a file that can be read"):
            check_regular(path)
            text = path.read_bytes().translate(_CONTROL)
        if not text.strip():
            raise ValueError("an empty file")
        rows = np.loadtxt(io.BytesIO(text), delimiter=separator, ndmin=2, comments=None)
    except FileError:
        raise
    except ValueError as error:
        raise FileError(f"{path}: expected {columns} numbers per line, got: {str(error).partition(';')[0]}") from None
    if rows.shape[1] != columns:
        raise FileError(f"{path}: expected {columns} numbers per line, got {rows.shape[1]}")
    return rows


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an `.npz` file."""
    with naming(path, "an .npz file of plain arrays"), npy.open_archive(path) as (specs, load):
        _check_memory(specs)
        return {name: load(name) for name in specs}


def read_h5(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays in the root group of an HDF5 file."""
    with naming(path, "an HDF5 file"), hdf5.open_archive(path) as (specs, load):
        wanted = {name: spec for name, spec in specs.items() if "/" not in name}
        _check_memory(wanted)
        return {name: load(name) for name in wanted}


def _check_memory(specs: dict[str, Spec]) -> None:
    """Check that the arrays, and what `Arrays` makes of them, fit in memory."""
    total = sum(spec.nbytes for spec in specs.values())
    for name, spec in specs.items():
        if name in ("label", "pid", "category", "offsets"):
            total += PER_LABEL * spec.size
        elif spec.dtype.kind not in "fiub":
            total += PER_NAME * spec.size + 2 * spec.nbytes
        elif name in ("points", "data") or converted_size(spec.dtype) != spec.dtype.itemsize:
            total += spec.size * (converted_size(spec.dtype) + 1)
    check_fits(total, "arrays")


def need_arrays(path: Path, arrays: dict[str, np.ndarray], *names: str) -> list[np.ndarray]:
    """Return the named arrays, or raise `FileError` if one is missing."""
    absent = [name for name in names if name not in arrays]
    if absent:
        raise FileError(f"{path}: expected arrays {', '.join(names)}, got {', '.join(arrays) or 'none'}")
    return [arrays[name] for name in names]
