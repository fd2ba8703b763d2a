"""The compiled module `pointops_cuda` of Point Transformer, Stratified Transformer, openpoints, PointWeb and PAConv.

Several names exist with different arguments for packed clouds, (n, 3) with the ends `offset` (b,) of the clouds, and
for batches (b, n, 3); the number and types of the arguments determine which is meant. Functions read and write arrays
whose sizes are the first arguments, and return nothing. Gradients are added to the array that receives them.
"""

from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from . import pointnet2_batch_cuda
from ._arrays import Arrays, write_balls
from ._scalars import number
from .pointnet2_batch_cuda import gather_points_grad_wrapper as gathering_backward_cuda
from .pointnet2_batch_cuda import gather_points_wrapper as gathering_forward_cuda
from .pointnet2_batch_cuda import three_nn_wrapper as nearestneighbor_cuda
from .pointops import _C
from .pointops._C import (
    MISSING2,
    aggregation_backward_cuda,
    aggregation_forward_cuda,
    subtraction_backward_cuda,
    subtraction_forward_cuda,
)
from .pointops.functions._packed import to_offsets
from .pointops.functions.pointops import nearest_or_first

__all__ = [
    "aggregation_backward_cuda",
    "aggregation_forward_cuda",
    "ballquery_cuda",
    "featuredistribute_cuda",
    "featuregather_backward_cuda",
    "featuregather_forward_cuda",
    "furthestsampling_cuda",
    "gathering_backward_cuda",
    "gathering_forward_cuda",
    "grouping_backward_cuda",
    "grouping_forward_cuda",
    "grouping_int_forward_cuda",
    "interpolation_backward_cuda",
    "interpolation_forward_cuda",
    "knnquery_cuda",
    "knnquery_heap_cuda",
    "labelstat_and_ballquery_cuda",
    "labelstat_ballrange_cuda",
    "labelstat_idx_cuda",
    "nearestneighbor_cuda",
    "subtraction_backward_cuda",
    "subtraction_forward_cuda",
]


def furthestsampling_cuda(*args: Any) -> None:
    """Write the indices of farthest point sampling.

    Packed: `(b, n, xyz, offset, new_offset, tmp, idx)`, as `farthest_point_sampling_cuda` of `pointops._C`. Batched:
    `(b, n, m, xyz, temp, idx)`, as `farthest_point_sampling_wrapper` of `pointnet2_batch_cuda`.
    """
    packed = _is_packed("furthestsampling_cuda", args, 7, 6)
    (_C.farthest_point_sampling_cuda if packed else pointnet2_batch_cuda.farthest_point_sampling_wrapper)(*args)


def knnquery_cuda(*args: Any) -> None:
    """Write the `nsample` nearest neighbors and their squared distances.

    Packed: `(m, nsample, xyz, new_xyz, offset, new_offset, idx, dist2)`; a cloud with too few points repeats its first
    row. Batched: `(b, n, m, nsample, xyz, new_xyz, idx, dist2)`; index 0 repeats. The squared distance of repeated
    neighbors is 1e10.
    """
    _is_packed("knnquery_cuda", args, 8, 8)
    (_packed_knn if isinstance(args[2], Tensor) and args[2].dim() > 0 else knnquery_heap_cuda)(*args)


def knnquery_heap_cuda(
    b: int, n: int, m: int, nsample: int, xyz: Tensor, new_xyz: Tensor, idx: Tensor, dist2: Tensor
) -> None:
    """Write the nearest neighbors in batched clouds to `idx` and squared distances to `dist2`, both (b, m, nsample)."""
    arrays = Arrays(b=b, n=n, m=m, nsample=nsample)
    points, queries = arrays.floats("xyz", xyz, "b n 3"), arrays.floats("new_xyz", new_xyz, "b m 3")
    out, out2 = arrays.out_index("idx", idx, "b m nsample"), arrays.out("dist2", dist2, "b m nsample")
    if nsample > 0:
        found = pointgrad.knn(points, nsample, queries)
        out.copy_(found.index.clamp(min=0))
        out2.copy_(found.distance2.masked_fill(found.index < 0, MISSING2))


def ballquery_cuda(*args: Any) -> None:
    """Write the first `nsample` points, in index order, at a distance less than `radius` from each center.

    Packed (openpoints): `(m, radius, nsample, xyz, new_xyz, offset, new_offset, idx)`. Batched:
    `(b, n, m, radius, nsample, new_xyz, xyz, idx)`. A ball with fewer points repeats its first one; nothing is written
    for an empty ball.
    """
    _is_packed("ballquery_cuda", args, 8, 8)
    batched = not isinstance(args[3], Tensor) or args[3].dim() == 0
    (pointnet2_batch_cuda.ball_query_wrapper if batched else _packed_ball_query)(*args)


def grouping_forward_cuda(*args: Any) -> None:
    """Write the features of neighbors.

    Packed: `(m, nsample, c, input, idx, output)`, as in `pointops._C`. Batched: `(b, c, n, m, nsample, features, idx,
    output)`, as `group_points_wrapper` of `pointnet2_batch_cuda`.
    """
    packed = _is_packed("grouping_forward_cuda", args, 6, 8)
    (_C.grouping_forward_cuda if packed else pointnet2_batch_cuda.group_points_wrapper)(*args)


def grouping_backward_cuda(*args: Any) -> None:
    """Add the gradient of `grouping_forward_cuda` to the last argument; the others are as there."""
    packed = _is_packed("grouping_backward_cuda", args, 6, 8)
    (_C.grouping_backward_cuda if packed else pointnet2_batch_cuda.group_points_grad_wrapper)(*args)


def grouping_int_forward_cuda(
    b: int, c: int, n: int, m: int, nsample: int, features: Tensor, idx: Tensor, output: Tensor
) -> None:
    """Write integer features (b, c, n) of neighbors to `output` (b, c, m, nsample)."""
    arrays = Arrays(b=b, c=c, n=n, m=m, nsample=nsample)
    values, index = arrays.index("features", features, "b c n"), arrays.index("idx", idx, "b m nsample")
    grouped = pointgrad.group(values.transpose(1, 2), index).permute(0, 3, 1, 2)
    arrays.out_index("output", output, "b c m nsample").copy_(grouped)


def interpolation_forward_cuda(*args: Any) -> None:
    """Compute weighted sums of features.

    Packed: `(n, c, k, input, idx, weight, output)`, as in `pointops._C`. Batched: `(b, c, m, n, features, idx, weight,
    output)`, as `three_interpolate_wrapper` of `pointnet2_batch_cuda`.
    """
    packed = _is_packed("interpolation_forward_cuda", args, 7, 8)
    (_C.interpolation_forward_cuda if packed else pointnet2_batch_cuda.three_interpolate_wrapper)(*args)


def interpolation_backward_cuda(*args: Any) -> None:
    """Add the gradient of the features of `interpolation_forward_cuda` to the last argument.

    Packed: `(n, c, k, grad_output, idx, weight, grad_input)`. Batched: `(b, c, n, m, grad_out, idx, weight,
    grad_features)`.
    """
    packed = _is_packed("interpolation_backward_cuda", args, 7, 8)
    (_C.interpolation_backward_cuda if packed else pointnet2_batch_cuda.three_interpolate_grad_wrapper)(*args)


def labelstat_idx_cuda(
    b: int, n: int, m: int, nsample: int, nclass: int, label_stat: Tensor, idx: Tensor, new_label_stat: Tensor
) -> None:
    """Write the sums of the class counts `label_stat` (b, n, nclass) of the neighbors, to (b, m, nclass)."""
    arrays = Arrays(b=b, n=n, m=m, nsample=nsample, nclass=nclass)
    counts, index = arrays.index("label_stat", label_stat, "b n nclass"), arrays.index("idx", idx, "b m nsample")
    out = arrays.out_index("new_label_stat", new_label_stat, "b m nclass")
    out.copy_(pointgrad.group(counts, index).sum(2))


def labelstat_ballrange_cuda(
    b: int, n: int, m: int, radius: float, nclass: int, new_xyz: Tensor, xyz: Tensor, label_stat: Tensor,
    new_label_stat: Tensor,
) -> None:  # fmt: skip
    """Write the sums of the class counts of all points at a distance less than `radius` from each center."""
    arrays = Arrays(b=b, n=n, m=m, nclass=nclass)
    centers, points = arrays.floats("new_xyz", new_xyz, "b m 3"), arrays.floats("xyz", xyz, "b n 3")
    counts = arrays.index("label_stat", label_stat, "b n nclass").double()  # exact, and has matrix products on a GPU
    out = arrays.out_index("new_label_stat", new_label_stat, "b m nclass")
    radius = number(radius)
    checks.number("radius", radius)
    kind = torch.promote_types(torch.promote_types(points.dtype, centers.dtype), torch.float32)
    limit, points = torch.tensor(float(radius), dtype=kind).square().item(), points.to(kind)
    rows = max(1, 2**24 // max(b * n, 1))  # bounds the memory of the distances
    for part, result in zip(centers.to(kind).split(rows, 1), out.split(rows, 1), strict=True):
        x, y, z = (part[:, :, None] - points[:, None]).square().unbind(-1)
        result.copy_((x + y + z < limit).double() @ counts)


def labelstat_and_ballquery_cuda(
    b: int, n: int, m: int, radius: float, nsample: int, nclass: int, new_xyz: Tensor, xyz: Tensor, label_stat: Tensor,
    idx: Tensor, new_label_stat: Tensor,
) -> None:  # fmt: skip
    """Write the indices of a ball query, as `ballquery_cuda`, and the sums of the class counts of the points found."""
    arrays = Arrays(b=b, n=n, m=m, nsample=nsample, nclass=nclass)
    centers, points = arrays.floats("new_xyz", new_xyz, "b m 3"), arrays.floats("xyz", xyz, "b n 3")
    counts = arrays.index("label_stat", label_stat, "b n nclass")
    out = arrays.out_index("idx", idx, "b m nsample")
    out_counts = arrays.out_index("new_label_stat", new_label_stat, "b m nclass")
    if nsample == 0:
        out_counts.zero_()
        return
    index = pointgrad.ball_query(points, number(radius), nsample, centers, select="first", closed=False).index
    write_balls(out, index)
    out_counts.copy_(pointgrad.group(counts, index).sum(2))


def featuredistribute_cuda(b: int, n: int, m: int, max_xyz: Tensor, xyz: Tensor, distribute_idx: Tensor) -> None:
    """Write the index of the nearest of the points `max_xyz` (b, n, 3) for each point of `xyz` (b, m, 3)."""
    arrays = Arrays(b=b, n=n, m=m)
    points, queries = arrays.floats("max_xyz", max_xyz, "b n 3"), arrays.floats("xyz", xyz, "b m 3")
    out = arrays.out_index("distribute_idx", distribute_idx, "b m")
    out.copy_(pointgrad.knn(points, 1, queries).index.squeeze(-1))


def featuregather_forward_cuda(
    b: int, n: int, m: int, c: int, max_feature: Tensor, distribute_idx: Tensor, distribute_feature: Tensor
) -> None:
    """Write columns of the features (b, c, n) to `distribute_feature` (b, c, m), as `gathering_forward_cuda`."""
    gathering_forward_cuda(b, c, n, m, max_feature, distribute_idx, distribute_feature)


def featuregather_backward_cuda(
    b: int, n: int, m: int, c: int, grad_distribute_feature: Tensor, distribute_idx: Tensor, grad_max_feature: Tensor
) -> None:
    """Add the gradient of `featuregather_forward_cuda` to `grad_max_feature` (b, c, n)."""
    gathering_backward_cuda(b, c, n, m, grad_distribute_feature, distribute_idx, grad_max_feature)


def _packed_knn(
    m: int, nsample: int, xyz: Tensor, new_xyz: Tensor, offset: Tensor, new_offset: Tensor, idx: Tensor, dist2: Tensor
) -> None:
    arrays = Arrays(m=m, nsample=nsample)
    points, queries = arrays.floats("xyz", xyz, "* 3"), arrays.floats("new_xyz", new_xyz, "m 3")
    out, out2 = arrays.out_index("idx", idx, "m nsample"), arrays.out("dist2", dist2, "m nsample")
    if nsample > 0:
        found, index = nearest_or_first(nsample, points, queries, offset, new_offset)
        out.copy_(index)
        out2.copy_(found.distance2.masked_fill(found.index < 0, MISSING2))


def _packed_ball_query(
    m: int, radius: float, nsample: int, xyz: Tensor, new_xyz: Tensor, offset: Tensor, new_offset: Tensor, idx: Tensor
) -> None:
    arrays = Arrays(m=m, nsample=nsample)
    points, queries = arrays.floats("xyz", xyz, "* 3"), arrays.floats("new_xyz", new_xyz, "m 3")
    out = arrays.out_index("idx", idx, "m nsample")
    if nsample > 0:
        found = pointgrad.ball_query(
            points, number(radius), nsample, queries, select="first", closed=False,
            offsets=to_offsets("offset", offset), query_offsets=to_offsets("new_offset", new_offset),
        )  # fmt: skip
        write_balls(out, found.index)


def _is_packed(name: str, args: tuple[Any, ...], packed: int, batched: int) -> bool:
    """Whether the number of arguments is that of packed clouds."""
    if len(args) not in (packed, batched):
        wanted = f"{packed} (packed) or {batched} (batched)" if packed != batched else str(packed)
        raise TypeError(f"{name} takes {wanted} arguments, got {len(args)}")
    return len(args) == packed
