"""The operators of this family in plain PyTorch.

Images are (N, C, H, W), columns (N, C * K, L): the K = kernel[0] * kernel[1] values of each of the L windows. Along
each axis, window o begins at pixel `o * stride - padding`, and position k of the kernel is `k * dilation` after that.
Pixels outside of the image are zero. The number of windows is given, so the padding after the image is not needed.

The three products of a convolution call the registered `unfold` and `fold`, which run on the chosen backend.
"""

import typing
from collections.abc import Iterator

import torch
from torch import Tensor

from ..sums import sum_dtype

Pair = typing.Sequence[int]  # torch 2.6 infers no schema from list[int] or collections.abc.Sequence[int]

# Convolutions process images in portions whose columns have at most this many values, but at least one image at a time.
_COLUMN_VALUES = 1 << 24


def unfold(input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair) -> Tensor:
    padded = _padded(input, kernel, stride, dilation, padding, windows)
    positions = [padded[..., rows, cols] for rows, cols in _positions(kernel, stride, dilation, windows)]
    return torch.stack(positions, dim=2).reshape(
        input.shape[0], input.shape[1] * len(positions), windows[0] * windows[1]
    )


def fold(
    columns: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> Tensor:
    wide = columns.to(sum_dtype(columns.dtype))
    channels, positions = columns.shape[1] // (kernel[0] * kernel[1]), kernel[0] * kernel[1]
    values = wide.reshape(columns.shape[0], channels, positions, *windows)
    zeros = wide.new_zeros(columns.shape[0], channels, *size)
    total = _padded(zeros, kernel, stride, dilation, padding, windows)
    for position, (rows, cols) in enumerate(_positions(kernel, stride, dilation, windows)):
        total[..., rows, cols] += values[:, :, position]
    inside = total[..., padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]
    return inside.to(columns.dtype, memory_format=torch.contiguous_format, copy=True)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    dilation: Pair,
    padding: Pair,
    windows: Pair,
    groups: int,
) -> Tensor:
    kernel = weight.shape[2:]
    matrix = _wide(weight).reshape(groups, weight.shape[0] // groups, weight.shape[1:].numel())
    out = input.new_empty(input.shape[0], weight.shape[0], *windows)
    for some in _portions(input.shape[0], input.shape[1] * kernel.numel() * out.shape[2:].numel()):
        columns = torch.ops.pointgrad.unfold(input[some], kernel, stride, dilation, padding, windows)
        product = matrix @ _by_group(columns, groups)  # (n, G, O / G, L)
        product = product.reshape(out[some].shape)
        out[some] = product if bias is None else product + _wide(bias)[:, None, None]
    return out


def conv2d_input(
    grad: Tensor, weight: Tensor, size: Pair, stride: Pair, dilation: Pair, padding: Pair, groups: int
) -> Tensor:
    kernel, windows = weight.shape[2:], grad.shape[2:]
    matrix = _wide(weight).reshape(groups, weight.shape[0] // groups, weight.shape[1:].numel())
    out = grad.new_empty(grad.shape[0], weight.shape[1] * groups, *size)
    for some in _portions(grad.shape[0], out.shape[1] * kernel.numel() * windows.numel()):
        columns = matrix.mT @ _by_group(grad[some].flatten(2), groups)  # (n, G, C / G * K, L)
        out[some] = torch.ops.pointgrad.fold(columns.flatten(1, 2), size, kernel, stride, dilation, padding, windows)
    return out


def conv2d_weight(
    grad: Tensor, input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, groups: int
) -> Tensor:
    windows, positions = grad.shape[2:], kernel[0] * kernel[1]
    shape = (groups, grad.shape[1] // groups, input.shape[1] // groups * positions)
    total = grad.new_zeros(shape, dtype=sum_dtype(grad.dtype))
    for some in _portions(grad.shape[0], input.shape[1] * positions * windows.numel() + total.numel()):
        columns = torch.ops.pointgrad.unfold(input[some], kernel, stride, dilation, padding, windows)
        product = _by_group(grad[some].flatten(2), groups) @ _by_group(columns, groups).mT  # (n, G, O / G, C / G * K)
        total += product.sum(0, dtype=total.dtype)
    return total.to(grad.dtype).reshape(grad.shape[1], input.shape[1] // groups, *kernel)


def max_pool2d(
    input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> tuple[Tensor, Tensor]:
    """The maximum of each window and its pixel, row * W + column; -inf and -1 if a window contains only padding."""
    padded = _padded(input, kernel, stride, dilation, padding, windows)
    row = torch.arange(padded.shape[2], device=input.device)[:, None] - padding[0]
    col = torch.arange(padded.shape[3], device=input.device) - padding[1]
    inside = (row >= 0) & (row < input.shape[2]) & (col >= 0) & (col < input.shape[3])
    pixel = torch.where(inside, row * input.shape[3] + col, -1)
    values = input.new_full((*input.shape[:2], *windows), -torch.inf)
    index = values.new_full(values.shape, -1, dtype=torch.int64)
    for rows, cols in _positions(kernel, stride, dilation, windows):
        value, at = padded[..., rows, cols], pixel[rows, cols]
        better = (at >= 0) & ((index < 0) | (value > values) | value.isnan())
        values, index = torch.where(better, value, values), torch.where(better, at, index)
    return values, index


def max_pool2d_backward(
    grad: Tensor, index: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair
) -> Tensor:
    pixels = size[0] * size[1]
    wide = grad.to(sum_dtype(grad.dtype))
    total = wide.new_zeros(*grad.shape[:2], pixels + 1)
    total.scatter_add_(2, torch.where((index >= 0) & (index < pixels), index, pixels).flatten(2), wide.flatten(2))
    return total[..., :pixels].to(grad.dtype, copy=True).reshape(*grad.shape[:2], *size)


def _positions(kernel: Pair, stride: Pair, dilation: Pair, windows: Pair) -> Iterator[tuple[slice, slice]]:
    """For each position of the kernel, row by row: its pixels in the padded image, one for each window."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * dilation[0], j * dilation[1]
            rows = slice(top, top + (windows[0] - 1) * stride[0] + 1, stride[0])
            yield rows, slice(left, left + (windows[1] - 1) * stride[1] + 1, stride[1])


def _padded(image: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair) -> Tensor:
    """The image with zeros around it, so that it contains all windows."""
    reach = [(windows[a] - 1) * stride[a] + (kernel[a] - 1) * dilation[a] + 1 for a in (0, 1)]
    after = [max(0, reach[a] - padding[a] - image.shape[2 + a]) for a in (0, 1)]
    return torch.nn.functional.pad(image, (padding[1], after[1], padding[0], after[0]))


def _by_group(values: Tensor, groups: int) -> Tensor:
    """(n, G * rows, L) as (n, G, rows, L)."""
    return _wide(values).unflatten(1, (groups, -1))


def _wide(values: Tensor) -> Tensor:
    """Products of 16-bit numbers are summed in float32, which GPUs do without a cast."""
    return values if values.is_cuda else values.to(sum_dtype(values.dtype))


def _portions(images: int, values: int) -> Iterator[slice]:
    """Slices of the batch, given the number of values that one image needs."""
    step = max(1, _COLUMN_VALUES // max(1, values))
    return (slice(begin, begin + step) for begin in range(0, images, step))
