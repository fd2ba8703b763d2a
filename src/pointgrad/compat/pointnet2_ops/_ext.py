"""The original's compiled module `pointnet2_ops._ext`, which programs with custom autograd functions call directly.

Forward functions are those of `pointnet2_utils` with the argument order of the original's C++ functions; `*_grad` are
their backward passes. Results are not views, so that a custom autograd function may return them.
"""

from typing import Any

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from .._scalars import count_of
from . import pointnet2_utils
from .pointnet2_utils import fresh

__all__ = [
    "ball_query",
    "furthest_point_sampling",
    "gather_points",
    "gather_points_grad",
    "group_points",
    "group_points_grad",
    "three_interpolate",
    "three_interpolate_grad",
    "three_nn",
]

furthest_point_sampling = pointnet2_utils.furthest_point_sample
gather_points = pointnet2_utils.gather_operation
group_points = pointnet2_utils.grouping_operation
three_interpolate = pointnet2_utils.three_interpolate


def ball_query(new_xyz: Tensor, xyz: Tensor, radius: float, nsample: int) -> Tensor:
    """`pointnet2_utils.ball_query` with the centers as the first argument."""
    return pointnet2_utils.ball_query(radius, nsample, xyz, new_xyz)


def three_nn(unknowns: Tensor, knows: Tensor) -> tuple[Tensor, Tensor]:
    """`pointnet2_utils.three_nn` with squared distances."""
    return pointnet2_utils.three_nearest(unknowns, knows)


def gather_points_grad(grad_out: Tensor, idx: Tensor, n: int) -> Tensor:
    """Gradient (B, C, n) of `gather_points`, given the gradient (B, C, M) of its result."""
    _check_gradient(grad_out, idx, "M", 2)
    return _scatter(grad_out, idx, count_of("n", n, 0))


def group_points_grad(grad_out: Tensor, idx: Tensor, n: int) -> Tensor:
    """Gradient (B, C, n) of `group_points`, given the gradient (B, C, M, K) of its result."""
    _check_gradient(grad_out, idx, "M, K", 3)
    return _scatter(grad_out.flatten(2), idx.flatten(1), count_of("n", n, 0))


def three_interpolate_grad(grad_out: Tensor, idx: Tensor, weight: Tensor, m: int) -> Tensor:
    """Gradient (B, C, m) of the features of `three_interpolate`, given the gradient (B, C, n) of its result."""
    checks.tensor("weight", weight)
    checks.tensor("idx", idx)
    checks.shape(idx.dim() == 3, "idx", "(B, n, 3)", idx)
    checks.shape(weight.shape == idx.shape, "weight", lambda: f"{tuple(idx.shape)}, like idx", weight)
    checks.device("weight", weight, "idx", idx)
    _check_gradient(grad_out, idx[..., 0], "n", 2)
    return group_points_grad(grad_out.unsqueeze(-1) * weight.unsqueeze(1), idx, m)


def _scatter(columns: Tensor, idx: Tensor, size: int) -> Tensor:
    return fresh(pointgrad.scatter(columns.transpose(1, 2), idx, size).transpose(1, 2).contiguous())


def _check_gradient(grad_out: Any, idx: Any, sizes: str, rank: int) -> None:
    checks.tensor("grad_out", grad_out)
    checks.tensor("idx", idx)
    checks.shape(idx.dim() == rank, "idx", f"(B, {sizes})", idx)
    fits = grad_out.dim() == rank + 1 and grad_out.shape[:1] + grad_out.shape[2:] == idx.shape
    checks.shape(fits, "grad_out", lambda: f"(B, C, {sizes}) with idx {tuple(idx.shape)}", grad_out)
    checks.dtype("grad_out", grad_out, checks.FLOATS)
    checks.dtype("idx", idx, checks.INDICES)
    checks.device("idx", idx, "grad_out", grad_out)
