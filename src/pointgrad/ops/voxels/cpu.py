"""Calls of the C++ kernels of this family."""

import torch
from torch import Tensor

from .. import clouds, native
from ..sums import sum_dtype


def voxel_groups(
    points: Tensor, sizes: Tensor | None, x: float, y: float, z: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points = points.to(sum_dtype(points.dtype)).contiguous()
    inverse, count = (native.empty(points, points.shape[:-1], torch.int64) for _ in range(2))
    coordinates = native.empty(points, points.shape, torch.int64)
    occupied = points.new_empty((clouds.batch_size(points, sizes),), dtype=torch.int64)
    native.module.voxel_groups(
        inverse=inverse,
        coordinates=coordinates,
        count=count,
        occupied=occupied,
        scratch=native.empty(points, (2, points.numel() // 3), torch.int64),
        points=points,
        dtype=points.dtype,
        **clouds.kernel_arguments(points, sizes),
        x=x,
        y=y,
        z=z,
    )
    if points.dim() == 2:
        voxels = int(occupied.sum())
        coordinates.resize_(voxels, 3)
        count.resize_(voxels)
    return inverse, coordinates, count, occupied
