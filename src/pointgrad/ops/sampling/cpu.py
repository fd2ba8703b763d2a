"""Hands tensors to the C++ kernels of this room."""

import torch
from torch import Tensor

from .. import clouds, native
from . import reference


def farthest_point_sampling(
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    start: Tensor | None,
    radii: bool,
) -> tuple[Tensor, Tensor]:
    if points.shape[-1] > 3:
        return reference.farthest_point_sampling(points, offsets, lengths, num_samples, counts, start, radii)
    points = _wide(points)
    batch = clouds.batch_size(points, offsets)
    shape = clouds.samples_shape(points, offsets, num_samples, counts)
    index = points.new_empty(shape, dtype=torch.int64)
    distance2 = points.new_empty(shape if radii else (0,))
    sizes, counts, start = _contiguous(offsets if points.dim() == 2 else lengths, counts, start)
    native.module.farthest_point_sampling(
        index.data_ptr(),
        distance2.data_ptr() if radii else 0,
        points.data_ptr(),
        native.DTYPE_CODES[points.dtype],
        points.dim() == 2,
        batch,
        points.shape[-2],
        native.address(sizes),
        num_samples,
        native.address(counts),
        native.address(start),
        1 if start is None else start.shape[1],
        torch.get_num_threads(),
    )
    return index, distance2


def random_sampling(
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    seed: Tensor,
) -> Tensor:
    shape = clouds.samples_shape(points, offsets, num_samples, counts)
    index = points.new_empty(shape, dtype=torch.int64)
    sizes, counts = _contiguous(offsets if points.dim() == 2 else lengths, counts)
    native.module.random_sampling(
        index.data_ptr(),
        points.dim() == 2,
        clouds.batch_size(points, offsets),
        points.shape[-2],
        native.address(sizes),
        num_samples,
        native.address(counts),
        seed.item(),
        torch.get_num_threads(),
    )
    return index


def voxel_representatives(
    points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float
) -> Tensor:
    points = _wide(points)
    (sizes,) = _contiguous(offsets if points.dim() == 2 else lengths)
    kept = points.new_zeros(points.shape[:-1], dtype=torch.bool)
    native.module.voxel_representatives(
        kept.data_ptr(),
        points.data_ptr(),
        native.DTYPE_CODES[points.dtype],
        points.dim() == 2,
        clouds.batch_size(points, offsets),
        points.shape[-2],
        native.address(sizes),
        x,
        y,
        z,
        torch.get_num_threads(),
    )
    return kept


def _contiguous(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(None if tensor is None else tensor.contiguous() for tensor in tensors)


def _wide(points: Tensor) -> Tensor:
    return points.to(torch.promote_types(points.dtype, torch.float32)).contiguous()
