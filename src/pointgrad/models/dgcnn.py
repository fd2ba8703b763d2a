"""DGCNN (Wang et al. 2019): edge convolutions on graphs of nearest neighbors in feature space."""

from typing import Any

import torch
from torch import Tensor, nn

from pointgrad.models import options
from pointgrad.models.heads import head, one_hot
from pointgrad.models.network import Network
from pointgrad.nn.edge_conv import EdgeConv
from pointgrad.nn.level import Level
from pointgrad.nn.local import cloud_ends, cloud_pool, flat, list_max, per_point
from pointgrad.nn.shared_mlp import SharedMLP


def dgcnn(
    task: str = "classification",
    classes: int = 40,
    channels: int = 0,
    *,
    categories: int = 0,
    k: int = 20,
    width: float = 1.0,
    norm: str = "batch",
    dropout: float = 0.5,
) -> Network:
    """DGCNN: edge convolutions over nearest neighbors, first in coordinates, then in feature space.

    Segmentation is the network of the paper for scenes. With `categories`, the category of each cloud is appended to
    its global feature, as in the network for parts.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates.
        categories: Number of object categories for part segmentation, 0 for none.
        k: Number of neighbors of a point.
        width: Factor on all widths.
        norm: "batch" or "group".
        dropout: Dropout probability in the last layers.

    Returns:
        The network.

    Example:
        >>> dgcnn(classes=10, width=0.25)(torch.rand(2, 64, 3)).shape
        torch.Size([2, 10])
    """
    return DGCNN(options.check({"name": "dgcnn", **locals()}))


class DGCNN(Network):
    """See `dgcnn`."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        norm, dropout = config["norm"], config["dropout"]
        segments = config["task"] == "segmentation"

        def wide(*widths: int) -> list[int]:
            return [options.scaled(config["width"], width) for width in widths]

        layers = [(64, 64), (64, 64), (64,)] if segments else [(64,), (64,), (128,), (256,)]
        channels = 3 + config["channels"]
        self.edges = nn.ModuleList()
        for widths in layers:
            self.edges.append(EdgeConv(channels, wide(*widths), k=config["k"], norm=norm))
            channels = wide(*widths)[-1]
        joint = sum(wide(widths[-1])[0] for widths in layers)
        self.embed = SharedMLP(joint, wide(1024), norm=norm, activation="leaky_relu")
        whole, last = wide(1024)[0], wide(512, 256)
        self.category = None
        if config["categories"]:
            self.category = SharedMLP(config["categories"], wide(64), norm=norm, activation="leaky_relu")
            joint += wide(64)[0]
        inputs = whole + joint if segments else 2 * whole
        self.head = head(inputs, last, config["classes"], norm=norm, dropout=dropout, activation="leaky_relu")

    def logits(self, level: Level, category: Tensor | None) -> Tensor:
        own = [] if level.features is None else [level.features]
        current = level.with_features(torch.cat([level.points, *own], -1))
        found = []
        for number, edge in enumerate(self.edges):
            current = edge(current, level.points if number == 0 else None)
            found.append(current.features)
        local = torch.cat(found, -1)
        if self.config["task"] == "classification":
            embedded = level.with_features(self.embed(local))
            return self.head(torch.cat([cloud_pool(embedded, "max"), cloud_pool(embedded, "mean")], -1))
        whole = list_max(self.embed, self.embed.linears[0](flat(local)), cloud_ends(level))
        if self.category is not None and category is not None:
            whole = torch.cat([whole, self.category(one_hot(category, self.config["categories"], whole))], -1)
        return self.head(torch.cat([per_point(level, whole), local], -1))
