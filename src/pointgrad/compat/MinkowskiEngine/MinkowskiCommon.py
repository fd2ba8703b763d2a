"""Enumerations, keys of coordinates, and conversion of sizes."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = [
    "BroadcastMode",
    "ConvolutionMode",
    "CoordinateMapKey",
    "CoordinateMapType",
    "GPUMemoryAllocatorType",
    "MinkowskiAlgorithm",
    "MinkowskiModuleBase",
    "PoolingMode",
    "RegionType",
    "convert_to_int_list",
    "convert_to_int_tensor",
]


class RegionType(Enum):
    """Shape of a kernel."""

    HYPER_CUBE = 0
    HYPER_CROSS = 1
    CUSTOM = 2


class PoolingMode(Enum):
    """Reduction of a pooling layer. The variants of an operation have the same result."""

    LOCAL_SUM_POOLING = 0
    LOCAL_AVG_POOLING = 1
    LOCAL_MAX_POOLING = 2
    GLOBAL_SUM_POOLING_DEFAULT = 3
    GLOBAL_AVG_POOLING_DEFAULT = 4
    GLOBAL_MAX_POOLING_DEFAULT = 5
    GLOBAL_SUM_POOLING_KERNEL = 6
    GLOBAL_AVG_POOLING_KERNEL = 7
    GLOBAL_MAX_POOLING_KERNEL = 8
    GLOBAL_SUM_POOLING_PYTORCH_INDEX = 9
    GLOBAL_AVG_POOLING_PYTORCH_INDEX = 10
    GLOBAL_MAX_POOLING_PYTORCH_INDEX = 11


class BroadcastMode(Enum):
    """Operation of a broadcast."""

    ELEMENTWISE_ADDITON = 0
    ELEMENTWISE_MULTIPLICATION = 1


class ConvolutionMode(Enum):
    """The original's kernels; no effect."""

    DEFAULT = 0
    DIRECT_GEMM = 1
    COPY_GEMM = 2


class MinkowskiAlgorithm(Enum):
    """The original's algorithms; no effect."""

    DEFAULT = 0
    MEMORY_EFFICIENT = 1
    SPEED_OPTIMIZED = 2


class CoordinateMapType(Enum):
    """The original's tables; no effect."""

    CPU = 0
    CUDA = 1


class GPUMemoryAllocatorType(Enum):
    """The original's allocators; no effect."""

    PYTORCH = 0
    CUDA = 1


class CoordinateMapKey:
    """Name of the coordinates of a sparse tensor within its coordinate manager.

    Args:
        stride_or_size: The tensor stride, or the number of columns of coordinates for a key that is not set.
        string_id: Distinguishes coordinates with the same tensor stride.
    """

    def __init__(self, stride_or_size: int | Sequence[int], string_id: str = "") -> None:
        if isinstance(stride_or_size, int):
            self._stride: tuple[int, ...] | None = None
            self._size = stride_or_size
        else:
            self._stride = tuple(int(stride) for stride in stride_or_size)
            self._size = len(self._stride) + 1
        self._id = string_id

    def is_key_set(self) -> bool:
        """Whether the key names coordinates."""
        return self._stride is not None

    def get_key(self) -> tuple[list[int], str]:
        """Return the tensor stride and the string."""
        return self.get_tensor_stride(), self._id

    def get_tensor_stride(self) -> list[int]:
        """Return the tensor stride."""
        if self._stride is None:
            raise ValueError("the key must be set, got a key without tensor stride")
        return list(self._stride)

    def get_coordinate_size(self) -> int:
        """Return the number of columns of the coordinates."""
        return self._size

    def set_key(self, key: "CoordinateMapKey") -> None:
        """Take over the value of another key."""
        self._stride, self._size, self._id = key._stride, key._size, key._id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CoordinateMapKey) and (self._stride, self._id) == (other._stride, other._id)

    def __hash__(self) -> int:
        return hash((self._stride, self._id))

    def __repr__(self) -> str:
        stride = "unset" if self._stride is None else list(self._stride)
        return f"coordinate map key:{stride}" + (f":{self._id}" if self._id else "")


class MinkowskiModuleBase(nn.Module):
    """Base class of layers."""


def convert_to_int_list(arg: Any, dimension: int) -> list[int]:
    """Convert a number or a sequence to `dimension` numbers."""
    if np.isscalar(arg):
        return [int(arg)] * dimension  # type: ignore[arg-type]
    sizes = [int(size) for size in arg]
    if len(sizes) != dimension:
        raise ValueError(f"sizes must be one number or {dimension}, got {sizes}")
    return sizes


def convert_to_int_tensor(arg: Any, dimension: int) -> torch.Tensor:
    """Convert a number or a sequence to an int32 tensor of `dimension` numbers."""
    return torch.tensor(convert_to_int_list(arg, dimension), dtype=torch.int32)
