"""A cloud of any size on disk, from which a coarse or fine sample of any part can be read quickly.

The cloud is split into leaves of about 32,768 points, each stored in farthest point sampling order: for any n, the
first n points of a leaf cover it evenly. The level of detail of a leaf is the number of points that are read.
"""

import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.data.tiles import FEATURE, Progress, Scene, collect
from pointgrad.ops.sampling import farthest_point_sampling
from pointgrad.predict.labels import quiet
from pointgrad.render import Scale, colors
from pointgrad.render.bounds import Bounds, bounds

ORDERED = 1 << 17  # points of a leaf that are ordered; the rest of a larger leaf, such as a pole, stays in file order
LEAVES_PER_BATCH = 16  # leaves that are ordered in one call
SAMPLE = 1 << 19  # points from which a color scale is computed
FAIR = 1 << 17  # points from which the region without outliers is computed


@dataclass(frozen=True)
class Part:
    """Some points of a cloud.

    Attributes:
        cloud: The points with their columns.
        number: (n,) row numbers of the points in the file.
    """

    cloud: Cloud
    number: np.ndarray


def join(parts: Sequence[Part]) -> Part:
    """Concatenate parts."""
    clouds = [part.cloud for part in parts]
    joined = replace(
        clouds[0],
        points=torch.cat([cloud.points for cloud in clouds]),
        features={name: torch.cat([cloud.features[name] for cloud in clouds]) for name in clouds[0].features},
        labels=None if clouds[0].labels is None else torch.cat([c.labels for c in clouds if c.labels is not None]),
    )
    return Part(joined, np.concatenate([part.number for part in parts]))


class Levels:
    """The points of a file, by leaf. Points without finite coordinates are left out.

    Args:
        file: The records of the scene, leaf by leaf, each in farthest point sampling order.
        scene: The scene that the records come from.
        counts: (L,) number of points in each leaf.
        boxes: (L, 2, 3) bounds of the leaves.
        region: The region without outliers, relative to `origin`.

    Attributes:
        low, high: (L, 3) bounds of the leaves, relative to `origin`.
        counts: (L,) number of points in each leaf.
        region: The region without outliers, relative to `origin`.
        total: Number of points in the file, including those without finite coordinates.
        origin: Origin of the coordinates, as in `Cloud`.
        added: Columns that were added with `add`.
    """

    def __init__(self, file: BinaryIO, scene: Scene, counts: np.ndarray, boxes: np.ndarray, region: Bounds) -> None:
        self._file, self._dtype = file, scene.pieces.dtype
        self._like = scene.like
        self.counts = counts
        self.low, self.high = boxes[:, 0], boxes[:, 1]
        self.region = region
        self.total = scene.total
        self.origin = scene.like.origin
        self.source = scene.like.source
        self._first = np.concatenate([[0], counts.cumsum()])
        self.added: dict[str, Tensor] = {}
        self._scales: dict[str, Scale] = {}
        self._reading = threading.Lock()

    def __len__(self) -> int:
        """Number of points with finite coordinates."""
        return int(self._first[-1])

    def close(self) -> None:
        """Delete the temporary file."""
        self._file.close()

    def read(self, leaf: int, count: int) -> Part:
        """Read the first points of a leaf."""
        count = min(count, int(self.counts[leaf]))
        with self._reading:
            self._file.seek(int(self._first[leaf]) * self._dtype.itemsize)
            content = self._file.read(count * self._dtype.itemsize)
        return self._part(np.frombuffer(content, self._dtype))

    def sample(self, count: int) -> Part:
        """Read `count` points, or all if there are fewer: about the same fraction of every leaf."""
        ends = self._first * min(count, len(self)) // len(self)  # ends of the leaves in the sample
        return join([self.read(int(leaf), int(n)) for leaf, n in enumerate(np.diff(ends)) if n])

    def add(self, name: str, values: Tensor) -> None:
        """Add a column (total,), in the order of the file, or replace it."""
        self.added[name] = values
        self._scales.pop(name, None)

    @property
    def has_labels(self) -> bool:
        """Whether the file has labels."""
        return "labels" in (self._dtype.names or ())

    def choices(self) -> list[str]:
        """Names of the columns that the cloud can be colored by."""
        return colors.choices(self.read(0, 1).cloud)

    def scale(self, by: str, names: dict[int, str]) -> Scale:
        """Color scale of a column. Counts of classes include all points, not only the sample."""
        if by not in self._scales:
            found = colors.scale(self.sample(SAMPLE).cloud, by)
            if found.kind == "class" and len(self) > SAMPLE:
                found = replace(found, counts=self._count(by))
            self._scales[by] = found
        return replace(self._scales[by], names=names)

    def _count(self, by: str) -> dict[int, int]:
        counts: dict[int, int] = {}
        for leaf, size in enumerate(self.counts):
            for number, count in colors.scale(self.read(leaf, int(size)).cloud, by).counts.items():
                counts[number] = counts.get(number, 0) + count
        return dict(sorted(counts.items()))

    def _part(self, records: np.ndarray) -> Part:
        number = records["number"].copy()
        columns = {name: torch.from_numpy(records[name].copy()) for name in records.dtype.names or ()}
        del columns["number"]
        points, labels = columns.pop("points"), columns.pop("labels", None)
        features = {name.removeprefix(FEATURE): column for name, column in columns.items()}
        features |= {name: values[torch.from_numpy(number)] for name, values in self.added.items()}
        return Part(replace(self._like, points=points, features=features, labels=labels), number)


def build(chunks: Callable[[], Iterable[Cloud]], progress: Progress = quiet) -> Levels:
    """Store a cloud as leaves in a temporary file, reading its chunks twice.

    Memory depends on the size of a chunk, not of the cloud. The disk temporarily holds all columns twice. The temporary
    files disappear with the process, even if it is killed.

    Args:
        chunks: Streams the chunks of the cloud from the beginning.
        progress: Called with the current step and the number of points done.

    Returns:
        The stored cloud.

    Raises:
        ValueError: If no point has finite coordinates.
    """
    sample = next(iter(chunks()))
    with ExitStack() as undo:
        file = undo.enter_context(tempfile.TemporaryFile())
        unordered = undo.enter_context(tempfile.TemporaryFile())
        scene = collect(chunks, unordered, tuple(sample.features), sample.labels is not None, progress)
        leaves = len(scene.tree.whole.leaves)
        counts, boxes, fair, done = [], [], [], 0
        step = max(1, scene.total // FAIR)  # every step-th point, in file order, is a fair sample
        for first in range(0, leaves, LEAVES_PER_BATCH):
            last = min(first + LEAVES_PER_BATCH, leaves)
            batch = [scene.pieces.read(np.array([leaf])) for leaf in range(first, last)]
            batch = [records for records in batch if len(records)]
            for records, order in zip(batch, _orders([records["points"] for records in batch]), strict=True):
                file.write(np.concatenate([records[order], records[ORDERED:]]).tobytes())
                counts.append(len(records))
                boxes.append((records["points"].min(0), records["points"].max(0)))
                fair.append(records["points"][::step].astype(np.float64))
                done += len(records)
            progress("ordering", done)
        undo.pop_all()
        unordered.close()
    region = bounds(np.concatenate(fair))
    return Levels(file, scene, np.array(counts), np.array(boxes, np.float64), region)


def _orders(leaves: list[np.ndarray]) -> list[np.ndarray]:
    """Farthest point sampling order of each leaf (n, 3). One call for several leaves keeps all threads busy."""
    scaled = [_unit(points[:ORDERED].astype(np.float64)) for points in leaves]
    sizes = torch.tensor([len(points) for points in scaled])
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    index = farthest_point_sampling(torch.from_numpy(np.concatenate(scaled)), sizes, offsets=offsets)
    local = index - offsets[:-1].repeat_interleave(sizes)
    return [order.numpy() for order in local.split(sizes.tolist())]


def _unit(points: np.ndarray) -> np.ndarray:
    """Scale points (n, 3) to the unit cube in float32, so that no distance overflows; the order is not affected."""
    points = points - points.min(0)
    return (points / max(float(points.max()), np.finfo(np.float64).tiny)).astype(np.float32)
