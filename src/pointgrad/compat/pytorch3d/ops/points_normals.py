"""Normals and principal directions of point clouds."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pointgrad.ops import checks
from pointgrad.ops.sums import sum_dtype

from . import _clouds
from ._linalg import full_precision, symmetric_eigen
from .utils import convert_pointclouds_to_tensor, get_point_covariances, smallest_size

if TYPE_CHECKING:
    from ..structures import Pointclouds

__all__ = ["estimate_pointcloud_local_coord_frames", "estimate_pointcloud_normals"]


def estimate_pointcloud_normals(
    pointclouds: "Tensor | Pointclouds",
    neighborhood_size: int = 50,
    disambiguate_directions: bool = True,
    *,
    use_symeig_workaround: bool = True,
) -> Tensor:
    """Estimate normals as the direction in which the neighbors of a point vary least.

    Args:
        pointclouds, neighborhood_size, disambiguate_directions, use_symeig_workaround: See
            `estimate_pointcloud_local_coord_frames`.

    Returns:
        (N, P, 3) unit vectors, zero beyond the number of points of a cloud.

    Example:
        >>> plane = torch.tensor([[[0., 0., 0.], [1., 0., 0.], [0., 1., 0.], [1., 2., 0.]]])
        >>> estimate_pointcloud_normals(plane, neighborhood_size=3).abs()[0, 0]
        tensor([0., 0., 1.])
    """
    frames = estimate_pointcloud_local_coord_frames(pointclouds, neighborhood_size, disambiguate_directions)[1]
    return frames[..., 0]


def estimate_pointcloud_local_coord_frames(
    pointclouds: "Tensor | Pointclouds",
    neighborhood_size: int = 50,
    disambiguate_directions: bool = True,
    *,
    use_symeig_workaround: bool = True,
) -> tuple[Tensor, Tensor]:
    """Estimate the principal directions of the neighbors of each point.

    Gradients are finite for equal curvatures (those of `torch.linalg.eigh` are not); rotations among directions of
    equal curvature, which are not defined, get none. Rows beyond the number of points are zero.

    Args:
        pointclouds: Pointclouds, or points (N, P, 3).
        neighborhood_size: Number of neighbors, including the point; less than the number of points of each cloud.
        disambiguate_directions: Choose the signs of the first and last direction so that at least half of the
            neighbors are on the positive side (SHOT descriptors, Tombari et al. 2010).
        use_symeig_workaround: Ignored.

    Returns:
        Variances (N, P, 3) along the directions, ascending, and directions (N, P, 3, 3) in columns. The first is the
        normal.

    Example:
        >>> plane = torch.tensor([[[0., 0., 0.], [1., 0., 0.], [0., 1., 0.], [1., 2., 0.]]])
        >>> estimate_pointcloud_local_coord_frames(plane, neighborhood_size=3)[0][0, 0, 0].abs().round()
        tensor(0.)
    """
    points, sizes = convert_pointclouds_to_tensor(pointclouds)
    checks.shape(points.shape[2] == 3, "pointclouds", "Pointclouds or (N, P, 3)", points)
    smallest = smallest_size(pointclouds, points)
    fits = smallest is None or smallest > neighborhood_size
    checks.value(fits, "neighborhood_size", f"less than the size of each cloud, {smallest}", neighborhood_size)
    wide = points.to(sum_dtype(points.dtype))
    own = _clouds.within(sizes, points.shape[1], points).unsqueeze(2)
    # Far from the origin, differences of neighbors would lose digits.
    center = torch.where(own, wide, 0).sum(1, keepdim=True) / sizes.clamp(min=1)[:, None, None]
    centered = torch.where(own, wide - center, 0)
    with full_precision(points):
        covariances, near = get_point_covariances(centered, sizes, neighborhood_size)
        variances, frames = symmetric_eigen(covariances)
    if disambiguate_directions:
        normal = _toward_neighbors(frames[..., 0], near - centered.unsqueeze(2))
        tangent = _toward_neighbors(frames[..., 2], near - centered.unsqueeze(2))
        frames = torch.stack([normal, torch.linalg.cross(normal, tangent), tangent], 3)
    frames = torch.where(own.unsqueeze(3), frames, 0)
    return variances.to(points.dtype), frames.to(points.dtype)


def _toward_neighbors(direction: Tensor, difference: Tensor) -> Tensor:
    """Direction (N, P, 3) with the sign for which at least half of the differences (N, P, K, 3) are positive."""
    ahead = ((direction.unsqueeze(2) * difference).sum(3) > 0).sum(2, keepdim=True)
    return torch.where(2 * ahead < difference.shape[2], -direction, direction)
