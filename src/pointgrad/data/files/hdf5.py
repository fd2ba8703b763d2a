"""HDF5, through h5py: named data sets of the same length, as in NPZ; those in groups are called group/name."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .arrays import Spec, arrange, named_arrays
from .errors import FileError
from .memory import DEFLATE, check_columns, check_fits, check_regular, check_unpacked
from .table import Array, Table


@contextmanager
def open_archive(path: Path) -> Iterator[tuple[dict[str, Spec], Callable[[str], Array]]]:
    """What the data sets of a file are, and how to load each.

    Only what lies in the file: links to other files and data that lie elsewhere are not followed. Nothing is larger
    than its bytes in the file allow: a data set of which nothing is stored would be any number of zeros.
    """
    import h5py

    check_regular(path)
    with h5py.File(path, "r") as file:
        found: dict[str, Any] = {}
        file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        check_columns(len(found))
        size = path.stat().st_size
        for name, item in found.items():
            if item.is_virtual or item.external:
                raise FileError(f"expected the data of {name} in the file itself, found a reference to another one")
            if item.dtype.hasobject and h5py.check_string_dtype(item.dtype) is None:
                raise FileError(f"expected numbers in {name}, found {item.dtype}")
            stored = min(item.id.get_storage_size(), size)
            check_unpacked(item.size * item.dtype.itemsize if item.shape else 0, stored, DEFLATE, name)
            check_unpacked(_chunk(item), size, DEFLATE, f"a chunk of {name}")
        specs = {name: Spec(tuple(item.shape or ()), item.dtype) for name, item in found.items()}
        check_fits(sum(spec.nbytes for spec in specs.values()), "arrays")
        yield specs, lambda name: found[name][()]


def read(path: Path) -> Table:
    with open_archive(path) as (specs, load):
        return arrange(specs, load, kind="HDF5")


def write(stream: IO[bytes], table: Table) -> None:
    import h5py

    memory = io.BytesIO()  # HDF5 seeks back and forth, and is not good at reporting a full disk
    with h5py.File(memory, "w") as file:
        for name, array in named_arrays(table).items():
            file.create_dataset(name, data=array, compression="gzip" if array.ndim else None)
    stream.write(memory.getbuffer())


def _chunk(item: Any) -> int:
    """Bytes of a chunk, which is held in memory as a whole, even where it is larger than the data set."""
    size = item.dtype.itemsize if item.chunks else 0
    for length in item.chunks or ():
        size *= length
    return int(size)
