"""Triton kernels of `trilinear` and its derivatives. Those of grids are in `grid_kernels.py`.

Naming in all kernels: `*_ptr` is an address, BLOCK_* a tile size, and `*_mask` marks the lanes in range.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2
from .cell_kernels import load_triple, store_triple, weight, weight_slope
from .grid_kernels import grid_sample as grid_sample
from .grid_kernels import grid_slope as grid_slope
from .grid_kernels import grid_splat as grid_splat


def trilinear(corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    count, _, width = corners.shape
    out = corners.new_empty((count, width))
    _launch(_sum_corners, points, tangent, width, tiled=True, out_ptr=out, corners_ptr=corners.contiguous())
    return out


def trilinear_spread(grad: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    count, width = grad.shape
    out = grad.new_empty((count, 8, width))
    _launch(_spread, points, tangent, width, tiled=True, out_ptr=out, grad_ptr=grad.contiguous())
    return out


def trilinear_slope(grad: Tensor, corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    count, width = grad.shape
    out = grad.new_empty((count, 3))
    tensors = {"out_ptr": out, "grad_ptr": grad.contiguous(), "corners_ptr": corners.contiguous()}
    _launch(_slope, points, tangent, width, tiled=False, **tensors)
    return out


def _launch(
    kernel: Any, points: Tensor, tangent: Tensor | None, width: int, *, tiled: bool, out_ptr: Tensor, **tensors: Tensor
) -> None:
    count = points.shape[0]
    if not out_ptr.numel():
        return
    points = points.contiguous()
    # Small tiles and one warp, so that many programs keep the memory busy.
    block_f = power_of_2(width, 1, 256)
    block_n = 256 // block_f
    grid = (cdiv(count, block_n), cdiv(width, block_f) if tiled else 1)
    kernel[grid](
        out_ptr=out_ptr,
        **tensors,
        points_ptr=points,
        tangent_ptr=points if tangent is None else tangent.contiguous(),  # without a tangent, it is not used
        count=count,
        width=width,
        TANGENT=tangent is not None,
        WIDE=tl.float64 if points.dtype == torch.float64 else tl.float32,
        BLOCK_N=block_n,
        BLOCK_F=block_f,
        num_warps=1,
        enable_fp_fusion=True,  # fused sums are rounded less often
    )


@triton.jit
def _shares(points_ptr, tangent_ptr, row, row_mask, WIDE: tl.constexpr):
    """The shares of the upper corners and the tangent along them, which change half as fast as the points."""
    x, y, z = load_triple(points_ptr, row, row_mask, WIDE)
    tx, ty, tz = load_triple(tangent_ptr, row, row_mask, WIDE)
    return (x + 1.0) * 0.5, (y + 1.0) * 0.5, (z + 1.0) * 0.5, tx * 0.5, ty * 0.5, tz * 0.5


@jit
def _sum_corners(
    out_ptr, corners_ptr, points_ptr, tangent_ptr, count, width,
    TANGENT: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    row_mask = row < count
    mask = row_mask[:, None] & (feature < width)[None, :]
    x, y, z, tx, ty, tz = _shares(points_ptr, tangent_ptr, row, row_mask, WIDE)
    total = tl.zeros((BLOCK_N, BLOCK_F), WIDE)
    for corner in tl.static_range(8):
        share = weight(x, y, z, tx, ty, tz, corner, TANGENT)
        corner_ptr = corners_ptr + (row[:, None] * 8 + corner) * width + feature[None, :]
        total += share[:, None] * tl.load(corner_ptr, mask=mask, other=0).to(WIDE)
    tl.store(out_ptr + row[:, None] * width + feature[None, :], total, mask=mask)


@jit
def _spread(
    out_ptr, grad_ptr, points_ptr, tangent_ptr, count, width,
    TANGENT: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    feature = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    row_mask = row < count
    mask = row_mask[:, None] & (feature < width)[None, :]
    x, y, z, tx, ty, tz = _shares(points_ptr, tangent_ptr, row, row_mask, WIDE)
    grad = tl.load(grad_ptr + row[:, None] * width + feature[None, :], mask=mask, other=0).to(WIDE)
    for corner in tl.static_range(8):
        share = weight(x, y, z, tx, ty, tz, corner, TANGENT)
        corner_ptr = out_ptr + (row[:, None] * 8 + corner) * width + feature[None, :]
        tl.store(corner_ptr, share[:, None] * grad, mask=mask)


@jit
def _slope(
    out_ptr, grad_ptr, corners_ptr, points_ptr, tangent_ptr, count, width,
    TANGENT: tl.constexpr, WIDE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = row < count
    x, y, z, tx, ty, tz = _shares(points_ptr, tangent_ptr, row, row_mask, WIDE)
    slope_x = tl.zeros((BLOCK_N, BLOCK_F), WIDE)
    slope_y = tl.zeros((BLOCK_N, BLOCK_F), WIDE)
    slope_z = tl.zeros((BLOCK_N, BLOCK_F), WIDE)
    for start in range(0, width, BLOCK_F):
        feature = start + tl.arange(0, BLOCK_F)
        mask = row_mask[:, None] & (feature < width)[None, :]
        grad = tl.load(grad_ptr + row[:, None] * width + feature[None, :], mask=mask, other=0).to(WIDE)
        for corner in tl.static_range(8):
            corner_ptr = corners_ptr + (row[:, None] * 8 + corner) * width + feature[None, :]
            product = grad * tl.load(corner_ptr, mask=mask, other=0).to(WIDE)
            slope_x += weight_slope(x, y, z, tx, ty, tz, corner, 0, TANGENT)[:, None] * product
            slope_y += weight_slope(x, y, z, tx, ty, tz, corner, 1, TANGENT)[:, None] * product
            slope_z += weight_slope(x, y, z, tx, ty, tz, corner, 2, TANGENT)[:, None] * product
    store_triple(out_ptr, row, row_mask, tl.sum(slope_x, 1) * 0.5, tl.sum(slope_y, 1) * 0.5, tl.sum(slope_z, 1) * 0.5)
