"""The operators of this family in plain PyTorch. The formulas are derived in docs/operators/interpolate.md.

All functions are differentiable by autograd in every floating-point argument and to any order.
"""

import torch
from torch import Tensor

from ..sums import sum_dtype


def trilinear(corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    wide = sum_dtype(corners.dtype)
    weights = _weights(_shares(points.to(wide)), _halved(tangent, wide))  # (N, 8)
    return (weights.unsqueeze(-1) * corners.to(wide)).sum(1).to(corners.dtype)


def trilinear_spread(grad: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    wide = sum_dtype(grad.dtype)
    weights = _weights(_shares(points.to(wide)), _halved(tangent, wide))
    return (weights.unsqueeze(-1) * grad.to(wide).unsqueeze(1)).to(grad.dtype)


def trilinear_slope(grad: Tensor, corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    wide = sum_dtype(grad.dtype)
    products = (corners.to(wide) * grad.to(wide).unsqueeze(1)).sum(-1)  # (N, 8)
    slopes = _slopes(_shares(points.to(wide)), _halved(tangent, wide))  # (N, 3, 8)
    return _of_channels(grad.shape[-1], (slopes * products.unsqueeze(1)).sum(-1) / 2).to(grad.dtype)


def grid_sample(grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool) -> Tensor:
    wide = sum_dtype(grid.dtype)
    shares, scale, voxel, inside = _places(points.to(wide), grid.shape[2:], padding_mode, align_corners)
    weights = _weights(shares, None if tangent is None else tangent.to(wide) * scale)  # (B, N, 8)
    return (weights.unsqueeze(-1) * _corners(grid.to(wide), voxel, inside)).sum(2).to(grid.dtype)


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
    wide = sum_dtype(features.dtype)
    batch, _, channels = features.shape
    shares, scale, voxel, inside = _places(points.to(wide), (depth, height, width), padding_mode, align_corners)
    weights = _weights(shares, None if tangent is None else tangent.to(wide) * scale)
    spread = torch.where(inside.unsqueeze(-1), weights.unsqueeze(-1) * features.to(wide).unsqueeze(2), 0)
    voxels = depth * height * width
    row = voxel + voxels * torch.arange(batch, device=voxel.device).reshape(-1, 1, 1)
    total = spread.new_zeros((batch * voxels, channels)).index_add(0, row.flatten(), spread.flatten(0, 2))
    total = total.reshape(batch, voxels, channels).transpose(1, 2)
    return total.reshape(batch, channels, depth, height, width).to(features.dtype).contiguous()


def grid_slope(
    grad: Tensor, grid: Tensor, points: Tensor, tangent: Tensor | None, padding_mode: str, align_corners: bool
) -> Tensor:
    wide = sum_dtype(grad.dtype)
    shares, scale, voxel, inside = _places(points.to(wide), grid.shape[2:], padding_mode, align_corners)
    products = (_corners(grid.to(wide), voxel, inside) * grad.to(wide).unsqueeze(2)).sum(-1)  # (B, N, 8)
    products = torch.where(inside, products, 0)  # or a corner outside could contribute zero times infinity
    slopes = _slopes(shares, None if tangent is None else tangent.to(wide) * scale)  # (B, N, 3, 8)
    return _of_channels(grad.shape[-1], (slopes * products.unsqueeze(2)).sum(-1) * scale).to(grad.dtype)


def _of_channels(channels: int, slope: Tensor) -> Tensor:
    """The slope, or zeros without channels, where it would be an infinite weight times an empty sum."""
    return slope if channels else torch.where(torch.zeros_like(slope, dtype=torch.bool), slope, 0)


def _weights(shares: Tensor, tangent: Tensor | None) -> Tensor:
    """(..., 8) the weights of the corners of a cell for shares (..., 3), or their derivative along `tangent`."""
    if tangent is None:
        return _products(_factors(shares))
    return (_slopes(shares, None) * tangent.unsqueeze(-1)).sum(-2)


def _slopes(shares: Tensor, tangent: Tensor | None) -> Tensor:
    """(..., 3, 8) the derivative of `_weights` with respect to each share."""
    factors = _factors(shares)
    rows = []
    for axis in range(3):
        row = _products(_replaced(factors, axis))
        if tangent is not None:
            # The weights are linear in each share: only mixed second derivatives remain.
            first, second = (axis + 1) % 3, (axis + 2) % 3
            row = tangent[..., first, None] * _products(_replaced(_replaced(factors, axis), first))
            row = row + tangent[..., second, None] * _products(_replaced(_replaced(factors, axis), second))
        rows.append(row)
    return torch.stack(rows, dim=-2)


def _factors(shares: Tensor) -> list[Tensor]:
    """For each axis (..., 2): the shares of the lower and of the upper corner."""
    return [torch.stack([1 - share, share], dim=-1) for share in shares.unbind(-1)]


def _replaced(factors: list[Tensor], axis: int) -> list[Tensor]:
    """The factors with one axis differentiated."""
    one = torch.ones_like(factors[axis][..., 0])
    slope = torch.stack([-one, one], dim=-1)
    return [slope if i == axis else factor for i, factor in enumerate(factors)]


def _products(factors: list[Tensor]) -> Tensor:
    """(..., 8) in the order 4 a + 2 b + c, where a, b and c are 0 (lower) or 1 (upper) along the three axes."""
    a, b, c = factors
    return (a[..., :, None, None] * b[..., None, :, None] * c[..., None, None, :]).flatten(-3)


def _shares(points: Tensor) -> Tensor:
    """The shares of the upper corners in a cell that spans [-1, 1]."""
    return (points + 1) / 2


def _halved(tangent: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The tangent along the shares, which change half as fast as the points."""
    return None if tangent is None else tangent.to(dtype) / 2


def _places(
    points: Tensor, sizes: tuple[int, ...], padding_mode: str, align_corners: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The positions of points (B, N, 3) in a grid of sizes (D, H, W).

    Returns the shares of the upper corners (B, N, 3), their derivative by the points (B, N, 3), the number of the voxel
    of each corner (B, N, 8), 0 if it is outside the grid, and whether it is inside (B, N, 8).
    """
    placed = [_voxel_units(points[..., axis], sizes[2 - axis], padding_mode, align_corners) for axis in range(3)]
    units = torch.stack([position for position, _ in placed], dim=-1)
    scale = torch.stack([speed for _, speed in placed], dim=-1)
    lower = units.detach().floor()
    x, y, z = (lower.long().unsqueeze(-1) + torch.arange(2, device=points.device)).unbind(-2)  # (B, N, 2) each
    x, y, z = x[..., :, None, None], y[..., None, :, None], z[..., None, None, :]
    depth, height, width = sizes
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height) & (z >= 0) & (z < depth)
    voxel = torch.where(inside, (z * height + y) * width + x, 0)
    return units - lower, scale, voxel.flatten(-3), inside.flatten(-3)


def _voxel_units(points: Tensor, size: int, padding_mode: str, align_corners: bool) -> tuple[Tensor, Tensor]:
    """One coordinate in [-1, 1] in units of voxels, -2 if it samples nothing, and its derivative, as in PyTorch."""
    if align_corners:
        units = (points + 1) / 2 * (size - 1)
        speed = torch.full_like(points, (size - 1) / 2)
    else:
        units = ((points + 1) * size - 1) / 2
        speed = torch.full_like(points, size / 2)
    last = size - 1
    if padding_mode == "reflection":
        low, span = (0.0, last) if align_corners else (-0.5, size)
        away = units - low
        speed = torch.where(away < 0, -speed, speed)
        away = torch.fmod(away.abs(), 2 * max(span, 1))  # a period crosses the grid twice
        turned = away > span
        units = torch.where(turned, 2 * span - away, away) + low
        speed = torch.where(turned, -speed, speed)
    if padding_mode != "zeros":
        speed = torch.where((units <= 0) | (units >= last), 0, speed)
        units = torch.where(units <= 0, 0, torch.where(units >= last, last, units))
    return torch.where((units >= -1) & (units < size), units, -2), speed  # -2 for NaN too


def _corners(grid: Tensor, voxel: Tensor, inside: Tensor) -> Tensor:
    """(B, N, 8, C) the values of the grid at the corners, zero outside."""
    batch = torch.arange(grid.shape[0], device=grid.device).reshape(-1, 1, 1)
    return torch.where(inside.unsqueeze(-1), grid.flatten(2).transpose(1, 2)[batch, voxel], 0)
