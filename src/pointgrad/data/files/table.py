"""Between files and `Cloud`: the columns of a file as they are stored, and what becomes of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pointgrad.data.cloud import Cloud

from .errors import FileError
from .memory import check_columns

Array = NDArray[Any]

# Where labels are looked for, first match first, in any case.
LABELS = ("label", "labels", "class", "classification", "semantic_label", "sem_class", "scalar_label", "scalar_labels",
          "scalar_class", "scalar_classification")  # fmt: skip
FAR = 1000.0  # coordinates beyond are kept relative to an origin, so that float32 resolves a tenth of a millimetre
WIDER = {"uint16": np.int32, "uint32": np.int64, "float16": np.float32}  # torch computes with those


@dataclass
class Table:
    """The content of a file.

    xyz: (N, 3) float32 or float64, world coordinates. columns: the others by name, in the order of the file, each (N,)
    or (N, c) in the file's own dtype. faces: (F, 3) int64 triangles of a mesh. kind: format and encoding, in words.
    label, category: of the whole cloud, in formats that have a place for them.
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


def from_columns(columns: Mapping[str, Array], **rest: Any) -> Table:
    """A table of named columns, x, y and z (in any case) among them."""
    check_columns(len(columns))
    names = {name.lower(): name for name in reversed(list(columns))}
    missing = [axis for axis in "xyz" if axis not in names]
    if missing:
        raise FileError(f"expected columns x, y, z, found {', '.join(columns) or 'none'}")
    axes = [names[axis] for axis in "xyz"]
    others = {name: column for name, column in columns.items() if name not in axes}
    return Table(coordinates([columns[name] for name in axes]), others, **rest)


def coordinates(axes: Sequence[Array]) -> Array:
    """(N, 3) from three columns: float32 if they are, else float64."""
    for axis in axes:
        if axis.ndim != 1 or axis.dtype.kind not in "fiu":
            raise FileError(f"expected a number for each of x, y and z, found {axis.dtype} {axis.shape}")
        if not survives(axis, np.float64):
            raise FileError("expected coordinates of at most 53 bits, found larger ones")
    single = all(axis.dtype.kind == "f" and axis.dtype.itemsize <= 4 for axis in axes)
    return np.stack([axis.astype(np.float32 if single else np.float64) for axis in axes], axis=1)


def name_columns(values: Array, names: Sequence[str]) -> Table:
    """A table of an (N, C) array with C names."""
    check_columns(len(names))
    if values.ndim != 2 or values.shape[1] != len(names):
        found = values.shape[1] if values.ndim == 2 else f"an array {values.shape}"
        raise FileError(f"expected {len(names)} columns ({' '.join(names)}), found {found}")
    if len(set(names)) < len(names):
        raise FileError(f"expected columns of different names, found {' '.join(names)}")
    return from_columns({name: values[:, place] for place, name in enumerate(names)})


def default_names(count: int) -> list[str]:
    """x y z, then column4, column5, ...: of columns that nobody named."""
    check_columns(count)
    return [*"xyz", *(f"column{place}" for place in range(4, count + 1))][:count]


def to_cloud(table: Table, labels: str | None, source: str) -> Cloud:
    """The table as a cloud, with the column of that name, or the first of `LABELS`, as labels."""
    origin, points = _near(table.xyz)
    columns = dict(table.columns)
    name = label_column(columns, labels)
    return Cloud(
        points=torch.from_numpy(points),
        labels=None if name is None else torch.from_numpy(whole(columns.pop(name))),
        features={name: _tensor(column) for name, column in columns.items()},
        label=table.label,
        category=table.category,
        origin=torch.from_numpy(origin),
        source=source,
    )


def to_table(cloud: Cloud) -> Table:
    """The cloud as columns in world coordinates, the labels as one called `label`."""
    columns = {name: _array(column) for name, column in cloud.features.items()}
    taken = sorted({name.lower() for name in columns} & {"x", "y", "z"})
    if taken:
        raise FileError(f"expected features of other names than x, y, z, got {', '.join(taken)}")
    if cloud.labels is not None:
        if "label" in columns:
            raise FileError("expected no feature called label beside the labels, got one")
        columns["label"] = _array(cloud.labels)
    return Table(_world(cloud), columns, label=cloud.label, category=cloud.category)


def scalars(table: Table) -> dict[str, Array]:
    """The columns beside x, y, z for formats that know only single numbers: (N, c) becomes name_0 ... name_{c-1}, and
    names have no blanks or separators."""
    flat: dict[str, Array] = {}
    for name, column in table.columns.items():
        plain = re.sub(r"[\s,;]+", "_", name)
        wide = column.reshape(len(column), -1)
        parts = {plain: column} if column.ndim == 1 else {f"{plain}_{i}": wide[:, i] for i in range(wide.shape[1])}
        if clash := flat.keys() & parts.keys():
            raise FileError(f"expected features of different names, got {', '.join(sorted(clash))} twice")
        flat |= parts
    return flat


def records(columns: Mapping[str, Array]) -> Array:
    """One structured array of all columns, all of the same length."""
    out = np.empty(
        len(next(iter(columns.values()))), [(name, col.dtype, col.shape[1:]) for name, col in columns.items()]
    )
    for name, column in columns.items():
        out[name] = column
    return out


def survives(column: Array, dtype: Any) -> bool:
    """Whether every number comes back from that dtype."""
    with np.errstate(all="ignore"):
        return np.array_equal(column.astype(dtype).astype(column.dtype), column, equal_nan=True)


def axes(table: Table) -> dict[str, Array]:
    return {axis: table.xyz[:, place] for place, axis in enumerate("xyz")}


def _near(xyz: Array) -> tuple[NDArray[np.float64], Array]:
    """A whole origin and the points relative to it, such that nothing rounds: 0 on an axis whose coordinates are small,
    or where the difference has more digits than the dtype."""
    origin = np.zeros(3)
    points = np.array(xyz, order="C")  # a copy that torch may own
    for axis in range(3):
        column = xyz[:, axis].astype(np.float64)
        finite = column[np.isfinite(column)]
        if finite.size == 0 or np.abs(finite).max() <= FAR:
            continue
        start = np.floor(finite.min())
        with np.errstate(all="ignore"):  # of what does not fit; it is compared
            shifted = (column - start).astype(xyz.dtype)
            again = shifted.astype(np.float64) + start
        if _same_bits(again, column):
            origin[axis], points[:, axis] = start, shifted
    return origin, points


def _same_bits(a: Array, b: Array) -> bool:
    equal = (a == b) & (np.signbit(a) == np.signbit(b))
    return bool((equal | (np.isnan(a) & np.isnan(b))).all())


def _world(cloud: Cloud) -> Array:
    """(N, 3) world coordinates: float32 where the points are and nothing rounds, else float64."""
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
        if not _is_whole(columns[wanted]):
            raise FileError(f"expected whole numbers in the label column {wanted}, found others")
        return wanted
    by_case = {name.lower(): name for name in reversed(list(columns))}
    found = (by_case[name] for name in LABELS if name in by_case)
    return next((name for name in found if _is_whole(columns[name])), None)


def _is_whole(column: Array) -> bool:
    if column.ndim != 1 or column.dtype.kind not in "fiu":
        return False
    if column.dtype.kind != "f":
        return column.dtype != np.uint64 or column.max(initial=0) < 2**63
    known = column[~np.isnan(column)]
    return bool(((np.abs(known) < 2**53) & (known == np.floor(known))).all())


def whole(column: Array) -> NDArray[np.int64]:
    """int64 labels; NaN, which some programs write for none, becomes -1."""
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
