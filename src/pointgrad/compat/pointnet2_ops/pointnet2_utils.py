"""The operators of `pointnet2_ops.pointnet2_utils`: padded clouds (B, N, 3), features (B, C, N), int32 indices.

Each function is also available as a class, such as `FurthestPointSampling.apply`. Unlike the originals, they take any
floating-point dtype, also run on the CPU, are twice differentiable, and raise exceptions where the original aborts the
process.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import pointgrad
from pointgrad.ops import checks
from pointgrad.ops.sums import sum_dtype

from .._scalars import count_of, is_traced, number

__all__ = [
    "BallQuery",
    "FurthestPointSampling",
    "GatherOperation",
    "GroupAll",
    "GroupingOperation",
    "QueryAndGroup",
    "ThreeInterpolate",
    "ThreeNN",
    "ball_query",
    "furthest_point_sample",
    "gather_operation",
    "grouping_operation",
    "three_interpolate",
    "three_nn",
]


def furthest_point_sample(xyz: Tensor, npoint: int) -> Tensor:
    """Farthest point sampling, starting from the first point of each cloud.

    The original never samples points with |p|^2 <= 1e-3; here all points are candidates. Ties go to the smallest index.

    Args:
        xyz: (B, N, 3) points.
        npoint: Number of samples. After N samples, index 0 repeats.

    Returns:
        (B, npoint) int32 indices, without gradient.

    Example:
        >>> furthest_point_sample(torch.tensor([[[0., 0., 0.], [0.01, 0., 0.], [0., 0.02, 0.]]]), 3)
        tensor([[0, 2, 1]], dtype=torch.int32)
    """
    _check_clouds("xyz", xyz)
    npoint = count_of("npoint", npoint)
    checks.shape(xyz.shape[1] > 0, "xyz", "(B, N, 3) with N at least 1", xyz)
    index = pointgrad.farthest_point_sampling(xyz, npoint)
    return (index.clamp(min=0) if npoint > xyz.shape[1] else index).int()


def gather_operation(features: Tensor, idx: Tensor) -> Tensor:
    """Gather columns of `features`.

    Args:
        features: (B, C, N) features.
        idx: (B, M) int32 or int64 indices; -1 gives zeros.

    Returns:
        (B, C, M) features, differentiable in `features`.

    Example:
        >>> gather_operation(torch.tensor([[[1., 2., 3.]]]), torch.tensor([[2, 0]]))
        tensor([[[3., 1.]]])
    """
    _check_features(features, idx, "(B, M)", 2)
    return _columns(features, idx)


def three_nn(unknown: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Find the three nearest points of `known` for each point of `unknown`, nearest first.

    Args:
        unknown: (B, n, 3) query points.
        known: (B, m, 3) points to search.

    Returns:
        `dist` (B, n, 3), Euclidean distances in the dtype of the points but at least float32, and `idx` (B, n, 3)
        int32, both without gradient. If `known` has fewer than three points, the remaining indices are 0 and the
        distances infinite, so that a weight of 1 / dist is 0.
    """
    distance2, index = three_nearest(unknown, known)
    return distance2.sqrt(), index


def three_interpolate(features: Tensor, idx: Tensor, weight: Tensor) -> Tensor:
    """Compute weighted sums of columns of `features`.

    Args:
        features: (B, C, m) features.
        idx: (B, n, 3) indices, as returned by `three_nn`; any number of neighbors is accepted.
        weight: (B, n, 3) weights.

    Returns:
        (B, C, n) sums in the dtype of `features`, differentiable in `features` and `weight`; the original's gradient
        of the weight is zero.
    """
    _check_features(features, idx, "(B, n, 3)", 3)
    checks.tensor("weight", weight)
    checks.shape(weight.shape == idx.shape, "weight", lambda: f"{tuple(idx.shape)}, like idx", weight)
    checks.dtype("weight", weight, checks.FLOATS)
    wide = torch.promote_types(features.dtype, weight.dtype)  # 16-bit weights would be too coarse
    out = pointgrad.interpolate_at(features.transpose(1, 2).to(wide), idx, weight.to(wide))
    return fresh(out.to(features.dtype).transpose(1, 2).contiguous())


def grouping_operation(features: Tensor, idx: Tensor) -> Tensor:
    """Gather the features of neighbors.

    Args:
        features: (B, C, N) features.
        idx: (B, M, K) indices of neighbors; -1 gives zeros.

    Returns:
        (B, C, M, K) features, differentiable in `features`.
    """
    _check_features(features, idx, "(B, M, K)", 3)
    return fresh(_columns(features, idx.flatten(1)).unflatten(2, idx.shape[1:]))


def ball_query(radius: float, nsample: int, xyz: Tensor, new_xyz: Tensor) -> Tensor:
    """Find the first `nsample` points, in index order, at a distance less than `radius` from each center.

    Args:
        radius: Radius of the balls.
        nsample: Number of neighbors.
        xyz: (B, N, 3) points to search.
        new_xyz: (B, M, 3) centers.

    Returns:
        (B, M, nsample) int32 indices, without gradient. A ball with fewer points repeats its first one; an empty ball
        is filled with 0.

    Example:
        >>> line = torch.tensor([[[0., 0., 0.], [1., 0., 0.], [2., 0., 0.]]])
        >>> ball_query(2.0, 3, line, line[:, 1:])
        tensor([[[0, 1, 2],
                 [1, 2, 1]]], dtype=torch.int32)
    """
    _check_clouds("xyz", xyz)
    _check_matching("new_xyz", new_xyz, "xyz", xyz)
    radius, nsample = number(radius), count_of("nsample", nsample)
    found = pointgrad.ball_query(xyz.detach(), radius, nsample, new_xyz.detach(), select="first", closed=False)
    index = found.index.int()
    return torch.where(index < 0, index[..., :1].clamp(min=0), index)


class FurthestPointSampling:
    apply = staticmethod(furthest_point_sample)


class GatherOperation:
    apply = staticmethod(gather_operation)


class ThreeNN:
    apply = staticmethod(three_nn)


class ThreeInterpolate:
    apply = staticmethod(three_interpolate)


class GroupingOperation:
    apply = staticmethod(grouping_operation)


class BallQuery:
    apply = staticmethod(ball_query)


class QueryAndGroup(nn.Module):
    """Ball query, and features of the neighbors with their positions relative to the center.

    Args:
        radius: Radius of the balls.
        nsample: Number of neighbors.
        use_xyz: Prepend the relative positions to the features.
    """

    # Whether the result has the memory format torch.channels_last. The layers use it to avoid a copy of the
    # neighborhoods; convolutions accept it at the same speed.
    channels_last = False

    def __init__(self, radius: float, nsample: int, use_xyz: bool = True) -> None:
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    def forward(self, xyz: Tensor, new_xyz: Tensor, features: Tensor | None = None) -> Tensor:
        """Group the neighbors of each center.

        Args:
            xyz: (B, N, 3) points.
            new_xyz: (B, M, 3) centers.
            features: (B, C, N) features of the points, or None.

        Returns:
            (B, 3 + C, M, nsample) positions and features.
        """
        checks.value(self.use_xyz or features is not None, "features", "given if use_xyz is False", "None")
        index = ball_query(self.radius, self.nsample, xyz, new_xyz)
        grouped = group_by(index, xyz, new_xyz, features, self.use_xyz)
        return grouped if self.channels_last else grouped.contiguous()


class GroupAll(nn.Module):
    """One neighborhood of all points, with absolute positions.

    Args:
        use_xyz: Prepend the positions to the features.
    """

    def __init__(self, use_xyz: bool = True) -> None:
        super().__init__()
        self.use_xyz = use_xyz

    def forward(self, xyz: Tensor, new_xyz: Any, features: Tensor | None = None) -> Tensor:
        """Group all points.

        Args:
            xyz: (B, N, 3) points.
            new_xyz: Ignored.
            features: (B, C, N) features of the points, or None.

        Returns:
            (B, 3 + C, 1, N) positions and features.
        """
        positions = xyz.transpose(1, 2)
        if features is None:
            return positions.unsqueeze(2)
        fits = features.dim() == 3 and features.shape[::2] == positions.shape[::2]
        checks.shape(fits, "features", lambda: f"(B, C, N) = ({xyz.shape[0]}, C, {xyz.shape[1]}), like xyz", features)
        return (torch.cat([positions, features], dim=1) if self.use_xyz else features).unsqueeze(2)


def group_by(index: Tensor, xyz: Tensor, new_xyz: Tensor, features: Tensor | None, use_xyz: bool) -> Tensor:
    """Grouped positions and features (B, 3 + C, M, K), in the memory format torch.channels_last."""
    if features is None:
        rows = pointgrad.group(xyz, index) - new_xyz.unsqueeze(2)
    else:
        positions = {"points": xyz, "centers": new_xyz} if use_xyz else {}
        rows = pointgrad.group(features.transpose(1, 2), index, **positions)
    return rows.permute(0, 3, 1, 2)


def fresh(tensor: Tensor) -> Tensor:
    """The tensor without its relation to a base, so that a custom autograd function may return it."""
    return tensor if tensor.requires_grad else tensor.detach()


def three_nearest(unknown: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """`three_nn` with squared distances."""
    _check_clouds("unknown", unknown)
    _check_matching("known", known, "unknown", unknown)
    found = pointgrad.knn(known.detach(), 3, unknown.detach())
    index = found.index if known.shape[1] >= 3 else found.index.clamp(min=0)
    return found.distance2, index.int()


def _columns(features: Tensor, idx: Tensor) -> Tensor:
    """Columns (B, C, L) of features (B, C, N) with indices (B, L); zeros where the index is -1.

    pointgrad's own operator is channels-last: transposing its input and its result would write each neighborhood twice.
    """
    size, index = features.shape[2], idx.long()
    if index.device.type == "cpu" and not is_traced(index):
        checks.index_values(index, size, "idx")
    index = torch.where((index < 0) | (index >= size), size, index).unsqueeze(1).expand(-1, features.shape[1], -1)
    # Gradients are accumulated in the dtype of the gathered tensor.
    wide = sum_dtype(features.dtype) if features.requires_grad else features.dtype
    return functional.pad(features.to(wide), (0, 1)).gather(2, index).to(features.dtype)


def _check_clouds(name: str, xyz: Any) -> None:
    checks.tensor(name, xyz)
    checks.shape(xyz.dim() == 3 and xyz.shape[2] == 3, name, "(B, N, 3)", xyz)
    checks.dtype(name, xyz, checks.FLOATS)


def _check_matching(name: str, xyz: Any, other_name: str, other: Tensor) -> None:
    _check_clouds(name, xyz)
    checks.shape(xyz.shape[0] == other.shape[0], name, lambda: f"(B, N, 3) with B = {other.shape[0]}", xyz)
    if not checks.autocasts(other):
        checks.same_dtype(name, xyz, other_name, other)
    checks.device(name, xyz, other_name, other)


def _check_features(features: Any, idx: Any, contract: str, rank: int) -> None:
    checks.tensor("features", features)
    checks.tensor("idx", idx)
    checks.shape(features.dim() == 3, "features", "(B, C, N)", features)
    fits = idx.dim() == rank and idx.shape[0] == features.shape[0]
    checks.shape(fits, "idx", lambda: f"{contract} with B = {features.shape[0]}", idx)
    checks.dtype("features", features, checks.FLOATS)
    checks.dtype("idx", idx, checks.INDICES)
    checks.device("idx", idx, "features", features)
