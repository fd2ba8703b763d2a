"""Hands tensors to the C++ kernels of this room."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import native

# The order of Padding in grid.cpp.
_PADDING_CODES = {"zeros": 0, "border": 1, "reflection": 2}
# From here on turning the grid into rows costs more than it saves.
_VOXELS_PER_POINT = 16


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
    if not width:
        return grad.new_zeros((count, 3))
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


def grid_sample(grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool) -> Tensor:
    out = native.empty(grid, (*points.shape[:2], grid.shape[1]))
    cells, in_rows = _readable(grid, points.shape[1])
    settings = (tuple(grid.shape[2:]), padding_mode, align_corners)
    _call_grid(native.module.grid_sample, (out, cells), in_rows, points, tangent, grid.shape[1], *settings)
    return out


def grid_slope(
    grad: Tensor, grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool
) -> Tensor:
    if not grid.shape[1]:
        return grad.new_zeros(points.shape)
    out = grad.new_empty(points.shape)
    cells, in_rows = _readable(grid, points.shape[1])
    settings = (tuple(grid.shape[2:]), padding_mode, align_corners)
    tensors = (out, grad.contiguous(), cells)
    _call_grid(native.module.grid_slope, tensors, in_rows, points, tangent, grid.shape[1], *settings)
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
    features = features.contiguous()
    batch, count, channels = features.shape
    voxels = depth * height * width
    in_rows = channels > 1 and _pays_to_turn(count, voxels)
    total = native.empty(features, (batch, channels, voxels), torch.promote_types(features.dtype, torch.float32))
    settings = ((depth, height, width), padding_mode, align_corners)
    _call_grid(native.module.grid_splat, (total, features), in_rows, points, tangent, channels, *settings)
    if in_rows:
        rows, total = total, native.empty(features, (batch, channels, voxels))
        _exchange(native.module.grid_out_of_rows, total, rows, total.shape)
    return total.to(features.dtype).view(batch, channels, depth, height, width)


def _pays_to_turn(count: int, voxels: int) -> bool:
    return count * _VOXELS_PER_POINT >= voxels


def _readable(grid: Tensor, count: int) -> tuple[Tensor, bool]:
    """The grid in rows (B, D, H, W, C) if that pays, else as it is; and whether it is in rows."""
    rows = grid.permute(0, 2, 3, 4, 1)
    if rows.is_contiguous():
        return rows, True
    grid = grid.contiguous()
    if not _pays_to_turn(count, grid.shape[2:].numel()):
        return grid, False
    rows = native.empty(grid, rows.shape)
    _exchange(native.module.grid_into_rows, rows, grid, grid.flatten(2).shape)
    return rows, True


def _exchange(kernel: Callable[..., None], out: Tensor, source: Tensor, shape: tuple[int, ...]) -> None:
    """Between channels first and rows."""
    batch, channels, voxels = shape
    code = native.DTYPE_CODES[out.dtype]
    kernel(out.data_ptr(), source.data_ptr(), code, batch, voxels, channels, torch.get_num_threads())


def _call_grid(
    kernel: Callable[..., None],
    tensors: tuple[Tensor, ...],
    in_rows: bool,
    points: Tensor,
    tangent: Tensor | None,
    channels: int,
    sizes: tuple[int, ...],
    padding_mode: str,
    align_corners: bool,
) -> None:
    points = points.contiguous()
    tangent = None if tangent is None else tangent.contiguous()
    batch, count, _ = points.shape
    kernel(
        *(tensor.data_ptr() for tensor in tensors),
        in_rows,
        points.data_ptr(),
        native.address(tangent),
        native.DTYPE_CODES[points.dtype],
        batch,
        count,
        channels,
        *sizes,
        _PADDING_CODES[padding_mode],
        align_corners,
        torch.get_num_threads(),
    )
