"""HDF5, through h5py: named datasets of equal length, as in NPZ. Those in groups are called group/name."""

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from .arrays import Spec, arrange, check_spec, named_arrays
from .errors import FileError
from .memory import DEFLATE, check_columns, check_fits, check_regular, check_unpacked, memory_limit
from .table import Array, Table

DEPTH = 32  # nesting of groups
GZIP, LZF = 1, 32000  # filters that compress
FILTERS = (GZIP, LZF, 2, 3)  # also shuffle and fletcher32, which keep the size
PER_CHUNK = 4  # copies of a chunk that the filters make
TEXTS = 64 << 20  # bytes of texts of variable length that are read at once


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
            if name.count("/") > DEPTH:
                raise FileError(f"expected groups nested at most {DEPTH} levels deep, found more")
            if isinstance(item, h5py.Dataset):
                check_columns(len(specs) + 1)
                specs[name] = _spec(name, item, size)

        file.visititems(visit)  # does not follow links to other files
        check_fits(sum(spec.nbytes for spec in specs.values()), "arrays")

        def load(name: str) -> Array:
            return _texts(file[name], size) if specs[name].dtype.hasobject else file[name][()]

        yield specs, load


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
    spec = check_spec(name, Spec(tuple(item.shape or ()), item.dtype))
    stored = min(item.id.get_storage_size(), size)
    check_unpacked(spec.nbytes if item.shape else 0, stored, DEFLATE, name)
    if item.chunks:  # a chunk is decompressed as a whole, even if it is larger than the dataset
        chunk = Spec(item.chunks, item.dtype).nbytes
        check_unpacked(chunk, size, DEFLATE, f"a chunk of {name}")
        check_fits(PER_CHUNK * chunk, f"a chunk of {name}")
        _check_filters(name, item, chunk, stored)
    return spec


def _check_filters(name: str, item: Any, chunk: int, stored: int) -> None:
    """Check that no chunk decompresses to more than its declared size, where that could exceed the memory limit."""
    properties = item.id.get_create_plist()
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    if not set(filters) <= set(FILTERS) or sum(each in (GZIP, LZF) for each in filters) > 1:
        raise FileError(f"expected {name} compressed with gzip or lzf, found the filters {filters}")
    if GZIP not in filters or PER_CHUNK * stored * DEFLATE <= memory_limit():
        return

    def check(found: Any) -> None:
        skipped, raw = item.id.read_direct_chunk(found.chunk_offset)
        packed = not skipped >> filters.index(GZIP) & 1
        if packed and len(zlib.decompressobj().decompress(raw, chunk + 1)) > chunk:
            raise FileError(f"expected chunks of {chunk} bytes in {name}, found a larger one")

    item.id.chunk_iter(check)


def _texts(item: Any, size: int) -> Array:
    """Read texts of variable length, whose total must be less than the size of the file: all may be the same one."""
    if item.ndim > 1:
        raise FileError(f"expected a list of texts, found {item.shape}")
    flat = np.empty(item.size, object)
    rows, total = max(1, TEXTS // size), 0
    for start in range(0, item.size, rows):
        flat[start : start + rows] = item[start : start + rows] if item.ndim else [item[()]]
        total += sum(map(len, flat[start : start + rows]))
        if total > size:
            raise FileError(f"expected texts of at most {size} bytes, found longer ones")
    return flat.reshape(item.shape)
