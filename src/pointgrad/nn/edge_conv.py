"""DGCNN's layer: a graph of nearest neighbours in the space of the features, made anew in every layer."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.level import Level, check_level
from pointgrad.nn.local import flat, nearest_pairs, pair_max
from pointgrad.nn.shared_mlp import SharedMLP, is_plain
from pointgrad.ops import checks
from pointgrad.ops.gather import gather
from pointgrad.ops.neighbors import knn

# Up to so many channels the first layer is applied to differences of features: they may be coordinates, which are
# large against their differences. Above, it is applied before features are copied to neighbours, which is less work.
_FEW = 16

# Squared distances held at a time while looking for neighbours among many channels: 64 MiB of float32.
_DISTANCES = 2**24


class EdgeConv(nn.Module):
    """An MLP on `(f_j - f_i, f_i)` for the k nearest j of each point i, and the maximum over them.

    channels: of the features. widths, norm, activation: of the `SharedMLP` on twice as many.
    k: how many neighbours; itself is one of them. A cloud of fewer points has as many neighbours as points.

    Input: a `Level` with features, and optionally `space`, (N, D) or (B, N, D), where neighbours are looked for: the
    features, unless given. Output: the level with features of `widths[-1]` channels.

    >>> level = Level(torch.rand(2, 50, 3), torch.rand(2, 50, 8))
    >>> EdgeConv(8, [16], k=5)(level).features.shape
    torch.Size([2, 50, 16])
    """

    def __init__(
        self,
        channels: int,
        widths: Sequence[int],
        *,
        k: int = 20,
        norm: str | None = "batch",
        activation: str = "leaky_relu",
    ) -> None:
        super().__init__()
        self.channels, self.k = channels, k
        self.mlp = SharedMLP(2 * channels, widths, norm=norm, activation=activation)
        self.out_channels = widths[-1]

    def forward(self, level: Level, space: Tensor | None = None) -> Level:
        check_level(level, self.channels)
        features: Any = level.features
        index = nearest_in(features if space is None else space, self.k, level)
        pairs = nearest_pairs(index, level, level)
        first = self.mlp.linears[0]
        if self.channels < _FEW or not is_plain(first, nn.Linear):
            own = gather(flat(features), pairs.centers)
            rows = first(torch.cat([gather(flat(features), pairs.neighbors) - own, own], -1))
        else:
            of_difference, of_own = first.weight.split(self.channels, dim=1)
            rows = gather(functional.linear(flat(features), of_difference, first.bias), pairs.neighbors)
            rows = rows.add_(gather(functional.linear(flat(features), of_own - of_difference), pairs.centers))
        return level.with_features(pair_max(self.mlp, rows, pairs))


def nearest_in(space: Tensor, k: int, level: Level) -> Tensor:
    """The k nearest points of each point by what is in `space`, (N, D) or (B, N, D): (N, k) or (B, N, k). A smaller
    padded cloud has fewer columns, a smaller packed one ends its rows with -1. No gradient.

    More than 8 channels are compared by a matrix product, in float32, a block of points at a time; of two at the same
    distance, any may be chosen.
    """
    space = space.detach()
    if not level.packed():
        k = min(k, space.shape[1])
    if space.shape[-1] <= 8:
        return knn(space, k, offsets=level.offsets).index
    exact = torch.autocast(space.device.type, enabled=False) if checks.autocasts(space) else nullcontext()
    with exact:
        space = space.to(torch.promote_types(space.dtype, torch.float32))
        if not level.packed():
            return _nearest(space, k)
        sizes = level.with_sizes().sizes
        assert sizes is not None
        parts, begin = [], 0
        for size in sizes:
            index = _nearest(space[None, begin : begin + size], min(k, size))[0] + begin
            parts.append(functional.pad(index, (0, k - index.shape[1]), value=-1))
            begin += size
        return torch.cat(parts)


def _nearest(space: Tensor, k: int) -> Tensor:
    batch, size, _ = space.shape
    half = -0.5 * space.square().sum(-1).unsqueeze(1)  # of each point's own square; that of the query changes no order
    step = max(1, _DISTANCES // (batch * size))
    blocks = space.split(step, dim=1) if step < size else (space,)
    return torch.cat([torch.baddbmm(half, block, space.transpose(1, 2)).topk(k).indices for block in blocks], 1)
