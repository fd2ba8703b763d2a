"""Hands tensors to the C++ kernels of this room."""

import torch
from torch import Tensor

from .. import clouds, native


def voxel_groups(
    points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points = points.to(torch.promote_types(points.dtype, torch.float32)).contiguous()
    packed = points.dim() == 2
    sizes = offsets if packed else lengths
    sizes = None if sizes is None else sizes.contiguous()
    batch = clouds.batch_size(points, offsets)
    inverse, count = (native.empty(points, points.shape[:-1], torch.int64) for _ in range(2))
    coordinates = native.empty(points, points.shape, torch.int64)
    scratch = native.empty(points, (2, points.numel() // 3), torch.int64)
    occupied = points.new_empty((batch,), dtype=torch.int64)
    native.module.voxel_groups(
        inverse.data_ptr(),
        coordinates.data_ptr(),
        count.data_ptr(),
        occupied.data_ptr(),
        scratch.data_ptr(),
        points.data_ptr(),
        native.DTYPE_CODES[points.dtype],
        packed,
        batch,
        points.shape[-2],
        native.address(sizes),
        x,
        y,
        z,
        torch.get_num_threads(),
    )
    if packed:
        voxels = int(occupied.sum())
        coordinates.resize_(voxels, 3)
        count.resize_(voxels)
    return inverse, coordinates, count, occupied
