"""Coordinates of a coarser level."""

from torch import Tensor

from ...utils import make_ntuple
from .conv.conv import strided_coords

__all__ = ["spdownsample"]


def spdownsample(
    coords: Tensor,
    stride: int | tuple[int, ...] = 2,
    kernel_size: int | tuple[int, ...] = 2,
    padding: int | tuple[int, ...] = 0,
    spatial_range: tuple[int, ...] | None = None,
    downsample_mode: str = "spconv",
) -> Tensor:
    """Compute the output voxels of a strided convolution.

    Args:
        coords: (N, 4) batch, x, y, z.
        stride: Stride of the convolution.
        kernel_size: Kernel size of the convolution.
        padding: Padding of the convolution.
        spatial_range: (B, X, Y, Z), size of the output, or None.
        downsample_mode: "spconv", all voxels that read an input, or "minkowski", coordinates divided by the stride.

    Returns:
        (M, 4), sorted.
    """
    sizes = make_ntuple(stride, 3), make_ntuple(kernel_size, 3), make_ntuple(padding, 3)
    shape = None if spatial_range is None else spatial_range[1:]
    return strided_coords(coords, *sizes, (1, 1, 1), shape, downsample_mode).to(coords.dtype)
