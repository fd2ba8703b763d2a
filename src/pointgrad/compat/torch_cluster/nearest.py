"""Assignment of points to their nearest cluster center."""

import torch
from torch import Tensor

import pointgrad

from .._torchscript import opaque
from ._clouds import pair, pair_offsets


def _fake(x: Tensor, *args: object) -> Tensor:
    return x.new_empty(x.shape[0], dtype=torch.int64)


@opaque(_fake)
def nearest(x: Tensor, y: Tensor, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """Find the nearest point of `y` for each point of `x`, in the cloud with the same number.

    The native function is `pointgrad.knn`. The original's CPU version needs SciPy and separates clouds along an
    additional axis, which loses precision.

    Args:
        x: (N, D) or (N,) points.
        y: (M, D) or (M,) points to search. Every cloud with points in `x` must have points in `y`.
        batch_x: (N,) cloud number of each point of `x`, sorted.
        batch_y: (M,) cloud number of each point of `y`, sorted.

    Returns:
        (N,) int64 rows of `y`; ties go to the smallest index. -1 for points with a non-finite coordinate.

    Example:
        >>> nearest(torch.tensor([[0.], [1.], [5.]]), torch.tensor([[0.9], [4.]]))
        tensor([0, 0, 1])
    """
    if torch.jit.is_scripting() or torch.compiler.is_compiling():
        return torch.ops.pointgrad_compat.nearest(x, y, batch_x, batch_y)
    return _nearest(x, y, batch_x, batch_y)


def _nearest(x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None) -> Tensor:
    queries, points = pair(x, y)
    query_offsets, offsets = pair_offsets(queries, points, batch_x, batch_y, None)
    if offsets is None or query_offsets is None:
        missing = points.shape[0] == 0 and queries.shape[0] > 0
    else:
        missing = bool(((query_offsets.diff() > 0) & (offsets.diff() == 0)).any())
    if missing:
        raise ValueError("y must have at least one point in every cloud of x, got a cloud without points in y")
    found = pointgrad.knn(points, 1, queries, offsets=offsets, query_offsets=query_offsets, any_dims=True)
    return found.index.squeeze(1)
