"""Hands tensors to the C++ kernels of this room."""

import torch
from torch import Tensor

from .. import clouds, native


def voxel_groups(
    points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    points = points.to(torch.promote_types(points.dtype, torch.float32)).contiguous()
    sizes = offsets if points.dim() == 2 else lengths
    sizes = None if sizes is None else sizes.contiguous()
    batch = clouds.batch_size(points, offsets)
    inverse, first, count = (native.empty(points, points.shape[:-1], torch.int64) for _ in range(3))
    scratch = native.empty(points, (4, points.numel() // 3), torch.int64)
    occupied = points.new_empty((batch,), dtype=torch.int64)
    native.module.voxel_groups(
        inverse.data_ptr(),
        first.data_ptr(),
        count.data_ptr(),
        occupied.data_ptr(),
        scratch.data_ptr(),
        points.data_ptr(),
        native.DTYPE_CODES[points.dtype],
        points.dim() == 2,
        batch,
        points.shape[-2],
        native.address(sizes),
        x,
        y,
        z,
        torch.get_num_threads(),
    )
    return inverse, first, count, occupied
