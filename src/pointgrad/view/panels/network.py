"""Network input: the part of the open cloud that a trained network processes."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud, collate
from pointgrad.data.scaling import with_computed
from pointgrad.ops.neighbors import knn
from pointgrad.predict.voting import INDEX, device_of, sees_objects, thin
from pointgrad.train import Trained
from pointgrad.view.levels import Levels, join
from pointgrad.view.panels.panel import Panel

MAX_POINTS = 16_384  # input size of a network that was trained on clouds of any size
NEIGHBORHOOD = 1 << 18  # points around a position that are read as input for scene networks, before voxel sampling


@dataclass(frozen=True, eq=False)
class NetworkInput:
    """Input of a network: n points.

    Attributes:
        index: (n,) rows of the cloud. Rows are repeated if the network takes more points than there are.
        cloud_points: (n, 3) coordinates of the points in the cloud.
        points: (n, 3) float32, prepared as the network receives them.
        arguments: Keyword arguments of the network.
    """

    index: Tensor
    cloud_points: Tensor
    points: Tensor
    arguments: dict[str, Any]


class NetworkPanel(Panel):
    """Base class of panels that run the network."""

    needs_network = True

    @property
    def trained(self) -> Trained:
        assert self.viewer.trained is not None
        return self.viewer.trained

    @property
    def network_input(self) -> NetworkInput:
        """For an object, a sample; for a scene, the points around the clicked point or the centre, as many as fit."""
        picked = None if takes_whole_cloud(self.trained) else self.viewer.picked
        near = None if picked is None else picked.row.cloud.points
        return self.cached(
            "network input", None if near is None else tuple(near[0].tolist()), lambda: self._prepare(near)
        )

    def _prepare(self, near: Tensor | None) -> NetworkInput:
        levels, cloud = self.viewer.levels, self.viewer.sample.cloud
        assert levels is not None
        if takes_whole_cloud(self.trained) or len(cloud) == len(levels):
            return prepare_input(self.trained, cloud, near)
        near = cloud.points.mean(0, keepdim=True) if near is None else near
        return prepare_input(self.trained, read_around(levels, near), near)

    def describe_input(self) -> str:
        """Describe the points that the network receives."""
        assert self.viewer.levels is not None
        count, total = len(torch.unique(self.network_input.index)), len(self.viewer.levels)
        if count == total:
            return f"The network input is all {count:,} points."
        part = "a random sample"
        if not takes_whole_cloud(self.trained):
            part = "those around the clicked point" if self.viewer.picked else "those around the centre"
        return f"The network input is **{count:,}** of {total:,} points: {part}, prepared as in training."


def takes_whole_cloud(trained: Trained) -> bool:
    """Whether the network takes a whole cloud, not a piece of it."""
    return trained.task == "classification" or sees_objects(trained)


def prepare_input(trained: Trained, cloud: Cloud, near: Tensor | None = None) -> NetworkInput:
    """Prepare a cloud as in prediction.

    Args:
        trained: The network.
        cloud: The cloud.
        near: (1, 3) position around which a piece is cut out, for networks that take pieces; None for the centre.

    Returns:
        The input of one forward pass.

    Raises:
        ValueError: If the network needs a category and the cloud has none.
    """
    if getattr(trained.model, "config", {}).get("categories") and cloud.category is None:
        raise ValueError("this network needs the object category: start the viewer with --category")
    if trained.task == "classification":
        cloud = replace(cloud, category=None)
    cloud = with_computed(cloud, trained.prepare.features)
    kept = thin(trained, cloud)
    if not takes_whole_cloud(trained):
        kept = kept[_piece(cloud.points[kept], near, trained.prepare.points or MAX_POINTS)]
    elif not trained.prepare.points and len(kept) > MAX_POINTS:
        kept = kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))[:MAX_POINTS]]
    part = cloud.select(kept)
    part.features[INDEX] = kept
    prepared = replace(trained.prepare, voxel=0.0)(part, torch.Generator().manual_seed(0))
    batch = collate([prepared], trained.prepare.features).to(device_of(trained.model))
    index = prepared.features[INDEX]
    return NetworkInput(index, cloud.points[index], prepared.points.float(), batch.inputs())


def read_around(levels: Levels, near: Tensor) -> Cloud:
    """Read the leaves nearest to a position (1, 3) in full density, until there are enough points.

    An even sample of a large cloud would be sparser than the training data of a scene network.
    """
    position = near[0].double().numpy()
    distance = np.maximum(np.maximum(levels.low - position, position - levels.high), 0)[:, :2]
    order = np.argsort((distance**2).sum(1), kind="stable")
    enough = int(np.searchsorted(levels.counts[order].cumsum(), NEIGHBORHOOD)) + 1
    return join([levels.read(int(leaf), int(levels.counts[leaf])) for leaf in order[:enough]]).cloud


def _piece(points: Tensor, near: Tensor | None, count: int) -> Tensor:
    """Indices of the nearest points of a position, ascending."""
    center = points.mean(0, keepdim=True) if near is None else near.to(points.dtype)
    return knn(points, min(count, len(points)), center).index[0].sort().values
