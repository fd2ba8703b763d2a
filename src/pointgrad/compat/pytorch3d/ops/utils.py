"""Gathering of points with a padded index."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

__all__ = ["masked_gather"]


def masked_gather(points: Tensor, idx: Tensor) -> Tensor:
    """Gather points; an index of -1 gives zeros.

    The native functions are `pointgrad.gather(points, idx)` and `pointgrad.group(points, idx)`.

    Args:
        points: (N, P, D) points of any dtype.
        idx: (N, K) or (N, L, K) indices.

    Returns:
        (N, K, D) or (N, L, K, D), differentiable in `points`.

    Example:
        >>> masked_gather(torch.tensor([[[5.], [6.]]]), torch.tensor([[1, -1]])).tolist()
        [[[6.0], [0.0]]]
    """
    checks.tensor("points", points)
    checks.tensor("idx", idx)
    checks.shape(points.dim() == 3, "points", "(N, P, D)", points)
    fits = idx.dim() in (2, 3) and idx.shape[0] == points.shape[0]
    checks.shape(fits, "idx", lambda: f"(N, K) or (N, L, K) with N = {points.shape[0]}", idx)
    return pointgrad.gather(points, idx) if idx.dim() == 2 else pointgrad.group(points, idx)
