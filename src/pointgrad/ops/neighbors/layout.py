"""Shared by all backends: the size of an index, which is known before it is built, and the rounding of a radius."""

import numpy as np
import torch
from torch import Tensor

from .. import clouds
from ..sums import sum_dtype

BUCKET = 32  # points of a bucket in kernels.py


def index_bytes(points: Tensor, sizes: Tensor | None) -> int:
    """An upper bound of the bytes that the tree of the CPU or the buckets of the GPU take for these points."""
    itemsize = sum_dtype(points.dtype).itemsize
    num_clouds = clouds.batch_size(points, sizes)
    num_points = points.numel() // points.shape[-1]  # numel() of a shape would fix the sizes in compiled code
    return 5 * num_points * itemsize + 192 * num_clouds * (itemsize + 1) + 4096


def squared(radius: float, dtype: torch.dtype, closed: bool = True) -> float:
    """The square of a radius, rounded like a squared distance.

    So a point at exactly this distance along an axis is inside a closed ball. For an open ball, the next smaller number
    is returned, so that it is outside.
    """
    with np.errstate(over="ignore"):
        value = np.float64(radius) if dtype == torch.float64 else np.float32(radius)
        square = value * value
        return float(square if closed else np.nextafter(square, -np.inf, dtype=value.dtype))
