"""`pointops.functions.interpolation`."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of
from ._packed import check_points, to_offsets

__all__ = ["Interpolation", "interpolation", "interpolation2"]


def interpolation(xyz: Tensor, new_xyz: Tensor, feat: Tensor, offset: Tensor, new_offset: Tensor, k: int = 3) -> Tensor:
    """Interpolate features from the k nearest points of the same cloud, weighted by inverse distance.

    In a cloud with fewer than k points, those points share the weight, and an empty cloud gives zeros; the original
    mixes in the last point of the whole batch. The original adds 1e-8 to distances; here a query that coincides with
    points takes their features.

    Args:
        xyz: (M, 3) points with features.
        new_xyz: (N, 3) points to interpolate at.
        feat: (M, C) features.
        offset: (B,) ends of the clouds of `xyz`.
        new_offset: (B,) ends of the clouds of `new_xyz`.
        k: Number of neighbors.

    Returns:
        (N, C) features in the dtype of `feat`, differentiable in `feat`, `xyz` and `new_xyz`.
    """
    check_points("xyz", xyz)
    check_points("new_xyz", new_xyz)
    checks.tensor("feat", feat)
    fits = feat.dim() == 2 and feat.shape[0] == xyz.shape[0]
    checks.shape(fits, "feat", lambda: f"({xyz.shape[0]}, C), like xyz", feat)
    k = count_of("k", k)
    offsets, new_offsets = to_offsets("offset", offset), to_offsets("new_offset", new_offset)
    return pointgrad.interpolate(feat, xyz, new_xyz, k, offsets=offsets, query_offsets=new_offsets)


def interpolation2(
    xyz: Tensor, new_xyz: Tensor, input: Tensor, offset: Tensor, new_offset: Tensor, k: int = 3
) -> Tensor:
    """Like `interpolation`, but differentiable in `input` only."""
    return interpolation(xyz.detach(), new_xyz.detach(), input, offset, new_offset, k)


class Interpolation:
    apply = staticmethod(interpolation2)
