"""Calls of the C++ kernels of this family."""

import torch
from torch import Tensor

from .. import clouds, native
from ..sums import sum_dtype
from . import reference


def farthest_point_sampling(
    points: Tensor,
    sizes: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    start: Tensor | None,
    radii: bool,
) -> tuple[Tensor, Tensor]:
    if points.shape[-1] > 3:
        return reference.farthest_point_sampling(points, sizes, num_samples, counts, start, radii)
    points = _wide(points)
    shape = clouds.samples_shape(points, sizes, num_samples, counts)
    index = points.new_empty(shape, dtype=torch.int64)
    distance2 = points.new_empty(shape if radii else (0,))
    native.module.farthest_point_sampling(
        index=index,
        distance2=distance2 if radii else None,
        points=points,
        dtype=points.dtype,
        **clouds.kernel_arguments(points, sizes),
        num_samples=num_samples,
        counts=None if counts is None else counts.contiguous(),
        start=None if start is None else start.contiguous(),
        num_start=1 if start is None else start.shape[1],
    )
    return index, distance2


def random_sampling(
    points: Tensor, sizes: Tensor | None, num_samples: int, counts: Tensor | None, seed: Tensor
) -> Tensor:
    index = points.new_empty(clouds.samples_shape(points, sizes, num_samples, counts), dtype=torch.int64)
    native.module.random_sampling(
        index=index,
        **clouds.kernel_arguments(points, sizes),
        num_samples=num_samples,
        counts=None if counts is None else counts.contiguous(),
        seed=seed.item(),
    )
    return index


def voxel_representatives(points: Tensor, sizes: Tensor | None, x: float, y: float, z: float) -> Tensor:
    points = _wide(points)
    kept = points.new_zeros(points.shape[:-1], dtype=torch.bool)
    native.module.voxel_representatives(
        kept=kept, points=points, dtype=points.dtype, **clouds.kernel_arguments(points, sizes), x=x, y=y, z=z
    )
    return kept


def _wide(points: Tensor) -> Tensor:
    return points.to(sum_dtype(points.dtype)).contiguous()
