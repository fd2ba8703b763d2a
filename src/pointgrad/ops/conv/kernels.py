"""Triton kernels of this family.

Naming in all kernels: `*_ptr` is an address, BLOCK_* a tile size. A tile has BLOCK_R planes and BLOCK_P pixels or
windows, so the divisions that locate a lane are done once for all positions of the kernel. `fold` gathers: each pixel
sums the windows that cover it, in the order of the positions in the kernel. So there are no atomics, and the result is
the same on every device.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import INTERPRETED, cdiv, jit, power_of_2
from .reference import Pair

_FEW_POSITIONS = 1 if INTERPRETED else 25


def unfold(input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair) -> Tensor:
    input = input.contiguous()
    images, channels, *size = input.shape
    count = windows[0] * windows[1]
    out = input.new_empty(images, channels * kernel[0] * kernel[1], count)
    if out.numel():
        rows = images * channels
        grid, options = _tiles(rows, count, size[0] * size[1])
        _unfold[grid](
            out_ptr=out,
            images_ptr=input,
            rows=rows,
            windows=count,
            windows_x=windows[1],
            **_geometry(size, stride, dilation, padding),
            **_positions(kernel),
            **options,
        )
    return out


def fold(
    columns: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> Tensor:
    columns = columns.contiguous()
    images, channels = columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1])
    out = columns.new_empty(images, channels, *size)
    if out.numel():
        _launch_fold(out, columns, None, size, kernel, stride, dilation, padding, windows)
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
        grid, options = _tiles(rows, count, size[0] * size[1])
        _max_pool[grid](
            values_ptr=values,
            index_ptr=index,
            images_ptr=input,
            rows=rows,
            windows=count,
            windows_x=windows[1],
            kernel_y=kernel[0],
            kernel_x=kernel[1],
            **_geometry(size, stride, dilation, padding),
            WIDE=_wide(input),
            **options,
        )
    return values, index


def max_pool2d_backward(
    grad: Tensor, index: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair
) -> Tensor:
    grad, index = grad.contiguous(), index.contiguous()
    images, channels, *windows = grad.shape
    out = grad.new_empty(images, channels, *size)
    if out.numel():
        _launch_fold(out, grad, index, size, kernel, stride, dilation, padding, windows)
    return out


def _launch_fold(
    out: Tensor,
    values: Tensor,
    index: Tensor | None,
    size: Pair,
    kernel: Pair,
    stride: Pair,
    dilation: Pair,
    padding: Pair,
    windows: Pair,
) -> None:
    rows = out.shape[0] * out.shape[1]
    grid, options = _tiles(rows, size[0] * size[1], windows[0] * windows[1])
    _fold[grid](
        out_ptr=out,
        values_ptr=values,
        index_ptr=out if index is None else index,
        rows=rows,
        windows_y=windows[0],
        windows_x=windows[1],
        **_geometry(size, stride, dilation, padding),
        **_positions(kernel),
        MAXIMA=index is not None,
        WIDE=_wide(out),
        **options,
    )


def _tiles(rows: int, columns: int, others: int) -> tuple[tuple[int], dict[str, int]]:
    """The launch grid and options. `columns` are the pixels or windows of a plane, `others` its windows or pixels."""
    if max(columns, others) >= 2**31:
        raise ValueError(f"an image must have fewer than 2^31 pixels and windows on a GPU, got {max(columns, others)}")
    block_p = power_of_2(columns, 16, 128)
    block_r = power_of_2(rows, 1, (1024 if INTERPRETED else 128) // block_p)  # large tiles for the interpreter
    options = {"BLOCK_R": block_r, "BLOCK_P": block_p, "num_warps": 4, "enable_fp_fusion": False}
    return (cdiv(rows, block_r) * cdiv(columns, block_p),), options


def _geometry(size: Pair, stride: Pair, dilation: Pair, padding: Pair) -> dict[str, int]:
    """The arguments of an image and its windows."""
    return {
        "height": size[0],
        "width": size[1],
        "stride_y": stride[0],
        "stride_x": stride[1],
        "dilation_y": dilation[0],
        "dilation_x": dilation[1],
        "padding_y": padding[0],
        "padding_x": padding[1],
    }


def _positions(kernel: Pair) -> dict[str, int | bool]:
    """The arguments of a kernel. A loop over few positions is unrolled, so that all their loads overlap."""
    return {"KERNEL_Y": kernel[0], "KERNEL_X": kernel[1], "FEW": kernel[0] * kernel[1] <= _FEW_POSITIONS}


def _wide(values: Tensor) -> tl.dtype:
    return tl.float64 if values.dtype == torch.float64 else tl.float32


@triton.jit
def _tile(rows, columns, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr):
    """The rows (BLOCK_R, 1) and columns (1, BLOCK_P) of this program."""
    tiles = tl.cdiv(columns, BLOCK_P)
    row = (tl.program_id(0) // tiles).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = (tl.program_id(0) % tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
    return row[:, None], column[None, :]


@jit
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
        for position in tl.static_range(KERNEL_Y * KERNEL_X):
            y, x = top + position // KERNEL_X * dilation_y, left + position % KERNEL_X * dilation_x
            to_ptr = _copy_pixels(to_ptr, from_ptr, y, x, height, width, windows, mask)
    else:
        for position in range(KERNEL_Y * KERNEL_X):
            y, x = top + position // KERNEL_X * dilation_y, left + position % KERNEL_X * dilation_x
            to_ptr = _copy_pixels(to_ptr, from_ptr, y, x, height, width, windows, mask)


@triton.jit
def _copy_pixels(to_ptr, from_ptr, y, x, height, width, windows, mask):
    """Copy the pixels of one position of the kernel, zero outside; return the address for the next position."""
    inside = mask & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    tl.store(to_ptr, tl.load(from_ptr + (y * width + x), mask=inside, other=0), mask=mask)
    return to_ptr + windows


@jit
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
    MAXIMA: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Each pixel sums its values in the windows that cover it, or, if MAXIMA, those of windows whose maximum it is."""
    pixels, windows = height * width, windows_y * windows_x
    plane, pixel = _tile(rows, pixels, BLOCK_R, BLOCK_P)
    mask = (plane < rows) & (pixel < pixels)
    y, x = pixel // width + padding_y, pixel % width + padding_x
    step = 0 if MAXIMA else windows  # from one position of the kernel to the next
    values_ptr += plane * windows * (1 if MAXIMA else KERNEL_Y * KERNEL_X)
    index_ptr += plane * windows
    total = tl.zeros([BLOCK_R, BLOCK_P], WIDE)
    if FEW:
        for position in tl.static_range(KERNEL_Y * KERNEL_X):
            top, left = y - position // KERNEL_X * dilation_y, x - position % KERNEL_X * dilation_x
            at, covered = _window(top, left, stride_y, stride_x, windows_y, windows_x)
            total += _share(values_ptr, index_ptr, at, pixel, covered & mask, MAXIMA, WIDE)
            values_ptr += step
    else:
        for position in range(KERNEL_Y * KERNEL_X):
            top, left = y - position // KERNEL_X * dilation_y, x - position % KERNEL_X * dilation_x
            at, covered = _window(top, left, stride_y, stride_x, windows_y, windows_x)
            total += _share(values_ptr, index_ptr, at, pixel, covered & mask, MAXIMA, WIDE)
            values_ptr += step
    tl.store(out_ptr + plane * pixels + pixel, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _window(top, left, stride_y, stride_x, windows_y, windows_x):
    """The window that begins at this pixel, and whether there is one."""
    window_y, window_x = top // stride_y, left // stride_x
    begins = (window_y * stride_y == top) & (window_x * stride_x == left)
    inside = (top >= 0) & (left >= 0) & (window_y < windows_y) & (window_x < windows_x)
    return window_y * windows_x + window_x, begins & inside


@triton.jit
def _share(values_ptr, index_ptr, window, pixel, covered, MAXIMA: tl.constexpr, WIDE: tl.constexpr):
    """The values that the pixels receive from these windows."""
    if MAXIMA:
        covered = covered & (tl.load(index_ptr + window, mask=covered, other=-1) == pixel)
    return tl.load(values_ptr + window, mask=covered, other=0).to(WIDE)


@jit
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
