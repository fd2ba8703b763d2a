"""Conversion between the columns of a file and `Cloud`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from pointgrad.data.cloud import Cloud

from .errors import FileError
from .memory import check_columns

Array = NDArray[Any]

# Names of label columns in order of precedence, compared case-insensitively.
LABELS = ("label", "labels", "class", "classification", "semantic_label", "sem_class", "scalar_label", "scalar_labels",
          "scalar_class", "scalar_classification")  # fmt: skip
FAR = 1000.0  # larger coordinates are stored relative to an origin, so that float32 resolves a tenth of a millimetre
PER_POINT = 112  # bytes for the coordinates of the table and of the cloud, intermediate results, and labels
WIDER = {"uint16": np.int32, "uint32": np.int64, "float16": np.float32}  # dtypes that torch hardly supports


@dataclass
class Table:
    """The content of a file.

    Attributes:
        xyz: World coordinates (N, 3), float32 or float64.
        columns: All other columns by name, in file order, each (N,) or (N, c) in the dtype of the file.
        faces: Triangles (F, 3) of a mesh, int64.
        kind: Description of format and encoding.
        label: Label of the whole cloud, in formats that store it.
        category: Category of the whole cloud, in formats that store it.
    """

    xyz: Array
    columns: dict[str, Array] = field(default_factory=dict)
    faces: Array | None = None
    kind: str = ""
    label: int | None = None
    category: int | None = None

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if column.dtype.kind not in "fiub":
                raise FileError(f"expected numbers in the column {name}, found {column.dtype}")

    def __len__(self) -> int:
        return len(self.xyz)

    def take(self, rows: Array) -> "Table":
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, xyz=self.xyz[rows], columns=columns, faces=None)


def peak_bytes(rows: int, stored: int, converted: int) -> int:
    """Return the peak of memory for making a cloud, which `check_fits` takes.

    Args:
        rows: Number of points.
        stored: Bytes of the decoded columns, including x, y, z.
        converted: Bytes of the features of the cloud.
    """
    return stored + converted + PER_POINT * rows


def converted_size(dtype: np.dtype[Any]) -> int:
    """Return the bytes of a number of this dtype in a cloud."""
    return int(np.dtype(WIDER.get(dtype.name, dtype)).itemsize)


def from_columns(columns: Mapping[str, Array], **rest: Any) -> Table:
    """Make a table from named columns that include x, y and z in lower or upper case."""
    check_columns(len(columns))
    names = {name.lower(): name for name in reversed(list(columns))}
    missing = [axis for axis in "xyz" if axis not in names]
    if missing:
        raise FileError(f"expected columns x, y, z, found {', '.join(columns) or 'none'}")
    axes = [names[axis] for axis in "xyz"]
    others = {name: column for name, column in columns.items() if name not in axes}
    return Table(coordinates([columns[name] for name in axes]), others, **rest)


def coordinates(axes: Sequence[Array]) -> Array:
    """Stack three columns to (N, 3): float32 if all of them are, else float64."""
    for axis in axes:
        if axis.ndim != 1 or axis.dtype.kind not in "fiu":
            raise FileError(f"expected a number for each of x, y and z, found {axis.dtype} {axis.shape}")
        if not survives(axis, np.float64):
            raise FileError("expected coordinates of at most 53 bits, found larger ones")
    single = all(axis.dtype.kind == "f" and axis.dtype.itemsize <= 4 for axis in axes)
    return np.stack([axis.astype(np.float32 if single else np.float64) for axis in axes], axis=1)


def name_columns(values: Array, names: Sequence[str]) -> Table:
    """Make a table from an (N, C) array and C column names."""
    check_columns(len(names))
    if values.ndim != 2 or values.shape[1] != len(names):
        found = values.shape[1] if values.ndim == 2 else f"an array {values.shape}"
        raise FileError(f"expected {len(names)} columns ({' '.join(names)}), found {found}")
    if len(set(names)) < len(names):
        raise FileError(f"expected unique column names, found {' '.join(names)}")
    return from_columns({name: values[:, position] for position, name in enumerate(names)})


def default_names(count: int) -> list[str]:
    """Default column names: x y z column4 column5 ..."""
    check_columns(count)
    return [*"xyz", *(f"column{position}" for position in range(4, count + 1))][:count]


def to_cloud(table: Table, labels: str | None, source: str) -> Cloud:
    """Convert a table to a cloud. The labels are the column `labels`, or the first of `LABELS` if it is None."""
    origin, points = _near(table.xyz)
    columns = dict(table.columns)
    name = label_column(columns, labels)
    return Cloud(
        points=torch.from_numpy(points),
        labels=None if name is None else torch.from_numpy(to_labels(columns.pop(name))),
        features={name: _tensor(column) for name, column in columns.items()},
        label=table.label,
        category=table.category,
        origin=torch.from_numpy(origin),
        source=source,
    )


def to_table(cloud: Cloud) -> Table:
    """Convert a cloud to columns in world coordinates, with the labels in the column `label`."""
    columns = {name: _array(column) for name, column in cloud.features.items()}
    taken = sorted({name.lower() for name in columns} & {"x", "y", "z"})
    if taken:
        raise FileError(f"expected feature names other than x, y, z, got {', '.join(taken)}")
    if cloud.labels is not None:
        if "label" in columns:
            raise FileError("expected no feature called label in a cloud that has labels, got one")
        columns["label"] = _array(cloud.labels)
    return Table(_world(cloud), columns, label=cloud.label, category=cloud.category)


def scalars(table: Table) -> dict[str, Array]:
    """Split columns (N, c) into name_0 ... name_{c-1}, and replace spaces and separators in names by underscores."""
    flat: dict[str, Array] = {}
    for name, column in table.columns.items():
        plain = re.sub(r"[\s,;]+", "_", name)
        wide = column.reshape(len(column), -1)
        parts = {plain: column} if column.ndim == 1 else {f"{plain}_{i}": wide[:, i] for i in range(wide.shape[1])}
        if clash := flat.keys() & parts.keys():
            raise FileError(f"expected unique feature names, got {', '.join(sorted(clash))} twice")
        flat |= parts
    return flat


def records(columns: Mapping[str, Array], order: Literal["<", ">", "="] = "=") -> Array:
    """Combine columns of equal length N into one structured array (N,) with the given byte order."""
    fields = [(name, column.dtype.newbyteorder(order), column.shape[1:]) for name, column in columns.items()]
    out = np.empty(len(next(iter(columns.values()))), fields)
    for name, column in columns.items():
        out[name] = column
    return out


def survives(column: Array, dtype: Any) -> bool:
    """Whether a round trip through `dtype` preserves every number."""
    with np.errstate(all="ignore"):
        return np.array_equal(column.astype(dtype).astype(column.dtype), column, equal_nan=True)


def axes(table: Table) -> dict[str, Array]:
    return {axis: table.xyz[:, position] for position, axis in enumerate("xyz")}


def _near(xyz: Array) -> tuple[NDArray[np.float64], Array]:
    """Choose an integer origin and compute the points relative to it, without rounding.

    The origin is 0 on axes with small coordinates, and where the difference would round.
    """
    origin = np.zeros(3)
    points = np.array(xyz, order="C")  # a copy, because torch shares its memory
    for axis in range(3):
        column = xyz[:, axis].astype(np.float64)
        finite = column[np.isfinite(column)]
        if finite.size == 0 or np.abs(finite).max() <= FAR:
            continue
        start = np.floor(finite.min())
        with np.errstate(all="ignore"):  # overflow is detected by the comparison
            shifted = (column - start).astype(xyz.dtype)
            again = shifted.astype(np.float64) + start
        if _same_bits(again, column):
            origin[axis], points[:, axis] = start, shifted
    return origin, points


def _same_bits(a: Array, b: Array) -> bool:
    equal = (a == b) & (np.signbit(a) == np.signbit(b))
    return bool((equal | (np.isnan(a) & np.isnan(b))).all())


def _world(cloud: Cloud) -> Array:
    """World coordinates (N, 3): float32 if the points are float32 and nothing rounds, else float64."""
    points, origin = _array(cloud.points), _array(cloud.origin).astype(np.float64)
    world = points.astype(np.float64)
    far = origin != 0  # adding 0 would turn -0.0 into 0.0
    world[:, far] += origin[far]
    with np.errstate(all="ignore"):
        single = world.astype(np.float32)
    return single if points.dtype == np.float32 and _same_bits(single.astype(np.float64), world) else world


def label_column(columns: Mapping[str, Array], wanted: str | None) -> str | None:
    if wanted is not None:
        if wanted not in columns:
            raise FileError(f"expected a column {wanted} for the labels, found {', '.join(columns) or 'only x, y, z'}")
        if not _is_integral(columns[wanted]):
            raise FileError(f"expected integers in the label column {wanted}, found other values")
        return wanted
    by_case = {name.lower(): name for name in reversed(list(columns))}
    found = (by_case[name] for name in LABELS if name in by_case)
    return next((name for name in found if _is_integral(columns[name])), None)


def _is_integral(column: Array) -> bool:
    if column.ndim != 1 or column.dtype.kind not in "fiu":
        return False
    if column.dtype.kind != "f":
        return column.dtype != np.uint64 or column.max(initial=0) < 2**63
    known = column[~np.isnan(column)]
    return bool(((np.abs(known) < 2**53) & (known == np.floor(known))).all())


def to_labels(column: Array) -> NDArray[np.int64]:
    """Convert a label column to int64. NaN, which some programs write for missing labels, becomes -1."""
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), -1, column)
    return column.astype(np.int64)


def _tensor(column: Array) -> torch.Tensor:
    dtype = WIDER.get(column.dtype.name, column.dtype.newbyteorder("="))
    if column.dtype == np.uint64:
        dtype = np.int64 if column.max(initial=0) < 2**63 else np.uint64
    elif column.dtype.itemsize > 8:  # long double
        dtype = np.float64
    return torch.from_numpy(column.astype(dtype, order="C"))


def _array(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()
