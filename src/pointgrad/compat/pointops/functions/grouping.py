"""`pointops.functions.grouping`."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._packed import check_points, check_rows, promote

__all__ = ["Grouping", "grouping", "grouping2"]


def grouping(idx: Tensor, feat: Tensor, xyz: Tensor, new_xyz: Tensor | None = None, with_xyz: bool = False) -> Tensor:
    """Gather the features of neighbors.

    Args:
        idx: (M, K) indices of neighbors.
        feat: (N, C) features.
        xyz: (N, 3) points.
        new_xyz: (M, 3) centers; `xyz` if None.
        with_xyz: Prepend positions relative to the center to the features.

    Returns:
        (M, K, C) or (M, K, 3 + C), zeros where the index is -1, differentiable in `feat`, `xyz` and `new_xyz`.

    Example:
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
        feat, xyz, centers = promote(feat, xyz, centers)
    return pointgrad.group(feat, idx, points=xyz, centers=centers)


def grouping2(input: Tensor, idx: Tensor) -> Tensor:
    """Gather rows of `input`.

    Args:
        input: (N, C) features.
        idx: (M, K) row indices.

    Returns:
        (M, K, C) rows, zeros where the index is -1, differentiable in `input`.
    """
    check_rows("input", input, idx)
    return pointgrad.group(input, idx)


class Grouping:
    apply = staticmethod(grouping2)
