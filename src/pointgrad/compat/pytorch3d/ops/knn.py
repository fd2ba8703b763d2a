"""The nearest points of each point, and what belongs to them."""

from typing import NamedTuple

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of
from . import _clouds, _manhattan

__all__ = ["knn_gather", "knn_points"]


class KNN(NamedTuple):
    """dists, idx: (N, P1, K). knn: (N, P1, K, D) or None."""

    dists: Tensor
    idx: Tensor
    knn: Tensor | None


_KNN = KNN  # the original's name for it


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
    """The K points of p2 nearest to each point of p1, nearest first.

    p1: (N, P1, D), who asks. p2: (N, P2, D), who is found.
    lengths1, lengths2: (N,), how many points of each cloud count; all of them without.
    norm: 2 for **squared** Euclidean distances, 1 for sums of absolute differences.
    version: which kernel of the original; no meaning here. return_sorted: they always are.
    returns: `KNN(dists, idx, knn)`. dists (N, P1, K) in the dtype of p1, with gradients to p1 and p2; idx (N, P1, K)
        int64; both 0 where a cloud of p2 has fewer than K points, and past `lengths1`. knn (N, P1, K, D) is
        `knn_gather(p2, idx, lengths2)` if `return_nn`, else None.

    Native: `pointgrad.knn(p2, K, p1, lengths=lengths2, query_lengths=lengths1)`, which marks what is missing by -1 and
    infinity, and keeps distances of 16-bit points in float32. What differs from the original, besides what the
    package says: of points at equal distance the first is taken, on every device; a distance that is not finite is
    never one of the nearest, and where only such are left, dists is infinite and idx 0; where coordinates are equal the
    gradient of norm 1 is 0, not -1. Norm 1 looks at all pairs, block by block.

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
    """The rows of x named by idx: `out[n, l, k] = x[n, idx[n, l, k]]`.

    x: (N, M, U), features of the points that were found, of any dtype.
    idx: (N, L, K), as `knn_points` or `ball_query` returns it.
    lengths: (N,), how many rows of each x count: places k >= lengths[n] are 0. M without.
    returns: (N, L, K, U), with gradients to x.

    Native: `pointgrad.group(x, idx)`. -1 gives zeros and no gradient, so an index of `ball_query` may be given; the
    original reads out of bounds there.

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
    """dists and idx of `knn_points`, the distances in at least float32."""
    if norm == 2:
        idx, dists, _ = pointgrad.knn(p2, K, p1, lengths=lengths2, query_lengths=lengths1)
    else:
        dists, idx = _manhattan.nearest(p1, p2, lengths1, lengths2, K)
    if lengths1 is not None or lengths2 is not None or p2.shape[1] < K:
        there = _clouds.within(lengths2, K, p2).unsqueeze(1) & _clouds.within(lengths1, p1.shape[1], p1).unsqueeze(2)
        dists = torch.where(there, dists, 0)
    return dists, idx.clamp(min=0)


def _check_gather(x: Tensor, idx: Tensor) -> None:
    checks.tensor("x", x)
    checks.tensor("idx", idx)
    checks.shape(x.dim() == 3, "x", "(N, M, U)", x)
    fits = idx.dim() == 3 and idx.shape[0] == x.shape[0]
    checks.shape(fits, "idx", lambda: f"(N, L, K) with N = {x.shape[0]}", idx)
    checks.dtype("idx", idx, checks.INDICES)
