"""Inverted residual block of PointNeXt."""

from typing import Any

from torch import nn
from torch.nn import functional

from pointgrad.nn.level import Level, check_level
from pointgrad.nn.local import ball_pairs, first_layer, pair_max, relative_positions
from pointgrad.nn.set_abstraction import ball
from pointgrad.nn.shared_mlp import SharedMLP


class InvResMLP(nn.Module):
    """Inverted residual block (Qian et al. 2022): the maximum of a layer over each ball, then two pointwise layers.

    The points are unchanged. Relative positions are divided by the radius.

    Args:
        channels: Number of feature channels, before and after.
        radius: Radius of the balls.
        k: Maximum number of points per ball, as for `SetAbstraction`.
        expansion: Width of the hidden pointwise layer, as a multiple of `channels`.
        norm: Normalization, as for `SharedMLP`.

    Example:
        >>> level = Level(torch.rand(2, 40, 3), torch.rand(2, 40, 8))
        >>> InvResMLP(8, radius=0.3, k=8)(level).features.shape
        torch.Size([2, 40, 8])
    """

    def __init__(
        self, channels: int, *, radius: float, k: int = 32, expansion: int = 4, norm: str | None = "batch"
    ) -> None:
        super().__init__()
        self.channels, self.radius, self.k = channels, radius, k
        self.local = SharedMLP(channels + 3, [channels], norm=norm)
        self.pointwise = SharedMLP(channels, [expansion * channels, channels], norm=norm, last="norm")

    def forward(self, level: Level) -> Level:
        check_level(level, self.channels)
        features: Any = level.features
        pairs = ball_pairs(ball(level, level, self.radius, self.k), level, self.local)
        relative = relative_positions(level, level, pairs, self.radius)
        pooled = pair_max(self.local, first_layer(self.local, relative, features, pairs), pairs)
        return level.with_features(functional.relu(self.pointwise(pooled) + features))
