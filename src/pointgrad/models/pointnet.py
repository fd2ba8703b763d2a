"""PointNet (Qi et al. 2017): a shared MLP and the maximum over the cloud."""

from typing import Any

import torch
from torch import Tensor, nn

from pointgrad.models import options
from pointgrad.models.heads import head, one_hot
from pointgrad.models.network import Network
from pointgrad.nn.level import Level
from pointgrad.nn.local import cloud_ends, flat, list_max, per_point
from pointgrad.nn.shared_mlp import SharedMLP


def pointnet(
    task: str = "classification",
    classes: int = 40,
    channels: int = 0,
    *,
    categories: int = 0,
    width: float = 1.0,
    norm: str = "batch",
    dropout: float = 0.3,
) -> Network:
    """PointNet: a shared MLP and the maximum over the cloud, after learned transforms of the input.

    The first transform is applied to the coordinates only, not to other input features.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates.
        categories: Number of object categories for part segmentation, 0 for none.
        width: Factor on all widths.
        norm: "batch" or "group".
        dropout: Dropout probability in the last layers.

    Returns:
        The network.

    Example:
        >>> pointnet(classes=10, width=0.25)(torch.rand(2, 64, 3)).shape
        torch.Size([2, 10])
    """
    return PointNet(options.check({"name": "pointnet", **locals()}))


class PointNet(Network):
    """See `pointnet`."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        norm, dropout = config["norm"], config["dropout"]

        def wide(*widths: int) -> list[int]:
            return [options.scaled(config["width"], width) for width in widths]

        self.turn = Transform(3, wide(64, 128, 1024), wide(512, 256), norm)
        self.first = SharedMLP(3 + config["channels"], wide(64, 64), norm=norm)
        local, whole = self.first.out_channels, wide(1024)[0]
        self.align = Transform(local, wide(64, 128, 1024), wide(512, 256), norm)
        self.second = SharedMLP(local, wide(64, 128, 1024), norm=norm)
        if config["task"] == "classification":
            self.head = head(whole, wide(512, 256), config["classes"], norm=norm, dropout=dropout)
        else:
            joint = whole + config["categories"] + local
            self.head = head(joint, wide(512, 256, 128), config["classes"], norm=norm, dropout=dropout)

    def logits(self, level: Level, category: Tensor | None) -> Tensor:
        rows = self.turn(level, level.points)
        if level.features is not None:
            rows = torch.cat([rows, level.features.to(rows.dtype)], -1)
        local = self.align(level, self.first(rows))
        whole = list_max(self.second, self.second.linears[0](flat(local)), cloud_ends(level))
        if self.config["task"] == "classification":
            return self.head(whole)
        if category is not None:
            whole = torch.cat([whole, one_hot(category, self.config["categories"], whole)], -1)
        return self.head(torch.cat([local, per_point(level, whole)], -1))


class Transform(nn.Module):
    """Multiplies the rows of a cloud by a matrix predicted by a small PointNet, initially the identity."""

    def __init__(self, channels: int, widths: list[int], head_widths: list[int], norm: str) -> None:
        super().__init__()
        self.channels = channels
        self.points = SharedMLP(channels, widths, norm=norm)
        self.whole = SharedMLP(widths[-1], head_widths, norm=norm)
        self.matrix = nn.Linear(head_widths[-1], channels * channels)
        nn.init.zeros_(self.matrix.weight)
        with torch.no_grad():
            self.matrix.bias.copy_(torch.eye(channels).flatten())

    def forward(self, level: Level, rows: Tensor) -> Tensor:
        whole = list_max(self.points, self.points.linears[0](flat(rows)), cloud_ends(level))
        matrix = self.matrix(self.whole(whole)).unflatten(-1, (self.channels, self.channels))
        if not level.packed():
            return rows @ matrix
        parts = rows.split(list(level.with_sizes().sizes or ()))
        return torch.cat([part @ matrix[cloud] for cloud, part in enumerate(parts)])
