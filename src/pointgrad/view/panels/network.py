"""What a trained network sees of the open cloud."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud, collate
from pointgrad.ops.neighbors import knn
from pointgrad.predict.voting import INDEX, device_of, sees_objects, thin
from pointgrad.train import Trained
from pointgrad.view.levels import Levels, join
from pointgrad.view.panels.panel import Panel

MOST = 16_384  # points of a network that was trained on clouds of any size
AROUND = 1 << 18  # points around a place, of which a network for scenes sees those that its voxels leave


@dataclass(frozen=True, eq=False)
class Seen:
    """What a network sees, n points. index: (n,) rows of the cloud that they come from; where the network wants more
    points than there are, some are repeated. own: (n, 3) their positions there. points: (n, 3) float32, as the network
    gets them. inputs: its arguments."""

    index: Tensor
    own: Tensor
    points: Tensor
    inputs: dict[str, Any]


class NetworkPanel(Panel):
    """A panel that asks the network."""

    needs_network = True

    @property
    def trained(self) -> Trained:
        assert self.viewer.trained is not None
        return self.viewer.trained

    @property
    def seen(self) -> Seen:
        """Of an object, a sample; of a scene, all points around the clicked point, or around the middle, that fit."""
        picked = None if whole(self.trained) else self.viewer.picked
        near = None if picked is None else picked.row.cloud.points
        return self.keep("seen", None if near is None else tuple(near[0].tolist()), lambda: self._look(near))

    def _look(self, near: Tensor | None) -> Seen:
        levels, cloud = self.viewer.levels, self.viewer.work.cloud
        assert levels is not None
        if whole(self.trained) or len(cloud) == len(levels):
            return look(self.trained, cloud, near)
        near = cloud.points.mean(0, keepdim=True) if near is None else near
        return look(self.trained, around(levels, near), near)

    def basis(self) -> str:
        assert self.viewer.levels is not None
        count, total = len(torch.unique(self.seen.index)), len(self.viewer.levels)
        if count == total:
            return f"The network sees all {count:,} points."
        part = "a random sample of them"
        if not whole(self.trained):
            part = "those around the clicked point" if self.viewer.picked else "those in the middle"
        return f"The network sees **{count:,}** of {total:,} points: {part}, prepared as in training."


def whole(trained: Trained) -> bool:
    """Whether the network looks at a whole cloud, not at a piece of it."""
    return trained.task == "classification" or sees_objects(trained)


def look(trained: Trained, cloud: Cloud, near: Tensor | None = None) -> Seen:
    """The points of a cloud that a network sees at once, prepared as in prediction. near: (1, 3) where it looks, if it
    sees only a piece; without, in the middle."""
    if getattr(trained.model, "config", {}).get("categories") and cloud.category is None:
        raise ValueError("this network asks for the kind of object: start the viewer with --category")
    if trained.task == "classification":
        cloud = replace(cloud, category=None)
    kept = thin(trained, cloud)
    if not whole(trained):
        kept = kept[_piece(cloud.points[kept], near, trained.prepare.points or MOST)]
    elif not trained.prepare.points and len(kept) > MOST:
        kept = kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))[:MOST]]
    part = cloud.select(kept)
    part.features[INDEX] = kept
    prepared = replace(trained.prepare, voxel=0.0)(part, torch.Generator().manual_seed(0))
    batch = collate([prepared], trained.prepare.features).to(device_of(trained.model))
    index = prepared.features[INDEX]
    return Seen(index, cloud.points[index], prepared.points.float(), batch.inputs())


def around(levels: Levels, near: Tensor) -> Cloud:
    """The leaves nearest to a place (1, 3), whole, until there are enough points: an even sample of a large cloud is
    thinner than what a network for scenes has learned on."""
    place = near[0].double().numpy()
    apart = np.maximum(np.maximum(levels.low - place, place - levels.high), 0)[:, :2]
    order = np.argsort((apart**2).sum(1), kind="stable")
    enough = int(np.searchsorted(levels.counts[order].cumsum(), AROUND)) + 1
    return join([levels.read(int(leaf), int(levels.counts[leaf])) for leaf in order[:enough]]).cloud


def _piece(points: Tensor, near: Tensor | None, count: int) -> Tensor:
    """The nearest points of a place, in their order."""
    middle = points.mean(0, keepdim=True) if near is None else near.to(points.dtype)
    return knn(points, min(count, len(points)), middle).index[0].sort().values
