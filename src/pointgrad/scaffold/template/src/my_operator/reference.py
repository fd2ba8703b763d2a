"""The definition of the operator in plain PyTorch, and its derivatives.

A point p in [-1, 1]^3 lies in a cell with eight corners. Its shares u, v, w = (p + 1) / 2 say how far it is from the
lower to the upper side along x, y and z. Corner k = 4 x + 2 y + z, with x, y and z either 0 or 1, has the weight

    (u if x else 1 - u) * (v if y else 1 - v) * (w if z else 1 - w)

and the result is the weighted sum of the corners. Kernels are compared with these functions, and these functions run
where no kernel can. Shapes: N points, F features, (N, 8) weights.
"""

import torch
from torch import Tensor


def forward(corners: Tensor, points: Tensor) -> Tensor:
    """(N, 8, F), (N, 3) -> (N, F)"""
    total = (weights(_wide(points)).unsqueeze(-1) * _wide(corners)).sum(1)
    return total.to(corners.dtype)


def corners_grad(grad: Tensor, points: Tensor) -> Tensor:
    """(N, F), (N, 3) -> (N, 8, F): each corner receives its share of the gradient."""
    spread = weights(_wide(points)).unsqueeze(-1) * _wide(grad).unsqueeze(1)
    return spread.to(grad.dtype)


def points_grad(grad: Tensor, corners: Tensor, points: Tensor) -> Tensor:
    """(N, F), (N, 8, F), (N, 3) -> (N, 3): the slope of each weight, times the corner, times the gradient."""
    products = (_wide(corners) * _wide(grad).unsqueeze(1)).sum(-1)  # (N, 8)
    slope = (slopes(_wide(points)) * products.unsqueeze(1)).sum(-1)  # (N, 3)
    return slope.to(points.dtype)


def weights(points: Tensor) -> Tensor:
    """(N, 3) -> (N, 8)"""
    return _products(*_factors(points))


def slopes(points: Tensor) -> Tensor:
    """(N, 3) -> (N, 3, 8): the derivative of each weight by each coordinate."""
    x, y, z = _factors(points)
    slope = points.new_tensor([-0.5, 0.5]).expand_as(x)  # of 1 - u and u, because u = (p + 1) / 2
    return torch.stack([_products(slope, y, z), _products(x, slope, z), _products(x, y, slope)], 1)


def _factors(points: Tensor) -> tuple[Tensor, ...]:
    """(N, 2) for each axis: the factors 1 - u and u of the lower and the upper side."""
    share = (points + 1) / 2
    return torch.stack([1 - share, share], -1).unbind(1)


def _products(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """(N, 2) each -> (N, 8), in the order 4 x + 2 y + z."""
    return (x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]).flatten(1)


def _wide(values: Tensor) -> Tensor:
    """Sums are computed in at least float32 and rounded once: a float16 sum of 3000 ones is 2048."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
