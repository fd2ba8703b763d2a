"""What all backends share: how large an index is, which is known before it is built, and how a radius is rounded."""

import numpy as np
import torch

BUCKET = 32  # points, in kernels.py; tree.h has leaves of its own


def index_bytes(num_points: int, num_clouds: int, itemsize: int) -> int:
    """Of the index over `num_points` rows in `num_clouds` clouds; `itemsize` of the dtype distances are kept in.

    Both the tree of the CPU and the buckets of the GPU need less than five numbers for each point, and for
    each cloud some that it fills only in part.
    """
    return 5 * num_points * itemsize + 192 * num_clouds * (itemsize + 1) + 4096


def squared(radius: float, dtype: torch.dtype) -> float:
    """Rounded and squared as distances are: a point at exactly this distance along an axis is within the radius."""
    with np.errstate(over="ignore"):
        value = np.float64(radius) if dtype == torch.float64 else np.float32(radius)
        return float(value * value)
