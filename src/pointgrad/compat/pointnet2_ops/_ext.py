"""The compiled module of the original, `pointnet2_ops._ext`, which programs with operators of their own call directly.

Forward functions are those of `pointnet2_utils`, with their arguments in the order of the original's C++; `*_grad` are
their backward passes, for an `autograd.Function` around them.
"""

from torch import Tensor

import pointgrad

from . import pointnet2_utils

furthest_point_sampling = pointnet2_utils.furthest_point_sample
gather_points = pointnet2_utils.gather_operation
group_points = pointnet2_utils.grouping_operation
three_interpolate = pointnet2_utils.three_interpolate


def ball_query(new_xyz: Tensor, xyz: Tensor, radius: float, nsample: int) -> Tensor:
    """`pointnet2_utils.ball_query`, the centres first."""
    return pointnet2_utils.ball_query(radius, nsample, xyz, new_xyz)


def three_nn(unknowns: Tensor, knows: Tensor) -> tuple[Tensor, Tensor]:
    """`pointnet2_utils.three_nn` with squared distances."""
    return pointnet2_utils.three_nearest(unknowns, knows)


def gather_points_grad(grad_out: Tensor, idx: Tensor, n: int) -> Tensor:
    """The gradient (B, C, n) of `gather_points`, from that of its result, (B, C, M)."""
    return _add(grad_out.transpose(1, 2), idx, n)


def group_points_grad(grad_out: Tensor, idx: Tensor, n: int) -> Tensor:
    """The gradient (B, C, n) of `group_points`, from that of its result, (B, C, M, K)."""
    return _add(grad_out.flatten(2).transpose(1, 2), idx.flatten(1), n)


def three_interpolate_grad(grad_out: Tensor, idx: Tensor, weight: Tensor, m: int) -> Tensor:
    """The gradient (B, C, m) of `three_interpolate` for its features, from that of its result, (B, C, n)."""
    return group_points_grad(grad_out.unsqueeze(-1) * weight.unsqueeze(1), idx, m)


def _add(rows: Tensor, idx: Tensor, size: int) -> Tensor:
    return pointgrad.scatter(rows, idx, size).transpose(1, 2).contiguous()
