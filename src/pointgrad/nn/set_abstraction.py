"""Layers of PointNet++: set abstraction (sampling, grouping, pooling) and feature propagation (interpolation)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.level import Level, check_level, check_type, offsets_of
from pointgrad.nn.local import (
    ball_pairs,
    cloud_ends,
    first_layer,
    flat,
    list_max,
    pair_max,
    relative_positions,
)
from pointgrad.nn.shared_mlp import SharedMLP
from pointgrad.ops import checks
from pointgrad.ops.gather import gather
from pointgrad.ops.interpolate import interpolate
from pointgrad.ops.neighbors import ball_query
from pointgrad.ops.sampling import farthest_point_sampling


class SetAbstraction(nn.Module):
    """Downsampling to farthest points, with the maximum of an MLP over the ball around each (Qi et al. 2017).

    A ball contains the first k points within the radius, in the order of the cloud. If there are fewer, the first is
    repeated, as in the published network; repeated points count several times in batch statistics. Input and output are
    a `Level`; the output has the last widths of all scales together as channels.

    Args:
        channels: Number of input feature channels, 0 for none.
        widths: Widths of the MLP, or a list of widths for each scale.
        samples: Number of points to keep per cloud (all points of smaller clouds), or a float for a fraction. None
            reduces each cloud to one point at the origin, with the maximum over all points.
        radius: Radius of the balls, or one per scale.
        k: Maximum number of points per ball, or one per scale.
        norm: Normalization, as for `SharedMLP`.
        normalize: Divide relative positions by the radius, as in PointNeXt.
        residual: Add a linear layer of the features of each center before the last activation, as in PointNeXt-S.

    Example:
        >>> level = Level(torch.rand(2, 100, 3))
        >>> SetAbstraction(0, [16, 32], samples=25, radius=0.4, k=8)(level).features.shape
        torch.Size([2, 25, 32])
    """

    def __init__(
        self,
        channels: int,
        widths: Sequence[int] | Sequence[Sequence[int]],
        *,
        samples: int | float | None = None,
        radius: float | Sequence[float] = (),
        k: int | Sequence[int] = (),
        norm: str | None = "batch",
        normalize: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        scales: list[Any] = [widths] if isinstance(widths[0], int) else list(widths)
        self.channels, self.samples = channels, samples
        self.radius = [radius] if isinstance(radius, (int, float)) else list(radius)
        self.k = [k] if isinstance(k, int) else list(k)
        if samples is None:
            checks.value(not self.radius and not self.k, "radius and k", "omitted if samples is None", (radius, k))
            checks.value(len(scales) == 1, "widths", "a single list if samples is None", widths)
            checks.value(not residual, "residual", "False if samples is None", residual)
        else:
            fits = len(self.radius) == len(self.k) == len(scales)
            checks.value(fits, "radius, k and widths", "of equal length, one entry per scale", (radius, k, widths))
            checks.value(samples > 0, "samples", "positive", samples)
            checks.value(channels > 0 or not residual, "residual", "False if channels is 0", residual)
        last = "norm" if residual else "full"
        self.mlps: Any = nn.ModuleList(SharedMLP(channels + 3, widths, norm=norm, last=last) for widths in scales)
        self.out_channels = sum(widths[-1] for widths in scales)
        self.shortcut = nn.Linear(channels, self.out_channels) if residual else None

    def forward(self, level: Level) -> Level:
        check_level(level, self.channels)
        if self.samples is None:
            return self._whole(level)
        centers, picked = sample(level, self.samples)
        pooled = []
        for radius, k, mlp in zip(self.radius, self.k, self.mlps, strict=True):
            pairs = ball_pairs(ball(level, centers, radius, k), level, mlp)
            relative = relative_positions(level, centers, pairs, radius if self.normalize else 1.0)
            pooled.append(pair_max(mlp, first_layer(mlp, relative, level.features, pairs), pairs))
        features = pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)
        if self.shortcut is not None and level.features is not None:
            features = functional.relu(features + self.shortcut(gather(level.features, picked)))
        return centers.with_features(features)

    def _whole(self, level: Level) -> Level:
        inputs = level.points
        if level.features is not None:
            inputs = torch.cat([inputs.to(level.features.dtype), level.features], -1)
        mlp = self.mlps[0]
        return one_point(level, list_max(mlp, mlp.linears[0](flat(inputs)), cloud_ends(level)))


class FeaturePropagation(nn.Module):
    """Upsampling (Qi et al. 2017): an MLP on the features of a finer level and those interpolated from a coarser one.

    Features are interpolated from the 3 nearest points. The input is the finer and the coarser `Level`, the output the
    finer level with new features.

    Args:
        channels: Number of channels of the finer level (0 for none) plus that of the coarser level.
        widths: Widths of the MLP.
        norm: Normalization, as for `SharedMLP`.

    Example:
        >>> fine, coarse = Level(torch.rand(50, 3)), Level(torch.rand(9, 3), torch.rand(9, 8))
        >>> FeaturePropagation(8, [16])(fine, coarse).features.shape
        torch.Size([50, 16])
    """

    def __init__(self, channels: int, widths: Sequence[int], *, norm: str | None = "batch") -> None:
        super().__init__()
        self.mlp = SharedMLP(channels, widths, norm=norm)
        self.out_channels = widths[-1]

    def forward(self, fine: Level, coarse: Level) -> Level:
        check_type(fine, "fine")
        check_type(coarse, "coarse")
        features = upsample(fine, coarse)
        if fine.features is not None:
            features = torch.cat([fine.features.to(features.dtype), features], -1)
        return fine.with_features(self.mlp(features))


def sample(level: Level, samples: int | float) -> tuple[Level, Tensor]:
    """Farthest points of each cloud and their indices.

    `samples` is the number of points, limited by the size of the cloud, or a fraction (rounded down, at least 1 point).
    """

    def wanted(size: int) -> int:
        return max(1, int(size * samples)) if isinstance(samples, float) else min(samples, size)

    if not level.packed():
        index = farthest_point_sampling(level.points, wanted(level.points.shape[1]))
        return Level(gather(level.points, index)), index
    level = level.with_sizes()
    assert level.sizes is not None
    sizes = tuple(wanted(size) for size in level.sizes)
    index = farthest_point_sampling(level.points, list(sizes), offsets=level.offsets)
    offsets = offsets_of(sizes, level.points.device)
    return Level(gather(level.points, index), None, offsets, sizes), index


def ball(level: Level, centers: Level, radius: float, k: int) -> Tensor:
    """Indices (..., M, k) of the first k points of each ball, -1 where there are fewer."""
    return ball_query(
        level.points, radius, k, centers.points, select="first", offsets=level.offsets, query_offsets=centers.offsets
    ).index


def one_point(level: Level, features: Tensor) -> Level:
    """A level with one point per cloud, at the origin, with features (B, C)."""
    count = features.shape[0]
    if not level.packed():
        return Level(level.points.new_zeros(count, 1, 3), features.unsqueeze(1))
    ends = torch.arange(count + 1, device=features.device)
    return Level(level.points.new_zeros(count, 3), features, ends, (1,) * count)


def upsample(fine: Level, coarse: Level, k: int = 3) -> Tensor:
    """Features of the coarser level interpolated at the points of the finer level, from the k nearest points."""
    assert coarse.features is not None
    return interpolate(
        coarse.features, coarse.points, fine.points, k, offsets=coarse.offsets, query_offsets=fine.offsets
    )
