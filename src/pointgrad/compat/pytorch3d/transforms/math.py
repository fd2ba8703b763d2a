"""Arc cosine with finite derivatives."""

import math

import torch
from torch import Tensor

__all__ = ["acos_linear_extrapolation"]

DEFAULT_ACOS_BOUND: float = 1.0 - 1e-4


def acos_linear_extrapolation(
    x: Tensor, bounds: tuple[float, float] = (-DEFAULT_ACOS_BOUND, DEFAULT_ACOS_BOUND)
) -> Tensor:
    """Compute the arc cosine, continued outside of the bounds by its tangents.

    Args:
        x: Tensor of any shape.
        bounds: Lower and upper bound, both within (-1, 1).

    Returns:
        Tensor of the shape of `x`.

    Raises:
        ValueError: If the bounds are not ascending or not within (-1, 1).

    Example:
        >>> acos_linear_extrapolation(torch.tensor([0.0, 2.0]), (-0.6, 0.8))
        tensor([ 1.5708, -1.3565])
    """
    lower, upper = bounds
    if not -1.0 < lower <= upper < 1.0:
        raise ValueError(f"bounds must be ascending and within (-1, 1), got ({lower}, {upper})")
    above, below = x >= upper, x <= lower
    inside = torch.acos(torch.where(above | below, 0.0, x))
    return torch.where(above, _tangent(x, upper), torch.where(below, _tangent(x, lower), inside))


def _tangent(x: Tensor, bound: float) -> Tensor:
    """Tangent of the arc cosine at the bound."""
    return math.acos(bound) - (x - bound) / math.sqrt(1 - bound * bound)
