"""`pointops.functions.grouping`."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._packed import check_points, check_rows, same_precision

__all__ = ["Grouping", "grouping", "grouping2"]


def grouping(idx: Tensor, feat: Tensor, xyz: Tensor, new_xyz: Tensor | None = None, with_xyz: bool = False) -> Tensor:
    """The features of neighbours, behind their positions relative to the centre if `with_xyz`.

    idx: (M, K). feat: (N, C). xyz: (N, 3). new_xyz: (M, 3), the centres; `xyz` without.
    returns: (M, K, C) or (M, K, 3 + C), zeros where the index is -1; gradients to feat, xyz and new_xyz.

    >>> grouping(torch.tensor([[1, -1]]), torch.tensor([[5.], [7.]]), torch.zeros(2, 3)).tolist()
    [[[7.0], [0.0]]]
    """
    check_rows("feat", feat, idx)
    if not with_xyz:
        return pointgrad.group(feat, idx)
    check_points("xyz", xyz)
    checks.shape(xyz.shape[0] == feat.shape[0], "xyz", lambda: f"({feat.shape[0]}, 3), like feat", xyz)
    centers = xyz if new_xyz is None else new_xyz
    check_points("new_xyz", centers)
    checks.shape(centers.shape[0] == idx.shape[0], "new_xyz", lambda: f"({idx.shape[0]}, 3), like idx", centers)
    if not checks.autocasts(feat):
        feat, xyz, centers = same_precision(feat, xyz, centers)
    return pointgrad.group(feat, idx, points=xyz, centers=centers)


def grouping2(input: Tensor, idx: Tensor) -> Tensor:
    """The rows of `input` (N, C) that `idx` (M, K) names: (M, K, C), zeros where it is -1; gradients to input."""
    check_rows("input", input, idx)
    return pointgrad.group(input, idx)


class Grouping:
    apply = staticmethod(grouping2)
