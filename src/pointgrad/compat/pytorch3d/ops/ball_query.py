"""Ball query."""

import numbers

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of, number
from . import _clouds
from .knn import KNN

__all__ = ["ball_query"]


def ball_query(
    p1: Tensor,
    p2: Tensor,
    lengths1: Tensor | None = None,
    lengths2: Tensor | None = None,
    K: int = 500,
    radius: float = 0.2,
    return_nn: bool = True,
    skip_points_outside_cube: bool = False,
) -> KNN:
    """Find the first K points of p2, in index order, that are nearer than the radius to each point of p1.

    The native function is `pointgrad.ball_query(p2, radius, K, p1, select="first", closed=False)`.

    Args:
        p1: (N, P1, D) centers.
        p2: (N, P2, D) points to search.
        lengths1, lengths2: (N,) number of points in each cloud; None for all.
        K: Number of neighbors.
        radius: Radius of the balls. Points **on** the sphere are outside.
        return_nn: Also return the coordinates of the neighbors.
        skip_points_outside_cube: Selects an algorithm of the original; ignored here.

    Returns:
        `KNN(dists, idx, knn)`: `dists` (N, P1, K), **squared**, in the dtype of p1, differentiable in p1 and p2; `idx`
        (N, P1, K) int64; `knn` (N, P1, K, D), or None if `return_nn` is False. Missing neighbors have index -1,
        distance 0 and zero coordinates.

    Example:
        >>> line = torch.tensor([[[0.], [1.], [2.]]])
        >>> ball_query(line, line, K=2, radius=1.5).idx.tolist()
        [[[0, 1], [0, 1], [1, 2]]]
        >>> ball_query(line, line, K=2, radius=1.0).idx.tolist()
        [[[0, -1], [1, -1], [2, -1]]]
    """
    K, radius = count_of("K", K), number(radius)
    checks.kind(isinstance(radius, numbers.Real), "radius", "a number", radius)
    _clouds.check_pair(p1, p2, lengths1, lengths2)
    found = pointgrad.ball_query(
        p2, radius, K, p1, select="first", closed=False, lengths=lengths2, query_lengths=lengths1, any_dims=True
    )
    dists = torch.where(found.index >= 0, found.distance2, 0).to(p1.dtype)
    return KNN(dists, found.index, pointgrad.group(p2, found.index) if return_nn else None)
