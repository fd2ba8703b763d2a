"""Labels for the points of a scene, computed tile by tile if the scene is large."""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.data.tiles import Progress, Scene, collect
from pointgrad.predict import voting
from pointgrad.train import Trained

NONE = -1  # label of points with non-finite coordinates
WHOLE_POINTS = 2_000_000  # larger scenes are always divided into tiles
VOTES = 3
MAX_POINTS = 65_536


def quiet(what: str, done: int) -> None:
    """A `Progress` callback that does nothing."""


class Labels(NamedTuple):
    """Predicted labels of N points.

    Attributes:
        labels: Class of each point (N,), int64; -1 for points with non-finite coordinates.
        confidence: Mean probability of that class over all votes (N,), float32; 0 for points without label.
    """

    labels: Tensor
    confidence: Tensor


class Part(NamedTuple):
    """Prediction for one tile of n points.

    Attributes:
        number: Numbers of the points in the scene (n,).
        labels: Predicted classes (n,), int64.
        confidence: Mean probability of the predicted class (n,), float32.
        truth: Labels in the source (n,), int64, if they are stored.
    """

    number: np.ndarray
    labels: np.ndarray
    confidence: np.ndarray
    truth: Tensor | None


@dataclass(frozen=True)
class Settings:
    """Settings of `label`."""

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
    """Predict the class of every point with a network trained for segmentation.

    The cloud is subsampled and normalized as in training, and every point gets the prediction for the nearest point
    that was passed to the network.

    Args:
        trained: The network.
        cloud: N points with the features that the network was trained with, and the `category` if it needs one.
        tile: Edge length, in the units of the cloud, of the square columns that are passed to the network one after the
            other. Default: the whole cloud, if the network was trained on clouds scaled into a sphere or if there are
            few points; otherwise such that a column has half the number of points used in training, or half of
            `max_points`.
        votes: Number of predictions for each point, with different columns or different points around it. Their
            probabilities are averaged.
        max_points: Number of points in one call of the network. Smaller values need less memory, larger ones are
            faster on a GPU.
        progress: Called with the current step and the number of points done.

    Returns:
        Labels (N,) and their confidence (N,). Points with NaN or infinite coordinates have the label -1.

    Raises:
        ValueError: If the network has a different task, or features or the category are missing.

    Example:
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
        raise ValueError(f"task of the network must be {task}, got {trained.task}")


def parts(trained: Trained, scene: Scene, settings: Settings, progress: Progress) -> Iterator[Part]:
    """Predict the labels of a scene tile by tile. Each point occurs in exactly one part."""
    category = _category(trained, scene.like)
    window = settings.tile if settings.tile is not None else _window(trained, scene, settings.max_points)
    options = voting.Options(window, settings.votes, settings.max_points)
    margin = voting.margin(trained, window)
    done = 0
    for region in [scene.tree.whole] if math.isinf(window) else scene.tree.tiles():
        number, cloud, core = scene.around(region, margin)
        if not core.any():
            continue
        truth = None if cloud.labels is None else cloud.labels[core]
        cloud = replace(cloud, labels=None, category=category)
        confidence, labels = voting.probabilities(trained, cloud, core, options).max(1)
        if not bool(confidence.isfinite().all()):
            raise ValueError(f"{cloud.prefix()}expected finite network outputs, got NaN or infinity")
        done += len(labels)
        progress("predicting", done)
        yield Part(number[core.numpy()], labels.cpu().numpy(), confidence.cpu().numpy(), truth)


def _category(trained: Trained, cloud: Cloud) -> int | None:
    """Return the category of the cloud if the network needs one, after checking it."""
    categories = getattr(trained.model, "config", {}).get("categories", 0)
    if categories and (cloud.category is None or not 0 <= cloud.category < categories):
        raise ValueError(
            f"{cloud.prefix()}category must be in [0, {categories}) for this network, got {cloud.category}"
        )
    return cloud.category if categories else None


def _window(trained: Trained, scene: Scene, max_points: int) -> float:
    """Return the default edge length; infinity for the whole scene."""
    fits = scene.count <= WHOLE_POINTS
    if voting.sees_objects(trained):
        if fits:
            return math.inf
        raise ValueError(
            f"{scene.like.prefix()}tile must be given for more than {WHOLE_POINTS} points if the network was trained "
            f"on clouds scaled into a sphere, got {scene.count} points"
        )
    size = voting.size_of_piece(trained, max_points)
    if fits:
        _, cloud, _ = scene.around(scene.tree.whole, math.inf)
        if len(voting.thin(trained, cloud)) <= size:
            return math.inf
    return _edge(trained, scene, size / 2)


def _edge(trained: Trained, scene: Scene, points: float) -> float:
    """Choose the edge length of columns with about `points` points, at the median density of nine tiles."""
    tiles = scene.tree.tiles()
    edges = []
    for tile in tiles[:: max(1, len(tiles) // 9)]:
        _, cloud, core = scene.around(tile, 0)
        if core.any():
            inner = cloud.select(core)
            size = (inner.points.amax(0) - inner.points.amin(0))[:2].double()
            short, long = sorted(size.tolist())
            share = points / len(voting.thin(trained, inner))
            edge = math.sqrt(short * long * share)
            edges.append(edge if edge <= short else long * share)  # a narrow tile is divided along its length only
    return float(np.format_float_positional(np.median(edges), precision=2, fractional=False)) or 1.0
