"""Named arrays, as NPZ and HDF5 hold them, and which of them is what."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .errors import FileError
from .table import Array, Table, coordinates, from_columns

POINTS = ("points", "xyz", "pos", "coord", "coords", "data")
WHOLE = ("label", "category")  # single numbers: of the whole cloud


class Spec(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def arrange(specs: Mapping[str, Spec], load: Callable[[str], Array], kind: str) -> Table:
    """A table of arrays: `points` (N, 3) or more columns, or x, y, z (N,); the others (N, ...) are columns."""
    listing = ", ".join(f"{name} {spec.shape}" for name, spec in specs.items()) or "none"
    main = next((name for name in POINTS if name in specs), None)
    names = {name.lower(): name for name in specs}
    if main is None and not {"x", "y", "z"} <= names.keys():
        raise FileError(f"expected an array points (N, 3), or x, y, z, found {listing}")
    count = specs[main or names["x"]].shape[:1]
    if main is not None and (len(specs[main].shape) != 2 or specs[main].shape[1] != 3):
        raise FileError(f"expected one cloud, points (N, 3), found {listing}: a data set?")
    whole = {name for name in WHOLE if name in specs and specs[name].shape == ()}
    wrong = [name for name, spec in specs.items() if name not in whole and spec.shape[:1] != count]
    if wrong:
        raise FileError(f"expected {count[0] if count else 'N'} rows in every array, found {listing}")
    for name, spec in specs.items():
        if spec.dtype.kind not in "fiubc":  # complex ones are named later
            raise FileError(f"expected numbers in the column {name}, found {spec.dtype}")
    found = {name: load(name) for name in specs}
    rest: dict[str, Any] = {name: int(found[name]) for name in whole}
    columns = {name: array for name, array in found.items() if name not in whole and name != main}
    if main is None:
        return from_columns(columns, kind=kind, **rest)
    return Table(coordinates(list(found[main].T)), columns, kind=kind, **rest)


def named_arrays(table: Table) -> dict[str, Array]:
    """What `arrange` reads back as the same table; the labels of the points are called `labels`."""
    taken = sorted({"points", "labels", *WHOLE} & table.columns.keys() - {"label"})
    if taken:
        raise FileError(f"expected features of other names than points, labels, category, got {', '.join(taken)}")
    columns = {"labels" if name == "label" else name: column for name, column in table.columns.items()}
    whole = {"label": table.label, "category": table.category}
    return {"points": table.xyz, **columns, **{name: np.array(n) for name, n in whole.items() if n is not None}}
