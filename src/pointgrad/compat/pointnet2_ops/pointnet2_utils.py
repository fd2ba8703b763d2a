"""The operators of `pointnet2_ops.pointnet2_utils`: padded clouds (B, N, 3), features (B, C, N), int32 indices.

Each function also has the form of a class, as `FurthestPointSampling.apply`. Unlike the originals they take any
floating dtype, run on the CPU too, differentiate twice, and raise where the original ends the process.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import pointgrad
from pointgrad.ops import checks

from .._scalars import count_of, number

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
    """Farthest point sampling from each cloud's first point.

    xyz: (B, N, 3). returns: (B, npoint) int32, no gradient; after N points index 0 repeats.

    The original never picks a point with |p|^2 <= 1e-3; here all points count. Equally far points: the smallest index.

    >>> furthest_point_sample(torch.tensor([[[0., 0., 0.], [0.01, 0., 0.], [0., 0.02, 0.]]]), 3)
    tensor([[0, 2, 1]], dtype=torch.int32)
    """
    _check_clouds("xyz", xyz)
    npoint = count_of("npoint", npoint)
    checks.shape(xyz.shape[1] > 0, "xyz", "(B, N, 3) with N at least 1", xyz)
    index = pointgrad.farthest_point_sampling(xyz, npoint)
    return (index.clamp(min=0) if npoint > xyz.shape[1] else index).int()


def gather_operation(features: Tensor, idx: Tensor) -> Tensor:
    """The columns of `features` that `idx` names.

    features: (B, C, N). idx: (B, M) int32 or int64; -1 gives zeros. returns: (B, C, M), gradients to features.

    >>> gather_operation(torch.tensor([[[1., 2., 3.]]]), torch.tensor([[2, 0]]))
    tensor([[[3., 1.]]])
    """
    _check_features(features, idx, "(B, M)", 2)
    return _columns(features, idx)


def three_nn(unknown: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The three nearest of `known` for each of `unknown`, nearest first.

    unknown: (B, n, 3), known: (B, m, 3). returns: dist (B, n, 3) and idx (B, n, 3) int32, both without gradient.

    The distance is not squared; it has the dtype of the points, but at least float32. Where fewer than three are known
    the index is 0 and the distance infinite, so that a weight 1 / dist is 0.
    """
    distance2, index = three_nearest(unknown, known)
    return distance2.sqrt(), index


def three_interpolate(features: Tensor, idx: Tensor, weight: Tensor) -> Tensor:
    """Weighted sums of the columns of `features` that `idx` names.

    features: (B, C, m). idx, weight: (B, n, 3), as of `three_nn` (any number of neighbours does). returns: (B, C, n) in
    the dtype of `features`, gradients to features and to weight; the original's gradient of the weight is zero.
    """
    _check_features(features, idx, "(B, n, 3)", 3)
    checks.tensor("weight", weight)
    checks.shape(weight.shape == idx.shape, "weight", lambda: f"{tuple(idx.shape)}, like idx", weight)
    checks.dtype("weight", weight, checks.FLOATS)
    wide = torch.promote_types(features.dtype, weight.dtype)  # weights do not fit into 16 bits
    out = pointgrad.interpolate_at(features.transpose(1, 2).to(wide), idx, weight.to(wide))
    return out.to(features.dtype).transpose(1, 2).contiguous()


def grouping_operation(features: Tensor, idx: Tensor) -> Tensor:
    """The columns of `features` for lists of neighbours.

    features: (B, C, N). idx: (B, M, K); -1 gives zeros. returns: (B, C, M, K), gradients to features.
    """
    _check_features(features, idx, "(B, M, K)", 3)
    return _columns(features, idx.flatten(1)).unflatten(2, idx.shape[1:])


def ball_query(radius: float, nsample: int, xyz: Tensor, new_xyz: Tensor) -> Tensor:
    """The first `nsample` points, in the order of their index, at a distance below `radius`.

    xyz: (B, N, 3), new_xyz: (B, M, 3), the centres. returns: (B, M, nsample) int32, no gradient. A ball with fewer
    points repeats its first one; one without any is filled with 0.

    >>> line = torch.tensor([[[0., 0., 0.], [1., 0., 0.], [2., 0., 0.]]])
    >>> ball_query(2.0, 3, line, line[:, 1:])
    tensor([[[0, 1, 2],
             [1, 2, 1]]], dtype=torch.int32)
    """
    _check_clouds("xyz", xyz)
    _check_partner("new_xyz", new_xyz, "xyz", xyz)
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
    """`ball_query`, and the neighbours' features with their positions relative to the centre.

    radius, nsample: of `ball_query`. use_xyz: whether the positions come before the features.
    """

    # Whether the result is in the memory format torch.channels_last. Layers ask for it: it spares them a copy of the
    # neighbourhoods, and their convolutions take it as gladly.
    channels_last = False

    def __init__(self, radius: float, nsample: int, use_xyz: bool = True) -> None:
        super().__init__()
        self.radius, self.nsample, self.use_xyz = radius, nsample, use_xyz

    def forward(self, xyz: Tensor, new_xyz: Tensor, features: Tensor | None = None) -> Tensor:
        """xyz (B, N, 3), new_xyz (B, M, 3), features (B, C, N). returns: (B, 3 + C, M, nsample)."""
        checks.value(self.use_xyz or features is not None, "features", "given if use_xyz is False", "None")
        index = ball_query(self.radius, self.nsample, xyz, new_xyz)
        grouped = group_by(index, xyz, new_xyz, features, self.use_xyz)
        return grouped if self.channels_last else grouped.contiguous()


class GroupAll(nn.Module):
    """All points as one neighbourhood, positions as they are."""

    def __init__(self, use_xyz: bool = True) -> None:
        super().__init__()
        self.use_xyz = use_xyz

    def forward(self, xyz: Tensor, new_xyz: Any, features: Tensor | None = None) -> Tensor:
        """xyz (B, N, 3), features (B, C, N), new_xyz is ignored. returns: (B, 3 + C, 1, N)."""
        positions = xyz.transpose(1, 2)
        if features is None:
            return positions.unsqueeze(2)
        fits = features.dim() == 3 and features.shape[::2] == positions.shape[::2]
        checks.shape(fits, "features", lambda: f"(B, C, N) = ({xyz.shape[0]}, C, {xyz.shape[1]}), like xyz", features)
        return (torch.cat([positions, features], dim=1) if self.use_xyz else features).unsqueeze(2)


def group_by(index: Tensor, xyz: Tensor, new_xyz: Tensor, features: Tensor | None, use_xyz: bool) -> Tensor:
    """(B, 3 + C, M, K) as a view of (B, M, K, 3 + C), which is what torch calls channels last."""
    if features is None:
        rows = pointgrad.group(xyz, index) - new_xyz.unsqueeze(2)
    else:
        places = {"points": xyz, "centers": new_xyz} if use_xyz else {}
        rows = pointgrad.group(features.transpose(1, 2), index, **places)
    return rows.permute(0, 3, 1, 2)


def three_nearest(unknown: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """`three_nn` with squared distances."""
    _check_clouds("unknown", unknown)
    _check_partner("known", known, "unknown", unknown)
    found = pointgrad.knn(known.detach(), 3, unknown.detach())
    index = found.index if known.shape[1] >= 3 else found.index.clamp(min=0)
    return found.distance2, index.int()


def _columns(features: Tensor, idx: Tensor) -> Tensor:
    """(B, C, L) the columns of features (B, C, N) that idx (B, L) names, zeros where it names none.

    They are gathered where they lie. pointgrad's own operator has channels last: going there and, for a contiguous
    result, back again would write each neighbourhood twice.
    """
    size, index = features.shape[2], idx.long()
    if index.device.type == "cpu" and not torch.compiler.is_compiling():
        checks.index_values(index, size, "idx")
    index = torch.where((index < 0) | (index >= size), size, index).unsqueeze(1).expand(-1, features.shape[1], -1)
    # Gradients are summed in the dtype that is gathered from.
    wide = torch.promote_types(features.dtype, torch.float32) if features.requires_grad else features.dtype
    return functional.pad(features.to(wide), (0, 1)).gather(2, index).to(features.dtype)


def _check_clouds(name: str, xyz: Any) -> None:
    checks.tensor(name, xyz)
    checks.shape(xyz.dim() == 3 and xyz.shape[2] == 3, name, "(B, N, 3)", xyz)
    checks.dtype(name, xyz, checks.FLOATS)


def _check_partner(name: str, xyz: Any, other_name: str, other: Tensor) -> None:
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
