"""Labels for the points of a scene: in memory, or tile by tile for scenes that do not fit into it."""

import io
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.data.files.table import FAR
from pointgrad.predict import voting
from pointgrad.predict.scene import Pieces, Sample, Tile, Tree

if TYPE_CHECKING:
    from pointgrad.train import Trained

NONE = -1  # the label of a point without finite coordinates
WHOLE_POINTS = 2_000_000  # a scene with more is always cut into tiles
MAX_POINTS = 65_536
VOTES = 3

Progress = Callable[[str, int], None]  # what is done, and with how many points so far


def quiet(what: str, done: int) -> None:
    """Progress that nobody looks at."""


class Labels(NamedTuple):
    """labels: (N,) int64, the class of each point, -1 where its coordinates are not finite. confidence: (N,) float32,
    the mean probability of that class over all votes, 0 where there is no label."""

    labels: Tensor
    confidence: Tensor


class Part(NamedTuple):
    """The result of one tile: number (n,) of the points in the scene, labels (n,) int64, confidence (n,) float32."""

    number: np.ndarray
    labels: np.ndarray
    confidence: np.ndarray


def label(
    trained: "Trained",
    cloud: Cloud,
    *,
    tile: float | None = None,
    votes: int = VOTES,
    max_points: int = MAX_POINTS,
    progress: Progress = quiet,
) -> Labels:
    """The class of every point of a cloud, from a network trained for segmentation.

    The cloud is thinned and normalised as in training, and every point gets the answer of the nearest point that the
    network has seen. Points with NaN or infinite coordinates get no label.

    tile: edge length, in the units of the cloud, of the square columns that the network sees one at a time. Without
        it the network sees the whole cloud, if it was trained on clouds scaled into a sphere or sampled to a number of
        points, or if there are at most `max_points` points; else columns that hold about `max_points`.
    votes: how often each point is seen, each time in other columns or with other points; probabilities are averaged.
    max_points: how many points go through the network at once: less memory, or more speed on a GPU.
    progress: called with what is done, and with how many points so far.

    >>> from types import SimpleNamespace
    >>> from pointgrad.data import Prepare
    >>> class Height(torch.nn.Module):
    ...     def forward(self, points, features=None, **where):
    ...         return torch.stack([-points[..., 2], points[..., 2]], dim=-1)
    >>> trained = SimpleNamespace(model=Height(), task="segmentation", classes=("low", "high"), prepare=Prepare())
    >>> label(trained, Cloud(torch.tensor([[0., 0., 0.], [0., 0., 4.], [0., 0., torch.nan]]))).labels
    tensor([ 0,  1, -1])
    """
    check(trained, tile, votes, max_points)
    cloud.need(trained.prepare.features)
    scene = collect(lambda: [cloud], io.BytesIO(), trained.prepare.features, quiet)
    labels = torch.full((len(cloud),), NONE)
    confidence = torch.zeros(len(cloud))
    for part in parts(trained, scene, tile, votes, max_points, progress):
        number = torch.from_numpy(part.number)
        labels[number] = torch.from_numpy(part.labels)
        confidence[number] = torch.from_numpy(part.confidence)
    return Labels(labels, confidence)


def check(trained: "Trained", tile: float | None, votes: int, max_points: int) -> None:
    if trained.task != "segmentation":
        raise ValueError(f"the network must be trained for segmentation, got one for {trained.task}")
    if tile is not None and not 0 < tile < math.inf:
        raise ValueError(f"tile must be a positive edge length, got {tile}")
    for name, value in (("votes", votes), ("max_points", max_points)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True)
class Scene:
    """Points kept by place. count: how many have finite coordinates; total: how many there are."""

    tree: Tree  # over world coordinates
    pieces: Pieces
    like: Cloud  # without points: origin, category and source of all
    count: int
    total: int

    def around(self, tile: Tile, margin: float) -> tuple[np.ndarray, Cloud, Tensor]:
        """The points of a tile and its margin: their numbers, they, and which of them are of the tile."""
        records = self.pieces.read(self.tree.around(tile, margin))
        xy = self._xy(records)
        near = ((xy >= tile.low - margin) & (xy <= tile.high + margin)).all(1)
        records = records[near]
        columns = {name: torch.from_numpy(records[name].copy()) for name in records.dtype.names[1:]}
        cloud = replace(self.like, points=columns.pop("points"), features=columns)
        return records["number"], cloud, torch.from_numpy(tile.contains(xy[near]))

    def add(self, chunk: Cloud, features: tuple[str, ...], first: int) -> None:
        """chunk: points, the first of which is the first-th of the scene."""
        records = _records(_rebased(chunk, self.like.origin), features, first)[_finite(chunk).numpy()]
        self.pieces.add(records, self.tree.leaf(self._xy(records)))

    def _origin(low: Tensor, high: Tensor) -> Tensor:
    """Of a scene that comes in several chunks: near it, where taking it away rounds nothing."""
    is_far = torch.maximum(low.abs(), high.abs()) > FAR
    is_exact = (low >= 0) | ((high < 0) & (high - low <= -high))
    return torch.where(is_far & is_exact, low.floor(), 0.0)


def _rebased(chunk: Cloud, origin: Tensor) -> Cloud:
    if torch.equal(chunk.origin, origin):
        return chunk
    return replace(chunk, points=chunk.world() - origin, origin=origin)


def _records(chunk: Cloud, features: tuple[str, ...], first: int) -> np.ndarray:
    """A row per point: its number in the scene, coordinates, features."""
    columns = {"points": chunk.points.numpy(), **{name: chunk.features[name].numpy() for name in features}}
    dtype = [("number", np.int64), *((name, column.dtype, column.shape[1:]) for name, column in columns.items())]
    records = np.empty(len(chunk), dtype)
    records["number"] = np.arange(first, first + len(chunk))
    for name, column in columns.items():
        records[name] = column
    return records
