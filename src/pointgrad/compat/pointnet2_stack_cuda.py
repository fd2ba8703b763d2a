"""The compiled module `pointnet2_stack_cuda` of OpenPCDet: packed clouds with their sizes, results in arguments.

Points are (N, 3), features (N, C); `*_batch_cnt` (B,) has the number of points of each cloud. Functions write into some
of their arguments and return nothing. Gradients are added to the array that receives them.
"""

import itertools
import numbers
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

import pointgrad
from pointgrad.ops import checks

from ._arrays import Arrays, check_index, write_balls
from ._scalars import count_of, number
from .pointnet2_batch_cuda import farthest_point_sampling_wrapper
from .pointops import _C

__all__ = [
    "ball_query_wrapper",
    "farthest_point_sampling_wrapper",
    "group_points_grad_wrapper",
    "group_points_wrapper",
    "stack_farthest_point_sampling_wrapper",
    "three_interpolate_grad_wrapper",
    "three_interpolate_wrapper",
    "three_nn_wrapper",
    "voxel_query_wrapper",
]

_CHUNK = 4096  # queries whose voxels are searched at once


def ball_query_wrapper(
    B: int,
    M: int,
    radius: float,
    nsample: int,
    new_xyz: Tensor,
    new_xyz_batch_cnt: Tensor,
    xyz: Tensor,
    xyz_batch_cnt: Tensor,
    idx: Tensor,
) -> None:
    """Write the first `nsample` points of each ball to `idx` (M, nsample), as indices within the cloud.

    A ball with fewer points repeats its first one. For an empty ball, only the first entry is written: -1.
    """
    arrays = Arrays(B=B, M=M, nsample=nsample)
    centers, points = arrays.floats("new_xyz", new_xyz, "M 3"), arrays.floats("xyz", xyz, "* 3")
    offsets = _offsets(arrays, "xyz_batch_cnt", xyz_batch_cnt)
    new_offsets = _offsets(arrays, "new_xyz_batch_cnt", new_xyz_batch_cnt)
    out = arrays.out_index("idx", idx, "M nsample")
    if nsample > 0:
        index = pointgrad.ball_query(
            points, number(radius), nsample, centers,
            select="first", closed=False, offsets=offsets, query_offsets=new_offsets,
        ).index  # fmt: skip
        local = index - _starts(offsets, new_offsets).unsqueeze(1)
        write_balls(out, local.where(index >= 0, -1))
        out[:, 0].masked_fill_(index[:, 0] < 0, -1)


def group_points_wrapper(
    B: int,
    M: int,
    C: int,
    nsample: int,
    features: Tensor,
    features_batch_cnt: Tensor,
    idx: Tensor,
    idx_batch_cnt: Tensor,
    out: Tensor,
) -> None:
    """Write the features (N, C) of neighbors to `out` (M, C, nsample); `idx` (M, nsample) counts within the clouds."""
    arrays = Arrays(B=B, M=M, C=C, nsample=nsample)
    rows = arrays.floats("features", features, "* C")
    index = _global_index(arrays, idx, features_batch_cnt, idx_batch_cnt, rows.shape[0])
    arrays.out("out", out, "M C nsample").copy_(pointgrad.group(rows, index).transpose(1, 2))


def group_points_grad_wrapper(
    B: int,
    M: int,
    C: int,
    N: int,
    nsample: int,
    grad_out: Tensor,
    idx: Tensor,
    idx_batch_cnt: Tensor,
    features_batch_cnt: Tensor,
    grad_features: Tensor,
) -> None:
    """Add the gradient of `group_points_wrapper` to `grad_features` (N, C)."""
    arrays = Arrays(B=B, M=M, C=C, N=N, nsample=nsample)
    gradient = arrays.floats("grad_out", grad_out, "M C nsample").transpose(1, 2)
    index = _global_index(arrays, idx, features_batch_cnt, idx_batch_cnt, N)
    out = arrays.out("grad_features", grad_features, "N C")
    out.add_(pointgrad.scatter(gradient.flatten(0, 1), index.flatten(), N))


def stack_farthest_point_sampling_wrapper(
    xyz: Tensor, temp: Tensor, xyz_batch_cnt: Tensor, idx: Tensor, num_sampled_points: Tensor
) -> None:
    """Write the rows of farthest point sampling to `idx`, `num_sampled_points` (B,) for each cloud."""
    for name, value in (("xyz_batch_cnt", xyz_batch_cnt), ("num_sampled_points", num_sampled_points)):
        checks.tensor(name, value)
    ends, new_ends = xyz_batch_cnt.cumsum(0), num_sampled_points.cumsum(0)
    _C.farthest_point_sampling_cuda(ends.numel(), 0, xyz, ends, new_ends, temp, idx)


def three_nn_wrapper(
    unknown: Tensor, unknown_batch_cnt: Tensor, known: Tensor, known_batch_cnt: Tensor, dist2: Tensor, idx: Tensor
) -> None:
    """Write squared distances and rows of the three nearest points of `known` (M, 3) to `dist2` and `idx` (N, 3).

    In a cloud with fewer than three points, the missing ones have its first row and an infinite distance.
    """
    checks.tensor("unknown_batch_cnt", unknown_batch_cnt)
    arrays = Arrays(B=unknown_batch_cnt.numel())
    queries, points = arrays.floats("unknown", unknown, "* 3"), arrays.floats("known", known, "* 3")
    offsets = _offsets(arrays, "known_batch_cnt", known_batch_cnt)
    query_offsets = _offsets(arrays, "unknown_batch_cnt", unknown_batch_cnt)
    arrays.sizes["N"] = queries.shape[0]
    out, out_index = arrays.out("dist2", dist2, "N 3"), arrays.out_index("idx", idx, "N 3")
    found = pointgrad.knn(points, 3, queries, offsets=offsets, query_offsets=query_offsets)
    out.copy_(found.distance2)
    out_index.copy_(found.index.where(found.index >= 0, _starts(offsets, query_offsets).unsqueeze(1)))


def three_interpolate_wrapper(features: Tensor, idx: Tensor, weight: Tensor, out: Tensor) -> None:
    """Write weighted sums of three rows of `features` (M, C) to `out` (N, C)."""
    arrays = _interpolation_arrays(features, idx)
    rows, index = arrays.floats("features", features, "M C"), arrays.index("idx", idx, "N 3")
    weights = arrays.floats("weight", weight, "N 3")
    arrays.out("out", out, "N C").copy_(pointgrad.interpolate_at(rows, index, weights))


def three_interpolate_grad_wrapper(grad_out: Tensor, idx: Tensor, weight: Tensor, grad_features: Tensor) -> None:
    """Add the gradient of the features of `three_interpolate_wrapper` to `grad_features` (M, C)."""
    arrays = _interpolation_arrays(grad_features, idx)
    gradient, index = arrays.floats("grad_out", grad_out, "N C"), arrays.index("idx", idx, "N 3")
    weights, out = arrays.floats("weight", weight, "N 3"), arrays.out("grad_features", grad_features, "M C")
    spread = gradient.unsqueeze(1) * weights.unsqueeze(2)
    out.add_(pointgrad.scatter(spread.flatten(0, 1), index.flatten(), out.shape[0]))


def voxel_query_wrapper(
    M: int,
    R1: int,
    R2: int,
    R3: int,
    nsample: int,
    radius: float,
    z_range: int,
    y_range: int,
    x_range: int,
    new_xyz: Tensor,
    xyz: Tensor,
    new_coords: Tensor,
    point_indices: Tensor,
    idx: Tensor,
) -> None:
    """Write the first `nsample` points at a distance of at most `radius` in the voxels around each center to `idx`.

    `point_indices` (B, R1, R2, R3) has the row of `xyz` (N, 3) in each voxel, or -1; `new_coords` (M, 4) has the batch
    and the voxel of each center. Voxels are searched from -range to range, x fastest. A center with fewer points
    repeats its first one. For a center without points, only the first entry is written: -1.
    """
    arrays = Arrays(M=M, R1=R1, R2=R2, R3=R3, nsample=nsample)
    centers, points = arrays.floats("new_xyz", new_xyz, "M 3"), arrays.floats("xyz", xyz, "* 3")
    coords = arrays.index("new_coords", new_coords, "M 4").long()
    voxels = arrays.index("point_indices", point_indices, "* R1 R2 R3").long()
    out = arrays.out_index("idx", idx, "M nsample")
    if M == 0 or nsample == 0 or voxels.numel() == 0:
        return
    check_index("point_indices", voxels, points.shape[0])
    check_index("new_coords[:, 0]", coords[:, 0], voxels.shape[0])
    reaches = (("z_range", z_range, R1), ("y_range", y_range, R2), ("x_range", x_range, R3))
    ranges = [min(count_of(name, reach, 0), size) for name, reach, size in reaches]
    steps = torch.tensor(list(itertools.product(*(range(-reach, reach + 1) for reach in ranges))), device=points.device)
    limits = torch.tensor([R1, R2, R3], device=points.device)
    radius = number(radius)
    checks.kind(isinstance(radius, numbers.Real), "radius", "a number", radius)
    limit2 = points.new_full((), float(radius)).square()
    for begin in range(0, M, _CHUNK):
        chunk = slice(begin, min(begin + _CHUNK, M))
        voxel = coords[chunk, None, 1:] + steps  # (M, S, 3)
        inside = ((voxel >= 0) & (voxel < limits)).all(2)
        voxel = voxel.clamp(min=0).minimum(limits - 1)
        row = voxels[coords[chunk, :1], voxel[..., 0], voxel[..., 1], voxel[..., 2]].where(inside, -1)
        distance2 = (points[row.clamp(min=0)] - centers[chunk, None]).square().sum(2)
        near = (row >= 0) & (distance2 <= limit2)
        order = near.logical_not().to(torch.uint8).sort(dim=1, stable=True).indices[:, :nsample]
        found = row.where(near, -1).gather(1, order)
        found = functional.pad(found, (0, nsample - found.shape[1]), value=-1)
        write_balls(out[chunk], found)
        out[chunk, 0] = out[chunk, 0].masked_fill(found[:, 0] < 0, -1)


def query_stacked_local_neighbor_idxs_wrapper_stack(*args: Any) -> NoReturn:
    """Not provided."""
    _raise("query_stacked_local_neighbor_idxs_wrapper_stack")


def query_three_nn_by_stacked_local_idxs_wrapper_stack(*args: Any) -> NoReturn:
    """Not provided."""
    _raise("query_three_nn_by_stacked_local_idxs_wrapper_stack")


def vector_pool_wrapper(*args: Any) -> NoReturn:
    """Not provided."""
    _raise("vector_pool_wrapper")


def vector_pool_grad_wrapper(*args: Any) -> NoReturn:
    """Not provided."""
    _raise("vector_pool_grad_wrapper")


def _raise(name: str) -> NoReturn:
    raise NotImplementedError(f"pointgrad.compat.pointnet2_stack_cuda does not provide {name} of PV-RCNN++")


def _offsets(arrays: Arrays, name: str, counts: Tensor) -> Tensor:
    """(B + 1,) offsets of clouds with these sizes."""
    return functional.pad(arrays.index(name, counts, "B").long().cumsum(0), (1, 0))


def _starts(offsets: Tensor, query_offsets: Tensor) -> Tensor:
    """(M,) first row of the cloud of each query."""
    return offsets[:-1].repeat_interleave(query_offsets.diff())


def _global_index(arrays: Arrays, idx: Tensor, features_cnt: Tensor, idx_cnt: Tensor, num_rows: int) -> Tensor:
    """(M, nsample) rows for indices that count within the clouds."""
    index = arrays.index("idx", idx, "M nsample").long()
    offsets, idx_offsets = (
        _offsets(arrays, "features_batch_cnt", features_cnt),
        _offsets(arrays, "idx_batch_cnt", idx_cnt),
    )
    total, total_idx = int(offsets[-1]), int(idx_offsets[-1])
    checks.value(total == num_rows, "features_batch_cnt", f"N = {num_rows}", total, verb="sum to")
    checks.value(total_idx == index.shape[0], "idx_batch_cnt", f"M = {index.shape[0]}", total_idx, verb="sum to")
    starts, sizes = _starts(offsets, idx_offsets), offsets.diff().repeat_interleave(idx_offsets.diff())
    fits = ((index >= -1) & (index < sizes.unsqueeze(1))).all()
    checks.value(bool(fits), "idx", "-1 or less than the size of its cloud", "an index outside")
    return torch.where(index < 0, -1, index + starts.unsqueeze(1))


def _interpolation_arrays(features: Any, idx: Any) -> Arrays:
    checks.tensor("features", features)
    checks.tensor("idx", idx)
    checks.shape(features.dim() == 2, "features", "(M, C)", features)
    checks.shape(idx.dim() == 2, "idx", "(N, 3)", idx)
    return Arrays(M=features.shape[0], C=features.shape[1], N=idx.shape[0])
