"""PointNet++'s layers: sampling, grouping and pooling downwards, interpolation upwards."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.level import Level, check_level, offsets_of
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
    """Fewer points, each with features of its neighbourhood: farthest points, balls around them, an MLP, a maximum.

    channels: of the input's features, 0 if there are none.
    widths: of the MLP; for several scales one list each.
    samples: how many points to keep of each cloud (all, if it has fewer); a float is a share of them;
        None: the whole cloud becomes one point at the origin, with the maximum over all of it.
    radius, k: of the balls and the most points of each; for several scales one each. A ball takes the first k points
        in the order of the cloud, as the published network does.
    norm: as for `SharedMLP`.
    normalize: relative positions are divided by the radius, as PointNeXt does.
    residual: a linear layer of each centre's own features is added before the last activation, as PointNeXt-S does.

    A ball with fewer than k points repeats its first, as the published network does: its maximum is that of the real
    points, and batch statistics are of real points (repeated ones weigh more).

    Input and output: `Level`; output features have as many channels as all last widths together.

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
            checks.value(not self.radius and not self.k, "radius and k", "left out without samples", (radius, k))
            checks.value(len(scales) == 1, "widths", "one list without samples", widths)
            checks.value(not residual, "residual", "False without samples", residual)
        else:
            fits = len(self.radius) == len(self.k) == len(scales)
            checks.value(fits, "radius, k and widths", "of one length, one each per scale", (radius, k, widths))
            checks.value(samples > 0, "samples", "positive", samples)
            checks.value(channels > 0 or not residual, "residual", "False without features", residual)
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
    """Features for a finer level from a coarser one: interpolated from the 3 nearest points, beside the finer
    level's own, through an MLP.

    channels: of the finer level's features (0 if it has none) and of the coarser ones, together.
    widths, norm: as for `SharedMLP`.

    Input: the finer and the coarser `Level`; output: the finer one with new features.

    >>> fine, coarse = Level(torch.rand(50, 3)), Level(torch.rand(9, 3), torch.rand(9, 8))
    >>> FeaturePropagation(8, [16])(fine, coarse).features.shape
    torch.Size([50, 16])
    """

    def __init__(self, channels: int, widths: Sequence[int], *, norm: str | None = "batch") -> None:
        super().__init__()
        self.mlp = SharedMLP(channels, widths, norm=norm)
        self.out_channels = widths[-1]

    def forward(self, fine: Level, coarse: Level) -> Level:
        features = upsample(fine, coarse)
        if fine.features is not None:
            features = torch.cat([fine.features.to(features.dtype), features], -1)
        return fine.with_features(self.mlp(features))


def sample(level: Level, samples: int | float) -> tuple[Level, Tensor]:
    """Farthest points of each cloud, and which they are: `samples` of them, or all where there are fewer; a float is a
    share, rounded down, at least one."""

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
    """(..., M, k) the first k points of each ball, -1 where there are fewer."""
    return ball_query(
        level.points, radius, k, centers.points, select="first", offsets=level.offsets, query_offsets=centers.offsets
    ).index


def one_point(level: Level, features: Tensor) -> Level:
    """Each cloud as one point at the origin, with these features (B, C)."""
    count = features.shape[0]
    if not level.packed():
        return Level(level.points.new_zeros(count, 1, 3), features.unsqueeze(1))
    ends = torch.arange(count + 1, device=features.device)
    return Level(level.points.new_zeros(count, 3), features, ends, (1,) * count)


def upsample(fine: Level, coarse: Level, k: int = 3) -> Tensor:
    """The coarser level's features at the finer level's points, from the k nearest."""
    assert coarse.features is not None
    return interpolate(
        coarse.features, coarse.points, fine.points, k, offsets=coarse.offsets, query_offsets=fine.offsets
    )
