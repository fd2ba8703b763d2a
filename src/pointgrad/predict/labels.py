"""Labels for the points of a scene: in memory, or tile by tile for scenes that do not fit into it."""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.predict import voting
from pointgrad.predict.scene import Progress, Scene, collect
from pointgrad.train import Trained

NONE = -1  # the label of a point without finite coordinates
WHOLE_POINTS = 2_000_000  # a scene with more is always cut into tiles
VOTES = 3
MAX_POINTS = 65_536


def quiet(what: str, done: int) -> None:
    """Progress that nobody looks at."""


class Labels(NamedTuple):
    """labels: (N,) int64, the class of each point, -1 where its coordinates are not finite. confidence: (N,) float32,
    the mean probability of that class over all votes, 0 where there is no label."""

    labels: Tensor
    confidence: Tensor


class Part(NamedTuple):
    """The result of one tile: number (n,) of its points in the scene, labels (n,) int64, confidence (n,) float32, and
    truth (n,) int64, the labels they came with, if those were kept."""

    number: np.ndarray
    labels: np.ndarray
    confidence: np.ndarray
    truth: Tensor | None


@dataclass(frozen=True)
class Settings:
    """How a scene is shown to a network; see `label`."""

    tile: float | None = None
    votes: int = VOTES
    max_points: int = MAX_POINTS

    def __post_init__(self) -> None:
        if self.tile is not None and not 0 < self.tile < math.inf:
            raise ValueError(f"tile must be a positive edge length, got {self.tile}")
        for name in ("votes", "max_points"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def label(
    trained: Trained,
    cloud: Cloud,
    *,
    tile: float | None = None,
    votes: int = VOTES,
    max_points: int = MAX_POINTS,
    progress: Progress = quiet,
) -> Labels:
    """The class of every point of a cloud, from a network trained for segmentation.

    cloud: with the features that the network was trained with, and the `category` if it has categories. It is thinned
        and normalised as in training, and every point gets the answer of the nearest point that the network has seen.
        Points with NaN or infinite coordinates get no label.
    tile: edge length, in the units of the cloud, of the square columns that the network is asked about one at a time.
        Without it: the whole cloud, if the network was trained on clouds scaled into a sphere or if there are few
        enough points; else half the number of points that the network was trained on, or half of `max_points`.
    votes: how often each point is asked about, each time in other columns or with other points; probabilities are
        averaged.
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
    settings = Settings(tile, votes, max_points)
    check_task(trained, "segmentation")
    scene = collect(lambda: [cloud], io.BytesIO(), trained.prepare.features, False, progress, cloud.origin)
    labels = torch.full((len(cloud),), NONE)
    confidence = torch.zeros(len(cloud))
    for part in parts(trained, scene, settings, progress):
        number = torch.from_numpy(part.number)
        labels[number] = torch.from_numpy(part.labels)
        confidence[number] = torch.from_numpy(part.confidence)
    return Labels(labels, confidence)


def check_task(trained: Trained, task: str) -> None:
    if trained.task != task:
        raise ValueError(f"the network must be trained for {task}, got one for {trained.task}")


def parts(trained: Trained, scene: Scene, settings: Settings, progress: Progress) -> Iterator[Part]:
    """The labels of a scene, tile by tile, each point once."""
    category = _category(trained, scene.like)
    window = settings.tile if settings.tile is not None else _window(trained, scene, settings.max_points)
    options = voting.Options(window, settings.votes, settings.max_points)
    margin = voting.margin(trained, window)
    done = 0
    for place in [scene.tree.whole] if math.isinf(window) else scene.tree.tiles():
        number, cloud, core = scene.around(place, margin)
        if not core.any():
            continue
        truth = None if cloud.labels is None else cloud.labels[core]
        cloud = replace(cloud, labels=None, category=category)
        confidence, labels = voting.probabilities(trained, cloud, core, options).max(1)
        if not bool(confidence.isfinite().all()):
            raise ValueError(f"{cloud.prefix()}the network gave values that are not finite")
        done += len(labels)
        progress("predicting", done)
        yield Part(number[core.numpy()], labels.cpu().numpy(), confidence.cpu().numpy(), truth)


def _category(trained: Trained, cloud: Cloud) -> int | None:
    """What the network must be told about the object."""
    categories = getattr(trained.model, "config", {}).get("categories", 0)
    if categories and (cloud.category is None or not 0 <= cloud.category < categories):
        raise ValueError(
            f"{cloud.prefix()}category must be in [0, {categories}) for this network, got {cloud.category}"
        )
    return cloud.category if categories else None


def _window(trained: Trained, scene: Scene, max_points: int) -> float:
    """The edge length to use where none is given; infinite for the whole scene."""
    fits = scene.count <= WHOLE_POINTS
    if voting.sees_objects(trained):
        if fits:
            return math.inf
        raise ValueError(
            f"{scene.like.prefix()}tile must be given for more than {WHOLE_POINTS} points (got {scene.count}) where "
            f"the network was trained on clouds scaled into a sphere"
        )
    size = voting.size_of_piece(trained, max_points)
    if fits:
        _, cloud, _ = scene.around(scene.tree.whole, math.inf)
        if len(voting.thin(trained, cloud)) <= size:
            return math.inf
    return _edge(trained, scene, size / 2)


def _edge(trained: Trained, scene: Scene, points: float) -> float:
    """Such that a column holds about so many points, where they are as dense as in the middle one of nine places."""
    tiles = scene.tree.tiles()
    edges = []
    for tile in tiles[:: max(1, len(tiles) // 9)]:
        _, cloud, core = scene.around(tile, 0)
        if core.any():
            place = cloud.select(core)
            size = (place.points.amax(0) - place.points.amin(0))[:2].double()
            short, long = sorted(size.tolist())
            share = points / len(voting.thin(trained, place))
            edge = math.sqrt(short * long * share)
            edges.append(edge if edge <= short else long * share)  # a wall is cut along its length only
    return float(np.format_float_positional(np.median(edges), precision=2, fractional=False)) or 1.0
