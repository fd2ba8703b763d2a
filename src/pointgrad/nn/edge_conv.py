"""Edge convolution of DGCNN, on the graph of nearest neighbors in feature space."""

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
from pointgrad.ops.sums import sum_dtype

# Below this number of channels, the first layer is applied to differences of features, which may be coordinates that
# are large compared with their differences. Otherwise it is applied before features are copied to neighbors, which is
# less work.
_FEW = 16

# Squared distances held in memory in the search with many channels: 64 MiB of float32.
_DISTANCES = 2**24


class EdgeConv(nn.Module):
    """Maximum of an MLP on `(f_j - f_i, f_i)` over the k nearest points j of each point i (Wang et al. 2019).

    The input is a `Level` with features, and optionally `space`, (N, D) or (B, N, D), in which neighbors are searched
    instead of the features. The output is the level with features of `widths[-1]` channels.

    Args:
        channels: Number of feature channels.
        widths: Widths of the `SharedMLP`, whose input has `2 * channels` channels.
        k: Number of neighbors, including the point itself. Smaller clouds have as many neighbors as points.
        norm: Normalization, as for `SharedMLP`.
        activation: Activation, as for `SharedMLP`.

    Example:
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
    """Indices (N, k) or (B, N, k) of the k nearest points of each point in `space`, (N, D) or (B, N, D).

    If a cloud has fewer than k points, the result has fewer columns (padded), or its rows end in -1 (packed). Distances
    in more than 8 dimensions are computed by matrix products in at least float32, block by block; ties are then broken
    arbitrarily. Not differentiable.
    """
    space = space.detach()
    if not level.packed():
        k = min(k, space.shape[1])
    if space.shape[-1] <= 8:
        return knn(space, k, offsets=level.offsets, any_dims=True).index
    exact = torch.autocast(space.device.type, enabled=False) if checks.autocasts(space) else nullcontext()
    with exact:
        space = space.to(sum_dtype(space.dtype))
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
    half = -0.5 * space.square().sum(-1).unsqueeze(1)  # the square of the query does not affect the order
    step = max(1, _DISTANCES // (batch * size))
    blocks = space.split(step, dim=1) if step < size else (space,)
    return torch.cat([torch.baddbmm(half, block, space.transpose(1, 2)).topk(k).indices for block in blocks], 1)
