"""The compiled module `pointnet2_batch_cuda` of OpenPCDet and openpoints: padded clouds, results in arguments.

Points are (b, n, 3), features (b, c, n). Functions read and write arrays whose sizes are the first arguments, and
return nothing. Gradients are added to the array that receives them.
"""

from torch import Tensor

import pointgrad

from ._arrays import Arrays, write_balls
from ._scalars import number
from .pointnet2_ops import _ext

__all__ = [
    "ball_query_wrapper",
    "farthest_point_sampling_wrapper",
    "furthest_point_sampling_wrapper",
    "gather_points_grad_wrapper",
    "gather_points_wrapper",
    "group_points_grad_wrapper",
    "group_points_wrapper",
    "three_interpolate_grad_wrapper",
    "three_interpolate_wrapper",
    "three_nn_wrapper",
]


def ball_query_wrapper(
    b: int, n: int, m: int, radius: float, nsample: int, new_xyz: Tensor, xyz: Tensor, idx: Tensor
) -> None:
    """Write the indices of a ball query to `idx` (b, m, nsample); see `pointnet2_utils.ball_query`.

    As in the original, entries of an empty ball are not written.
    """
    arrays = Arrays(b=b, n=n, m=m, nsample=nsample)
    centers = arrays.floats("new_xyz", new_xyz, "b m 3")
    points = arrays.floats("xyz", xyz, "b n 3")
    out = arrays.out_index("idx", idx, "b m nsample")
    if nsample > 0:
        index = pointgrad.ball_query(points, number(radius), nsample, centers, select="first", closed=False).index
        write_balls(out, index)


def group_points_wrapper(
    b: int, c: int, n: int, npoints: int, nsample: int, points: Tensor, idx: Tensor, out: Tensor
) -> None:
    """Write the features of neighbors to `out` (b, c, npoints, nsample)."""
    arrays = Arrays(b=b, c=c, n=n, npoints=npoints, nsample=nsample)
    features = arrays.floats("points", points, "b c n")
    index = arrays.index("idx", idx, "b npoints nsample")
    arrays.out("out", out, "b c npoints nsample").copy_(_ext.group_points(features, index))


def group_points_grad_wrapper(
    b: int, c: int, n: int, npoints: int, nsample: int, grad_out: Tensor, idx: Tensor, grad_points: Tensor
) -> None:
    """Add the gradient of `group_points_wrapper` to `grad_points` (b, c, n)."""
    arrays = Arrays(b=b, c=c, n=n, npoints=npoints, nsample=nsample)
    gradient = arrays.floats("grad_out", grad_out, "b c npoints nsample")
    index = arrays.index("idx", idx, "b npoints nsample")
    arrays.out("grad_points", grad_points, "b c n").add_(_ext.group_points_grad(gradient, index, n))


def gather_points_wrapper(b: int, c: int, n: int, npoints: int, points: Tensor, idx: Tensor, out: Tensor) -> None:
    """Write columns of the features `points` (b, c, n) to `out` (b, c, npoints)."""
    arrays = Arrays(b=b, c=c, n=n, npoints=npoints)
    features = arrays.floats("points", points, "b c n")
    index = arrays.index("idx", idx, "b npoints")
    arrays.out("out", out, "b c npoints").copy_(_ext.gather_points(features, index))


def gather_points_grad_wrapper(
    b: int, c: int, n: int, npoints: int, grad_out: Tensor, idx: Tensor, grad_points: Tensor
) -> None:
    """Add the gradient of `gather_points_wrapper` to `grad_points` (b, c, n)."""
    arrays = Arrays(b=b, c=c, n=n, npoints=npoints)
    gradient = arrays.floats("grad_out", grad_out, "b c npoints")
    index = arrays.index("idx", idx, "b npoints")
    arrays.out("grad_points", grad_points, "b c n").add_(_ext.gather_points_grad(gradient, index, n))


def farthest_point_sampling_wrapper(b: int, n: int, m: int, points: Tensor, temp: Tensor, idx: Tensor) -> None:
    """Write the indices of farthest point sampling to `idx` (b, m); `temp` is not used."""
    arrays = Arrays(b=b, n=n, m=m)
    clouds = arrays.floats("points", points, "b n 3")
    out = arrays.out_index("idx", idx, "b m")
    if m > 0:
        out.copy_(_ext.furthest_point_sampling(clouds, m))


furthest_point_sampling_wrapper = farthest_point_sampling_wrapper


def three_nn_wrapper(b: int, n: int, m: int, unknown: Tensor, known: Tensor, dist2: Tensor, idx: Tensor) -> None:
    """Write squared distances and indices of the three nearest points of `known` to `dist2` and `idx` (b, n, 3)."""
    arrays = Arrays(b=b, n=n, m=m)
    queries = arrays.floats("unknown", unknown, "b n 3")
    points = arrays.floats("known", known, "b m 3")
    out, out_index = arrays.out("dist2", dist2, "b n 3"), arrays.out_index("idx", idx, "b n 3")
    distance2, index = _ext.three_nn(queries, points)
    out.copy_(distance2)
    out_index.copy_(index)


def three_interpolate_wrapper(
    b: int, c: int, m: int, n: int, points: Tensor, idx: Tensor, weight: Tensor, out: Tensor
) -> None:
    """Write weighted sums of columns of the features `points` (b, c, m) to `out` (b, c, n)."""
    arrays = Arrays(b=b, c=c, m=m, n=n)
    features = arrays.floats("points", points, "b c m")
    index, weights = arrays.index("idx", idx, "b n 3"), arrays.floats("weight", weight, "b n 3")
    arrays.out("out", out, "b c n").copy_(_ext.three_interpolate(features, index, weights))


def three_interpolate_grad_wrapper(
    b: int, c: int, n: int, m: int, grad_out: Tensor, idx: Tensor, weight: Tensor, grad_points: Tensor
) -> None:
    """Add the gradient of the features of `three_interpolate_wrapper` to `grad_points` (b, c, m)."""
    arrays = Arrays(b=b, c=c, m=m, n=n)
    gradient = arrays.floats("grad_out", grad_out, "b c n")
    index, weights = arrays.index("idx", idx, "b n 3"), arrays.floats("weight", weight, "b n 3")
    arrays.out("grad_points", grad_points, "b c m").add_(_ext.three_interpolate_grad(gradient, index, weights, m))
