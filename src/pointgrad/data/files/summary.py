"""`info`: a description of a file, computed without keeping large files in memory."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pointgrad.ops.neighbors import knn

from . import las
from .crs import coordinate_system
from .errors import FileError, naming
from .formats import LAS, choose
from .isolation import count_isolated
from .memory import check_file
from .read_write import read_table
from .table import Array, Table, label_column, to_labels

QUERIES = 1000  # points whose nearest neighbor is searched
NEIGHBORS = 8  # several, because the nearest ones may be duplicates
HASHES = 1 << 22  # maximum number of hashes kept; larger files are subsampled
COARSE = 20  # warn if the spacing is less than this many float32 steps


@dataclass(frozen=True)
class Attribute:
    """A column besides x, y, z.

    Attributes:
        name: Name of the column.
        dtype: Its dtype in the file.
        low: Smallest finite value, None if no value is finite.
        high: Largest finite value, None if no value is finite.
    """

    name: str
    dtype: str
    low: float | None
    high: float | None


@dataclass(frozen=True)
class FileInfo:
    """Description of a point cloud file, returned by `info`.

    Attributes:
        path: Path of the file.
        size: Size in bytes.
        format: Format with version and encoding.
        points: Number of points, or of vertices of a mesh.
        faces: Number of triangles of a mesh.
        coordinates: dtype of the coordinates.
        lower: Lower bounds of the finite world coordinates, None if there are none.
        upper: Upper bounds of the finite world coordinates, None if there are none.
        attributes: All other columns.
        labels: Number of points of each class, None without labels.
        spacing: Median distance from a point to the nearest point at a different position, estimated from 1000
            points. None if there is no such point.
        doubled: Number of points whose position equals that of an earlier point; an estimate for files of more than
            4 million points.
        nonfinite: Number of points with NaN or infinite coordinates.
        isolated: Number of points with at most two others within about 15 spacings: an estimate of noise, which also
            counts sparse measurements far from a scanner.
        crs: Coordinate system, as name and EPSG code, of a LAS file that declares one; else None.
        warnings: Possible problems, one sentence each.
    """

    path: str
    size: int
    format: str
    points: int
    faces: int
    coordinates: str
    lower: tuple[float, float, float] | None
    upper: tuple[float, float, float] | None
    attributes: tuple[Attribute, ...]
    labels: dict[int, int] | None
    spacing: float | None
    doubled: int
    nonfinite: int
    isolated: int
    crs: str | None
    warnings: tuple[str, ...]


def info(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    columns: str | Sequence[str] | None = None,
    labels: str | None = None,
) -> FileInfo:
    """Describe a point cloud file.

    LAS and LAZ files are read in chunks, three times, so that memory does not grow with the file.

    Args:
        path: The file.
        format: One of `FORMATS`. Default: the suffix of the file.
        columns: Column names for formats that do not store them, as in `read`.
        labels: The label column, as in `read`.

    Returns:
        The description.

    Raises:
        FileError: If the file cannot be read.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.xyz").write_text("0 0 0\\n0 0 2\\n0 0 2\\n")
        ...     found = info(f"{folder}/a.xyz")
        >>> found.points, found.upper, found.spacing, found.doubled
        (3, (0.0, 0.0, 2.0), 2.0, 1)
    """
    path = Path(path)
    with naming(path, "a file that can be read"), np.errstate(all="ignore"):  # coordinates may be NaN or infinite
        chosen = choose(path, format)
        if chosen in LAS:
            check_file(path)
            if columns is not None:
                raise FileError(f"expected no column names for {chosen}, which stores them, got {columns!r}")
            return _describe(path, lambda: las.chunks(path), labels, coordinate_system(path))
        table = read_table(path, chosen, columns)
        return _describe(path, lambda: [table], labels)


def _describe(path: Path, parts: Callable[[], Iterable[Table]], labels: str | None, crs: str | None = None) -> FileInfo:
    """Summarize a file. Each call of `parts` iterates over the file from its beginning."""
    found = _Summary(labels)
    for part in parts():
        found.add(part)
    if not found.points:
        raise FileError("expected at least one point, found none")
    spacing = _spacing(found.queries(), parts)
    return FileInfo(
        path=str(path),
        size=path.stat().st_size,
        format=found.kind,
        points=found.points,
        faces=found.faces,
        coordinates=found.coordinates,
        lower=_triple(found.lower),
        upper=_triple(found.upper),
        attributes=tuple(found.attributes()),
        labels=None if found.label is None else dict(sorted(found.labels.items())),
        spacing=spacing,
        doubled=found.positions.doubled(),
        nonfinite=found.nonfinite,
        isolated=0 if spacing is None else count_isolated(parts, spacing, position_hashes),
        crs=crs,
        warnings=tuple(found.warnings(spacing)),
    )


class _Summary:
    """Statistics collected in one pass over the parts of a file."""

    def __init__(self, wanted: str | None) -> None:
        self.points = self.faces = self.nonfinite = 0
        self.kind = self.coordinates = ""
        self.wanted = wanted
        self.label: str | None = None
        self.lower, self.upper = np.full(3, np.inf), np.full(3, -np.inf)
        self.labels: Counter[int] = Counter()
        self.ranges: dict[str, tuple[str, float, float]] = {}
        self.positions = _Positions()
        self._picked: list[Array] = []
        self._random = np.random.default_rng(0)

    def add(self, part: Table) -> None:
        first = not self.points
        if first:
            self.kind, self.coordinates = part.kind, part.xyz.dtype.name
        label = label_column(part.columns, self.wanted)
        self.label = label if first or label == self.label else None  # a later part may have non-integer values
        self.points += len(part)
        self.faces += 0 if part.faces is None else len(part.faces)
        finite = part.xyz[np.isfinite(part.xyz).all(1)]
        self.nonfinite += len(part) - len(finite)
        if len(finite):
            self.lower = np.minimum(self.lower, finite.min(0))
            self.upper = np.maximum(self.upper, finite.max(0))
        self.positions.add(finite)
        share = QUERIES if first else -(-QUERIES * len(finite) // las.CHUNK)
        self._picked.append(finite[self._random.permutation(len(finite))[:share]].astype(np.float64))
        for name, column in part.columns.items():
            self._range(name, column)
        if self.label is not None:
            values, counts = np.unique(to_labels(part.columns[self.label]), return_counts=True)
            self.labels.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def _range(self, name: str, column: Array) -> None:
        numbers = column[np.isfinite(column)] if column.dtype.kind == "f" else column
        kind = column.dtype.name + "".join(f" x {size}" for size in column.shape[1:])
        _, low, high = self.ranges.get(name, (kind, np.inf, -np.inf))
        if numbers.size:
            low, high = min(low, numbers.min().item()), max(high, numbers.max().item())
        self.ranges[name] = kind, low, high

    def attributes(self) -> Iterable[Attribute]:
        for name, (kind, low, high) in self.ranges.items():
            yield Attribute(name, kind, *((low, high) if low <= high else (None, None)))

    def queries(self) -> NDArray[np.float64]:
        picked = np.concatenate(self._picked)
        return picked[self._random.permutation(len(picked))[:QUERIES]]

    def warnings(self, spacing: float | None) -> Iterable[str]:
        if self.coordinates != "float32" or spacing is None:
            return
        for axis, low, high in zip("xyz", self.lower, self.upper, strict=True):
            step = float(np.spacing(np.float32(max(abs(low), abs(high)))))
            if step * COARSE > spacing:
                yield (f"{axis} is float32 in steps of {step:g} at {max(abs(low), abs(high)):g}, "
                       f"while points are {spacing:.3g} apart")  # fmt: skip


class _Positions:
    """Count of duplicate positions in bounded memory.

    Beyond `HASHES` positions, only those whose hash ends in a growing number of zero bits are kept. Equal positions
    have equal hashes, so the sample contains all or none of the points at a position.
    """

    def __init__(self) -> None:
        self.kept = np.empty(0, np.uint64)
        self.zeros = 0

    def add(self, xyz: Array) -> None:
        self.kept = np.concatenate([self.kept, self._thin(position_hashes(xyz))])
        while len(self.kept) > HASHES:
            self.zeros += 1
            self.kept = self._thin(self.kept)

    def doubled(self) -> int:
        self.kept.sort()
        return int((self.kept[1:] == self.kept[:-1]).sum()) << self.zeros

    def _thin(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return hashes[hashes & np.uint64((1 << self.zeros) - 1) == 0]


def position_hashes(xyz: Array) -> NDArray[np.uint64]:
    """Hash each point (N, 3) to 64 bits with the SplitMix64 finalizer."""
    out = np.zeros(len(xyz), np.uint64)
    for axis in range(3):
        bits = (xyz[:, axis].astype(np.float64) + 0.0).view(np.uint64)  # + 0.0 turns -0.0 into 0.0
        out = (out ^ bits) + np.uint64(0x9E3779B97F4A7C15)
        out = (out ^ (out >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        out = (out ^ (out >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out ^= out >> np.uint64(31)
    return out


def _spacing(queries: NDArray[np.float64], parts: Callable[[], Iterable[Table]]) -> float | None:
    nearest = torch.full((len(queries),), torch.inf, dtype=torch.float64)
    for part in parts() if len(queries) else ():
        finite = part.xyz[np.isfinite(part.xyz).all(1)].astype(np.float64)
        if len(finite):
            found = knn(torch.from_numpy(finite), min(NEIGHBORS, len(finite)), torch.from_numpy(queries)).distance2
            nearest = nearest.minimum(found.masked_fill(found == 0, torch.inf).amin(1))
    known = nearest[nearest.isfinite()]
    return float(known.median().sqrt()) if len(known) else None


def _triple(values: NDArray[np.float64]) -> tuple[float, float, float] | None:
    x, y, z = values.tolist()
    return (x, y, z) if np.isfinite(values).all() else None
