"""Calls of the C++ kernels of this family."""

import torch
from torch import Tensor

from .. import clouds, native
from ..sums import sum_dtype

Groups = tuple[Tensor, Tensor, Tensor, Tensor]


def voxel_groups(points: Tensor, sizes: Tensor | None, x: float, y: float, z: float) -> Groups:
    points = points.to(sum_dtype(points.dtype)).contiguous()
    groups, scratch = _allocate(points, sizes)
    inverse, coordinates, count, voxel_sizes = groups
    native.module.voxel_groups(
        inverse=inverse,
        coordinates=coordinates,
        count=count,
        voxel_sizes=voxel_sizes,
        scratch=scratch,
        points=points,
        dtype=points.dtype,
        **clouds.kernel_arguments(points, sizes),
        x=x,
        y=y,
        z=z,
    )
    return _shorten(groups)


def unique_voxels(coordinates: Tensor, sizes: Tensor | None, valid: Tensor | None) -> Groups:
    groups, scratch = _allocate(coordinates, sizes)
    inverse, unique, count, voxel_sizes = groups
    native.module.unique_voxels(
        inverse=inverse,
        unique=unique,
        count=count,
        voxel_sizes=voxel_sizes,
        scratch=scratch,
        coordinates=coordinates.contiguous(),
        valid=None if valid is None else valid.contiguous(),
        **clouds.kernel_arguments(coordinates, sizes),
    )
    return _shorten(groups)


def _allocate(points: Tensor, sizes: Tensor | None) -> tuple[Groups, Tensor]:
    """Results with space for as many voxels as points, and memory for the sort."""
    inverse, count = (native.empty(points, points.shape[:-1], torch.int64) for _ in range(2))
    coordinates = native.empty(points, points.shape, torch.int64)
    voxel_sizes = points.new_empty(clouds.batch_size(points, sizes) + (points.dim() == 2), dtype=torch.int64)
    scratch = native.empty(points, (2, points.numel() // 3), torch.int64)
    return (inverse, coordinates, count, voxel_sizes), scratch


def _shorten(groups: Groups) -> Groups:
    """Cut packed results to the number of voxels."""
    _, coordinates, count, voxel_sizes = groups
    if coordinates.dim() == 2:
        voxels = int(voxel_sizes[-1])
        coordinates.resize_(voxels, 3)
        count.resize_(voxels)
    return groups
