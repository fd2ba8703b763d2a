"""Hands tensors to the C++ kernels of this room."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import native

Pair = Sequence[int]


def unfold(input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair) -> Tensor:
    input = input.contiguous()
    images, channels, *size = input.shape
    out = native.empty(input, (images, channels * kernel[0] * kernel[1], windows[0] * windows[1]))
    native.module.unfold(
        out.data_ptr(),
        input.data_ptr(),
        input.element_size(),
        images * channels,
        [*size, *kernel, *stride, *dilation, *padding, *windows],
        torch.get_num_threads(),
    )
    return out


def fold(
    columns: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> Tensor:
    columns = columns.contiguous()
    images, channels = columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1])
    out = native.empty(columns, (images, channels, *size))
    native.module.fold(
        out.data_ptr(),
        columns.data_ptr(),
        native.DTYPE_CODES[columns.dtype],
        images * channels,
        [*size, *kernel, *stride, *dilation, *padding, *windows],
        torch.get_num_threads(),
    )
    return out


def max_pool2d(
    input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> tuple[Tensor, Tensor]:
    input = input.contiguous()
    images, channels, *size = input.shape
    values = native.empty(input, (images, channels, *windows))
    index = native.empty(input, values.shape, torch.int64)
    native.module.max_pool2d(
        values.data_ptr(),
        index.data_ptr(),
        input.data_ptr(),
        native.DTYPE_CODES[input.dtype],
        images * channels,
        [*size, *kernel, *stride, *dilation, *padding, *windows],
        torch.get_num_threads(),
    )
    return values, index


def max_pool2d_backward(
    grad: Tensor, index: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair
) -> Tensor:
    grad, index = grad.contiguous(), index.contiguous()
    images, channels, *windows = grad.shape
    out = native.empty(grad, (images, channels, *size))
    native.module.max_pool2d_backward(
        out.data_ptr(),
        grad.data_ptr(),
        index.data_ptr(),
        native.DTYPE_CODES[grad.dtype],
        images * channels,
        size[0] * size[1],
        windows[0] * windows[1],
        torch.get_num_threads(),
    )
    return out
