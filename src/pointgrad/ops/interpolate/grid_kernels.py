"""Triton kernels of `grid_sample`, `grid_splat` and `grid_slope`.

The C values of a corner are far apart in a (C, D, H, W) grid. For many points, the grid is therefore first transposed
into rows (D, H, W, C), or the result is summed in rows and transposed back; for few points that would cost more than it
saves. Positions are computed without fused multiply-add, so that every backend finds the same cells.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2
from ..sums import sum_dtype
from .cell_kernels import load_triple, store_triple, weight, weight_slope
from .transpose_kernels import transposed

# With rows, a point accesses a quarter of the memory, but transposing accesses every voxel twice.
_VOXELS_PER_POINT = 12


def grid_sample(grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool) -> Tensor:
    batch, channels = grid.shape[:2]
    out = grid.new_empty((batch, points.shape[1], channels))
    if out.numel():
        cells, in_rows = _readable(grid, points.shape[1])
        settings = (tuple(grid.shape[2:]), padding_mode, align_corners)
        _launch(_sample, points, tangent, channels, *settings, out_ptr=out, cells_ptr=cells, ROWS=in_rows)
    return out


def grid_slope(
    grad: Tensor, grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool
) -> Tensor:
    channels = grid.shape[1]
    if not (points.numel() and channels):
        return grad.new_zeros(points.shape)
    out = grad.new_empty(points.shape)
    cells, in_rows = _readable(grid, points.shape[1])
    settings = (tuple(grid.shape[2:]), padding_mode, align_corners)
    grad = grad.contiguous()
    _launch(_slope, points, tangent, channels, *settings, out_ptr=out, grad_ptr=grad, cells_ptr=cells, ROWS=in_rows)
    return out


def grid_splat(
    features: Tensor,
    points: Tensor,
    tangent: Tensor | None,
    depth: int,
    height: int,
    width: int,
    padding_mode: str,
    align_corners: bool,
) -> Tensor:
    batch, count, channels = features.shape
    voxels = depth * height * width
    shape = (batch, channels, depth, height, width)
    if not features.numel():
        return features.new_zeros(shape)
    features = features.contiguous()
    settings = ((depth, height, width), padding_mode, align_corners)
    if torch.are_deterministic_algorithms_enabled():
        rows = _splat_in_order(features, points, tangent, *settings)
        return transposed(rows, features.dtype).view(shape)
    wide = sum_dtype(features.dtype)
    in_rows = _worth_transposing(count, voxels)
    total = features.new_zeros((batch, voxels, channels) if in_rows else (batch, channels, voxels), dtype=wide)
    _launch(_splat, points, tangent, channels, *settings, total_ptr=total, features_ptr=features, ROWS=in_rows)
    return (transposed(total, features.dtype) if in_rows else total.to(features.dtype)).view(shape)


def _worth_transposing(count: int, voxels: int) -> bool:
    return count * _VOXELS_PER_POINT >= voxels


def _readable(grid: Tensor, count: int) -> tuple[Tensor, bool]:
    """The grid, in rows (B, D, H, W, C) if that is faster, and whether it is in rows."""
    batch, channels = grid.shape[:2]
    rows = grid.permute(0, 2, 3, 4, 1)
    if rows.is_contiguous():
        return rows, True
    if not _worth_transposing(count, grid.shape[2:].numel()):
        return grid.contiguous(), False
    return transposed(grid.contiguous().view(batch, channels, -1), grid.dtype), True


def _splat_in_order(
    features: Tensor,
    points: Tensor,
    tangent: Tensor | None,
    sizes: tuple[int, ...],
    padding_mode: str,
    align_corners: bool,
) -> Tensor:
    """A stable sort makes entries of the same voxel adjacent, so that one program sums each voxel in a fixed order."""
    batch, count, channels = features.shape
    voxels = sizes[0] * sizes[1] * sizes[2]
    wide = sum_dtype(features.dtype)
    voxel = torch.empty((batch, count * 8), dtype=torch.int64, device=features.device)
    weights = features.new_empty((batch, count * 8), dtype=wide)
    settings = (sizes, padding_mode, align_corners)
    _launch(_entries, points, tangent, channels, *settings, voxel_ptr=voxel, weight_ptr=weights)
    voxel, order = torch.sort(voxel, dim=1, stable=True)
    bounds = torch.arange(voxels + 1, device=voxel.device).expand(batch, voxels + 1).contiguous()
    begin = torch.searchsorted(voxel, bounds)
    rows = features.new_empty((batch, voxels, channels))
    _sum_sorted[(batch * voxels,)](
        rows_ptr=rows,
        features_ptr=features,
        weight_ptr=weights,
        order_ptr=order,
        begin_ptr=begin,
        voxels=voxels,
        count=count,
        channels=channels,
        BLOCK_C=power_of_2(channels, 1, 256),
        num_warps=1,
        enable_fp_fusion=False,
    )
    return rows


def _tile_size(channels: int, element_size: int) -> int:
    """Elements of a tile: per thread and corner two loads of 16 bytes if rows are aligned, else four loads.

    Two short loads crash the compiler of Triton 3.6 (in LLVM, on `_slope` for three channels).
    """
    aligned = channels % 16 == 0 or channels == power_of_2(channels)
    return 64 * max(min(channels, 16 // max(element_size, 4)) if aligned else 2, 2)


def _launch(
    kernel: Any,
    points: Tensor,
    tangent: Tensor | None,
    channels: int,
    sizes: tuple[int, ...],
    padding_mode: str,
    align_corners: bool,
    tile: int | None = None,
    num_warps: int = 1,
    **arguments: Tensor | bool,
) -> None:
    """Launch a kernel with its own arguments and those that all kernels of grids share."""
    points = points.contiguous()
    if tile is None:
        tile = _tile_size(channels, points.element_size())
    block_c = power_of_2(channels, 1, tile)
    block_n = tile // block_c
    batch, count, _ = points.shape
    kernel[(batch * cdiv(count, block_n),)](
        **arguments,
        points_ptr=points,
        tangent_ptr=points if tangent is None else tangent.contiguous(),  # without a tangent, it is not used
        count=count,
        num_channels=channels,
        voxels=sizes[0] * sizes[1] * sizes[2],
        depth=sizes[0],
        height=sizes[1],
        width=sizes[2],
        TANGENT=tangent is not None,
        PADDING=padding_mode,
        ALIGN=align_corners,
        WIDE=tl.float64 if points.dtype == torch.float64 else tl.float32,
        WHOLE=channels == block_c,
        BLOCK_N=block_n,
        BLOCK_C=block_c,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )


@triton.jit
def _remainder(a, period):
    """a modulo period, both non-negative, exact for any a; a rounded quotient would not be exact for large a.

    Long division: subtract the period times the largest possible power of two until the rest is less than one period.
    Each difference is exact, because its operands are within a factor of two. Points in the grid need no iteration.
    """
    if a.dtype == tl.float64:
        bits: tl.constexpr = tl.int64
        exponent: tl.constexpr = 0x7FF0000000000000
    else:
        bits: tl.constexpr = tl.int32
        exponent: tl.constexpr = 0x7F800000
    a = tl.where(a < float("inf"), a, float("nan"))
    digits = period.to(bits, bitcast=True) & ~exponent
    while tl.max((a >= period).to(tl.int32), 0) > 0:
        multiple = (digits | (a.to(bits, bitcast=True) & exponent)).to(a.dtype, bitcast=True)
        multiple = tl.where(multiple > a, multiple * 0.5, multiple)
        a = tl.where(a >= period, a - multiple, a)
    return a


@triton.jit
def _voxel_units(p, size, PADDING: tl.constexpr, ALIGN: tl.constexpr):
    """One coordinate in [-1, 1]: the lower voxel (-2 if it samples nothing), the share of the upper one, the speed."""
    if ALIGN:
        units = (p + 1.0) * 0.5 * (size - 1)
        speed = tl.full(p.shape, 0.5, p.dtype) * (size - 1)
    else:
        units = ((p + 1.0) * size - 1.0) * 0.5
        speed = tl.full(p.shape, 0.5, p.dtype) * size
    if PADDING == "reflection":
        low: tl.constexpr = 0.0 if ALIGN else -0.5
        span = size - 1 if ALIGN else size
        away = units - low
        speed = tl.where(away < 0, -speed, speed)
        away = _remainder(tl.abs(away), (2 * tl.maximum(span, 1)).to(p.dtype))  # a period crosses the grid twice
        turned = away > span
        units = tl.where(turned, 2 * span - away, away) + low
        speed = tl.where(turned, -speed, speed)
    if PADDING != "zeros":
        speed = tl.where((units <= 0) | (units >= size - 1), 0.0, speed)
        units = tl.where(units <= 0, 0.0, tl.where(units >= size - 1, (size - 1) * 1.0, units))
    units = tl.where((units >= -1.0) & (units < size), units, -2.0)  # -2 for NaN too
    lower = tl.floor(units)
    return lower.to(tl.int32), units - lower, speed


@triton.jit
def _cell(
    points_ptr, tangent_ptr, row, row_mask, depth, height, width,
    PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Per row: the lowest voxel of the cell, the shares of the upper corners, the tangent along them, the speeds."""
    x, y, z = load_triple(points_ptr, row, row_mask, WIDE)
    x0, x, vx = _voxel_units(x, width, PADDING, ALIGN)
    y0, y, vy = _voxel_units(y, height, PADDING, ALIGN)
    z0, z, vz = _voxel_units(z, depth, PADDING, ALIGN)
    tx, ty, tz = load_triple(tangent_ptr, row, row_mask, WIDE)
    return x0, y0, z0, x, y, z, tx * vx, ty * vy, tz * vz, vx, vy, vz


@triton.jit
def _voxel(x0, y0, z0, corner: tl.constexpr, depth, height, width):
    """The number of the voxel of a corner, and whether it is inside the grid."""
    x, y, z = x0 + corner // 4 % 2, y0 + corner // 2 % 2, z0 + corner % 2
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height) & (z >= 0) & (z < depth)
    return (z.to(tl.int64) * height + y) * width + x, inside


@triton.jit
def _at(cells_ptr, cloud, voxel, channel, channels, voxels, ROWS: tl.constexpr):
    """Addresses (BLOCK_N, BLOCK_C) of the channels of voxels, in rows or in a channels-first grid."""
    if ROWS:
        return cells_ptr + (cloud * voxels + voxel)[:, None] * channels + channel[None, :]
    else:
        return cells_ptr + (cloud * channels * voxels + voxel)[:, None] + channel[None, :].to(tl.int64) * voxels


@triton.jit
def _tile(count, BLOCK_N: tl.constexpr):
    """The cloud of this program, its rows of (B * N), and their mask."""
    tiles = tl.cdiv(count, BLOCK_N)
    cloud = (tl.program_id(0) // tiles).to(tl.int64)
    place = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    return cloud, cloud * count + place, place < count


@jit
def _sample(
    out_ptr, cells_ptr, points_ptr, tangent_ptr, count, num_channels, voxels, depth, height, width,
    ROWS: tl.constexpr, TANGENT: tl.constexpr, PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr,
    WHOLE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = BLOCK_C if WHOLE else num_channels
    cloud, row, row_mask = _tile(count, BLOCK_N)
    x0, y0, z0, x, y, z, tx, ty, tz, _, _, _ = _cell(
        points_ptr, tangent_ptr, row, row_mask, depth, height, width, PADDING, ALIGN, WIDE
    )
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        mask = row_mask[:, None] & (channel < channels)[None, :]
        total = tl.zeros((BLOCK_N, BLOCK_C), WIDE)
        for corner in tl.static_range(8):
            voxel, inside = _voxel(x0, y0, z0, corner, depth, height, width)
            ptr = _at(cells_ptr, cloud, voxel, channel, channels, voxels, ROWS)
            value = tl.load(ptr, mask=mask & inside[:, None], other=0).to(WIDE)
            share = tl.where(inside, weight(x, y, z, tx, ty, tz, corner, TANGENT), 0.0)
            total += share[:, None] * value
        tl.store(out_ptr + row[:, None] * channels + channel[None, :], total.to(out_ptr.dtype.element_ty), mask=mask)


@jit
def _slope(
    out_ptr, grad_ptr, cells_ptr, points_ptr, tangent_ptr, count, num_channels, voxels, depth, height, width,
    ROWS: tl.constexpr, TANGENT: tl.constexpr, PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr,
    WHOLE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = BLOCK_C if WHOLE else num_channels
    cloud, row, row_mask = _tile(count, BLOCK_N)
    x0, y0, z0, x, y, z, tx, ty, tz, vx, vy, vz = _cell(
        points_ptr, tangent_ptr, row, row_mask, depth, height, width, PADDING, ALIGN, WIDE
    )
    slope_x = tl.zeros((BLOCK_N, BLOCK_C), WIDE)
    slope_y = tl.zeros((BLOCK_N, BLOCK_C), WIDE)
    slope_z = tl.zeros((BLOCK_N, BLOCK_C), WIDE)
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        mask = row_mask[:, None] & (channel < channels)[None, :]
        grad = tl.load(grad_ptr + row[:, None] * channels + channel[None, :], mask=mask, other=0).to(WIDE)
        for corner in tl.static_range(8):
            voxel, inside = _voxel(x0, y0, z0, corner, depth, height, width)
            ptr = _at(cells_ptr, cloud, voxel, channel, channels, voxels, ROWS)
            product = grad * tl.load(ptr, mask=mask & inside[:, None], other=0).to(WIDE)
            product = tl.where(inside[:, None], product, 0.0)
            slope_x += weight_slope(x, y, z, tx, ty, tz, corner, 0, TANGENT)[:, None] * product
            slope_y += weight_slope(x, y, z, tx, ty, tz, corner, 1, TANGENT)[:, None] * product
            slope_z += weight_slope(x, y, z, tx, ty, tz, corner, 2, TANGENT)[:, None] * product
    store_triple(out_ptr, row, row_mask, tl.sum(slope_x, 1) * vx, tl.sum(slope_y, 1) * vy, tl.sum(slope_z, 1) * vz)


@jit
def _splat(
    total_ptr, features_ptr, points_ptr, tangent_ptr, count, num_channels, voxels, depth, height, width,
    ROWS: tl.constexpr, TANGENT: tl.constexpr, PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr,
    WHOLE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = BLOCK_C if WHOLE else num_channels
    cloud, row, row_mask = _tile(count, BLOCK_N)
    x0, y0, z0, x, y, z, tx, ty, tz, _, _, _ = _cell(
        points_ptr, tangent_ptr, row, row_mask, depth, height, width, PADDING, ALIGN, WIDE
    )
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        mask = row_mask[:, None] & (channel < channels)[None, :]
        value = tl.load(features_ptr + row[:, None] * channels + channel[None, :], mask=mask, other=0).to(WIDE)
        for corner in tl.static_range(8):
            voxel, inside = _voxel(x0, y0, z0, corner, depth, height, width)
            ptr = _at(total_ptr, cloud, voxel, channel, channels, voxels, ROWS)
            share = weight(x, y, z, tx, ty, tz, corner, TANGENT)
            tl.atomic_add(ptr, share[:, None] * value, mask=mask & inside[:, None], sem="relaxed")


@jit
def _entries(
    voxel_ptr, weight_ptr, points_ptr, tangent_ptr, count, num_channels, voxels, depth, height, width,
    TANGENT: tl.constexpr, PADDING: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr,
    WHOLE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The voxel (`voxels` if it is outside the grid) and the weight of each corner of each point."""
    _, row, row_mask = _tile(count, BLOCK_N)
    x0, y0, z0, x, y, z, tx, ty, tz, _, _, _ = _cell(
        points_ptr, tangent_ptr, row, row_mask, depth, height, width, PADDING, ALIGN, WIDE
    )
    for corner in tl.static_range(8):
        voxel, inside = _voxel(x0, y0, z0, corner, depth, height, width)
        tl.store(voxel_ptr + row * 8 + corner, tl.where(inside, voxel, voxels), mask=row_mask)
        tl.store(weight_ptr + row * 8 + corner, weight(x, y, z, tx, ty, tz, corner, TANGENT), mask=row_mask)


@jit
def _sum_sorted(
    rows_ptr, features_ptr, weight_ptr, order_ptr, begin_ptr, voxels, count, channels, BLOCK_C: tl.constexpr
):
    cloud = (tl.program_id(0) // voxels).to(tl.int64)
    voxel = (tl.program_id(0) % voxels).to(tl.int64)
    begin = tl.load(begin_ptr + cloud * (voxels + 1) + voxel)
    end = tl.load(begin_ptr + cloud * (voxels + 1) + voxel + 1)
    wide: tl.constexpr = weight_ptr.dtype.element_ty
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        mask = channel < channels
        total = tl.zeros((BLOCK_C,), wide)
        for position in range(begin, end):
            entry = cloud * count * 8 + tl.load(order_ptr + cloud * count * 8 + position)
            value = tl.load(features_ptr + entry // 8 * channels + channel, mask=mask, other=0).to(wide)
            total += tl.load(weight_ptr + entry) * value
        to_ptr = rows_ptr + (cloud * voxels + voxel) * channels
        tl.store(to_ptr + channel, total.to(rows_ptr.dtype.element_ty), mask=mask)
