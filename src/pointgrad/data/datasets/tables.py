"""Text files of numbers, and HDF5 files of arrays, as published data sets have them."""

import io
from pathlib import Path

import numpy as np

from pointgrad.data.files import FileError

# Control characters that are no line ends: one file of S3DIS has such a character between two numbers.
_CONTROL = bytes.maketrans(bytes(c for c in range(32) if c not in b"\n\r"), b" " * 30)


def read_rows(path: Path, columns: int, separator: str | None = None) -> np.ndarray:
    """(N, columns) float64 numbers of a text file."""
    try:
        text = path.read_bytes().translate(_CONTROL)
        if not text.strip():
            raise ValueError("an empty file")
        rows = np.loadtxt(io.BytesIO(text), delimiter=separator, ndmin=2, comments=None)
    except OSError as error:
        raise FileError(f"{path}: expected a file that can be read, got: {error.strerror}") from None
    except ValueError as error:
        raise FileError(f"{path}: expected {columns} numbers per line, got: {str(error).partition(';')[0]}") from None
    if rows.shape[1] != columns:
        raise FileError(f"{path}: expected {columns} numbers per line, got {rows.shape[1]}")
    return rows


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, by name. Raises whatever numpy, zipfile or zlib raise."""
    with open(path, "rb") as stream, np.load(stream) as file:  # np.load leaves a broken file open
        return {key: file[key] for key in file.files}


def read_h5(path: Path) -> dict[str, np.ndarray]:
    """The arrays at the top of an HDF5 file, by name."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path}: needs h5py: pip install 'pointgrad[io]'", name="h5py") from None
    try:
        with h5py.File(path) as file:
            return {key: value[()] for key, value in file.items() if isinstance(value, h5py.Dataset)}
    except (OSError, RuntimeError, KeyError) as error:
        reason = error.strerror if isinstance(error, FileNotFoundError) else str(error).splitlines()[0]
        raise FileError(f"{path}: expected an HDF5 file, got: {reason}") from None


def need_arrays(path: Path, arrays: dict[str, np.ndarray], *names: str) -> list[np.ndarray]:
    """The arrays of these names."""
    absent = [name for name in names if name not in arrays]
    if absent:
        raise FileError(f"{path}: expected arrays {', '.join(names)}, got {', '.join(arrays) or 'none'}")
    return [arrays[name] for name in names]
