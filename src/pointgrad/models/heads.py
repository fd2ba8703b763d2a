"""Parts that networks share in addition to the layers of `nn`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.level import Level
from pointgrad.nn.local import cloud_ends, flat, per_point
from pointgrad.nn.shared_mlp import SharedMLP
from pointgrad.nn.sparse_tensor import SparseTensor


def head(
    channels: int, widths: Sequence[int], classes: int, *, norm: str | None, dropout: float, activation: str = "relu"
) -> nn.Sequential:
    """Layers of these widths, each followed by dropout, and a linear layer to the classes."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [SharedMLP(channels, [width], norm=norm, activation=activation), nn.Dropout(dropout)]
        channels = width
    return nn.Sequential(*layers, nn.Linear(channels, classes))


def one_hot(category: Tensor, categories: int, like: Tensor) -> Tensor:
    """One-hot encoding (B, categories) in the dtype of `like`."""
    return functional.one_hot(category.long(), categories).to(like.dtype)


def voxel_input(level: Level, category: Tensor | None, config: Mapping[str, Any]) -> tuple[SparseTensor, Tensor]:
    """The input of a network on voxels: means of coordinates, features and category; and the voxel of each point."""
    own = [flat(level.points)] if config["coordinates"] else []
    own += [] if level.features is None else [flat(level.features)]
    if category is not None:
        own.append(flat(per_point(level, one_hot(category, config["categories"], level.points))))
    features = own[0] if len(own) == 1 else torch.cat(own, -1)
    return SparseTensor.from_points(flat(level.points), features, config["voxel"], offsets=cloud_ends(level))
