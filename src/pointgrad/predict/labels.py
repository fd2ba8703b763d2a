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
from pointgrad.predict import voting
from pointgrad.predict.scene import Pieces, Sample, Tile, Tree

if TYPE_CHECKING:
    from pointgrad.train import Trained

NONE = -1  # the label of a point without finite coordinates
WHOLE_POINTS = 2_000_000  # a scene with more is always cut into tiles
MAX_POINTS = 65_536
VOTES = 3

Progress = Callable[[str, int, int], None]  # what is done, how many points of how many


def quiet(what: str, done: int, total: int) -> None:
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
    progress: called with what is done, and how many points of how many.

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
    cloud.stack(trained.prepare.features)  # names the features that are missing
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

    tree: Tree
    pieces: Pieces
    like: Cloud  # without points: origin, category and source of all
    count: int
    total: int

    def around(self, tile: Tile, margin: float) -> tuple[np.ndarray, Cloud, Tensor]:
        """The points of a tile and its margin: their numbers, they, and which of them are of the tile."""
        records = self.pieces.read(self.tree.around(tile, margin))
        xy = records["points"][:, :2].astype(np.float64)
        records = records[((xy >= tile.low - margin) & (xy <= tile.high + margin)).all(1)]
        columns = {name: torch.from_numpy(records[name].copy()) for name in records.dtype.names[1:]}
        cloud = replace(self.like, points=columns.pop("points"), features=columns)
        core = tile.contains(records["points"][:, :2].astype(np.float64))
        return records["number"], cloud, torch.from_numpy(core)


def collect(
    chunks: Callable[[], Iterable[Cloud]], file: BinaryIO, features: tuple[str, ...], progress: Progress
) -> Scene:
    """Goes through the chunks of a scene twice, all of one origin, and puts them into a file by place."""
    sample, total, like = Sample(), 0, None
    for chunk in chunks():
        like = like if like is not None else chunk.select(torch.zeros(0, dtype=torch.long))
        sample.add(_xy(chunk.points[_finite(chunk)]))
        total += len(chunk)
        progress("reading", total, 0)
    if like is None or not sample.seen:
        where = f"{like.source}: " if like is not None and like.source else ""
        what = f"{total} points, all of them with NaN or infinite coordinates" if total else "none"
        raise ValueError(f"{where}there must be at least one point to label, got {what}")
    tree = Tree(sample.points(), sample.every)
    pieces = None
    done = 0
    for chunk in chunks():
        records = _records(chunk, features, done)
        pieces = pieces or Pieces(file, records.dtype)
        finite = records[_finite(chunk).numpy()]
        pieces.add(finite, tree.leaf(finite["points"][:, :2].astype(np.float64)))
        done += len(chunk)
        progress("sorting", done, total)
    assert pieces is not None
    return Scene(tree, pieces, replace(like, labels=None), sample.seen, total)


def parts(
    trained: "Trained", scene: Scene, tile: float | None, votes: int, max_points: int, progress: Progress
) -> Iterator[Part]:
    """The labels of a scene, tile by tile, each point once."""
    window = tile if tile is not None else _window(trained, scene, max_points)
    options = voting.Options(window, votes, max_points)
    margin = voting.margin(trained, window)
    done = 0
    for place in [scene.tree.whole] if math.isinf(window) else scene.tree.tiles():
        number, cloud, core = scene.around(place, margin)
        if not core.any():
            continue
        confidence, labels = voting.probabilities(trained, cloud, core, options).max(1)
        if not bool(confidence.isfinite().all()):
            raise ValueError(f"{cloud.source or 'the cloud'}: the network gave values that are not finite")
        done += len(labels)
        progress("predicting", done, scene.count)
        yield Part(number[core.numpy()], labels.cpu().numpy(), confidence.cpu().numpy())


def _window(trained: "Trained", scene: Scene, max_points: int) -> float:
    """The edge length to use where none is given; infinite for the whole scene."""
    of_objects = trained.prepare.normalize == "sphere"
    if scene.count <= WHOLE_POINTS:
        if of_objects or trained.prepare.points:
            return math.inf
        _, cloud, _ = scene.around(scene.tree.whole, math.inf)
        if len(voting.thin(trained, cloud)) <= max_points:
            return math.inf
    elif of_objects:
        raise ValueError(
            f"{scene.like.source or 'the cloud'}: tile must be given for more than {WHOLE_POINTS} points (got "
            f"{scene.count}) where the network was trained on clouds scaled into a sphere"
        )
    return _edge(trained, scene, voting.limit(trained, max_points))


def _edge(trained: "Trained", scene: Scene, points: int) -> float:
    """Such that a column holds about so many points, where there are as many as in the middle one of nine places."""
    tiles = scene.tree.tiles()
    edges = []
    for tile in tiles[:: max(1, len(tiles) // 9)]:
        _, cloud, core = scene.around(tile, 0)
        if core.any():
            thinned = cloud.select(core).select(voting.thin(trained, cloud.select(core)))
            size = (thinned.points.amax(0) - thinned.points.amin(0))[:2].double().clamp(min=1e-9)
            edges.append(math.sqrt(float(size.prod()) / len(thinned) * points))
    return float(np.format_float_positional(np.median(edges), precision=2, fractional=False))


def _finite(chunk: Cloud) -> Tensor:
    return chunk.points.isfinite().all(1)


def _xy(points: Tensor) -> np.ndarray:
    return points[:, :2].double().numpy()


def _records(chunk: Cloud, features: tuple[str, ...], first: int) -> np.ndarray:
    """A row per point: its number in the scene, coordinates, features."""
    columns = {"points": chunk.points.numpy(), **{name: chunk.features[name].numpy() for name in features}}
    dtype = [("number", np.int64), *((name, column.dtype, column.shape[1:]) for name, column in columns.items())]
    records = np.empty(len(chunk), dtype)
    records["number"] = np.arange(first, first + len(chunk))
    for name, column in columns.items():
        records[name] = column
    return records
