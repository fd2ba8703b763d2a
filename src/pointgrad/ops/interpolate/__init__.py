"""Interpolating features at points."""

import numbers
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
) -> Tensor:
    """Features at queries from those of the k nearest points, weighted by the inverse of their distance.

    features: (N, C) packed, or (B, N, C) padded: one row for each of `points`.
    points, queries, k, offsets, lengths, query_offsets, query_lengths: as for `knn`.
    power: the weight of a point at distance d is `1 / d**power`, divided by the sum of all k. Networks use 1;
        2 is the form of the PointNet++ paper, and smoother.
    returns: (M, C) or (B, M, C), in the dtype of `features`, which need not be that of the points.

    A query that coincides with points takes their features (their mean, if several do). Fewer than k points share
    the weight among them; none give zeros. No small number is added to a distance, so clouds of any scale
    are interpolated alike; only what is nearer than 3e-16 (float64: 1e-146) coincides, because slopes would overflow.
    Gradients reach features, points and queries, twice; the weights of a query that coincides with a point pass
    none, because they have a cusp there.

    >>> points = torch.tensor([[0.], [1.]])
    >>> interpolate(torch.tensor([[10.], [20.]]), points, torch.tensor([[0.25], [1.]]), k=2)
    tensor([[12.5000],
            [20.0000]])
    """
    checks.tensor("features", features)
    is_number = isinstance(power, numbers.Real) and not isinstance(power, bool)
    checks.kind(is_number, "power", "a number", power)
    checks.kind(isinstance(queries, Tensor), "queries", "a torch.Tensor", queries)
    checks.clouds(points, offsets, lengths, most_dims=checks.ANY)
    fits = features.dim() == points.dim() and features.shape[:-1] == points.shape[:-1]
    contract = "(N, C) with points (N, D), or (B, N, C) with (B, N, D)"
    checks.shape(fits, "features", contract, features)
    checks.dtype("features", features, checks.FLOATS)
    checks.device("features", features, "points", points)
    checks.value(0 < power < torch.inf, "power", "positive and finite", power)
    found = knn(
        points, k, queries,
        offsets=offsets, query_offsets=query_offsets, lengths=lengths, query_lengths=query_lengths,
    )  # fmt: skip
    weights = _inverse_distance(found.distance2, found.index >= 0, float(power))
    # In the wider dtype: weights, and their gradients, do not fit into 16 bits.
    widest = torch.promote_types(weights.dtype, features.dtype)
    return aggregate(weights.to(widest), features.to(widest), found.index).to(features.dtype)


def interpolate_at(features: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of features with given neighbours and weights: what `interpolate` does once it has both.

    features: (N, C) packed, or (B, N, C) padded.
    index, weights: (M, K) or (B, M, K), as a search returns the index; -1 adds nothing. Weights are used as they
        are, in the dtype of `features`.
    returns: (M, C) or (B, M, C). Gradients reach features and weights, to any order.

    The same as `aggregate(weights, features, index)`, which also takes weights for groups of channels.

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


def _inverse_distance(distance2: Tensor, there: Tensor, power: float) -> Tensor:
    """Weights that sum to one. Distances are taken relative to the nearest, so nothing overflows."""
    # The slope of a share is 1 / distance2: what a sum over channels may multiply it with must not make it infinite.
    limits = torch.finfo(distance2.dtype)
    exact = there & (distance2 < limits.tiny / limits.eps)
    coincides = exact.any(-1, keepdim=True)
    safe = torch.where(there & ~coincides, distance2, 1)
    # The nearest comes first. Its own weight is one, whatever its distance: no difference of large slopes remains.
    nearest, others = safe[..., :1], safe[..., 1:]
    share = (nearest / others).clamp(min=limits.tiny) ** (power / 2)
    weights = torch.cat([torch.ones_like(nearest), share], dim=-1)
    weights = torch.where(coincides, exact.to(weights.dtype), torch.where(there, weights, 0))
    total = weights.sum(-1, keepdim=True)  # from one on, or zero where there is nothing
    # Not clamp(min=1): a total that rounds to one has a derivative, which clamp keeps in some versions of torch only.
    return weights / torch.where(total == 0, 1, total)


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
