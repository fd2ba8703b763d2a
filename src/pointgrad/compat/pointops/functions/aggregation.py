"""`pointops.functions.aggregation`."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._packed import check_rows, same_precision

__all__ = ["Aggregation", "aggregation"]


def aggregation(input: Tensor, position: Tensor, weight: Tensor, idx: Tensor) -> Tensor:
    """Weighted sums: `out[n, c] = sum_k (input[idx[n, k], c] + position[n, k, c]) * weight[n, k, c % G]`.

    input: (M, C). position: (N, K, C). weight: (N, K, G), where G divides C. idx: (N, K); -1 takes no part.
    returns: (N, C). Gradients reach input, position and weight. Channels share weights by `c % G`, as in the original;
    pointgrad's own `aggregate` shares them by `c // (C / G)`.
    """
    check_rows("input", input, idx)
    channels = input.shape[1]
    for name, value in (("position", position), ("weight", weight)):
        checks.tensor(name, value)
        checks.dtype(name, value, checks.FLOATS)
    fits = position.shape == (*idx.shape, channels)
    checks.shape(fits, "position", lambda: f"(N, K, C) = {(*idx.shape, channels)}", position)
    fits = weight.dim() == 3 and weight.shape[:2] == idx.shape and weight.shape[2] > 0
    fits = fits and channels % weight.shape[2] == 0
    checks.shape(fits, "weight", lambda: f"{tuple(idx.shape)} like idx, then G dividing C = {channels}", weight)
    if not checks.autocasts(input):
        input, position, weight = same_precision(input, position, weight)
    groups = weight.shape[2]
    shares = channels // groups
    weight = weight.masked_fill((idx < 0).unsqueeze(-1), 0)
    # Channels that share a weight are made neighbours, as `aggregate` wants them.
    values = input.reshape(-1, shares, groups).transpose(1, 2).reshape(-1, channels)
    summed = pointgrad.aggregate(weight, values, idx).reshape(-1, groups, shares).transpose(1, 2)
    placed = torch.einsum("nksg,nkg->nsg", position.reshape(*idx.shape, shares, groups), weight)
    return (summed + placed).reshape(-1, channels)


class Aggregation:
    apply = staticmethod(aggregation)
