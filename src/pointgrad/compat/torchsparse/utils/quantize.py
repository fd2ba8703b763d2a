"""Voxels of points."""

from typing import Any

import numpy as np
import torch

from ... import _sparse

__all__ = ["sparse_quantize"]


def sparse_quantize(
    coords: Any,
    voxel_size: float | tuple[float, ...] = 1,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
) -> Any:
    """Find the voxels of points.

    Args:
        coords: (N, 3) array of points.
        voxel_size: Edge length of the voxels, or one for each axis.
        return_index: Also return (V,) int64, the first point of each voxel.
        return_inverse: Also return (N,) int64, the voxel of each point.

    Returns:
        (V, 3) int32 array of voxels, sorted by x, y and z; a list of arrays if others are requested.
    """
    sizes = (voxel_size,) * 3 if isinstance(voxel_size, (int, float)) else tuple(voxel_size)
    if len(sizes) != 3:
        raise ValueError(f"voxel_size must be one number or three, got {sizes}")
    if min(sizes) <= 0:
        raise ValueError(f"voxel_size must be positive, got {voxel_size}")
    places = np.floor(np.asarray(coords) / np.array(sizes))
    _sparse.check_int32("coords / voxel_size", torch.from_numpy(places))
    voxels = places.astype(np.int32)
    found = _sparse.unique(torch.nn.functional.pad(torch.from_numpy(voxels).long(), (1, 0)))
    first = found.first.numpy()
    results = [voxels[first]]
    if return_index:
        results.append(first)
    if return_inverse:
        results.append(found.inverse.numpy())
    return results[0] if len(results) == 1 else results
