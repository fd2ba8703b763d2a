"""What a trained network sees of the open cloud."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pointgrad.data import Cloud, collate
from pointgrad.ops.neighbors import knn
from pointgrad.predict.voting import INDEX, device_of, sees_objects, thin
from pointgrad.train import Trained
from pointgrad.view.panels.panel import Panel

MOST = 16_384  # points of a network that was trained on clouds of any size


@dataclass(frozen=True, eq=False)
class Seen:
    """index: (n,) the points of the cloud that the network sees; where it sees more than there are, some are repeated.
    points: (n, 3) float32, as it sees them. inputs: its arguments."""

    index: Tensor
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
        """Of an object, a sample; of a scene, the surroundings of the clicked point, or of the middle."""
        query = None if whole(self.trained) else self.clicked
        key = None if query is None else tuple(query[0].tolist())
        near = None if query is None else self.viewer.picked.row.cloud.points  # type: ignore[union-attr]
        return self.keep("seen", key, lambda: look(self.trained, self.viewer.work.cloud, near))

    def basis(self) -> str:
        count, total = len(torch.unique(self.seen.index)), len(self.points)
        if count == total:
            return f"The network sees all {count:,} points."
        part = "a random sample of them" if whole(self.trained) else "those around the clicked point"
        if not whole(self.trained) and self.clicked is None:
            part = "those in the middle, or around a point that you click"
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
    return Seen(prepared.features[INDEX], prepared.points.float(), batch.inputs())


def _piece(points: Tensor, near: Tensor | None, count: int) -> Tensor:
    """The nearest points of a place, in their order."""
    middle = points.mean(0, keepdim=True) if near is None else near.to(points.dtype)
    return knn(points, min(count, len(points)), middle).index[0].sort().values
