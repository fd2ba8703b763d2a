"""`pointops.functions.pointops`: the names and argument order of two older generations of pointops.

Packed (Point Transformer, Stratified Transformer): clouds (N, 3) with `offset`, the ends of the clouds. Batched
(PointWeb, PAConv and successors): clouds (B, N, 3), features (B, C, N). Several names exist in both with different
arguments; whether offsets are passed, and the rank of the features, determine which is meant. If a cloud has too few
points, a packed search repeats its first index, where Pointcept's returns -1; a batched one repeats index 0.
"""

import torch
from torch import Tensor, nn

import pointgrad
from pointgrad.compat.pointnet2_ops import pointnet2_utils
from pointgrad.compat.pointnet2_ops.pointnet2_utils import GroupAll as GroupAll
from pointgrad.compat.pointnet2_ops.pointnet2_utils import gather_operation as gathering
from pointgrad.compat.pointnet2_ops.pointnet2_utils import group_by
from pointgrad.compat.pointnet2_ops.pointnet2_utils import three_nn as nearestneighbor
from pointgrad.ops import checks

from ..._scalars import count_of, number
from ._packed import check_points, cloud_of_rows, to_offsets
from .aggregation import Aggregation as Aggregation
from .aggregation import aggregation as aggregation
from .grouping import grouping as grouping_with_xyz
from .grouping import grouping2
from .interpolation import interpolation as packed_interpolation
from .interpolation import interpolation2 as interpolation2
from .query import distance, nearest
from .sampling import farthest_point_sampling
from .subtraction import Subtraction as Subtraction
from .subtraction import subtraction as subtraction

__all__ = [
    "Aggregation",
    "BallQuery",
    "FurthestSampling",
    "Gathering",
    "GroupAll",
    "Grouping",
    "GroupingInt",
    "Interpolation",
    "KNNQuery",
    "KNNQueryExclude",
    "KNNQueryNaive",
    "KNNQuery_Heap",
    "NearestNeighbor",
    "QueryAndGroup",
    "Subtraction",
    "aggregation",
    "ballquery",
    "furthestsampling",
    "gathering",
    "grouping",
    "grouping_int",
    "interpolation",
    "interpolation2",
    "knnquery",
    "knnquery_exclude",
    "knnquery_heap",
    "knnquery_naive",
    "nearestneighbor",
    "queryandgroup",
    "querygroup",
    "subtraction",
]


def furthestsampling(xyz: Tensor, offset: Tensor | int, new_offset: Tensor | None = None) -> Tensor:
    """Farthest point sampling, starting from the first point of each cloud.

    Packed: `furthestsampling(xyz, offset, new_offset)`. Batched: `furthestsampling(xyz, m)`.

    Args:
        xyz: (N, 3) points if packed, (B, N, 3) if batched.
        offset: (B,) ends of the clouds if packed, the number of samples m if batched.
        new_offset: (B,) ends of the samples if packed, None if batched.

    Returns:
        (M,) int32 rows of `xyz` if packed, (B, m) int32 indices if batched.

    Example:
        >>> furthestsampling(torch.tensor([[[0., 0., 0.], [1., 0., 0.], [3., 0., 0.]]]), 2)
        tensor([[0, 2]], dtype=torch.int32)
    """
    if new_offset is None:
        return pointnet2_utils.furthest_point_sample(xyz, offset)  # type: ignore[arg-type]
    return farthest_point_sampling(xyz, offset, new_offset)  # type: ignore[arg-type]


def knnquery(
    nsample: int,
    xyz: Tensor,
    new_xyz: Tensor | None = None,
    offset: Tensor | None = None,
    new_offset: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Find the `nsample` nearest points.

    `nsample` is not limited; the originals write out of bounds above 100.

    Args:
        nsample: Number of neighbors.
        xyz: (N, 3) points if packed, (B, N, 3) if batched.
        new_xyz: (M, 3) or (B, M, 3) queries; `xyz` if None.
        offset: (B,) ends of the clouds of `xyz` if packed, None if batched.
        new_offset: (B,) ends of the clouds of `new_xyz`.

    Returns:
        Packed: `idx` (M, nsample) int32 and Euclidean distances `dist`. A cloud with too few points repeats its first
        index (-1 if it is empty) with a distance of 1e5. Batched: `idx` (B, M, nsample) int32, which repeats index 0.
    """
    if offset is None:
        return knnquery_heap(nsample, xyz, new_xyz)
    found, index = nearest_or_first(nsample, xyz, new_xyz, offset, new_offset)
    return index, distance(found)


def knnquery_heap(nsample: int, xyz: Tensor, new_xyz: Tensor | None = None) -> Tensor:
    """Find the `nsample` nearest points in batched clouds.

    Args:
        nsample: Number of neighbors.
        xyz: (B, N, 3) points.
        new_xyz: (B, M, 3) queries; `xyz` if None.

    Returns:
        (B, M, nsample) int32 indices, nearest first; index 0 repeats if there are too few points.
    """
    nsample = count_of("nsample", nsample)
    checks.tensor("xyz", xyz)
    checks.shape(xyz.dim() == 3 and xyz.shape[2] == 3, "xyz", "(B, N, 3), or (N, 3) with offset", xyz)
    index = pointgrad.knn(xyz.detach(), nsample, None if new_xyz is None else new_xyz.detach()).index
    return (index.clamp(min=0) if nsample > xyz.shape[1] else index).int()


knnquery_naive = knnquery_heap


def knnquery_exclude(nsample: int, xyz: Tensor, new_xyz: Tensor | None = None) -> Tensor:
    """`knnquery_heap` without the nearest neighbor, which is usually the point itself."""
    nsample = count_of("nsample", nsample)
    return knnquery_heap(nsample + 1, xyz, new_xyz)[..., 1:].contiguous()


def grouping(input: Tensor, idx: Tensor) -> Tensor:
    """Gather the features of neighbors.

    Args:
        input: (N, C) features if packed, (B, C, N) if batched.
        idx: (M, K) or (B, M, K) indices; -1 gives zeros.

    Returns:
        (M, K, C) if packed, (B, C, M, K) if batched; differentiable in `input`.
    """
    checks.tensor("input", input)
    return pointnet2_utils.grouping_operation(input, idx) if input.dim() == 3 else grouping2(input, idx)


def grouping_int(features: Tensor, idx: Tensor) -> Tensor:
    """Gather integer features of neighbors.

    Args:
        features: (B, C, N) integers.
        idx: (B, M, K) indices.

    Returns:
        (B, C, M, K) int64.
    """
    checks.tensor("features", features)
    checks.shape(features.dim() == 3, "features", "(B, C, N)", features)
    return pointgrad.group(features.transpose(1, 2), idx).permute(0, 3, 1, 2).long().contiguous()


def ballquery(
    radius: float,
    nsample: int,
    xyz: Tensor,
    new_xyz: Tensor,
    offset: Tensor | None = None,
    new_offset: Tensor | None = None,
) -> Tensor:
    """Find the first `nsample` points, in index order, at a distance less than `radius` from each center.

    Packed (openpoints): `ballquery(radius, nsample, xyz, new_xyz, offset, new_offset)`. Batched:
    `ballquery(radius, nsample, xyz, new_xyz)`.

    Args:
        radius: Radius of the balls.
        nsample: Number of neighbors.
        xyz: (N, 3) points if packed, (B, N, 3) if batched.
        new_xyz: (M, 3) or (B, M, 3) centers.
        offset: (B,) ends of the clouds of `xyz` if packed, None if batched.
        new_offset: (B,) ends of the clouds of `new_xyz`.

    Returns:
        (M, nsample) rows of `xyz` if packed, (B, M, nsample) indices if batched, int32 and without gradient. A ball
        with fewer points repeats its first one; an empty ball is filled with 0, as in the original.
    """
    if offset is None or new_offset is None:
        return pointnet2_utils.ball_query(radius, nsample, xyz, new_xyz)
    new_xyz = xyz if new_xyz is None else new_xyz
    check_points("xyz", xyz)
    check_points("new_xyz", new_xyz)
    index = pointgrad.ball_query(
        xyz.detach(), number(radius), count_of("nsample", nsample), new_xyz.detach(), select="first", closed=False,
        offsets=to_offsets("offset", offset), query_offsets=to_offsets("new_offset", new_offset),
    ).index.int()  # fmt: skip
    return torch.where(index < 0, index[:, :1].clamp(min=0), index)


def querygroup(
    nsample: int,
    xyz: Tensor,
    new_xyz: Tensor | None,
    feat: Tensor | None,
    offset: Tensor,
    new_offset: Tensor,
    radius: float | None = None,
    query_method: str = "knn",
    normalize_dp: bool = False,
    idx: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gather relative positions and features of neighbors in packed clouds, as in openpoints.

    Args:
        nsample: Number of neighbors.
        xyz: (N, 3) points.
        new_xyz: (M, 3) centers; `xyz` if None.
        feat: (N, C) features, or None.
        offset: (B,) ends of the clouds of `xyz`.
        new_offset: (B,) ends of the clouds of `new_xyz`.
        radius: Radius of the ball query.
        query_method: "knn" or "knnquery" for the nearest neighbors, another name for a ball query.
        normalize_dp: Divide the positions by the radius; for "knn", each by its own length, as in the original.
        idx: (M, nsample) indices of neighbors; searched if None. The original returns None if they are given.

    Returns:
        (M, nsample, 3) positions relative to the center and (M, nsample, C) features, or None instead of these.
    """
    if new_xyz is None:
        new_xyz = xyz
    if idx is None and query_method in ("knn", "knnquery"):
        _, idx = nearest_or_first(nsample, xyz.detach(), new_xyz.detach(), offset, new_offset)
    elif idx is None:
        checks.value(radius is not None, "radius", "given for a ball query", radius)
        idx = ballquery(radius, nsample, xyz, new_xyz, offset, new_offset)  # type: ignore[arg-type]
    positions = grouping2(xyz, idx) - new_xyz.unsqueeze(1)
    if normalize_dp and query_method == "knn":
        positions = positions / (positions.norm(dim=-1, keepdim=True) + 1e-8)
    elif normalize_dp:
        checks.value(radius is not None, "radius", "given if normalize_dp is True", radius)
        positions = positions / radius  # type: ignore[operator]
    return positions, None if feat is None else grouping2(feat, idx)


def queryandgroup(
    nsample: int,
    xyz: Tensor,
    new_xyz: Tensor | None,
    feat: Tensor,
    idx: Tensor | None,
    offset: Tensor,
    new_offset: Tensor,
    use_xyz: bool = True,
) -> Tensor:
    """Gather the features of the nearest neighbors in packed clouds.

    Args:
        nsample: Number of neighbors.
        xyz: (N, 3) points.
        new_xyz: (M, 3) centers; `xyz` if None.
        feat: (N, C) features.
        idx: (M, nsample) indices of neighbors; searched if None.
        offset: (B,) ends of the clouds of `xyz`.
        new_offset: (B,) ends of the clouds of `new_xyz`.
        use_xyz: Prepend positions relative to the center to the features.

    Returns:
        (M, nsample, 3 + C) or (M, nsample, C), differentiable in `feat`, `xyz` and `new_xyz`.
    """
    if new_xyz is None:
        new_xyz = xyz
    if idx is None:
        _, idx = nearest_or_first(nsample, xyz.detach(), new_xyz.detach(), offset, new_offset)
    return grouping_with_xyz(idx, feat, xyz, new_xyz, with_xyz=True) if use_xyz else grouping2(feat, idx)


def interpolation(
    xyz: Tensor,
    new_xyz: Tensor,
    feat: Tensor,
    offset: Tensor | None = None,
    new_offset: Tensor | None = None,
    k: int = 3,
) -> Tensor:
    """Interpolate features.

    Packed: `interpolation(xyz, new_xyz, feat, offset, new_offset, k=3)`, which is `pointops.interpolation`. Batched:
    `interpolation(features, idx, weight)`.

    Args:
        xyz: (M, 3) points with features if packed; features (B, C, m) if batched.
        new_xyz: (N, 3) points to interpolate at if packed; indices (B, n, 3) from `nearestneighbor` if batched.
        feat: (M, C) features if packed; weights (B, n, 3) if batched.
        offset: (B,) ends of the clouds of `xyz`.
        new_offset: (B,) ends of the clouds of `new_xyz`.
        k: Number of neighbors.

    Returns:
        (N, C) features if packed, (B, C, n) if batched, which is also differentiable in the weights.
    """
    if offset is None or new_offset is None:
        return pointnet2_utils.three_interpolate(xyz, new_xyz, feat)
    return packed_interpolation(xyz, new_xyz, feat, offset, new_offset, k)


class FurthestSampling:
    apply = staticmethod(furthestsampling)


class Gathering:
    apply = staticmethod(gathering)


class NearestNeighbor:
    apply = staticmethod(nearestneighbor)


class Interpolation:
    """`interpolation` for batched and `interpolation2` for packed clouds."""

    @staticmethod
    def apply(
        xyz: Tensor,
        new_xyz: Tensor,
        feat: Tensor,
        offset: Tensor | None = None,
        new_offset: Tensor | None = None,
        k: int = 3,
    ) -> Tensor:
        if offset is None or new_offset is None:
            return interpolation(xyz, new_xyz, feat)
        return interpolation2(xyz, new_xyz, feat, offset, new_offset, k)


class Grouping:
    apply = staticmethod(grouping)


class GroupingInt:
    apply = staticmethod(grouping_int)


class BallQuery:
    apply = staticmethod(ballquery)


class KNNQuery:
    apply = staticmethod(knnquery)


class KNNQuery_Heap:  # the original's name
    apply = staticmethod(knnquery_heap)


class KNNQueryNaive:
    apply = staticmethod(knnquery_naive)


class KNNQueryExclude:
    apply = staticmethod(knnquery_exclude)


class QueryAndGroup(nn.Module):
    """Groups the features of neighbors in batched clouds with their positions relative to the center.

    Args:
        radius: Radius of a ball query; None for the nearest neighbors.
        nsample: Number of neighbors.
        use_xyz: Prepend the relative positions to the features.
    """

    def __init__(self, radius: float | None = None, nsample: int = 32, use_xyz: bool = True) -> None:
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    def forward(
        self, xyz: Tensor, new_xyz: Tensor | None = None, features: Tensor | None = None, idx: Tensor | None = None
    ) -> Tensor:
        """Group the neighbors of each center.

        Args:
            xyz: (B, N, 3) points.
            new_xyz: (B, M, 3) centers; `xyz` if None.
            features: (B, C, N) features of the points, or None.
            idx: (B, M, nsample) indices of neighbors; searched if None.

        Returns:
            (B, 3 + C, M, nsample) positions and features.
        """
        checks.value(self.use_xyz or features is not None, "features", "given if use_xyz is False", "None")
        if new_xyz is None:
            new_xyz = xyz
        if idx is None and self.radius is not None:
            idx = ballquery(self.radius, self.nsample, xyz, new_xyz)
        elif idx is None:
            idx = knnquery_heap(self.nsample, xyz, new_xyz)
        return group_by(idx, xyz, new_xyz, features, self.use_xyz).contiguous()


def nearest_or_first(
    nsample: int, xyz: Tensor, new_xyz: Tensor | None, offset: Tensor, new_offset: Tensor | None
) -> tuple[pointgrad.Neighbors, Tensor]:
    """Neighbors in packed clouds, and their index (M, nsample) int32 padded with the first index of the cloud."""
    if new_xyz is None:
        new_xyz = xyz
    if new_offset is None:
        new_offset = offset
    found = nearest(nsample, xyz, offset, new_xyz, new_offset)
    offsets = to_offsets("offset", offset)
    first = torch.where(offsets.diff() > 0, offsets[:-1], -1).int()
    cloud = cloud_of_rows(new_xyz.shape[0], to_offsets("new_offset", new_offset))
    index = found.index.int()
    return found, torch.where(index < 0, first[cloud].unsqueeze(1), index)
