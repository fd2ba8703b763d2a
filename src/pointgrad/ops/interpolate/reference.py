"""What the operators of this room mean, in plain PyTorch. The formulas are derived in README.md.

Everything here is differentiable by autograd, in every floating argument and to any order.
"""

import torch
from torch import Tensor


def trilinear(corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    wide = torch.promote_types(corners.dtype, torch.float32)
    weights = _weights(points.to(wide), _wide_or_none(tangent, wide))  # (N, 8)
    return (weights.unsqueeze(-1) * corners.to(wide)).sum(1).to(corners.dtype)


def trilinear_spread(grad: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    wide = torch.promote_types(grad.dtype, torch.float32)
    weights = _weights(points.to(wide), _wide_or_none(tangent, wide))
    return (weights.unsqueeze(-1) * grad.to(wide).unsqueeze(1)).to(grad.dtype)


def trilinear_slope(grad: Tensor, corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    wide = torch.promote_types(grad.dtype, torch.float32)
    products = (corners.to(wide) * grad.to(wide).unsqueeze(1)).sum(-1)  # (N, 8)
    slopes = _slopes(points.to(wide), _wide_or_none(tangent, wide))  # (N, 3, 8)
    return (slopes * products.unsqueeze(1)).sum(-1).to(grad.dtype)


def _weights(points: Tensor, tangent: Tensor | None) -> Tensor:
    """(N, 8): the corner weights, or their derivative along `tangent`."""
    if tangent is None:
        return _products(*_factors(points))
    return (_slopes(points, None) * tangent.unsqueeze(-1)).sum(1)


def _slopes(points: Tensor, tangent: Tensor | None) -> Tensor:
    """(N, 3, 8): the derivative of `_weights` with respect to each coordinate."""
    factors = _factors(points)
    rows = []
    for axis in range(3):
        row = _products(*_replaced(factors, axis))
        if tangent is not None:
            # The weights are linear in each coordinate: only mixed second derivatives remain.
            first, second = (axis + 1) % 3, (axis + 2) % 3
            row = tangent[:, first, None] * _products(*_replaced(_replaced(factors, axis), first))
            row = row + tangent[:, second, None] * _products(*_replaced(_replaced(factors, axis), second))
        rows.append(row)
    return torch.stack(rows, dim=1)


def _factors(points: Tensor) -> list[Tensor]:
    """Per axis, (N, 2): the share of the lower and of the upper corner."""
    upper = (points + 1) / 2
    return [torch.stack([1 - upper[:, axis], upper[:, axis]], dim=1) for axis in range(3)]


def _replaced(factors: list[Tensor], axis: int) -> list[Tensor]:
    """The factors with one axis differentiated: a half down, a half up."""
    half = torch.full_like(factors[axis][:, 0], 0.5)
    slope = torch.stack([-half, half], dim=1)
    return [slope if i == axis else factor for i, factor in enumerate(factors)]


def _products(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """(N, 8) in the order 4 x + 2 y + z."""
    return (x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]).flatten(1)


def _wide_or_none(tangent: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tangent is None else tangent.to(dtype)
