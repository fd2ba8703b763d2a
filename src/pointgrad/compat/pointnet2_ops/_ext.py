"""The compiled module of the original, `pointnet2_ops._ext`, which programs with operators of their own call directly.

Forward functions are those of `pointnet2_utils` in the order of arguments that the original's C++ has; `*_grad` are their
backward passes, for an `autograd.Function` around them.
"""

from torch import Tensor

import pointgrad

from .pointnet2_utils import ball_query as _ball_query
from .pointnet2_utils import furthest_point_sample as furthest_point_sampling
from .pointnet2_utils import gather_operation as gather_points
from .pointnet2_utils import grouping_operation as group_points
from .pointnet2_utils import three_interpolate, three_nearest

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


def ball_query(new_xyz: Tensor, xyz: Tensor, radius: float, nsample: int) -> Tensor:
    """`pointnet2_utils.ball_query`, the centres first."""
    return _ball_query(radius, nsample, xyz, new_xyz)


def three_nn(unknowns: Tensor, knows: Tensor) -> tuple[Tensor, Tensor]:
    """`pointnet2_utils.three_nn` with squared distances."""
    return three_nearest(unknowns, knows)


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
