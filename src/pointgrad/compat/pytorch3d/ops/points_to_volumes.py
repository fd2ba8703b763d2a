"""Addition of points to voxel grids."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from . import _clouds

if TYPE_CHECKING:
    from ..structures import Pointclouds, Volumes

__all__ = ["add_pointclouds_to_volumes", "add_points_features_to_volume_densities_features"]


def add_pointclouds_to_volumes(
    pointclouds: "Pointclouds",
    initial_volumes: "Volumes",
    mode: str = "trilinear",
    min_weight: float = 1e-4,
    rescale_features: bool = True,
    _python: bool = False,
) -> "Volumes":
    """Add the features of points to the voxels around them.

    The native function is `pointgrad.splat`. See `add_points_features_to_volume_densities_features` for differences
    from the original.

    Args:
        pointclouds: Clouds with features, in the world coordinates of the volumes.
        initial_volumes: Volumes with features, and densities with one channel. They are not changed (the original
            overwrites them).
        mode, min_weight, rescale_features, _python: See `add_points_features_to_volume_densities_features`.

    Returns:
        The volumes with points added.

    Example:
        >>> from pointgrad.compat.pytorch3d.structures import Pointclouds, Volumes
        >>> volumes = Volumes(torch.zeros(1, 1, 3, 3, 3), torch.zeros(1, 2, 3, 3, 3))
        >>> clouds = Pointclouds(torch.zeros(1, 4, 3), features=torch.ones(1, 4, 2))
        >>> add_pointclouds_to_volumes(clouds, volumes).densities()[0, 0, 1, 1, 1]
        tensor(4.)
    """
    count = len(initial_volumes)
    checks.value(len(pointclouds) == count, "pointclouds", f"as many clouds as volumes, {count}", len(pointclouds))
    features = pointclouds.features_padded()
    if features is None:
        raise ValueError("pointclouds must have features, got None")
    points = pointclouds.points_padded()
    ragged = not initial_volumes.locator._equisized
    new_features, new_densities = add_points_features_to_volume_densities_features(
        initial_volumes.world_to_local_coords(points),
        features,
        initial_volumes.densities(),
        initial_volumes.features(),
        mode,
        min_weight,
        _clouds.within(pointclouds.num_points_per_cloud(), points.shape[1], points),
        initial_volumes.get_grid_sizes() if ragged else None,
        rescale_features,
        _python,
        initial_volumes.get_align_corners(),
    )
    return initial_volumes.update_padded(new_densities, new_features)


def add_points_features_to_volume_densities_features(
    points_3d: Tensor,
    points_features: Tensor,
    volume_densities: Tensor,
    volume_features: Tensor | None,
    mode: str = "trilinear",
    min_weight: float = 1e-4,
    mask: Tensor | None = None,
    grid_sizes: Tensor | None = None,
    rescale_features: bool = True,
    _python: bool = False,
    align_corners: bool = True,
) -> tuple[Tensor, Tensor]:
    """Add the features of points, and 1 to the densities, to the voxels around them.

    Differences from the original: any floating-point dtype, twice differentiable; the volumes are not changed; a point
    up to one voxel below the grid adds a share to it like one above (the original adds weights greater than 1 and less
    than 0); non-finite points add nothing.

    Args:
        points_3d: (N, P, 3) local coordinates (x, y, z) along (W, H, D); each grid spans [-1, 1].
        points_features: (N, P, C).
        volume_densities: (N, 1, D, H, W).
        volume_features: (N, C, D, H, W), or None for zeros.
        mode: "trilinear", which shares each point among eight voxels, or "nearest", which has no gradient for points.
        min_weight: Least density by which features are divided; 1 for "nearest".
        mask: (N, P), zero for points to leave out.
        grid_sizes: (N, 3), the part (D_n, H_n, W_n) of each grid that is used; None for all.
        rescale_features: Divide the features of voxels by their densities.
        _python: Ignored.
        align_corners: Whether -1 and 1 are the centers of the outermost voxels instead of their outer faces.

    Returns:
        Features (N, C, D, H, W) and densities (N, 1, D, H, W).

    Example:
        >>> features, densities = add_points_features_to_volume_densities_features(
        ...     torch.tensor([[[0.5, -1., -1.]]]), torch.ones(1, 1, 1), torch.zeros(1, 1, 1, 1, 2), None)
        >>> densities
        tensor([[[[[0.2500, 0.7500]]]]])
    """
    checks.value(mode in ("trilinear", "nearest"), "mode", '"trilinear" or "nearest"', repr(mode))
    fits = volume_densities.dim() == 5 and volume_densities.shape[1] == 1
    checks.shape(fits, "volume_densities", "(N, 1, D, H, W)", volume_densities)
    channels = points_features.shape[-1]
    if volume_features is None:
        volume_features = volume_densities.new_zeros(volume_densities.shape[0], channels, *volume_densities.shape[2:])
    densities, features = _points_to_volumes(
        points_3d,
        points_features,
        volume_densities.clone(),
        volume_features.clone(),
        grid_sizes,
        1.0,
        mask,
        align_corners,
        mode == "trilinear",
    )
    if rescale_features:
        features = features / densities.clamp(min=min_weight if mode == "trilinear" else 1.0)
    return features, densities


def _points_to_volumes(
    points_3d: Tensor,
    points_features: Tensor,
    volume_densities: Tensor,
    volume_features: Tensor,
    grid_sizes: Tensor | None,
    point_weight: float,
    mask: Tensor | None,
    align_corners: bool,
    splat: bool,
) -> tuple[Tensor, Tensor]:
    """Add points to volumes in place."""
    batch, _, *size = volume_densities.shape
    checks.shape(points_features.dim() == 3, "points_features", "(N, P, C)", points_features)
    fits = points_3d.shape == (*points_features.shape[:2], 3) and points_3d.shape[0] == batch
    checks.shape(fits, "points_3d", lambda: f"({batch}, {points_features.shape[1]}, 3)", points_3d)
    expected = (batch, points_features.shape[2], *size)
    checks.shape(volume_features.shape == expected, "volume_features", lambda: f"{expected}", volume_features)
    if grid_sizes is not None:
        checks.shape(grid_sizes.shape == (batch, 3), "grid_sizes", lambda: f"(N, 3) = ({batch}, 3)", grid_sizes)
    values = torch.cat([torch.ones_like(points_features[..., :1]), points_features], 2) * point_weight
    if mask is not None:
        checks.shape(mask.shape == points_3d.shape[:2], "mask", lambda: f"{tuple(points_3d.shape[:2])}", mask)
        values = torch.where((mask != 0).unsqueeze(2), values, 0)
    total = torch.tensor(size, device=points_3d.device)
    extent = total.expand(batch, 3) if grid_sizes is None else grid_sizes.to(points_3d.device)
    if splat:
        added = _splat(values, points_3d, total, extent, size, grid_sizes is not None, align_corners)
    else:
        added = _nearest(values, points_3d.detach(), extent, size, align_corners)
    volume_densities.add_(added[:, :1])
    volume_features.add_(added[:, 1:])
    return volume_densities, volume_features


def _splat(
    values: Tensor, points: Tensor, total: Tensor, extent: Tensor, size: list[int], partial: bool, align_corners: bool
) -> Tensor:
    """Sums (N, C, D, H, W) of values (N, P, C)."""
    if not partial:
        return pointgrad.splat(values, points, size, align_corners=align_corners)
    whole, part = (total - 1, extent - 1) if align_corners else (total, extent)
    ratio = torch.where(whole == 0, 1, part.to(points.dtype) / whole).flip(1).unsqueeze(1)
    added = pointgrad.splat(values, points * ratio + (ratio - 1), size, align_corners=align_corners)
    for axis in range(3):
        inside = torch.arange(size[axis], device=points.device) < extent[:, axis, None]
        shape = [len(inside), 1, 1, 1, 1]
        shape[axis + 2] = size[axis]
        added = torch.where(inside.reshape(shape), added, 0)
    return added


def _nearest(values: Tensor, points: Tensor, extent: Tensor, size: list[int], align_corners: bool) -> Tensor:
    """Sums (N, C, D, H, W) of values (N, P, C) over the points of each voxel."""
    limit = extent.flip(1).unsqueeze(1)
    position = (points + 1) / 2 * (limit - 1) if align_corners else (points + 1) / 2 * limit - 0.5
    voxel = position.sign() * (position.abs() + 0.5).floor()
    inside = ((voxel >= 0) & (voxel < limit)).all(2)
    x, y, z = torch.where(inside.unsqueeze(2), voxel, 0).long().unbind(2)
    index = torch.where(inside, (z * size[1] + y) * size[2] + x, -1)
    added = pointgrad.scatter(values, index, size[0] * size[1] * size[2])
    return added.mT.reshape(len(values), values.shape[2], *size)
