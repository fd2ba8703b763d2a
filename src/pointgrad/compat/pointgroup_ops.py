"""The package `pointgroup_ops` of PointGroup and Pointcept: voxels, balls, clusters and proposals."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks

from . import PG_OP
from ._scalars import count_of

__all__ = [
    "ballquery_batch_p",
    "bfs_cluster",
    "get_iou",
    "point_recover",
    "roipool",
    "sec_max",
    "sec_mean",
    "sec_min",
    "voxelization",
    "voxelization_idx",
]


def ballquery_batch_p(
    coords: Tensor, batch_idxs: Tensor, batch_offsets: Tensor, radius: float, meanActive: int
) -> tuple[Tensor, Tensor]:
    """Find all points of the same cloud at a distance less than `radius` from each point, at most 1000.

    Args:
        coords: (N, 3) points.
        batch_idxs: (N,) cloud of each point.
        batch_offsets: (B + 1,) offsets of the clouds.
        radius: Radius of the balls.
        meanActive: Expected number of neighbors; it changes only the memory that is allocated first.

    Returns:
        `idx` (A,) int32, the lists of neighbors one after another, and `start_len` (N, 2) int32, the start and the
        length of each list.
    """
    _check_table("coords", coords)
    n, space = coords.shape[0], count_of("meanActive", meanActive)
    checks.value(n * space < 2**63, "meanActive", f"less than 2**63 / {n}", space)
    while True:
        idx = torch.zeros(n * space, dtype=torch.int32, device=coords.device)
        start_len = torch.zeros(n, 2, dtype=torch.int32, device=coords.device)
        total = PG_OP.ballquery_batch_p(coords, batch_idxs, batch_offsets, idx, start_len, n, space, radius)
        if total <= n * space:
            return idx[:total].clone(), start_len
        space = total // n + 1


def bfs_cluster(
    semantic_label: Tensor, ball_query_idxs: Tensor, start_len: Tensor, threshold: int
) -> tuple[Tensor, Tensor]:
    """Find connected points of the same label; see `PG_OP.bfs_cluster`.

    Args:
        semantic_label: (N,) labels.
        ball_query_idxs: (A,) lists of neighbors.
        start_len: (N, 2) start and length of each list.
        threshold: Smallest size of a cluster.

    Returns:
        `cluster_idxs` (S, 2), cluster and index of each clustered point, and `cluster_offsets` (C + 1,), in the dtype
        of the labels.
    """
    checks.tensor("semantic_label", semantic_label)
    _check_table("start_len", start_len)
    clusters, offsets = semantic_label.new_empty(0), semantic_label.new_empty(0)
    PG_OP.bfs_cluster(semantic_label, ball_query_idxs, start_len, clusters, offsets, start_len.shape[0], threshold)
    return clusters, offsets


def voxelization_idx(coords: Tensor, batchsize: int, mode: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Number the voxels; see `PG_OP.voxelize_idx`.

    Returns:
        Voxels (M, D) int64, the voxel number (N,) int32 of each point, and the points (M, 1 + A) int32 of each voxel.
    """
    _check_table("coords", coords)
    voxels, points = coords.new_empty(0), torch.empty(0, dtype=torch.int32)
    numbers = torch.zeros(coords.shape[0], dtype=torch.int32)
    PG_OP.voxelize_idx(coords, voxels, numbers, points, batchsize, mode)
    return voxels, numbers, points


class Voxelization(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, feats: Tensor, map_rule: Tensor, mode: int = 4) -> Tensor:
        ctx.map_rule, ctx.mode, ctx.size = map_rule, mode, feats.shape[0]
        out = feats.new_zeros(map_rule.shape[0], feats.shape[1])
        PG_OP.voxelize_fp(feats, out, map_rule, mode, map_rule.shape[0], map_rule.shape[1] - 1, feats.shape[1])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        out, rule = grad.new_zeros(ctx.size, grad.shape[1]), ctx.map_rule
        PG_OP.voxelize_bp(grad, out, rule, ctx.mode, rule.shape[0], rule.shape[1] - 1, grad.shape[1])
        return out, None, None


class PointRecover(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, feats: Tensor, map_rule: Tensor, nPoint: int) -> Tensor:
        ctx.map_rule, ctx.size = map_rule, feats.shape[0]
        out = feats.new_zeros(nPoint, feats.shape[1])
        PG_OP.point_recover_fp(feats, out, map_rule, map_rule.shape[0], map_rule.shape[1] - 1, feats.shape[1])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        out, rule = grad.new_zeros(ctx.size, grad.shape[1]), ctx.map_rule
        PG_OP.point_recover_bp(grad, out, rule, rule.shape[0], rule.shape[1] - 1, grad.shape[1])
        return out, None, None


class RoiPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, feats: Tensor, proposals_offset: Tensor) -> Tensor:
        shape = (proposals_offset.shape[0] - 1, feats.shape[1])
        out, index = feats.new_zeros(shape), torch.zeros(shape, dtype=torch.int32, device=feats.device)
        PG_OP.roipool_fp(feats, proposals_offset, out, index, *shape)
        ctx.index, ctx.offsets, ctx.size = index, proposals_offset, feats.shape[0]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out = grad.new_zeros(ctx.size, grad.shape[1])
        PG_OP.roipool_bp(out, ctx.offsets, ctx.index, grad, *grad.shape)
        return out, None


def voxelization(feats: Tensor, map_rule: Tensor, mode: int = 4) -> Tensor:
    """Sum the features (N, C) of the points of each voxel, or average them in mode 4.

    Args:
        feats: (N, C) features.
        map_rule: (M, 1 + A) points of each voxel, from `voxelization_idx`.
        mode: 4 for means, others for sums.

    Returns:
        (M, C) features, differentiable.
    """
    _check_table("feats", feats)
    _check_table("map_rule", map_rule)
    return Voxelization.apply(feats, map_rule, mode)


def point_recover(feats: Tensor, map_rule: Tensor, nPoint: int) -> Tensor:
    """Copy the features (M, C) of voxels to their points: (nPoint, C), differentiable."""
    _check_table("feats", feats)
    _check_table("map_rule", map_rule)
    size = count_of("nPoint", nPoint, 0)
    checks.value(size < 2**63, "nPoint", "less than 2**63", size)
    return PointRecover.apply(feats, map_rule, size)


def roipool(feats: Tensor, proposals_offset: Tensor) -> Tensor:
    """Maximum of the features (N, C) of each proposal: (P, C), differentiable; -inf for empty proposals."""
    _check_table("feats", feats)
    _check_offsets("proposals_offset", proposals_offset)
    return RoiPool.apply(feats, proposals_offset)


def get_iou(
    proposals_idx: Tensor, proposals_offset: Tensor, instance_labels: Tensor, instance_pointnum: Tensor
) -> Tensor:
    """Intersection over union (P, I) float32 of proposals and instances; see `PG_OP.get_iou`."""
    _check_offsets("proposals_offset", proposals_offset)
    checks.tensor("instance_pointnum", instance_pointnum)
    checks.shape(instance_pointnum.dim() == 1, "instance_pointnum", "(I,)", instance_pointnum)
    shape = (proposals_offset.shape[0] - 1, instance_pointnum.shape[0])
    out = torch.zeros(shape, device=proposals_offset.device)
    PG_OP.get_iou(proposals_idx, proposals_offset, instance_labels, instance_pointnum, out, shape[1], shape[0])
    return out


def sec_mean(inp: Tensor, offsets: Tensor) -> Tensor:
    """Means (P, C) of the rows (N, C) between two offsets, without gradient."""
    return _segments(PG_OP.sec_mean, inp, offsets)


def sec_min(inp: Tensor, offsets: Tensor) -> Tensor:
    """Minima (P, C) of the rows (N, C) between two offsets, without gradient."""
    return _segments(PG_OP.sec_min, inp, offsets)


def sec_max(inp: Tensor, offsets: Tensor) -> Tensor:
    """Maxima (P, C) of the rows (N, C) between two offsets, without gradient."""
    return _segments(PG_OP.sec_max, inp, offsets)


def _segments(function: Any, inp: Tensor, offsets: Tensor) -> Tensor:
    _check_table("inp", inp)
    _check_offsets("offsets", offsets)
    shape = (offsets.shape[0] - 1, inp.shape[1])
    out = inp.detach().new_zeros(shape)
    function(inp, offsets, out, *shape)
    return out


def _check_offsets(name: str, value: Any) -> None:
    checks.tensor(name, value)
    checks.shape(value.dim() == 1 and value.shape[0] > 0, name, "(P + 1,)", value)


def _check_table(name: str, value: Any) -> None:
    checks.tensor(name, value)
    checks.shape(value.dim() == 2, name, "(N, C)", value)
