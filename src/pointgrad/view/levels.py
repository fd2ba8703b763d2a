"""A cloud of any size, on disk, such that a few points of any part of it can be had at once.

It is cut into leaves of about 32,768 points, and each leaf is kept in the order of farthest point sampling: its first n
points, for any n, cover it about as evenly as n points can. A level of detail is how many of them are read.
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

ORDERED = 1 << 17  # points of a leaf that are sampled; the rest of a larger one, such as a pole, follows as it is
TOGETHER = 16  # leaves that are sampled at once
SAMPLE = 1 << 19  # points that a scale is found from


@dataclass(frozen=True)
class Part:
    """Points of one leaf: they, and their numbers in the file (n,)."""

    cloud: Cloud
    number: np.ndarray


def join(parts: Sequence[Part]) -> Part:
    """Several parts as one."""
    clouds = [part.cloud for part in parts]
    joined = replace(
        clouds[0],
        points=torch.cat([cloud.points for cloud in clouds]),
        features={name: torch.cat([cloud.features[name] for cloud in clouds]) for name in clouds[0].features},
        labels=None if clouds[0].labels is None else torch.cat([c.labels for c in clouds if c.labels is not None]),
    )
    return Part(joined, np.concatenate([part.number for part in parts]))


class Levels:
    """The points of a file by leaf. low, high: (L, 3) the bounds of the leaves. counts: (L,) their points.

    total: points in the file; those without finite coordinates are not here. Positions are relative to `origin`.
    added: columns that are not of the file.
    """

    def __init__(self, file: BinaryIO, scene: Scene, counts: np.ndarray, boxes: np.ndarray) -> None:
        """file: the records of the scene, leaf by leaf, each in order. counts (L,), boxes (L, 2, 3): of the leaves."""
        self._file, self._dtype = file, scene.pieces.dtype
        self._like = scene.like
        self.counts = counts
        self.low, self.high = boxes[:, 0], boxes[:, 1]
        self.total = scene.total
        self.origin = scene.like.origin
        self.source = scene.like.source
        self._first = np.concatenate([[0], counts.cumsum()])
        self.added: dict[str, Tensor] = {}
        self._scales: dict[str, Scale] = {}
        self._reading = threading.Lock()

    def __len__(self) -> int:
        """How many points have finite coordinates."""
        return int(self._first[-1])

    def close(self) -> None:
        self._file.close()

    def read(self, leaf: int, count: int) -> Part:
        """The first points of a leaf."""
        count = min(count, int(self.counts[leaf]))
        with self._reading:
            self._file.seek(int(self._first[leaf]) * self._dtype.itemsize)
            content = self._file.read(count * self._dtype.itemsize)
        return self._part(np.frombuffer(content, self._dtype))

    def sample(self, count: int) -> Part:
        """About so many points, evenly from all leaves: of each the same share."""
        share = min(1.0, count / max(1, len(self)))
        wanted = np.ceil(self.counts * share).astype(np.int64)
        return join([self.read(leaf, int(n)) for leaf, n in enumerate(wanted)])

    def add(self, name: str, values: Tensor) -> None:
        """A column more: (total,), in the order of the file."""
        self.added[name] = values
        self._scales.pop(name, None)

    @property
    def labelled(self) -> bool:
        return "labels" in (self._dtype.names or ())

    def choices(self) -> list[str]:
        """What the cloud can be coloured by."""
        return colors.choices(self.read(0, 1).cloud)

    def scale(self, by: str, names: dict[int, str]) -> Scale:
        """The scale of a column, with the counts of all points if it holds classes."""
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
    """Goes through the chunks of a cloud twice. Memory depends on the size of a chunk, not of the cloud; the disk holds
    all of its columns twice for a while, in temporary files that vanish with the process, however it ends."""
    sample = next(iter(chunks()))
    with ExitStack() as undo:
        file = undo.enter_context(tempfile.TemporaryFile())
        unordered = undo.enter_context(tempfile.TemporaryFile())
        scene = collect(chunks, unordered, tuple(sample.features), sample.labels is not None, progress)
        leaves = len(scene.tree.whole.leaves)
        counts, boxes, done = [], [], 0
        for first in range(0, leaves, TOGETHER):
            some = [scene.pieces.read(np.array([leaf])) for leaf in range(first, min(first + TOGETHER, leaves))]
            some = [records for records in some if len(records)]
            for records, order in zip(some, _orders([records["points"] for records in some]), strict=True):
                file.write(np.concatenate([records[order], records[ORDERED:]]).tobytes())
                counts.append(len(records))
                boxes.append((records["points"].min(0), records["points"].max(0)))
                done += len(records)
            progress("ordering", done)
        undo.pop_all()
        unordered.close()
    return Levels(file, scene, np.array(counts), np.array(boxes, np.float64))


def _orders(leaves: list[np.ndarray]) -> list[np.ndarray]:
    """The order of farthest point sampling of each leaf (n, 3). Together, because one alone keeps few threads busy."""
    near = [_unit(points[:ORDERED].astype(np.float64)) for points in leaves]
    sizes = torch.tensor([len(points) for points in near])
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    index = farthest_point_sampling(torch.from_numpy(np.concatenate(near)), sizes, offsets=offsets)
    local = index - offsets[:-1].repeat_interleave(sizes)
    return [order.numpy() for order in local.split(sizes.tolist())]


def _unit(points: np.ndarray) -> np.ndarray:
    """(n, 3) float32 from 0 to 1, so that no distance overflows; the order of distances stays as it is."""
    points = points - points.min(0)
    return (points / max(float(points.max()), np.finfo(np.float64).tiny)).astype(np.float32)
