"""Interpolating features at points."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .. import checks
from . import register

__all__ = ["grid_sample", "splat", "trilinear"]

_PADDING_MODES = ("zeros", "border", "reflection")


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


def grid_sample(grid: Tensor, points: Tensor, *, padding_mode: str = "zeros", align_corners: bool = False) -> Tensor:
    """Trilinear samples of a dense grid of voxels at points, as `torch.nn.functional.grid_sample` takes them.

    grid: (B, C, D, H, W), at least one voxel.
    points: (B, N, 3), positions (x, y, z) along (W, H, D); the grid spans [-1, 1] on every axis.
    padding_mode: what lies outside: "zeros", the nearest voxel of the "border", or the grid's "reflection".
    align_corners: whether -1 and 1 are the centres of the outermost voxels, or else their outer faces.
    returns: (B, N, C).

    A point is nowhere if a coordinate is NaN, or infinite and not moved to the border: it samples zeros and
    passes no gradient. Gradients reach `grid` and `points`, to any order: first and second derivatives have
    kernels, higher ones run in plain PyTorch. At a kink (a voxel's centre, a border) the gradient for
    `points` is the one that PyTorch takes. Positions, weights and sums are computed in at least float32.
    Under autocast the inputs are cast to the wider dtype of the two.

    A grid in `torch.channels_last_3d` format saves the copy that otherwise puts its channels last.

    >>> grid = torch.arange(8.0).reshape(1, 1, 2, 2, 2)
    >>> grid_sample(grid, torch.tensor([[[0.0, 0.0, 0.0], [1.0, -1.0, -1.0]]]), align_corners=True)
    tensor([[[3.5000],
             [1.0000]]])
    """
    checks.tensor("grid", grid)
    checks.tensor("points", points)
    _check_settings(padding_mode, align_corners)
    contract = "(B, C, D, H, W) with at least one voxel"
    checks.shape(grid.dim() == 5 and all(size > 0 for size in grid.shape[2:]), "grid", contract, grid)
    fits = points.dim() == 3 and points.shape[0] == grid.shape[0] and points.shape[2] == 3
    checks.shape(fits, "points", lambda: f"(B, N, 3) with B = {grid.shape[0]}", points)
    _check_pair("grid", grid, points)
    checks.value(padding_mode in _PADDING_MODES, "padding_mode", "zeros, border or reflection", padding_mode)
    return register.grid_sample(grid, points, None, padding_mode, align_corners)


def splat(
    features: Tensor,
    points: Tensor,
    size: Sequence[int],
    *,
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Adds the features of points to the eight voxels around each: the adjoint of `grid_sample`.

    features: (B, N, C).
    points: (B, N, 3), positions (x, y, z) along (W, H, D); the grid spans [-1, 1] on every axis.
    size: (D, H, W), at least 1 each.
    padding_mode: where the share of a voxel outside goes: nowhere with "zeros", to the nearest voxel with
        "border", to where the point is reflected with "reflection".
    align_corners: whether -1 and 1 are the centres of the outermost voxels, or else their outer faces.
    returns: (B, C, D, H, W), zero where no point came.

    `(grid_sample(grid, points) * features).sum()` equals `(grid * splat(features, points, size)).sum()`.
    What `grid_sample` says of NaN, gradients (here for `features` and `points`) and precision holds here.
    On a GPU the order of the sums varies from run to run, but not under
    `torch.use_deterministic_algorithms(True)`.

    >>> splat(torch.ones(1, 1, 1), torch.tensor([[[0.5, -1.0, -1.0]]]), (1, 1, 2), align_corners=True)
    tensor([[[[[0.2500, 0.7500]]]]])
    """
    checks.tensor("features", features)
    checks.tensor("points", points)
    several = isinstance(size, Sequence) and not isinstance(size, str)
    checks.kind(several, "size", "three integers (D, H, W)", size)
    if len(size) != 3 or not all(checks.is_integer(number) for number in size):
        raise TypeError(f"size must be three integers (D, H, W), got {size}")
    _check_settings(padding_mode, align_corners)
    checks.shape(features.dim() == 3, "features", "(B, N, C)", features)
    fits = points.shape == (*features.shape[:2], 3)
    checks.shape(fits, "points", lambda: f"(B, N, 3) = ({features.shape[0]}, {features.shape[1]}, 3)", points)
    _check_pair("features", features, points)
    checks.value(all(number > 0 for number in size), "size", "at least 1 along each axis", size)
    checks.value(padding_mode in _PADDING_MODES, "padding_mode", "zeros, border or reflection", padding_mode)
    return register.grid_splat(features, points, None, *size, padding_mode, align_corners)


def _check_settings(padding_mode: Any, align_corners: Any) -> None:
    checks.kind(isinstance(padding_mode, str), "padding_mode", "a str", padding_mode)
    checks.kind(isinstance(align_corners, bool), "align_corners", "a bool", align_corners)


def _check_pair(name: str, values: Tensor, points: Tensor) -> None:
    checks.dtype(name, values, checks.FLOATS)
    checks.dtype("points", points, checks.FLOATS)
    if not checks.autocasts(values):
        checks.same_dtype("points", points, name, values)
    checks.device("points", points, name, values)
