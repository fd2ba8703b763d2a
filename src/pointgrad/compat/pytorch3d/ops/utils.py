"""Picking points by an index that may have gaps."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

__all__ = ["masked_gather"]


def masked_gather(points: Tensor, idx: Tensor) -> Tensor:
    """The points named by idx, zeros where it is -1.

    points: (N, P, D), of any dtype. idx: (N, K) or (N, L, K).
    returns: (N, K, D) or (N, L, K, D), with gradients to `points`.

    Native: `pointgrad.gather(points, idx)` or `pointgrad.group(points, idx)`.

    >>> masked_gather(torch.tensor([[[5.], [6.]]]), torch.tensor([[1, -1]])).tolist()
    [[[6.0], [0.0]]]
    """
    checks.tensor("points", points)
    checks.tensor("idx", idx)
    checks.shape(points.dim() == 3, "points", "(N, P, D)", points)
    fits = idx.dim() in (2, 3) and idx.shape[0] == points.shape[0]
    checks.shape(fits, "idx", lambda: f"(N, K) or (N, L, K) with N = {points.shape[0]}", idx)
    return pointgrad.gather(points, idx) if idx.dim() == 2 else pointgrad.group(points, idx)
