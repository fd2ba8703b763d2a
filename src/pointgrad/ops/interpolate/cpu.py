"""Hands tensors to the C++ kernels of this room."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import native


def trilinear(corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    corners = corners.contiguous()
    count, _, width = corners.shape
    out = native.empty(corners, (count, width))
    _call(native.module.trilinear, (out, corners), points, tangent, count, width)
    return out


def trilinear_spread(grad: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    grad = grad.contiguous()
    count, width = grad.shape
    out = native.empty(grad, (count, 8, width))
    _call(native.module.trilinear_spread, (out, grad), points, tangent, count, width)
    return out


def trilinear_slope(grad: Tensor, corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    grad, corners = grad.contiguous(), corners.contiguous()
    count, width = grad.shape
    out = grad.new_empty((count, 3))
    _call(native.module.trilinear_slope, (out, grad, corners), points, tangent, count, width)
    return out


def _call(
    kernel: Callable[..., None],
    tensors: tuple[Tensor, ...],
    points: Tensor,
    tangent: Tensor | None,
    count: int,
    width: int,
) -> None:
    points = points.contiguous()
    tangent = None if tangent is None else tangent.contiguous()
    kernel(
        *(tensor.data_ptr() for tensor in tensors),
        points.data_ptr(),
        native.address(tangent),
        native.DTYPE_CODES[points.dtype],
        count,
        width,
        torch.get_num_threads(),
    )
