"""Interpolation of features at points."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..attention import aggregate
from ..neighbors import knn
from . import register

__all__ = ["grid_sample", "interpolate", "interpolate_at", "splat", "trilinear"]

_PADDING_MODES = ("zeros", "border", "reflection")


def interpolate(
    features: Tensor,
    points: Tensor,
    queries: Tensor,
    k: int = 3,
    *,
    power: float = 1.0,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    any_dims: bool = False,
) -> Tensor:
    """Interpolate features at queries from the k nearest points, weighted by inverse distance.

    A query that coincides with points takes their features (the mean if there are several). If there are fewer than k
    points, their weights still sum to one; without points the result is zero. No epsilon is added to distances, so the
    result does not depend on the scale of the clouds. Only points nearer than 3e-16 (float64: 1e-146) count as
    coinciding, because derivatives would overflow.

    Gradients flow to `features`, `points` and `queries`, up to second order. The weights of a query that coincides with
    a point have no gradient, because they are not differentiable there.

    Args:
        features: (N, C) packed, or (B, N, C) padded, with one row for each point.
        points: (N, D) packed, or (B, N, D) padded.
        queries: (M, D) or (B, M, D).
        k: The number of neighbors.
        power: The weight of a point at distance d is proportional to `1 / d**power`. Networks use 1; 2 is the form in
            the PointNet++ paper, and smoother.
        offsets: (B + 1,) of packed points.
        query_offsets: (B + 1,) of packed queries.
        lengths: (B,) of padded points.
        query_lengths: (B,) of padded queries.
        any_dims: See `knn`.

    Returns:
        (M, C) or (B, M, C) in the dtype of `features`, which may differ from that of the points.

    Example:
        >>> points = torch.tensor([[0.], [1.]])
        >>> interpolate(torch.tensor([[10.], [20.]]), points, torch.tensor([[0.25], [1.]]), k=2)
        tensor([[12.5000],
                [20.0000]])
    """
    checks.tensor("features", features)
    checks.number("power", power)
    checks.kind(isinstance(queries, Tensor), "queries", "a torch.Tensor", queries)
    checks.clouds(points, offsets, lengths, most_dims=checks.ANY, any_dims=any_dims)
    fits = features.dim() == points.dim() and features.shape[:-1] == points.shape[:-1]
    contract = "(N, C) with points (N, D), or (B, N, C) with (B, N, D)"
    checks.shape(fits, "features", contract, features)
    checks.dtype("features", features, checks.FLOATS)
    checks.device("features", features, "points", points)
    checks.value(0 < power < torch.inf, "power", "positive and finite", power)
    found = knn(
        points, k, queries,
        offsets=offsets, query_offsets=query_offsets, lengths=lengths, query_lengths=query_lengths, any_dims=any_dims,
    )  # fmt: skip
    weights = _inverse_distance(found.distance2, found.index >= 0, float(power))
    # In the wider dtype, because weights and their gradients can overflow in 16 bits.
    widest = torch.promote_types(weights.dtype, features.dtype)
    return aggregate(weights.to(widest), features.to(widest), found.index).to(features.dtype)


def interpolate_at(features: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Sum features with given neighbors and weights, the last step of `interpolate`.

    Equivalent to `aggregate(weights, features, index)`, which also accepts weights for groups of channels. Gradients
    flow to `features` and `weights`, to any order.

    Args:
        features: (N, C) packed, or (B, N, C) padded.
        index: (M, K) or (B, M, K), as returned by a neighbor search. -1 contributes nothing.
        weights: Same shape as `index`, in the dtype of `features`. They are not normalized.

    Returns:
        (M, C) or (B, M, C).

    Example:
        >>> interpolate_at(torch.tensor([[10.], [20.]]), torch.tensor([[0, 1]]), torch.tensor([[0.25, 0.75]]))
        tensor([[17.5000]])
    """
    checks.tensor("weights", weights)
    checks.rows(features, index, per_row=1, dtypes=checks.FLOATS)
    checks.shape(weights.shape == index.shape, "weights", lambda: f"{tuple(index.shape)}, like index", weights)
    checks.dtype("weights", weights, checks.FLOATS)
    if not checks.autocasts(features):
        checks.same_dtype("weights", weights, "features", features)
    checks.device("weights", weights, "features", features)
    return aggregate(weights, features, index)


def _inverse_distance(distance2: Tensor, valid: Tensor, power: float) -> Tensor:
    """Weights that sum to one. Distances are relative to the nearest one, so that nothing overflows."""
    # The derivative of a share is 1 / distance2. It must stay finite when a sum over channels multiplies it.
    limits = torch.finfo(distance2.dtype)
    exact = valid & (distance2 < limits.tiny / limits.eps)
    coincides = exact.any(-1, keepdim=True)
    safe = torch.where(valid & ~coincides, distance2, 1)
    # The nearest comes first. Its weight is the constant one, which avoids differences of large derivatives.
    nearest, others = safe[..., :1], safe[..., 1:]
    share = (nearest / others).clamp(min=limits.tiny) ** (power / 2)
    weights = torch.cat([torch.ones_like(nearest), share], dim=-1)
    weights = torch.where(coincides, exact.to(weights.dtype), torch.where(valid, weights, 0))
    total = weights.sum(-1, keepdim=True)  # at least one, or zero without neighbors
    # Not clamp(min=1), which drops the derivative of a total of exactly one in some versions of torch.
    return weights / torch.where(total == 0, 1, total)


def trilinear(corners: Tensor, points: Tensor) -> Tensor:
    """Interpolate the eight corner features of the cell of each point trilinearly.

    Gradients flow to `corners` and `points`, to any order: first and second derivatives have kernels, higher ones run
    in plain PyTorch. Weights and sums are computed in at least float32. Under autocast the inputs are cast to the wider
    of the two dtypes, as in `torch.nn.functional.grid_sample`.

    Args:
        corners: (N, 8, F). The corner at (x, y, z), each 0 or 1, is `corners[:, 4 * x + 2 * y + z]`.
        points: (N, 3), the position of each point in its own cell, which spans [-1, 1] on every axis. Outside of the
            cell the same polynomial extrapolates.

    Returns:
        (N, F).

    Example:
        >>> trilinear(torch.arange(8.0).reshape(1, 8, 1), torch.zeros(1, 3))
        tensor([[3.5000]])
    """
    checks.tensor("corners", corners)
    checks.tensor("points", points)
    checks.shape(corners.dim() == 3 and corners.shape[1] == 8, "corners", "(N, 8, F)", corners)
    checks.point_shape(
        points.shape == (corners.shape[0], 3), "points", lambda: f"(N, 3) = ({corners.shape[0]}, 3)", points
    )
    checks.dtype("corners", corners, checks.FLOATS)
    checks.dtype("points", points, checks.FLOATS)
    if not checks.autocasts(corners):
        checks.same_dtype("points", points, "corners", corners)
    checks.device("points", points, "corners", corners)
    return register.trilinear(corners, points, None)


def grid_sample(grid: Tensor, points: Tensor, *, padding_mode: str = "zeros", align_corners: bool = False) -> Tensor:
    """Sample a dense grid of voxels at points trilinearly, like `torch.nn.functional.grid_sample`.

    A point with a NaN coordinate, or with an infinite one that is not moved to the border, samples zeros and gets no
    gradient. Gradients flow to `grid` and `points`, to any order: first and second derivatives have kernels, higher
    ones run in plain PyTorch. Where the result is not differentiable (at the center of a voxel or at a border), the
    gradient of `points` is that of PyTorch. Positions, weights and sums are computed in at least float32. Under
    autocast the inputs are cast to the wider of the two dtypes.

    Args:
        grid: (B, C, D, H, W) with at least one voxel. `torch.channels_last_3d` format saves a copy.
        points: (B, N, 3), positions (x, y, z) along (W, H, D). The grid spans [-1, 1] on every axis.
        padding_mode: The values outside of the grid: "zeros", "border" (the nearest voxel) or "reflection".
        align_corners: Whether -1 and 1 are the centers of the outermost voxels instead of their outer faces.

    Returns:
        (B, N, C).

    Example:
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
    checks.point_shape(fits, "points", lambda: f"(B, N, 3) with B = {grid.shape[0]}", points)
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
    """Add the features of each point to the eight voxels around it: the adjoint of `grid_sample`.

    `(grid_sample(grid, points) * features).sum()` equals `(grid * splat(features, points, size)).sum()`. Gradients flow
    to `features` and `points`, to any order. Non-finite points, derivatives and precision are treated as in
    `grid_sample`. On a GPU the order of the sums varies from run to run, unless
    `torch.use_deterministic_algorithms(True)` is set.

    Args:
        features: (B, N, C).
        points: (B, N, 3), positions (x, y, z) along (W, H, D). The grid spans [-1, 1] on every axis.
        size: (D, H, W), each at least 1.
        padding_mode: Where the shares of voxels outside of the grid go: nowhere ("zeros"), to the nearest voxel
            ("border"), or to the reflected position ("reflection").
        align_corners: Whether -1 and 1 are the centers of the outermost voxels instead of their outer faces.

    Returns:
        (B, C, D, H, W).

    Example:
        >>> splat(torch.ones(1, 1, 1), torch.tensor([[[0.5, -1.0, -1.0]]]), (1, 1, 2), align_corners=True)
        tensor([[[[[0.2500, 0.7500]]]]])
    """
    checks.tensor("features", features)
    checks.tensor("points", points)
    several = isinstance(size, Sequence) and not isinstance(size, str)
    checks.kind(several, "size", "three integers (D, H, W)", size)
    if len(size) != 3 or not all(checks.is_integer(number) for number in size):
        raise TypeError(f"size must be three integers (D, H, W), got {checks.shown(size)}")
    _check_settings(padding_mode, align_corners)
    checks.shape(features.dim() == 3, "features", "(B, N, C)", features)
    fits = points.shape == (*features.shape[:2], 3)
    checks.point_shape(fits, "points", lambda: f"(B, N, 3) = ({features.shape[0]}, {features.shape[1]}, 3)", points)
    _check_pair("features", features, points)
    checks.value(all(0 < number < 2**63 for number in size), "size", "at least 1 along each axis", size)
    checks.value(padding_mode in _PADDING_MODES, "padding_mode", "zeros, border or reflection", padding_mode)
    return register.grid_splat(features, points, None, *size, padding_mode, align_corners)


def _check_settings(padding_mode: Any, align_corners: Any) -> None:
    checks.kind(isinstance(padding_mode, str), "padding_mode", "a str", padding_mode)
    checks.boolean("align_corners", align_corners)


def _check_pair(name: str, values: Tensor, points: Tensor) -> None:
    checks.dtype(name, values, checks.FLOATS)
    checks.dtype("points", points, checks.FLOATS)
    if not checks.autocasts(values):
        checks.same_dtype("points", points, name, values)
    checks.device("points", points, name, values)
