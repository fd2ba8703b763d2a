"""Picking rows of features by index, and adding their gradients back."""

from typing import Any

import torch
from torch import Tensor

from .. import checks
from . import register

__all__ = ["gather", "group"]

_FEATURES = (*checks.FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def gather(features: Tensor, index: Tensor) -> Tensor:
    """The rows of `features` named by `index`: one row per picked point.

    features: (N, C) packed, or (B, N, C) padded; any floating or integer dtype.
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
    _check_rows(features, index, extra=0, contract="(M,) with features (N, C), or (B, M) with (B, N, C)")
    return register.gather(features, index.long())


def group(features: Tensor, index: Tensor, *, points: Tensor | None = None, centers: Tensor | None = None) -> Tensor:
    """The rows of `features` for lists of neighbours: `gather` with K indices per centre.

    features: (N, C) packed, or (B, N, C) padded.
    index: (M, K) packed (global), or (B, M, K) padded (local), as a neighbour search returns it.
    points, centers: (N, 3) and (M, 3), or (B, N, 3) and (B, M, 3), given together: each neighbour's
        position relative to its centre, `points[index] - centers`, is put before its features. Same
        dtype as `features`.
    returns: (M, K, C) or (B, M, K, C), with C + 3 channels when points are given; -1 gives zeros.

    Gradients reach `features`, `points` and `centers`. Indices out of range: as for `gather`.
    """
    _check_rows(features, index, extra=1, contract="(M, K) with features (N, C), or (B, M, K) with (B, N, C)")
    index = index.long()
    if points is None and centers is None:
        return register.gather(features, index)
    _check_positions(features, index, points, centers)
    assert points is not None
    assert centers is not None
    relative = register.gather(points, index) - centers.unsqueeze(-2)
    relative = torch.where((index >= 0).unsqueeze(-1), relative, 0)
    return torch.cat([relative, register.gather(features, index)], dim=-1)


def _check_rows(features: Any, index: Any, extra: int, contract: str) -> None:
    checks.tensor("features", features)
    checks.tensor("index", index)
    checks.shape(features.dim() in (2, 3), "features", "(N, C) or (B, N, C)", features)
    batch = features.shape[:-2]
    fits = index.dim() == len(batch) + 1 + extra and index.shape[: len(batch)] == batch
    checks.shape(fits, "index", contract, index)
    checks.dtype("features", features, _FEATURES)
    checks.dtype("index", index, checks.INDICES)
    checks.device("index", index, "features", features)


def _check_positions(features: Tensor, index: Tensor, points: Any, centers: Any) -> None:
    checks.tensor("points", points)
    checks.tensor("centers", centers)
    checks.shape(points.shape == (*features.shape[:-1], 3), "points", f"{(*features.shape[:-1], 3)}", points)
    checks.shape(centers.shape == (*index.shape[:-1], 3), "centers", f"{(*index.shape[:-1], 3)}", centers)
    for name, value in (("points", points), ("centers", centers)):
        checks.same_dtype(name, value, "features", features)
        checks.device(name, value, "features", features)
