"""Voxels of points, batches and initialization."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import _sparse
from ..MinkowskiCoordinateManager import CoordinateManager

__all__ = [
    "SparseCollation",
    "batch_sparse_collate",
    "batched_coordinates",
    "kaiming_normal_",
    "sparse_collate",
    "sparse_quantize",
    "unique_coordinate_map",
]


def batched_coordinates(coords: Sequence[Any], dtype: torch.dtype = torch.int32, device: Any = None) -> Tensor:
    """Join coordinates (n, D) of clouds to (N, D + 1), the batch index first. Integers are rounded down."""
    parts = []
    for number, part in enumerate(coords):
        rows = torch.as_tensor(part)
        if dtype == torch.int32 and rows.is_floating_point():
            rows = rows.floor()
        parts.append(torch.nn.functional.pad(rows.to(dtype), (1, 0), value=number))
    return torch.cat(parts).to(device)


def sparse_collate(
    coords: Sequence[Any],
    feats: Sequence[Any],
    labels: Any = None,
    dtype: torch.dtype = torch.int32,
    device: Any = None,
) -> tuple[Any, ...]:
    """Join coordinates, features and labels of clouds."""
    joined = (batched_coordinates(coords, dtype, device), torch.cat([torch.as_tensor(part) for part in feats]))
    if labels is None:
        return joined
    if isinstance(labels[0], (np.ndarray, Tensor)):
        return (*joined, torch.cat([torch.as_tensor(part) for part in labels]))
    return (*joined, list(labels))


def batch_sparse_collate(data: Sequence[Any], dtype: torch.dtype = torch.int32, device: Any = None) -> tuple[Any, ...]:
    """Join samples (coordinates, features, labels)."""
    parts: list[Any] = list(zip(*data, strict=True))
    return sparse_collate(parts[0], parts[1], parts[2] if len(parts) > 2 else None, dtype, device)


class SparseCollation:
    """Join samples, and leave out the last ones if there are more than `limit_numpoints` rows."""

    def __init__(self, limit_numpoints: int = -1, dtype: torch.dtype = torch.int32, device: Any = None) -> None:
        self.limit_numpoints, self.dtype, self.device = limit_numpoints, dtype, device

    def __call__(self, list_data: Sequence[Any]) -> tuple[Any, ...]:
        kept, total = [], 0
        for sample in list_data:
            total += len(sample[0])
            if 0 < self.limit_numpoints < total:
                break
            kept.append(sample)
        return batch_sparse_collate(kept, self.dtype, self.device)


def sparse_quantize(
    coordinates: Any,
    features: Any = None,
    labels: Any = None,
    ignore_label: int = -100,
    return_index: bool = False,
    return_inverse: bool = False,
    return_maps_only: bool = False,
    quantization_size: Any = None,
    device: Any = "cpu",
) -> Any:
    """Find the voxels of points.

    Args:
        coordinates: (N, D) points, an array or a tensor.
        features: (N, C); those of the first point of each voxel are returned.
        labels: (N,); a voxel whose points have different labels gets `ignore_label`.
        ignore_label: See `labels`.
        return_index: Also return the first point of each voxel.
        return_inverse: Also return the voxel of each point.
        return_maps_only: Return only these indices.
        quantization_size: Edge length of the voxels, or one for each axis. By default 1.
        device: Device of the results.

    Returns:
        Voxels (V, D) int32 in the order of their first points, then what is requested.
    """
    points = torch.as_tensor(coordinates)
    if quantization_size is not None:
        points = points / torch.as_tensor(quantization_size, dtype=points.dtype)
    _sparse.check_int32("coordinates / quantization_size", points)
    voxels = points.floor().int().to(device)
    first, inverse = unique_coordinate_map(torch.nn.functional.pad(voxels, (1, 0)))
    if return_maps_only:
        return (first, inverse) if return_inverse else first
    results: list[Any] = [voxels[first]]
    if features is not None:
        results.append(features[first])
    if labels is not None:
        values = torch.as_tensor(labels)
        mixed = torch.zeros(len(first), dtype=torch.bool).index_fill(0, inverse[values != values[first][inverse]], True)
        merged = torch.where(mixed, ignore_label, values[first])
        is_array = isinstance(labels, np.ndarray)
        results.append(merged.numpy() if is_array else merged)
        results[0] = results[0].numpy() if isinstance(coordinates, np.ndarray) else results[0]
    results += [first] * return_index + [inverse] * return_inverse
    return results[0] if len(results) == 1 else tuple(results)


def unique_coordinate_map(coordinates: Tensor, tensor_stride: Any = 1) -> tuple[Tensor, Tensor]:
    """Return the first row of each voxel of coordinates (N, D + 1), and the voxel of each row."""
    return CoordinateManager(D=coordinates.shape[1] - 1).insert_and_map(coordinates, tensor_stride)[1]


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: Any = "leaky_relu") -> Tensor:
    """Fill the kernel (K, C, D) of a convolution as `torch.nn.init.kaiming_normal_`."""
    sizes = {"fan_in": tensor.shape[1], "fan_out": tensor.shape[0] if tensor.dim() == 2 else tensor.shape[2]}
    fan = sizes[mode] * (1 if tensor.dim() == 2 else tensor.shape[0])
    with torch.no_grad():
        return tensor.normal_(0, torch.nn.init.calculate_gain(nonlinearity, a) / math.sqrt(fan))
