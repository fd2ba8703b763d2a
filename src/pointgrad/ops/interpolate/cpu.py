"""Calls of the C++ kernels of this family."""

from typing import Any

from torch import Tensor

from .. import native
from ..sums import sum_dtype

# The order of Padding in grid.cpp.
_PADDING_CODES = {"zeros": 0, "border": 1, "reflection": 2}
# With more voxels per point than this, transposing the grid into rows costs more than it saves.
_VOXELS_PER_POINT = 16


def trilinear(corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    count, _, width = corners.shape
    out = native.empty(corners, (count, width))
    native.module.trilinear(out=out, corners=corners.contiguous(), count=count, width=width, **_points(points, tangent))
    return out


def trilinear_spread(grad: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    count, width = grad.shape
    out = native.empty(grad, (count, 8, width))
    native.module.trilinear_spread(
        out=out, grad=grad.contiguous(), count=count, width=width, **_points(points, tangent)
    )
    return out


def trilinear_slope(grad: Tensor, corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    count, width = grad.shape
    if not width:
        return grad.new_zeros((count, 3))
    out = grad.new_empty((count, 3))
    native.module.trilinear_slope(
        out=out,
        grad=grad.contiguous(),
        corners=corners.contiguous(),
        count=count,
        width=width,
        **_points(points, tangent),
    )
    return out


def _points(points: Tensor, tangent: Tensor | None) -> dict[str, Any]:
    """The arguments that describe points."""
    return {
        "points": points.contiguous(),
        "tangent": None if tangent is None else tangent.contiguous(),
        "dtype": points.dtype,
    }


def grid_sample(grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool) -> Tensor:
    out = native.empty(grid, (*points.shape[:2], grid.shape[1]))
    cells, in_rows = _readable(grid, points.shape[1])
    native.module.grid_sample(
        out=out,
        cells=cells,
        in_rows=in_rows,
        **_points(points, tangent),
        **_geometry(points, grid.shape[1], grid.shape[2:], padding_mode, align_corners),
    )
    return out


def grid_slope(
    grad: Tensor, grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool
) -> Tensor:
    if not grid.shape[1]:
        return grad.new_zeros(points.shape)
    out = grad.new_empty(points.shape)
    cells, in_rows = _readable(grid, points.shape[1])
    native.module.grid_slope(
        out=out,
        grad=grad.contiguous(),
        cells=cells,
        in_rows=in_rows,
        **_points(points, tangent),
        **_geometry(points, grid.shape[1], grid.shape[2:], padding_mode, align_corners),
    )
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
    in_rows = channels > 1 and _worth_transposing(count, voxels)
    total = native.empty(features, (batch, channels, voxels), sum_dtype(features.dtype))
    native.module.grid_splat(
        total=total,
        features=features.contiguous(),
        in_rows=in_rows,
        **_points(points, tangent),
        **_geometry(points, channels, (depth, height, width), padding_mode, align_corners),
    )
    if in_rows:
        rows, total = total, native.empty(features, (batch, channels, voxels))
        native.module.grid_out_of_rows(
            out=total, source=rows, dtype=total.dtype, batch=batch, voxels=voxels, channels=channels
        )
    return total.to(features.dtype).view(batch, channels, depth, height, width)


def _worth_transposing(count: int, voxels: int) -> bool:
    return count * _VOXELS_PER_POINT >= voxels


def _readable(grid: Tensor, count: int) -> tuple[Tensor, bool]:
    """The grid, in rows (B, D, H, W, C) if that is faster, and whether it is in rows."""
    rows = grid.permute(0, 2, 3, 4, 1)
    if rows.is_contiguous():
        return rows, True
    grid = grid.contiguous()
    voxels = grid.shape[2:].numel()
    if not _worth_transposing(count, voxels):
        return grid, False
    rows = native.empty(grid, rows.shape)
    batch, channels = grid.shape[:2]
    native.module.grid_into_rows(out=rows, source=grid, dtype=grid.dtype, batch=batch, voxels=voxels, channels=channels)
    return rows, True


def _geometry(
    points: Tensor, channels: int, sizes: tuple[int, ...], padding_mode: str, align_corners: bool
) -> dict[str, Any]:
    """The arguments that describe sizes and the grid."""
    batch, count, _ = points.shape
    depth, height, width = sizes
    return {
        "batch": batch,
        "count": count,
        "channels": channels,
        "depth": depth,
        "height": height,
        "width": width,
        "padding": _PADDING_CODES[padding_mode],
        "align_corners": align_corners,
    }
