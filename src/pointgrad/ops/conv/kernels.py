"""Triton kernels of this room.

A tile is BLOCK_R planes by BLOCK_P pixels or windows: what must be divided to know where a lane is, is divided once for
all places of the kernel. Sums are gathered: a pixel looks for the
windows that cover it, in the order of the kernel's places, so there are no atomics and the same bits on every device.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import INTERPRETED, power_of_2

Pair = Sequence[int]

_FEW_PLACES = 1 if INTERPRETED else 25


def unfold(input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair) -> Tensor:
    input = input.contiguous()
    images, channels, *size = input.shape
    count = windows[0] * windows[1]
    out = input.new_empty(images, channels * kernel[0] * kernel[1], count)
    if out.numel():
        rows = images * channels
        grid, how = _tiles(rows, count, size[0] * size[1])
        numbers = (*size, *stride, *dilation, *padding, windows[1])
        _unfold[grid](out, input, rows, count, *numbers, **_places(kernel), **how)
    return out


def fold(
    columns: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> Tensor:
    columns = columns.contiguous()
    images, channels = columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1])
    out = columns.new_empty(images, channels, *size)
    if out.numel():
        rows = images * channels
        grid, how = _tiles(rows, size[0] * size[1], windows[0] * windows[1])
        numbers = (*size, *stride, *dilation, *padding, *windows)
        places = _places(kernel)
        _fold[grid](out, columns, out, rows, *numbers, **places, **how, WINNERS=False, WIDE=_wide(out))
    return out


def max_pool2d(
    input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> tuple[Tensor, Tensor]:
    input = input.contiguous()
    images, channels, *size = input.shape
    values = input.new_empty(images, channels, *windows)
    index = values.new_empty(values.shape, dtype=torch.int64)
    if values.numel():
        rows, count = images * channels, windows[0] * windows[1]
        grid, how = _tiles(rows, count, size[0] * size[1])
        numbers = (*size, *kernel, *stride, *dilation, *padding, windows[1])
        _max_pool[grid](values, index, input, rows, count, *numbers, **how, WIDE=_wide(input))
    return values, index


def max_pool2d_backward(
    grad: Tensor, index: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair
) -> Tensor:
    grad, index = grad.contiguous(), index.contiguous()
    images, channels, *windows = grad.shape
    out = grad.new_empty(images, channels, *size)
    if out.numel():
        rows = images * channels
        grid, how = _tiles(rows, size[0] * size[1], windows[0] * windows[1])
        numbers = (*size, *stride, *dilation, *padding, *windows)
        places = _places(kernel)
        _fold[grid](out, grad, index, rows, *numbers, **places, **how, WINNERS=True, WIDE=_wide(out))
    return out


def _tiles(rows: int, columns: int, others: int) -> tuple[tuple[int], dict[str, int]]:
    """The grid, and how tiles are launched. columns: pixels or windows of a plane; others: its windows or pixels."""
    if max(columns, others) >= 2**31:
        raise ValueError(f"an image must have fewer than 2^31 pixels and windows on a GPU, got {max(columns, others)}")
    block_p = power_of_2(columns, 16, 128)
    block_r = power_of_2(rows, 1, (1024 if INTERPRETED else 128) // block_p)  # the interpreter pays per operation
    how = {"BLOCK_R": block_r, "BLOCK_P": block_p, "num_warps": 4, "enable_fp_fusion": False}
    return (triton.cdiv(rows, block_r) * triton.cdiv(columns, block_p),), how


def _places(kernel: Pair) -> dict[str, int | bool]:
    """Of a kernel. The loop over few of them is written out, so that all their loads are under way together."""
    return {"KERNEL_Y": kernel[0], "KERNEL_X": kernel[1], "FEW": kernel[0] * kernel[1] <= _FEW_PLACES}


def _wide(values: Tensor) -> tl.dtype:
    return tl.float64 if values.dtype == torch.float64 else tl.float32


@triton.jit
def _tile(rows, columns, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr):
    """This program's rows (BLOCK_R, 1) and columns (1, BLOCK_P)."""
    tiles = tl.cdiv(columns, BLOCK_P)
    row = (tl.program_id(0) // tiles).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = (tl.program_id(0) % tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
    return row[:, None], column[None, :]


@triton.jit
def _unfold(
    out_ptr,
    images_ptr,
    rows,
    windows,
    height,
    width,
    stride_y,
    stride_x,
    dilation_y,
    dilation_x,
    padding_y,
    padding_x,
    windows_x,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    FEW: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    plane, window = _tile(rows, windows, BLOCK_R, BLOCK_P)
    mask = (plane < rows) & (window < windows)
    top, left = (window // windows_x) * stride_y - padding_y, (window % windows_x) * stride_x - padding_x
    from_ptr = images_ptr + plane * height * width
    to_ptr = out_ptr + plane * (KERNEL_Y * KERNEL_X) * windows + window
    if FEW:
        for place in tl.static_range(KERNEL_Y * KERNEL_X):
            y, x = top + place // KERNEL_X * dilation_y, left + place % KERNEL_X * dilation_x
            to_ptr = _copy_pixels(to_ptr, from_ptr, y, x, height, width, windows, mask)
    else:
        for place in range(KERNEL_Y * KERNEL_X):
            y, x = top + place // KERNEL_X * dilation_y, left + place % KERNEL_X * dilation_x
            to_ptr = _copy_pixels(to_ptr, from_ptr, y, x, height, width, windows, mask)


@triton.jit
def _copy_pixels(to_ptr, from_ptr, y, x, height, width, windows, mask):
    """The pixels of one place of the kernel, or zero; returns where those of the next place go."""
    inside = mask & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    tl.store(to_ptr, tl.load(from_ptr + (y * width + x), mask=inside, other=0), mask=mask)
    return to_ptr + windows


@triton.jit
def _fold(
    out_ptr,
    values_ptr,
    index_ptr,
    rows,
    height,
    width,
    stride_y,
    stride_x,
    dilation_y,
    dilation_x,
    padding_y,
    padding_x,
    windows_y,
    windows_x,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    FEW: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    WINNERS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Each pixel adds up the windows that cover it: its value in each of them, or those of which it is the maximum."""
    pixels, windows = height * width, windows_y * windows_x
    plane, pixel = _tile(rows, pixels, BLOCK_R, BLOCK_P)
    mask = (plane < rows) & (pixel < pixels)
    y, x = pixel // width + padding_y, pixel % width + padding_x
    step = 0 if WINNERS else windows  # from a place of the kernel to the next
    values_ptr += plane * windows * (1 if WINNERS else KERNEL_Y * KERNEL_X)
    index_ptr += plane * windows
    total = tl.zeros([BLOCK_R, BLOCK_P], WIDE)
    if FEW:
        for place in tl.static_range(KERNEL_Y * KERNEL_X):
            top, left = y - place // KERNEL_X * dilation_y, x - place % KERNEL_X * dilation_x
            at, covered = _window(top, left, stride_y, stride_x, windows_y, windows_x)
            total += _share(values_ptr, index_ptr, at, pixel, covered & mask, WINNERS, WIDE)
            values_ptr += step
    else:
        for place in range(KERNEL_Y * KERNEL_X):
            top, left = y - place // KERNEL_X * dilation_y, x - place % KERNEL_X * dilation_x
            at, covered = _window(top, left, stride_y, stride_x, windows_y, windows_x)
            total += _share(values_ptr, index_ptr, at, pixel, covered & mask, WINNERS, WIDE)
            values_ptr += step
    tl.store(out_ptr + plane * pixels + pixel, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _window(top, left, stride_y, stride_x, windows_y, windows_x):
    """Which window begins there, and whether one does."""
    window_y, window_x = top // stride_y, left // stride_x
    begins = (window_y * stride_y == top) & (window_x * stride_x == left)
    inside = (top >= 0) & (left >= 0) & (window_y < windows_y) & (window_x < windows_x)
    return window_y * windows_x + window_x, begins & inside


@triton.jit
def _share(values_ptr, index_ptr, window, pixel, covered, WINNERS: tl.constexpr, WIDE: tl.constexpr):
    """What the pixels receive from these windows."""
    if WINNERS:
        covered = covered & (tl.load(index_ptr + window, mask=covered, other=-1) == pixel)
    return tl.load(values_ptr + window, mask=covered, other=0).to(WIDE)


@triton.jit
def _max_pool(
    values_ptr,
    index_ptr,
    images_ptr,
    rows,
    windows,
    height,
    width,
    kernel_y,
    kernel_x,
    stride_y,
    stride_x,
    dilation_y,
    dilation_x,
    padding_y,
    padding_x,
    windows_x,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    WIDE: tl.constexpr,
):
    plane, window = _tile(rows, windows, BLOCK_R, BLOCK_P)
    mask = (plane < rows) & (window < windows)
    top, left = (window // windows_x) * stride_y - padding_y, (window % windows_x) * stride_x - padding_x
    best = tl.full([BLOCK_R, BLOCK_P], float("-inf"), WIDE)
    index = tl.full([BLOCK_R, BLOCK_P], -1, tl.int32)
    for i in range(kernel_y):
        y = top + i * dilation_y
        for j in range(kernel_x):
            x = left + j * dilation_x
            inside = mask & (y >= 0) & (y < height) & (x >= 0) & (x < width)
            pixel = y * width + x
            value = tl.load(images_ptr + plane * height * width + pixel, mask=inside, other=0).to(WIDE)
            better = inside & ((index < 0) | (value > best) | (value != value))
            best = tl.where(better, value, best)
            index = tl.where(better, pixel, index)
    at = plane * windows + window
    tl.store(values_ptr + at, best.to(values_ptr.dtype.element_ty), mask=mask)
    tl.store(index_ptr + at, index.to(tl.int64), mask=mask)
