"""Layers of Point Transformer."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.level import Level, check_level, check_type
from pointgrad.nn.local import (
    Pairs,
    cloud_pool,
    first_layer,
    flat,
    nearest_pairs,
    pair_max,
    per_point,
    relative_positions,
)
from pointgrad.nn.set_abstraction import sample, upsample
from pointgrad.nn.shared_mlp import SharedMLP, make_norm
from pointgrad.ops import checks
from pointgrad.ops.gather import gather
from pointgrad.ops.neighbors import knn
from pointgrad.ops.scatter import segment, segment_softmax


def nearest(level: Level, centers: Level, k: int) -> Pairs:
    """Pairs of each center with the k nearest points of its cloud, or all points if there are fewer."""
    k = k if level.packed() else min(k, level.points.shape[1])
    found = knn(level.points, k, centers.points, offsets=level.offsets, query_offsets=centers.offsets)
    return nearest_pairs(found.index, level, centers)


class Attended(NamedTuple):
    """Attention weights of E pairs of a point and a neighbor.

    Attributes:
        pairs: The pairs.
        position: (E, C), encoding of the position of the neighbor relative to the point.
        weights: (E, C / share), which sum to 1 over the neighbors of a point.
    """

    pairs: Pairs
    position: Tensor
    weights: Tensor


class VectorAttention(nn.Module):
    """Attention to the k nearest points with separate weights per channel, from Point Transformer (Zhao et al. 2021).

    The weights are the softmax over the neighbors j of an MLP of `key_j - query_i + position_ij`. They are applied to
    `value_j + position_ij`, where `position_ij` is an MLP of `p_j - p_i`. Input and output are a `Level` with
    `channels` feature channels.

    Args:
        channels: Number of feature channels, a multiple of `share`.
        k: Number of neighbors, including the point itself. Smaller clouds have as many neighbors as points.
        share: Number of channels that share a weight.
        norm: Normalization, as for `SharedMLP`.

    Example:
        >>> VectorAttention(16, k=4)(Level(torch.rand(30, 3), torch.rand(30, 16))).features.shape
        torch.Size([30, 16])
    """

    def __init__(self, channels: int, *, k: int = 16, share: int = 8, norm: str | None = "batch") -> None:
        super().__init__()
        checks.value(channels % share == 0, "channels", f"a multiple of share = {share}", channels)
        self.channels, self.k, self.share = channels, k, share
        self.query, self.key, self.value = (nn.Linear(channels, channels) for _ in range(3))
        self.position = SharedMLP(3, [3, channels], norm=norm, last="linear")
        self.norm = make_norm(norm, channels) or nn.Identity()
        self.weigh = SharedMLP(channels, [channels // share] * 2, norm=norm, last="linear")

    def forward(self, level: Level) -> Level:
        pairs, position, weights = self.attend(level)
        value = gather(flat(self.value(level.features)), pairs.neighbors)
        # Channel c has weight c % (channels / share).
        weighted = (value + position).unflatten(-1, (self.share, -1)) * weights.unsqueeze(-2)
        out = segment(weighted.flatten(-2), pairs.ends, "sum")
        return level.with_features(out.unflatten(0, pairs.shape))

    def attend(self, level: Level) -> Attended:
        """Return the attention weights that `forward` uses.

        Args:
            level: As for `forward`.

        Returns:
            The weights (E, C / share) of E pairs, whose points and neighbors are `pairs.centers` and
            `pairs.neighbors`, both (E,).
        """
        check_level(level, self.channels)
        pairs = nearest(level, level, self.k)
        position = self.position(relative_positions(level, level, pairs))
        query, key = (flat(linear(level.features)) for linear in (self.query, self.key))
        contrast = gather(key, pairs.neighbors) - gather(query, pairs.centers) + position
        logits = self.weigh(functional.relu(self.norm(contrast), inplace=True))
        return Attended(pairs, position, segment_softmax(logits, pairs.ends))


class TransitionDown(nn.Module):
    """Downsampling to farthest points, with the maximum of a linear layer, norm and ReLU over their k nearest points.

    Args:
        channels: Number of input channels.
        width: Number of output channels.
        samples: Points to keep, as for `SetAbstraction`.
        k: Number of neighbors, as for `VectorAttention`.
        norm: Normalization, as for `SharedMLP`.

    Example:
        >>> level = Level(torch.rand(2, 40, 3), torch.rand(2, 40, 8))
        >>> TransitionDown(8, 16, samples=0.25, k=4)(level).features.shape
        torch.Size([2, 10, 16])
    """

    def __init__(
        self, channels: int, width: int, *, samples: int | float = 0.25, k: int = 16, norm: str | None = "batch"
    ) -> None:
        super().__init__()
        self.channels, self.samples, self.k = channels, samples, k
        self.mlp = SharedMLP(3 + channels, [width], norm=norm)
        self.out_channels = width

    def forward(self, level: Level) -> Level:
        check_level(level, self.channels)
        centers, _ = sample(level, self.samples)
        pairs = nearest(level, centers, self.k)
        rows = first_layer(self.mlp, relative_positions(level, centers, pairs), level.features, pairs)
        return centers.with_features(pair_max(self.mlp, rows, pairs))


class TransitionUp(nn.Module):
    """Upsampling: a layer on the features of the finer level, plus interpolated outputs of a layer on the coarser one.

    Args:
        channels: Number of channels of the coarser level.
        width: Number of channels of the finer level, before and after.
        norm: Normalization, as for `SharedMLP`.

    Example:
        >>> fine, coarse = Level(torch.rand(50, 3), torch.rand(50, 8)), Level(torch.rand(9, 3), torch.rand(9, 16))
        >>> TransitionUp(16, 8)(fine, coarse).features.shape
        torch.Size([50, 8])
    """

    def __init__(self, channels: int, width: int, *, norm: str | None = "batch") -> None:
        super().__init__()
        self.own = SharedMLP(width, [width], norm=norm)
        self.coarse = SharedMLP(channels, [width], norm=norm)

    def forward(self, fine: Level, coarse: Level) -> Level:
        check_type(fine, "fine")
        check_type(coarse, "coarse")
        upsampled = upsample(fine, coarse.with_features(self.coarse(coarse.features)))
        return fine.with_features(self.own(fine.features) + upsampled)


class GlobalContext(nn.Module):
    """A layer on the features of each point and the mean of its cloud, for Point Transformer's coarsest level.

    Args:
        channels: Number of feature channels, before and after.
        norm: Normalization, as for `SharedMLP`.

    Example:
        >>> GlobalContext(8)(Level(torch.rand(30, 3), torch.rand(30, 8))).features.shape
        torch.Size([30, 8])
    """

    def __init__(self, channels: int, *, norm: str | None = "batch") -> None:
        super().__init__()
        self.channels = channels
        self.mean = SharedMLP(channels, [channels], norm=None)
        self.joint = SharedMLP(2 * channels, [channels], norm=norm)

    def forward(self, level: Level) -> Level:
        check_level(level, self.channels)
        assert level.features is not None
        mean = per_point(level, self.mean(cloud_pool(level, "mean")))
        return level.with_features(self.joint(torch.cat([level.features, mean.to(level.features.dtype)], -1)))
