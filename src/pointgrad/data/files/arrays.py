"""Tables stored as named arrays (NPZ, HDF5)."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .errors import FileError
from .memory import check_fits
from .table import Array, Table, converted_size, coordinates, from_columns, peak_bytes

POINTS = ("points", "xyz", "pos", "coord", "coords", "data")
MAX_EMPTY = 1_000_000  # rows of arrays without data
CLOUD_SCALARS = ("label", "category")  # if stored as scalars, they describe the whole cloud


class Spec(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


def check_spec(name: str, spec: Spec) -> Spec:
    """Return the spec, or raise `FileError` if an array without data has huge dimensions, as lists of its rows have."""
    if not spec.nbytes and math.prod(max(size, 1) for size in spec.shape) > MAX_EMPTY:
        raise FileError(f"expected data in {name}, found none for the shape {spec.shape}")
    return spec


def arrange(specs: Mapping[str, Spec], load: Callable[[str], Array], kind: str) -> Table:
    """Make a table of named arrays: `points` (N, 3), or x, y, z (N,) each; all other arrays (N, ...) are columns."""
    listing = ", ".join(f"{name} {spec.shape}" for name, spec in specs.items()) or "none"
    main = next((name for name in POINTS if name in specs), None)
    names = {name.lower(): name for name in specs}
    if main is None and not {"x", "y", "z"} <= names.keys():
        raise FileError(f"expected an array points (N, 3), or x, y, z, found {listing}")
    count = specs[main or names["x"]].shape[:1]
    if main is not None and (len(specs[main].shape) != 2 or specs[main].shape[1] != 3):
        raise FileError(f"expected one cloud, points (N, 3), found {listing}: a data set?")
    scalars = {name for name in CLOUD_SCALARS if name in specs and specs[name].shape == ()}
    wrong = [name for name, spec in specs.items() if name not in scalars and spec.shape[:1] != count]
    if wrong:
        raise FileError(f"expected {count[0] if count else 'N'} rows in every array, found {listing}")
    for name, spec in specs.items():
        if spec.dtype.kind not in "fiubc":  # Table refuses complex numbers
            raise FileError(f"expected numbers in the column {name}, found {spec.dtype}")
    features = sum(spec.size * converted_size(spec.dtype) for name, spec in specs.items() if name != main)
    stored = sum(spec.nbytes for spec in specs.values())
    check_fits(peak_bytes(count[0] if count else 0, stored, features), "points")
    found = {name: load(name) for name in specs}
    rest: dict[str, Any] = {name: int(found[name]) for name in scalars}
    columns = {name: array for name, array in found.items() if name not in scalars and name != main}
    if main is None:
        return from_columns(columns, kind=kind, **rest)
    return Table(coordinates(list(found[main].T)), columns, kind=kind, **rest)


def named_arrays(table: Table) -> dict[str, Array]:
    """Inverse of `arrange`. The labels of the points are called `labels`."""
    taken = sorted({"points", "labels", *CLOUD_SCALARS} & table.columns.keys() - {"label"})
    if taken:
        raise FileError(f"expected feature names other than points, labels, category, got {', '.join(taken)}")
    columns = {"labels" if name == "label" else name: column for name, column in table.columns.items()}
    scalars = {"label": table.label, "category": table.category}
    return {"points": table.xyz, **columns, **{name: np.array(n) for name, n in scalars.items() if n is not None}}
