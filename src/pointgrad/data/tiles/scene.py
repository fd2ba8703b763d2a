"""A scene of any size, stored so that the points of a rectangle can be read.

Points are appended to one file, grouped by the leaves of a kd-tree over x and y. Memory hardly grows with the scene.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from pointgrad.data.cloud import Cloud
from pointgrad.data.files.table import FAR
from pointgrad.data.ground import GroundGrid
from pointgrad.data.scaling import HEIGHT
from pointgrad.data.tiles.tree import Sample, Tile, Tree

Progress = Callable[[str, int], None]  # called with the current step and the number of points done
FEATURE = "feature "  # prefix of feature names in a record


class Pieces:
    """A file of point records, written in any order and read by leaf."""

    def __init__(self, file: BinaryIO, dtype: np.dtype) -> None:
        self._file = file
        self.dtype = dtype
        self._extents: list[np.ndarray] = []  # rows of leaf, first record, number of records
        self._count = 0
        self._starts = np.zeros(0, np.int64)

    def add(self, records: np.ndarray, leaf: np.ndarray) -> None:
        """Append records (n,) with their leaves (n,)."""
        order = np.argsort(leaf, kind="stable")
        leaves, first, count = np.unique(leaf[order], return_index=True, return_counts=True)
        self._file.write(records[order].tobytes())
        self._extents.append(np.stack([leaves, first + self._count, count], 1))
        self._count += len(records)

    def finish(self, leaves: int) -> None:
        """Finish writing. Call this once, between the last `add` and the first `read`."""
        self._file.flush()
        extents = np.concatenate(self._extents)
        self._extents = [extents[np.argsort(extents[:, 0], kind="stable")]]
        self._starts = np.searchsorted(self._extents[0][:, 0], np.arange(leaves + 1))

    def read(self, leaves: np.ndarray) -> np.ndarray:
        """Read the records of some leaves, in the order in which they were added."""
        extents = [self._extents[0][self._starts[leaf] : self._starts[leaf + 1]] for leaf in leaves]
        records = [self._read_run(first, count) for first, count in _joined(np.concatenate(extents))]
        together = np.concatenate([np.zeros(0, self.dtype), *records])
        return together[np.argsort(together["number"])]

    def _read_run(self, first: int, count: int) -> np.ndarray:
        self._file.seek(first * self.dtype.itemsize)
        return np.frombuffer(self._file.read(count * self.dtype.itemsize), self.dtype)


def _joined(extents: np.ndarray) -> Iterator[tuple[int, int]]:
    """Merge adjacent extents. Yields the first record and the number of records of each run."""
    extents = extents[np.argsort(extents[:, 1])]
    ends = extents[:, 1] + extents[:, 2]
    begins_run = np.ones(len(extents), bool)
    begins_run[1:] = extents[1:, 1] != ends[:-1]
    starts = np.flatnonzero(begins_run)
    for start, stop in zip(starts, [*starts[1:], len(extents)], strict=True):
        first = int(extents[start, 1])
        yield first, int(ends[stop - 1]) - first


@dataclass(frozen=True)
class Scene:
    """A point cloud stored by leaf, made by `collect`.

    Attributes:
        tree: kd-tree over world x and y.
        pieces: The stored records.
        like: An empty cloud with the origin, category and source of the scene.
        count: Number of points with finite coordinates, which are the ones stored.
        total: Number of all points.
        labels: Labels that occur, if labels are stored.
    """

    tree: Tree
    pieces: Pieces
    like: Cloud
    count: int
    total: int
    labels: frozenset[int]

    def around(self, tile: Tile, margin: float) -> tuple[np.ndarray, Cloud, Tensor]:
        """Read the points of a tile and its margin.

        Returns:
            The numbers (n,) of the points in the scene, a cloud of n points, and a mask (n,) of those in the tile.
        """
        records = self.pieces.read(self.tree.around(tile, margin))
        xy = self._xy(records)
        near = ((xy >= tile.low - margin) & (xy <= tile.high + margin)).all(1)
        records = records[near]
        columns = {name: torch.from_numpy(records[name].copy()) for name in records.dtype.fields or ()}
        del columns["number"]
        points, labels = columns.pop("points"), columns.pop("labels", None)
        features = {name.removeprefix(FEATURE): column for name, column in columns.items()}
        cloud = replace(self.like, points=points, features=features, labels=labels)
        return records["number"], cloud, torch.from_numpy(tile.contains(xy[near]))

    def add(self, chunk: Cloud, features: tuple[str, ...], with_labels: bool, first: int) -> None:
        """Store a chunk of points, whose first point has the number `first` in the scene."""
        records = _records(_rebased(chunk, self.like.origin), features, with_labels, first)[_finite(chunk).numpy()]
        self.pieces.add(records, self.tree.leaf(self._xy(records)))

    def _xy(self, records: np.ndarray) -> np.ndarray:
        return records["points"][:, :2].astype(np.float64) + self.like.origin[:2].numpy()


def collect(
    chunks: Callable[[], Iterable[Cloud]],
    file: BinaryIO,
    features: tuple[str, ...],
    with_labels: bool,
    progress: Progress,
    origin: Tensor | None = None,
) -> Scene:
    """Store the points of a scene by leaf, in two passes over its chunks.

    Args:
        chunks: Called twice; iterates over the chunks of the scene.
        file: An empty file, open for reading and writing, or `io.BytesIO`.
        features: Names of the features to store; `height_above_ground` is computed if the chunks do not have it.
        with_labels: Whether to store labels.
        progress: Called with the current step and the number of points done.
        origin: Origin (3,) of the stored points. Default: chosen independently of the division into chunks.

    Returns:
        The stored scene.

    Raises:
        ValueError: If a feature or the labels are missing, or no point has finite coordinates.
    """
    sample, grid = Sample(), None
    total, like = 0, None
    low, high = torch.full((3,), math.inf).double(), torch.full((3,), -math.inf).double()
    found: set[int] = set()
    for like in chunks():
        total += len(like)
        if HEIGHT in features and HEIGHT not in like.features:
            grid = grid or GroundGrid()
            grid.add(like.world())
        like.need([name for name in features if grid is None or name != HEIGHT])
        if with_labels:
            found.update(_labels(like).unique().tolist())
        world = like.world()[_finite(like)]
        if len(world):
            sample.add(world[:, :2].numpy())
            low, high = torch.minimum(low, world.amin(0)), torch.maximum(high, world.amax(0))
        progress("reading", total)
    if like is None or not sample.seen:
        got = f"{total} with NaN or infinity" if total else "none"
        prefix = like.prefix() if like is not None else ""
        raise ValueError(f"{prefix}expected at least one point with finite coordinates, got {got}")
    ground = None if grid is None else grid.ground()

    def complete(chunk: Cloud) -> Cloud:
        if ground is None:
            return chunk
        return replace(chunk, features={**chunk.features, HEIGHT: ground.height(chunk.world())})

    like = complete(like)
    nothing = _rebased(like.select(torch.zeros(0, dtype=torch.long)), _origin(low, high) if origin is None else origin)
    scene = Scene(
        tree=Tree(sample.points(), sample.every),
        pieces=Pieces(file, _records(nothing, features, with_labels, 0).dtype),
        like=replace(nothing, features={}, labels=None),
        count=sample.seen,
        total=total,
        labels=frozenset(found),
    )
    done = 0
    for chunk in chunks():
        scene.add(complete(chunk), features, with_labels, done)
        done += len(chunk)
        progress("sorting", done)
    scene.pieces.finish(len(scene.tree.whole.leaves))
    return scene


def _labels(chunk: Cloud) -> Tensor:
    if chunk.labels is None:
        has = ", ".join(chunk.features) or "only coordinates"
        raise ValueError(f"{chunk.prefix()}expected labels to compare with, found {has}")
    return chunk.labels


def _finite(chunk: Cloud) -> Tensor:
    return chunk.points.isfinite().all(1)


def _origin(low: Tensor, high: Tensor) -> Tensor:
    """Choose an integer origin as `read` does, only where subtracting it is certain not to round."""
    is_far = torch.maximum(low.abs(), high.abs()) > FAR
    is_exact = (low >= 0) | ((high < 0) & (high - low <= -high))
    return torch.where(is_far & is_exact, low.floor(), 0.0)


def _rebased(chunk: Cloud, origin: Tensor) -> Cloud:
    if torch.equal(chunk.origin, origin):
        return chunk
    return replace(chunk, points=chunk.world() - origin, origin=origin)


def _records(chunk: Cloud, features: tuple[str, ...], with_labels: bool, first: int) -> np.ndarray:
    """Make one record per point: number in the scene, coordinates, features and label."""
    columns = {"points": chunk.points, **{FEATURE + name: chunk.features[name] for name in features}}
    if with_labels:
        columns["labels"] = _labels(chunk)
    arrays = {name: column.numpy() for name, column in columns.items()}
    dtype = [("number", np.int64), *((name, array.dtype, array.shape[1:]) for name, array in arrays.items())]
    records = np.empty(len(chunk), dtype)
    records["number"] = np.arange(first, first + len(chunk))
    for name, array in arrays.items():
        records[name] = array
    return records
