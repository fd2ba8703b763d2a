"""What all backends share: how large an index is, which is known before it is built, and how a radius is rounded."""

import numpy as np
import torch
from torch import Tensor

from .. import clouds

BUCKET = 32  # points, in kernels.py; tree.h has leaves of its own


def index_bytes(points: Tensor, offsets: Tensor | None) -> int:
    """Of the index over these points.

    Both the tree of the CPU and the buckets of the GPU need less than five numbers for each point, and for
    each cloud some that it fills only in part.
    """
    itemsize = torch.promote_types(points.dtype, torch.float32).itemsize
    num_clouds = clouds.batch_size(points, offsets)
    return 5 * points.shape[:-1].numel() * itemsize + 192 * num_clouds * (itemsize + 1) + 4096


def squared(radius: float, dtype: torch.dtype, closed: bool = True) -> float:
    """Rounded and squared as distances are: a point at exactly this distance along an axis is within the radius.

    closed: or else the next number below, so that such a point is just outside.
    """
    with np.errstate(over="ignore"):
        value = np.float64(radius) if dtype == torch.float64 else np.float32(radius)
        square = value * value
        return float(square if closed else np.nextafter(square, -np.inf, dtype=value.dtype))
