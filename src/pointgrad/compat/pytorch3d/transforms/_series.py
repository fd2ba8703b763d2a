"""Helpers of rotations that torch.jit.script can compile."""

import torch
from torch import Tensor


def stumpff(order: int, squared: Tensor) -> Tensor:
    """Stumpff function: the sum over k of (-squared)**k / (2 * k + order)!, for orders 2 to 4.

    With squared = x * x these are (1 - cos(x)) / x**2, (x - sin(x)) / x**3 and (x**2 / 2 - 1 + cos(x)) / x**4. All
    derivatives are finite at 0.
    """
    small = squared < 1
    series = torch.ones_like(squared)
    for k in range(9, 0, -1):
        series = 1 - squared / float((2 * k + order - 1) * (2 * k + order)) * series
    for k in range(2, order + 1):
        series = series / k
    large = torch.where(small, 1.0, squared)
    x = large.sqrt()
    if order == 2:
        closed = 2 * (x / 2).sin().square() / large
    elif order == 3:
        closed = (x - x.sin()) / (x * large)
    else:
        closed = (0.5 - 2 * (x / 2).sin().square() / large) / large
    return torch.where(small, series, closed)


def positive_root(squared: Tensor) -> Tensor:
    """Square root of at least 1e-9 (float64), so that derivatives at 0 are finite. The change is below rounding."""
    least = 1e-18 if squared.dtype == torch.float64 else 1e-9 if squared.dtype == torch.float32 else 1e-5
    return (squared + least).sqrt()


def cross_matrix(vector: Tensor) -> Tensor:
    """Matrices (..., 3, 3) whose product with a vector is the cross product of `vector` (..., 3) with it."""
    x, y, z = vector.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, [3, 3])


def cross(a: Tensor, b: Tensor) -> Tensor:
    """Cross product of (..., 3) and (..., 3), with broadcasting and unaffected by autocast."""
    return a.roll(-1, -1) * b.roll(1, -1) - a.roll(1, -1) * b.roll(-1, -1)


def shape_text(value: Tensor) -> str:
    """Shape for error messages."""
    return "(" + ", ".join([str(size) for size in value.shape]) + ")"


def check_last(name: str, value: Tensor, size: int) -> None:
    if value.dim() == 0 or value.shape[-1] != size:
        raise ValueError(f"{name} must be (..., {size}), got {shape_text(value)}")
