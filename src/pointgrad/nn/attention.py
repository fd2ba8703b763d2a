"""Point Transformer's layers."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.level import Level, check_level
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
    """Each centre with the k nearest points of its cloud, or all where there are fewer."""
    k = k if level.packed() else min(k, level.points.shape[1])
    found = knn(level.points, k, centers.points, offsets=level.offsets, query_offsets=centers.offsets)
    return nearest_pairs(found.index, level, centers)


class Attended(NamedTuple):
    """Of E pairs of a point and one of its neighbours: what they are, an encoding (E, C) of where the neighbour lies,
    and weights (E, C / share), which sum to one over the neighbours of a point."""

    pairs: Pairs
    position: Tensor
    weights: Tensor


class VectorAttention(nn.Module):
    """Attention to the k nearest points with weights by channel: Point Transformer's layer (Zhao et al. 2021).

    The weights are an MLP of `key_j - query_i + position_ij`, softmax over the neighbours j; what they weigh is
    `value_j + position_ij`, where `position_ij` is an MLP of `p_j - p_i`.

    channels: of the features, a multiple of `share`, the number of channels that have one weight.
    k: how many neighbours; a point is one of its own. A cloud of fewer points has as many neighbours as points.
    norm: as for `SharedMLP`.

    Input and output: a `Level` with features of `channels` channels.

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
        # Channel c has the weight c % (channels / share).
        weighed = (value + position).unflatten(-1, (self.share, -1)) * weights.unsqueeze(-2)
        out = segment(weighed.flatten(-2), pairs.ends, "sum")
        return level.with_features(out.unflatten(0, pairs.shape))

    def attend(self, level: Level) -> Attended:
        """How much each point attends to each of its neighbours: the weights that `forward` uses, (E, C / share) for E
        pairs of a point and a neighbour. Returns `Attended(pairs, position, weights)`; `pairs.centers` and
        `pairs.neighbors`, (E,), say which."""
        check_level(level, self.channels)
        pairs = nearest(level, level, self.k)
        position = self.position(relative_positions(level, level, pairs))
        query, key = (flat(linear(level.features)) for linear in (self.query, self.key))
        contrast = gather(key, pairs.neighbors) - gather(query, pairs.centers) + position
        logits = self.weigh(functional.relu(self.norm(contrast), inplace=True))
        return Attended(pairs, position, segment_softmax(logits, pairs.ends))


class TransitionDown(nn.Module):
    """Fewer points: farthest points, and the maximum of a linear layer, norm and ReLU over the k nearest of each.

    channels, width: of the features before and after. samples: as for `SetAbstraction`. k, norm: as above.

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
    """Features for a finer level: its own through one layer, plus the coarser ones, through another, interpolated.

    channels: of the coarser level. width: of the finer one, before and after.

    >>> fine, coarse = Level(torch.rand(50, 3), torch.rand(50, 8)), Level(torch.rand(9, 3), torch.rand(9, 16))
    >>> TransitionUp(16, 8)(fine, coarse).features.shape
    torch.Size([50, 8])
    """

    def __init__(self, channels: int, width: int, *, norm: str | None = "batch") -> None:
        super().__init__()
        self.own = SharedMLP(width, [width], norm=norm)
        self.coarse = SharedMLP(channels, [width], norm=norm)

    def forward(self, fine: Level, coarse: Level) -> Level:
        raised = upsample(fine, coarse.with_features(self.coarse(coarse.features)))
        return fine.with_features(self.own(fine.features) + raised)


class GlobalContext(nn.Module):
    """Each point's features beside the mean of its cloud, in one layer: Point Transformer's coarsest level.

    >>> GlobalContext(8)(Level(torch.rand(30, 3), torch.rand(30, 8))).features.shape
    torch.Size([30, 8])
    """

    def __init__(self, channels: int, *, norm: str | None = "batch") -> None:
        super().__init__()
        self.mean = SharedMLP(channels, [channels], norm=None)
        self.joint = SharedMLP(2 * channels, [channels], norm=norm)

    def forward(self, level: Level) -> Level:
        assert level.features is not None
        mean = per_point(level, self.mean(cloud_pool(level, "mean")))
        return level.with_features(self.joint(torch.cat([level.features, mean.to(level.features.dtype)], -1)))
