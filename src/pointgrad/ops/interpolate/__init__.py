"""Interpolating features at points."""

from torch import Tensor

from .. import checks
from . import register

__all__ = ["trilinear"]


def trilinear(corners: Tensor, points: Tensor) -> Tensor:
    """Trilinear interpolation of the eight corner features of each point's cell.

    corners: (N, 8, F); the corner at (x, y, z), each 0 or 1, is `corners[:, 4 * x + 2 * y + z]`.
    points: (N, 3), each point's position in its own cell, which spans [-1, 1] on every axis. Outside
        of it the same polynomial extrapolates.
    returns: (N, F).

    Gradients reach `corners` and `points`, to any order: first and second derivatives have kernels,
    higher ones run in plain PyTorch. Weights and sums are computed in at least float32. Under autocast
    the inputs are cast to the wider dtype of the two, as `torch.nn.functional.grid_sample` does.

    >>> trilinear(torch.arange(8.0).reshape(1, 8, 1), torch.zeros(1, 3))
    tensor([[3.5000]])
    """
    checks.tensor("corners", corners)
    checks.tensor("points", points)
    checks.shape(corners.dim() == 3 and corners.shape[1] == 8, "corners", "(N, 8, F)", corners)
    checks.shape(points.shape == (corners.shape[0], 3), "points", lambda: f"(N, 3) = ({corners.shape[0]}, 3)", points)
    checks.dtype("corners", corners, checks.FLOATS)
    checks.dtype("points", points, checks.FLOATS)
    if not checks.autocasts(corners):
        checks.same_dtype("points", points, "corners", corners)
    checks.device("points", points, "corners", corners)
    return register.trilinear(corners, points, None)
