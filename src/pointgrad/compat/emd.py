"""The compiled module `emd` of MSN and PoinTr: an assignment between two clouds by the auction algorithm."""

import numbers
from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks
from pointgrad.ops.sums import sum_dtype

from ._arrays import Arrays
from ._scalars import count_of, number

__all__ = ["backward", "forward"]


def forward(
    xyz1: Tensor,
    xyz2: Tensor,
    dist: Tensor,
    assignment: Tensor,
    price: Tensor,
    assignment_inv: Tensor,
    bid: Any,
    bid_increments: Any,
    max_increments: Any,
    unass_idx: Any,
    unass_cnt: Any,
    unass_cnt_sum: Any,
    cnt_tmp: Any,
    max_idx: Any,
    eps: float,
    iters: int,
) -> int:
    """Assign a point of `xyz2` to each point of `xyz1` such that the sum of the distances is small.

    In each iteration, all points without a partner bid for the one with the lowest distance plus price, and the highest
    bid wins. Points that have no partner in the last iteration take the one that they bid for, so that the assignment
    is not always one-to-one. Any number of points is allowed, and ties go to the smallest index; the original requires
    a multiple of 1024.

    Args:
        xyz1: (B, N, 3) points.
        xyz2: (B, N, 3) points.
        dist: (B, N) receives the squared distances.
        assignment: (B, N) int32, receives the index of the partner in `xyz2`.
        price: (B, N) receives the final prices of `xyz2`.
        assignment_inv: (B, N) int32, receives the index of the partner in `xyz1`, or -1.
        bid, bid_increments, max_increments, unass_idx, unass_cnt, unass_cnt_sum, cnt_tmp, max_idx: Not used.
        eps: Smallest increment of a price. The sum of the distances is at most N * eps above the minimum if the
            auction ends before the last iteration.
        iters: Number of iterations.

    Returns:
        1, as the original does on success.
    """
    checks.tensor("xyz1", xyz1)
    checks.shape(xyz1.dim() == 3 and xyz1.shape[2] == 3, "xyz1", "(B, N, 3)", xyz1)
    arrays = Arrays(B=xyz1.shape[0], N=xyz1.shape[1])
    points1, points2 = arrays.floats("xyz1", xyz1, "B N 3"), arrays.floats("xyz2", xyz2, "B N 3")
    outs = (
        arrays.out_index("assignment", assignment, "B N"),
        arrays.out_index("assignment_inv", assignment_inv, "B N"),
        arrays.out("price", price, "B N"),
    )
    distance2 = arrays.out("dist", dist, "B N")
    eps, iters = number(eps), count_of("iters", iters)
    checks.kind(isinstance(eps, numbers.Real), "eps", "a number", eps)
    wide = sum_dtype(torch.promote_types(points1.dtype, points2.dtype))
    points1, points2 = points1.to(wide), points2.to(wide)
    for cloud in range(points1.shape[0]):
        for out, value in zip(outs, _auction(points1[cloud], points2[cloud], eps, iters), strict=True):
            out[cloud] = value
    distance2.copy_((points1 - pointgrad.gather(points2, outs[0])).square().sum(2))
    return 1


def backward(xyz1: Tensor, xyz2: Tensor, gradxyz: Tensor, graddist: Tensor, idx: Tensor) -> int:
    """Add the gradient of `dist` with respect to `xyz1` to `gradxyz` (B, N, 3); `idx` is the assignment. Returns 1."""
    checks.tensor("xyz1", xyz1)
    checks.shape(xyz1.dim() == 3 and xyz1.shape[2] == 3, "xyz1", "(B, N, 3)", xyz1)
    arrays = Arrays(B=xyz1.shape[0], N=xyz1.shape[1])
    points1, points2 = arrays.floats("xyz1", xyz1, "B N 3"), arrays.floats("xyz2", xyz2, "B N 3")
    gradient, index = arrays.floats("graddist", graddist, "B N"), arrays.index("idx", idx, "B N")
    out = arrays.out("gradxyz", gradxyz, "B N 3")
    out.add_(2 * gradient.unsqueeze(2) * (points1 - pointgrad.gather(points2, index)))
    return 1


def _auction(points1: Tensor, points2: Tensor, eps: float, iters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Partners (N,) of `points1`, partners (N,) of `points2`, and prices (N,)."""
    size = points1.shape[0]
    partner, owner = torch.full((2, size), -1, device=points1.device).unbind()
    price = points1.new_zeros(size)
    for iteration in range(iters):
        free = (partner < 0).nonzero().squeeze(1)
        if free.numel() == 0:
            break
        distance = torch.cdist(points1[free], points2, compute_mode="donot_use_mm_for_euclid_dist")
        cost, index = (distance + price).topk(min(2, size), dim=1, largest=False)
        target, raised = index[:, 0], cost[:, -1] - cost[:, 0] + eps
        if iteration == iters - 1:
            partner[free], owner[target] = target, free
            price.index_add_(0, target, raised)
            break
        highest = price.new_full((size,), -torch.inf).scatter_reduce_(0, target, raised, "amax")
        wins = raised == highest[target]
        winner = torch.full_like(owner, size).scatter_reduce_(0, target[wins], free[wins], "amin")
        sold = (winner < size).nonzero().squeeze(1)
        before = owner[sold]
        partner[before[before >= 0]] = -1
        owner[sold], partner[winner[sold]] = winner[sold], sold
        price[sold] += highest[sold]
    return partner, owner, price
