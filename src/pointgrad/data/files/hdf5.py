"""HDF5, through h5py: named datasets of equal length, as in NPZ. Those in groups are called group/name."""

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
    """Open an HDF5 file and yield the shapes and dtypes of its datasets, and a function that loads one by name.

    Links to other files and external data are not followed. Declared sizes are first compared with the stored bytes: a
    dataset without stored data would otherwise be read as any number of zeros.
    """
    import h5py

    check_regular(path)
    with h5py.File(path, "r") as file:
        size, specs = path.stat().st_size, dict[str, Spec]()

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                check_columns(len(specs) + 1)
                specs[name] = _spec(name, item, size)

        file.visititems(visit)  # does not follow links to other files
        check_fits(sum(spec.nbytes for spec in specs.values()), "arrays")
        yield specs, lambda name: file[name][()]


def read(path: Path) -> Table:
    with open_archive(path) as (specs, load):
        return arrange(specs, load, kind="HDF5")


def write(stream: IO[bytes], table: Table) -> None:
    import h5py

    memory = io.BytesIO()  # HDF5 seeks back and forth, and reports a full disk unreliably
    with h5py.File(memory, "w") as file:
        for name, array in named_arrays(table).items():
            file.create_dataset(name, data=array, compression="gzip" if array.ndim else None)
    stream.write(memory.getbuffer())


def _spec(name: str, item: Any, size: int) -> Spec:
    """Return shape and dtype of a dataset, after checking that its bytes can be in the file."""
    import h5py

    if item.is_virtual or item.external:
        raise FileError(f"expected the data of {name} in the file itself, found a reference to another file")
    if item.dtype.hasobject and h5py.check_string_dtype(item.dtype) is None:
        raise FileError(f"expected numbers in {name}, found {item.dtype}")
    spec = Spec(tuple(item.shape or ()), item.dtype)
    check_unpacked(spec.nbytes if item.shape else 0, min(item.id.get_storage_size(), size), DEFLATE, name)
    if item.chunks:  # a chunk is decompressed as a whole, even if it is larger than the dataset
        check_unpacked(Spec(item.chunks, item.dtype).nbytes, size, DEFLATE, f"a chunk of {name}")
    return spec
