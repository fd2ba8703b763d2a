"""`pointops.functions.interpolation`."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of
from ._packed import check_points, starts

__all__ = ["Interpolation", "interpolation", "interpolation2"]


def interpolation(xyz: Tensor, new_xyz: Tensor, feat: Tensor, offset: Tensor, new_offset: Tensor, k: int = 3) -> Tensor:
    """Features at new_xyz from those of the k nearest points of the same cloud, weighted by the inverse distance.

    xyz: (M, 3). new_xyz: (N, 3). feat: (M, C). offset, new_offset: (B,) where the clouds of xyz and new_xyz end.
    returns: (N, C), in the dtype of feat. Gradients reach feat, xyz and new_xyz.

    Fewer than k points share the weight, none give zeros; the original mixes in the last point of the whole batch.
    The original adds 1e-8 to distances; here a point that coincides with others takes their features.
    """
    check_points("xyz", xyz)
    check_points("new_xyz", new_xyz)
    checks.tensor("feat", feat)
    fits = feat.dim() == 2 and feat.shape[0] == xyz.shape[0]
    checks.shape(fits, "feat", lambda: f"({xyz.shape[0]}, C), like xyz", feat)
    k = count_of("k", k)
    begins, new_begins = starts("offset", offset), starts("new_offset", new_offset)
    return pointgrad.interpolate(feat, xyz, new_xyz, k, offsets=begins, query_offsets=new_begins)


def interpolation2(
    xyz: Tensor, new_xyz: Tensor, input: Tensor, offset: Tensor, new_offset: Tensor, k: int = 3
) -> Tensor:
    """As `interpolation`, with gradients to `input` alone."""
    return interpolation(xyz.detach(), new_xyz.detach(), input, offset, new_offset, k)


class Interpolation:
    apply = staticmethod(interpolation2)
