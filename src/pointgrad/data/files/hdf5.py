"""HDF5, through h5py: named data sets of the same length, as in NPZ; those in groups are called group/name."""

import io
from pathlib import Path
from typing import IO

from .arrays import Spec, arrange, named_arrays
from .memory import check_fits
from .table import Table


def read(path: Path) -> Table:
    import h5py

    with h5py.File(path, "r") as file:
        found: dict[str, h5py.Dataset] = {}
        file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        specs = {name: Spec(tuple(item.shape or ()), item.dtype) for name, item in found.items()}
        check_fits(sum(spec.nbytes for spec in specs.values()), "arrays")
        return arrange(specs, lambda name: found[name][()], kind="HDF5")


def write(stream: IO[bytes], table: Table) -> None:
    import h5py

    memory = io.BytesIO()  # HDF5 seeks back and forth, and is not good at reporting a full disk
    with h5py.File(memory, "w") as file:
        for name, array in named_arrays(table).items():
            file.create_dataset(name, data=array, compression="gzip" if array.ndim else None)
    stream.write(memory.getbuffer())
