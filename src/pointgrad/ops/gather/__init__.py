"""Picking rows of features by index, and adding their gradients back."""

import torch
from torch import Tensor

from .. import checks
from . import register

__all__ = ["gather", "group"]

_FEATURES = (*checks.FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def gather(features: Tensor, index: Tensor) -> Tensor:
    """The rows of `features` named by `index`: one row per picked point.

    features: (N, C) packed, or (B, N, C) padded; float64 to bfloat16, any signed integer, uint8 or bool.
    index: (M,) packed (global), or (B, M) padded (local to its cloud); int64 or int32.
    returns: (M, C) or (B, M, C). If `index[i] = j` then `out[i] = features[j]`; if `index[i] = -1`
        (nothing here) then `out[i]` is zero and passes no gradient.

    Gradients reach `features`: each row receives the sum of the gradients of all its copies, summed in
    at least float32. Any other index out of range is a ValueError on the CPU; on a GPU it counts as -1,
    because finding it would stall the stream.

    >>> gather(torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([1, 1, -1]))
    tensor([[3., 4.],
            [3., 4.],
            [0., 0.]])
    """
    checks.rows(features, index, per_row=0, dtypes=_FEATURES)
    return register.gather(features, index.long())


def group(features: Tensor, index: Tensor, *, points: Tensor | None = None, centers: Tensor | None = None) -> Tensor:
    """The rows of `features` for lists of neighbours: `gather` with K indices per centre.

    features: (N, C) packed, or (B, N, C) padded.
    index: (M, K) packed (global), or (B, M, K) padded (local), as a neighbour search returns it.
    points, centers: (N, 3) and (M, 3), or (B, N, 3) and (B, M, 3), given together: each neighbour's
        position relative to its centre, `points[index] - centers`, is put before its features. Same
        dtype as `features`; under autocast the result has the widest dtype of the three.
    returns: (M, K, C) or (B, M, K, C), with C + 3 channels when points are given; -1 gives zeros.

    Gradients reach `features`, `points` and `centers`. Indices out of range: as for `gather`.

    >>> group(torch.tensor([[1.], [2.]]), torch.tensor([[0, 1], [1, -1]])).tolist()
    [[[1.0], [2.0]], [[2.0], [0.0]]]
    """
    relative = points is not None or centers is not None
    if relative:
        checks.tensor("points", points)
        checks.tensor("centers", centers)
    checks.rows(features, index, per_row=1, dtypes=checks.FLOATS if relative else _FEATURES)
    index = index.long()
    if points is None or centers is None:
        return register.gather(features, index)
    checks.shape(points.shape == (*features.shape[:-1], 3), "points", lambda: f"{(*features.shape[:-1], 3)}", points)
    checks.shape(centers.shape == (*index.shape[:-1], 3), "centers", lambda: f"{(*index.shape[:-1], 3)}", centers)
    for name, value in (("points", points), ("centers", centers)):
        checks.dtype(name, value, checks.FLOATS)
        if not checks.autocasts(features):
            checks.same_dtype(name, value, "features", features)
        checks.device(name, value, "features", features)
    offset = register.gather(points, index) - centers.unsqueeze(-2)
    there = (index >= 0) & (index < features.shape[-2])
    offset = torch.where(there.unsqueeze(-1), offset, 0)
    return torch.cat([offset, register.gather(features, index)], dim=-1)  # under autocast, in the wider dtype
