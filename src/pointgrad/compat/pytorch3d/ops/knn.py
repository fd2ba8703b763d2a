"""Nearest neighbors, and features of neighbors."""

from typing import NamedTuple

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of
from . import _clouds, _manhattan

__all__ = ["knn_gather", "knn_points"]


class KNN(NamedTuple):
    """Result of a neighbor search.

    Attributes:
        dists: (N, P1, K) squared distances.
        idx: (N, P1, K) indices.
        knn: (N, P1, K, D) coordinates, or None.
    """

    dists: Tensor
    idx: Tensor
    knn: Tensor | None


_KNN = KNN  # the name in the original


def knn_points(
    p1: Tensor,
    p2: Tensor,
    lengths1: Tensor | None = None,
    lengths2: Tensor | None = None,
    norm: int = 2,
    K: int = 1,
    version: int = -1,
    return_nn: bool = False,
    return_sorted: bool = True,
) -> KNN:
    """Find the K points of p2 nearest to each point of p1, nearest first.

    The native function is `pointgrad.knn(p2, K, p1, lengths=lengths2, query_lengths=lengths1)`, which marks missing
    neighbors with -1 and infinity and returns distances of 16-bit points in float32.

    Differences from the original, besides those of the package: ties go to the smallest index on every device; points
    at a non-finite distance are never neighbors, and if no others are left, dists is infinite and idx 0; where
    coordinates are equal, the gradient of norm 1 is 0, not -1. Norm 1 compares all pairs, block by block.

    Args:
        p1: (N, P1, D) queries.
        p2: (N, P2, D) points to search.
        lengths1, lengths2: (N,) number of points in each cloud; None for all.
        norm: 2 for **squared** Euclidean distances, 1 for sums of absolute differences.
        K: Number of neighbors.
        version: Selects a kernel of the original; ignored here.
        return_nn: Also return the coordinates of the neighbors.
        return_sorted: Ignored: the result is always sorted.

    Returns:
        `KNN(dists, idx, knn)`: `dists` (N, P1, K) in the dtype of p1, differentiable in p1 and p2; `idx` (N, P1, K)
        int64; both are 0 where a cloud of p2 has fewer than K points, and beyond `lengths1`. `knn` (N, P1, K, D) is
        `knn_gather(p2, idx, lengths2)` if `return_nn`, else None.

    Example:
        >>> line = torch.tensor([[[0.], [1.], [3.]]])
        >>> knn_points(line, line, K=2).dists.tolist()
        [[[0.0, 1.0], [0.0, 1.0], [0.0, 4.0]]]
    """
    K = count_of("K", K)
    checks.value(norm in (1, 2), "norm", "1 or 2", norm)
    _clouds.check_pair(p1, p2, lengths1, lengths2)
    dists, idx = nearest(p1, p2, lengths1, lengths2, norm, K)
    return KNN(dists.to(p1.dtype), idx, knn_gather(p2, idx, lengths2) if return_nn else None)


def knn_gather(x: Tensor, idx: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Gather rows of x: `out[n, l, k] = x[n, idx[n, l, k]]`.

    The native function is `pointgrad.group(x, idx)`. An index of -1, as `ball_query` returns it, gives zeros without
    gradient; the original reads out of bounds there.

    Args:
        x: (N, M, U) features of the points that were searched, of any dtype.
        idx: (N, L, K) index from `knn_points` or `ball_query`.
        lengths: (N,) number of rows of each x; entries k >= lengths[n] are 0. M if None.

    Returns:
        (N, L, K, U) features, differentiable in x.

    Example:
        >>> knn_gather(torch.tensor([[[5.], [6.]]]), torch.tensor([[[1, 0, -1]]])).tolist()
        [[[[6.0], [5.0], [0.0]]]]
    """
    _check_gather(x, idx)
    if lengths is not None or idx.shape[2] > x.shape[1]:
        idx = torch.where(_clouds.within(lengths, idx.shape[2], x).unsqueeze(1), idx, -1)
    return pointgrad.group(x, idx)


def nearest(
    p1: Tensor, p2: Tensor, lengths1: Tensor | None, lengths2: Tensor | None, norm: int, K: int
) -> tuple[Tensor, Tensor]:
    """`dists` and `idx` of `knn_points`, the distances in at least float32."""
    if norm == 2:
        idx, dists, _ = pointgrad.knn(p2, K, p1, lengths=lengths2, query_lengths=lengths1, any_dims=True)
    else:
        dists, idx = _manhattan.nearest(p1, p2, lengths1, lengths2, K)
    if lengths1 is not None or lengths2 is not None or p2.shape[1] < K:
        valid = _clouds.within(lengths2, K, p2).unsqueeze(1) & _clouds.within(lengths1, p1.shape[1], p1).unsqueeze(2)
        dists = torch.where(valid, dists, 0)
    return dists, idx.clamp(min=0)


def _check_gather(x: Tensor, idx: Tensor) -> None:
    checks.tensor("x", x)
    checks.tensor("idx", idx)
    checks.shape(x.dim() == 3, "x", "(N, M, U)", x)
    fits = idx.dim() == 3 and idx.shape[0] == x.shape[0]
    checks.shape(fits, "idx", lambda: f"(N, L, K) with N = {x.shape[0]}", idx)
    checks.dtype("idx", idx, checks.INDICES)
