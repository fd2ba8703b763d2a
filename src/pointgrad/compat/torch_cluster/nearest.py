"""Clusters around given points."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._clouds import pair, pair_offsets


def nearest(x: Tensor, y: Tensor, batch_x: Tensor | None = None, batch_y: Tensor | None = None) -> Tensor:
    """For each point of `x` the number of the nearest point of `y` in the cloud of the same number.

    x: (N, D) or (N,). y: (M, D) or (M,). batch_x: (N,) and batch_y: (M,), sorted, which cloud each is in.
    returns: (N,) int64; ties go to the smallest index; -1 for a point with a NaN or infinite coordinate.

    A cloud that has points in `x` must have some in `y`. Nothing but torch is needed: the original's CPU version calls
    SciPy and puts all clouds beside one another on one more axis, which costs it digits. Natively: `pointgrad.knn`.

    >>> nearest(torch.tensor([[0.], [1.], [5.]]), torch.tensor([[0.9], [4.]]))
    tensor([0, 0, 1])
    """
    queries, points = pair(x, y)
    queries_at, points_at = pair_offsets(queries, points, batch_x, batch_y, None)
    if points_at is None or queries_at is None:
        missing = points.shape[0] == 0 and queries.shape[0] > 0
    else:
        missing = bool(((queries_at.diff() > 0) & (points_at.diff() == 0)).any())
    checks.value(not missing, "y", "some points in each cloud that x has points in", "none in one of them")
    return pointgrad.knn(points, 1, queries, offsets=points_at, query_offsets=queries_at).index.squeeze(1)
