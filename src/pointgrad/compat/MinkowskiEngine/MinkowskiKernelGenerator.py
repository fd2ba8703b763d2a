"""Shape of a kernel."""

import math
from typing import Any

import torch
from torch import Tensor

from .MinkowskiCommon import RegionType, convert_to_int_list

__all__ = ["KernelGenerator", "get_kernel_volume"]


def get_kernel_volume(
    region_type: RegionType, kernel_size: list[int], region_offset: Any, axis_types: Any, dimension: int
) -> int:
    """Return the number of positions of a kernel."""
    if region_type == RegionType.HYPER_CUBE:
        return math.prod(kernel_size)
    if region_type == RegionType.HYPER_CROSS:
        if any(size % 2 == 0 for size in kernel_size):
            raise ValueError(f"kernel_size must be odd for RegionType.HYPER_CROSS, got {kernel_size}")
        return sum(size - 1 for size in kernel_size) + 1
    raise NotImplementedError(f"pointgrad.compat does not provide {region_type}; neither does MinkowskiEngine")


class KernelGenerator:
    """Size, stride, dilation and shape of a kernel.

    Args:
        kernel_size: Size of the kernel, or one for each axis.
        stride: Stride, or one for each axis.
        dilation: Dilation, or one for each axis.
        is_transpose: No effect, as in the original.
        region_type: All positions of a cube, or those of a cross, which starts with its center.
        region_offsets: Not supported.
        expand_coordinates: Create all voxels that the kernel reaches.
        axis_types: Not supported.
        dimension: D, the number of axes.
    """

    def __init__(
        self,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        is_transpose: bool = False,
        region_type: RegionType = RegionType.HYPER_CUBE,
        region_offsets: Tensor | None = None,
        expand_coordinates: bool = False,
        axis_types: Any = None,
        dimension: int = -1,
    ) -> None:
        if dimension is None or dimension < 1:
            raise ValueError(f"dimension must be at least 1, got {dimension}")
        self.dimension = dimension
        self.kernel_size = convert_to_int_list(kernel_size, dimension)
        self.kernel_stride = convert_to_int_list(stride, dimension)
        self.kernel_dilation = convert_to_int_list(dilation, dimension)
        for name in ("kernel_size", "kernel_stride", "kernel_dilation"):
            sizes = getattr(self, name)
            if min(sizes) < 1:
                raise ValueError(f"{name} must be at least 1, got {sizes}")
        self.region_type, self.region_offsets, self.axis_types = region_type, region_offsets, axis_types
        self.expand_coordinates = expand_coordinates
        self.kernel_volume = get_kernel_volume(region_type, self.kernel_size, region_offsets, axis_types, dimension)
        self.requires_strided_coordinates = all(step == 1 for step in self.kernel_stride)  # the original's name

    def in_cube(self, weight: Tensor) -> Tensor:
        """Weights (K, C, D) at the positions of the cube that contains the kernel."""
        if self.region_type == RegionType.HYPER_CUBE:
            return weight
        step = [math.prod(self.kernel_size[:axis]) for axis in range(self.dimension)]
        places = [sum(size // 2 * s for size, s in zip(self.kernel_size, step, strict=True))]
        for size, s in zip(self.kernel_size, step, strict=True):
            away = [*range(1, size // 2 + 1), *range(-(size // 2), 0)]
            places += [places[0] + distance * s for distance in away]
        cube = weight.new_zeros((math.prod(self.kernel_size), *weight.shape[1:]))
        return cube.index_copy(0, torch.tensor(places, device=weight.device), weight)

    def __repr__(self) -> str:
        return (
            f"KernelGenerator(kernel_size={self.kernel_size}, kernel_stride={self.kernel_stride}, "
            f"kernel_dilation={self.kernel_dilation}, region_type={self.region_type}, "
            f"expand_coordinates={self.expand_coordinates}, dimension={self.dimension})"
        )
