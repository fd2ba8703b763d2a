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
        size, specs = path.stat().st_size, dict[str, Spec]()

        def see(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                check_columns(len(specs) + 1)
                specs[name] = _spec(name, item, size)

        file.visititems(see)  # goes through what lies in the file, and follows no link out of it
        check_fits(sum(spec.nbytes for spec in specs.values()), "arrays")
        yield specs, lambda name: file[name][()]


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


def _spec(name: str, item: Any, size: int) -> Spec:
    """What a data set is, if its bytes can be in the file."""
    import h5py

    if item.is_virtual or item.external:
        raise FileError(f"expected the data of {name} in the file itself, found a reference to another one")
    if item.dtype.hasobject and h5py.check_string_dtype(item.dtype) is None:
        raise FileError(f"expected numbers in {name}, found {item.dtype}")
    spec = Spec(tuple(item.shape or ()), item.dtype)
    check_unpacked(spec.nbytes if item.shape else 0, min(item.id.get_storage_size(), size), DEFLATE, name)
    if item.chunks:  # one is held in memory as a whole, even where it is larger than the data set
        check_unpacked(Spec(item.chunks, item.dtype).nbytes, size, DEFLATE, f"a chunk of {name}")
    return spec
