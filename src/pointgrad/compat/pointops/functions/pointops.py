"""`pointops.functions.pointops`: the names and the order of arguments of two older generations of pointops.

Packed (Point Transformer, Stratified Transformer): clouds (N, 3) with `offset`, where each cloud ends. Batched
(PointWeb, PAConv and what grew from them): clouds (B, N, 3), features (B, C, N). Several names are in both, with
different arguments; what is passed tells which is meant: offsets or none, and the rank of the features. A packed
search with too few points repeats the cloud's first index here, where Pointcept's gives -1; a batched one index 0.
"""

import torch
from torch import Tensor, nn

import pointgrad
from pointgrad.compat.pointnet2_ops import pointnet2_utils
from pointgrad.compat.pointnet2_ops.pointnet2_utils import GroupAll as GroupAll
from pointgrad.compat.pointnet2_ops.pointnet2_utils import ball_query as ballquery
from pointgrad.compat.pointnet2_ops.pointnet2_utils import gather_operation as gathering
from pointgrad.compat.pointnet2_ops.pointnet2_utils import group_by
from pointgrad.compat.pointnet2_ops.pointnet2_utils import three_nn as nearestneighbor
from pointgrad.ops import checks

from ..._scalars import count_of
from ._packed import cloud_of_rows, starts
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
    "subtraction",
]


def furthestsampling(xyz: Tensor, offset: Tensor | int, new_offset: Tensor | None = None) -> Tensor:
    """Farthest point sampling, each cloud from its first point.

    Packed, `furthestsampling(xyz, offset, new_offset)`: xyz (N, 3). returns: (M,) int32, counted through all clouds.
    Batched, `furthestsampling(xyz, m)`: xyz (B, N, 3), m the number of picks. returns: (B, m) int32.

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
    """The `nsample` nearest points; any number, where the originals write past their end above 100.

    Packed, with offset: xyz (N, 3), new_xyz (M, 3). returns: idx (M, nsample) int32 and dist, not squared. A cloud with
        too few points repeats its first index (-1 if it has none at all), at a distance of 1e5.
    Batched, without: xyz (B, N, 3), new_xyz (B, M, 3). returns: idx (B, M, nsample) int32; too few repeat index 0.
    """
    if offset is None:
        return knnquery_heap(nsample, xyz, new_xyz)
    found, index = _nearest(nsample, xyz, new_xyz, offset, new_offset)
    return index, distance(found)


def knnquery_heap(nsample: int, xyz: Tensor, new_xyz: Tensor | None = None) -> Tensor:
    """The batched `knnquery`: xyz (B, N, 3), new_xyz (B, M, 3). returns: idx (B, M, nsample) int32, nearest first."""
    nsample = count_of("nsample", nsample)
    checks.tensor("xyz", xyz)
    checks.shape(xyz.dim() == 3 and xyz.shape[2] == 3, "xyz", "(B, N, 3), or (N, 3) with offset", xyz)
    index = pointgrad.knn(xyz.detach(), nsample, None if new_xyz is None else new_xyz.detach()).index
    return (index.clamp(min=0) if nsample > xyz.shape[1] else index).int()


knnquery_naive = knnquery_heap


def knnquery_exclude(nsample: int, xyz: Tensor, new_xyz: Tensor | None = None) -> Tensor:
    """`knnquery_heap` without the nearest of all, which is the point itself."""
    nsample = count_of("nsample", nsample)
    return knnquery_heap(nsample + 1, xyz, new_xyz)[..., 1:].contiguous()


def grouping(input: Tensor, idx: Tensor) -> Tensor:
    """The features of neighbours; -1 gives zeros. Gradients reach `input`.

    Packed: input (N, C), idx (M, K). returns: (M, K, C).
    Batched: input (B, C, N), idx (B, M, K). returns: (B, C, M, K).
    """
    checks.tensor("input", input)
    return pointnet2_utils.grouping_operation(input, idx) if input.dim() == 3 else grouping2(input, idx)


def grouping_int(features: Tensor, idx: Tensor) -> Tensor:
    """Whole numbers of neighbours: features (B, C, N), idx (B, M, K). returns: (B, C, M, K) int64."""
    checks.tensor("features", features)
    checks.shape(features.dim() == 3, "features", "(B, C, N)", features)
    return pointgrad.group(features.transpose(1, 2), idx).permute(0, 3, 1, 2).long().contiguous()


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
    """The nearest neighbours' features, behind their positions relative to the centre if `use_xyz`; packed clouds.

    xyz (N, 3), new_xyz (M, 3) or None for xyz, feat (N, C), idx (M, nsample) if known already.
    returns: (M, nsample, 3 + C) or (M, nsample, C). Gradients reach feat, xyz and new_xyz.
    """
    if new_xyz is None:
        new_xyz = xyz
    if idx is None:
        _, idx = _nearest(nsample, xyz.detach(), new_xyz.detach(), offset, new_offset)
    return grouping_with_xyz(idx, feat, xyz, new_xyz, with_xyz=True) if use_xyz else grouping2(feat, idx)


def interpolation(
    xyz: Tensor,
    new_xyz: Tensor,
    feat: Tensor,
    offset: Tensor | None = None,
    new_offset: Tensor | None = None,
    k: int = 3,
) -> Tensor:
    """Interpolated features.

    Packed, `interpolation(xyz, new_xyz, feat, offset, new_offset, k=3)`: from the k nearest points of the same cloud,
        as `pointops.interpolation`. returns: (N, C).
    Batched, `interpolation(features, idx, weight)`: features (B, C, m), idx and weight (B, n, 3), as of
        `nearestneighbor`. returns: (B, C, n); gradients to weight too.
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
    """`interpolation` of a batch; `interpolation2` of packed clouds."""

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
    """Neighbours' features with their positions relative to the centre; batched clouds.

    radius: of `ballquery`; None for the nearest. nsample: how many. use_xyz: whether the positions come before the
        features.
    """

    def __init__(self, radius: float | None = None, nsample: int = 32, use_xyz: bool = True) -> None:
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    def forward(
        self, xyz: Tensor, new_xyz: Tensor | None = None, features: Tensor | None = None, idx: Tensor | None = None
    ) -> Tensor:
        """xyz (B, N, 3), new_xyz (B, M, 3) or None for xyz, features (B, C, N), idx (B, M, nsample) if known already.

        returns: (B, 3 + C, M, nsample).
        """
        checks.value(self.use_xyz or features is not None, "features", "given if use_xyz is False", "None")
        if new_xyz is None:
            new_xyz = xyz
        if idx is None and self.radius is not None:
            idx = ballquery(self.radius, self.nsample, xyz, new_xyz)
        elif idx is None:
            idx = knnquery_heap(self.nsample, xyz, new_xyz)
        return group_by(idx, xyz, new_xyz, features, self.use_xyz).contiguous()


def _nearest(
    nsample: int, xyz: Tensor, new_xyz: Tensor | None, offset: Tensor, new_offset: Tensor | None
) -> tuple[pointgrad.Neighbors, Tensor]:
    """What is found in packed clouds, and its index (M, nsample) int32 with the cloud's first where there is none."""
    if new_xyz is None:
        new_xyz = xyz
    if new_offset is None:
        new_offset = offset
    found = nearest(nsample, xyz, offset, new_xyz, new_offset)
    begins = starts("offset", offset)
    first = torch.where(begins.diff() > 0, begins[:-1], -1).int()
    cloud = cloud_of_rows(new_xyz.shape[0], starts("new_offset", new_offset))
    index = found.index.int()
    return found, torch.where(index < 0, first[cloud].unsqueeze(1), index)
