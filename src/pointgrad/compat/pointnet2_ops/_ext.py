"""The original's compiled module `pointnet2_ops._ext`, which programs with custom autograd functions call directly.

Forward functions are those of `pointnet2_utils` with the argument order of the original's C++ functions; `*_grad` are
their backward passes.
"""

from torch import Tensor

import pointgrad

from . import pointnet2_utils

furthest_point_sampling = pointnet2_utils.furthest_point_sample
gather_points = pointnet2_utils.gather_operation
group_points = pointnet2_utils.grouping_operation
three_interpolate = pointnet2_utils.three_interpolate


def ball_query(new_xyz: Tensor, xyz: Tensor, radius: float, nsample: int) -> Tensor:
    """`pointnet2_utils.ball_query` with the centres as the first argument."""
    return pointnet2_utils.ball_query(radius, nsample, xyz, new_xyz)


def three_nn(unknowns: Tensor, knows: Tensor) -> tuple[Tensor, Tensor]:
    """`pointnet2_utils.three_nn` with squared distances."""
    return pointnet2_utils.three_nearest(unknowns, knows)


def gather_points_grad(grad_out: Tensor, idx: Tensor, n: int) -> Tensor:
    """Gradient (B, C, n) of `gather_points`, given the gradient (B, C, M) of its result."""
    return _scatter(grad_out.transpose(1, 2), idx, n)


def group_points_grad(grad_out: Tensor, idx: Tensor, n: int) -> Tensor:
    """Gradient (B, C, n) of `group_points`, given the gradient (B, C, M, K) of its result."""
    return _scatter(grad_out.flatten(2).transpose(1, 2), idx.flatten(1), n)


def three_interpolate_grad(grad_out: Tensor, idx: Tensor, weight: Tensor, m: int) -> Tensor:
    """Gradient (B, C, m) of the features of `three_interpolate`, given the gradient (B, C, n) of its result."""
    return group_points_grad(grad_out.unsqueeze(-1) * weight.unsqueeze(1), idx, m)


def _scatter(rows: Tensor, idx: Tensor, size: int) -> Tensor:
    return pointgrad.scatter(rows, idx, size).transpose(1, 2).contiguous()
