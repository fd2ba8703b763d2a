"""Calls of the C++ kernels of this family."""

import torch
from torch import Tensor

from .. import native
from .reference import Pair


def unfold(input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair) -> Tensor:
    images, channels, *size = input.shape
    out = native.empty(input, (images, channels * kernel[0] * kernel[1], windows[0] * windows[1]))
    native.module.unfold(
        out=out,
        images=input.contiguous(),
        value_bytes=input.element_size(),
        planes=images * channels,
        size=size,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        windows=windows,
    )
    return out


def fold(
    columns: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> Tensor:
    images, channels = columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1])
    out = native.empty(columns, (images, channels, *size))
    native.module.fold(
        out=out,
        columns=columns.contiguous(),
        dtype=columns.dtype,
        planes=images * channels,
        size=size,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        windows=windows,
    )
    return out


def max_pool2d(
    input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> tuple[Tensor, Tensor]:
    images, channels, *size = input.shape
    values = native.empty(input, (images, channels, *windows))
    index = native.empty(input, values.shape, torch.int64)
    native.module.max_pool2d(
        values=values,
        index=index,
        images=input.contiguous(),
        dtype=input.dtype,
        planes=images * channels,
        size=size,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        windows=windows,
    )
    return values, index


def max_pool2d_backward(
    grad: Tensor, index: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair
) -> Tensor:
    images, channels, *windows = grad.shape
    out = native.empty(grad, (images, channels, *size))
    native.module.max_pool2d_backward(
        out=out,
        grad=grad.contiguous(),
        index=index.contiguous(),
        dtype=grad.dtype,
        planes=images * channels,
        pixels=size[0] * size[1],
        windows=windows[0] * windows[1],
    )
    return out
