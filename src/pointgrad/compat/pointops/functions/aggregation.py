"""`pointops.functions.aggregation`."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._packed import check_rows, promote

__all__ = ["Aggregation", "aggregation"]


def aggregation(input: Tensor, position: Tensor, weight: Tensor, idx: Tensor) -> Tensor:
    """Compute weighted sums `out[n, c] = sum_k (input[idx[n, k], c] + position[n, k, c]) * weight[n, k, c % G]`.

    Channel c uses weight `c % G`, as in the original; in pointgrad's own `aggregate` it uses weight `c // (C / G)`.

    Args:
        input: (M, C) features.
        position: (N, K, C) position encodings.
        weight: (N, K, G) weights; G must divide C.
        idx: (N, K) indices of neighbors; entries of -1 are ignored.

    Returns:
        (N, C) sums, differentiable in `input`, `position` and `weight`.
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
        input, position, weight = promote(input, position, weight)
    groups = weight.shape[2]
    shares = channels // groups
    weight = weight.masked_fill((idx < 0).unsqueeze(-1), 0)
    # `aggregate` expects the channels that share a weight to be adjacent.
    values = input.reshape(-1, shares, groups).transpose(1, 2).reshape(-1, channels)
    summed = pointgrad.aggregate(weight, values, idx).reshape(-1, groups, shares).transpose(1, 2)
    encoded = torch.einsum("nksg,nkg->nsg", position.reshape(*idx.shape, shares, groups), weight)
    return (summed + encoded).reshape(-1, channels)


class Aggregation:
    apply = staticmethod(aggregation)
