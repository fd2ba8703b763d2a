"""The compiled module `chamfer` of GRNet, PoinTr, Point-MAE, openpoints and their successors."""

from typing import Any

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

__all__ = ["backward", "forward"]


def forward(xyz1: Tensor, xyz2: Tensor) -> list[Tensor]:
    """Find the nearest point in the other cloud for each point of two clouds.

    Args:
        xyz1: (B, N, 3) points.
        xyz2: (B, M, 3) points.

    Returns:
        Squared distances `dist1` (B, N) and `dist2` (B, M) in the dtype of the points but at least float32, and indices
        `idx1` (B, N) and `idx2` (B, M) int32, without gradient. Ties go to the smallest index.
    """
    check_clouds(xyz1, xyz2)
    xyz1, xyz2 = xyz1.detach(), xyz2.detach()
    found1, found2 = pointgrad.knn(xyz2, 1, xyz1), pointgrad.knn(xyz1, 1, xyz2)
    distances = [found.distance2.squeeze(2).detach() for found in (found1, found2)]
    return [*distances, *(found.index.squeeze(2).int() for found in (found1, found2))]


def backward(
    xyz1: Tensor, xyz2: Tensor, idx1: Tensor, idx2: Tensor, grad_dist1: Tensor, grad_dist2: Tensor
) -> list[Tensor]:
    """Compute the gradients of `forward`.

    Args:
        xyz1: (B, N, 3) points.
        xyz2: (B, M, 3) points.
        idx1: (B, N) indices from `forward`.
        idx2: (B, M) indices from `forward`.
        grad_dist1: (B, N) gradient of `dist1`.
        grad_dist2: (B, M) gradient of `dist2`.

    Returns:
        Gradients (B, N, 3) of `xyz1` and (B, M, 3) of `xyz2`.
    """
    check_clouds(xyz1, xyz2)
    for number, points, idx, grad in ((1, xyz1, idx1, grad_dist1), (2, xyz2, idx2, grad_dist2)):
        for name, value, dtypes in (("idx", idx, checks.INDICES), ("grad_dist", grad, checks.FLOATS)):
            name = f"{name}{number}"
            checks.tensor(name, value)
            fits = value.shape == points.shape[:2]
            checks.shape(fits, name, f"{tuple(points.shape[:2])}, like xyz{number}", value)
            checks.dtype(name, value, dtypes)
            checks.device(name, value, "xyz1", xyz1)
    to2 = 2 * grad_dist1.unsqueeze(2) * (xyz1 - pointgrad.gather(xyz2, idx1))
    to1 = 2 * grad_dist2.unsqueeze(2) * (xyz2 - pointgrad.gather(xyz1, idx2))
    return [
        to2 - pointgrad.scatter(to1, idx2, xyz1.shape[1]),
        to1 - pointgrad.scatter(to2, idx1, xyz2.shape[1]),
    ]


def check_clouds(xyz1: Any, xyz2: Any) -> None:
    """Check two batches of clouds with at least one point."""
    for name, xyz in (("xyz1", xyz1), ("xyz2", xyz2)):
        checks.tensor(name, xyz)
        checks.shape(
            xyz.dim() == 3 and xyz.shape[2] == 3 and xyz.shape[1] > 0, name, "(B, N, 3) with N at least 1", xyz
        )
        checks.dtype(name, xyz, checks.FLOATS)
    checks.shape(xyz1.shape[0] == xyz2.shape[0], "xyz2", lambda: f"(B, M, 3) with B = {xyz1.shape[0]}", xyz2)
    checks.same_dtype("xyz2", xyz2, "xyz1", xyz1)
    checks.device("xyz2", xyz2, "xyz1", xyz1)
