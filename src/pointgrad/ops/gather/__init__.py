"""Selecting rows of features by index."""

import torch
from torch import Tensor

from .. import checks
from . import register

__all__ = ["gather", "group"]

_FEATURES = (*checks.FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def gather(features: Tensor, index: Tensor) -> Tensor:
    """Select rows of `features` by index.

    Args:
        features: (N, C) packed, or (B, N, C) padded. Any floating dtype, signed integers, uint8 or bool.
        index: (M,) packed, with global indices, or (B, M) padded, with indices local to their cloud. int64 or int32.

    Returns:
        (M, C) or (B, M, C). If `index[i] = j` then `out[i] = features[j]`. If `index[i] = -1` (missing) then
        `out[i]` is zero and passes no gradient.

    Raises:
        ValueError: An index is out of range, on the CPU. On a GPU such an index counts as -1, because checking it would
            stall the stream.

    Gradients flow to `features`: each row receives the sum of the gradients of all its copies, summed in at least
    float32.

    Example:
        >>> gather(torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([1, 1, -1]))
        tensor([[3., 4.],
                [3., 4.],
                [0., 0.]])
    """
    checks.rows(features, index, per_row=0, dtypes=_FEATURES)
    return register.gather(features, index.long())


def group(features: Tensor, index: Tensor, *, points: Tensor | None = None, centers: Tensor | None = None) -> Tensor:
    """Select the rows of `features` for lists of neighbors: `gather` with K indices per center.

    Args:
        features: (N, C) packed, or (B, N, C) padded.
        index: (M, K) packed (global), or (B, M, K) padded (local), as a neighbor search returns it. -1 gives zeros.
        points: (N, 3) or (B, N, 3), together with `centers`. The position of each neighbor relative to its center,
            `points[index] - centers`, is put before its features.
        centers: (M, 3) or (B, M, 3). Points and centers have the dtype of `features`; under autocast the result has the
            widest dtype of the three.

    Returns:
        (M, K, C) or (B, M, K, C), with C + 3 channels when points are given.

    Raises:
        ValueError: An index is out of range, on the CPU. See `gather`.

    Gradients flow to `features`, `points` and `centers`.

    Example:
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
    valid = (index >= 0) & (index < features.shape[-2])
    offset = torch.where(valid.unsqueeze(-1), offset, 0)
    return torch.cat([offset, register.gather(features, index)], dim=-1)  # under autocast, in the wider dtype
