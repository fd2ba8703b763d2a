"""Trilinear interpolation: an example of a differentiable PyTorch operator, to be replaced by your own."""

import torch
from torch import Tensor

from .function import Trilinear as Trilinear
# [kernels]
from .kernels import add_kernels
# [/kernels]
from .register import interpolate
# [kernels]

add_kernels()
# [/kernels]

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def my_operator(corners: Tensor, points: Tensor) -> Tensor:
    """Interpolate the features of the eight corners of a cell at a point, for N points with a cell each.

    Differentiable in both arguments, to any order. Sums are computed in at least float32.

    Args:
        corners: (N, 8, F), float64, float32, float16 or bfloat16. The corner at the upper side of x, y or z has the
            number 4 x + 2 y + z, with 1 for upper and 0 for lower.
        points: (N, 3), in the dtype of `corners`. The cell spans [-1, 1] along each axis; outside, the function is
            continued.

    Returns:
        (N, F), in the dtype of `corners`.

    Raises:
        TypeError: If an argument is not a tensor.
        ValueError: If a shape, dtype or device does not fit.

    Example:
        >>> my_operator(torch.arange(8.0).reshape(1, 8, 1), torch.zeros(1, 3))
        tensor([[3.5000]])
    """
    # Checks use only metadata: reading a value would break torch.compile and wait for the GPU.
    for name, value in (("corners", corners), ("points", points)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if corners.dim() != 3 or corners.shape[1] != 8:
        raise ValueError(f"corners must be (N, 8, F), got {tuple(corners.shape)}")
    if points.dim() != 2 or points.shape[1] != 3 or points.shape[0] != corners.shape[0]:
        raise ValueError(f"points must be (N, 3) with N = {corners.shape[0]}, got {tuple(points.shape)}")
    if corners.dtype not in _DTYPES:
        raise ValueError(f"corners must be float64, float32, float16 or bfloat16, got {corners.dtype}")
    if points.dtype != corners.dtype:
        raise ValueError(f"points must have the dtype of corners, {corners.dtype}, got {points.dtype}")
    if points.device != corners.device:
        raise ValueError(f"points must be on the device of corners, {corners.device}, got {points.device}")
    return interpolate(corners, points)
