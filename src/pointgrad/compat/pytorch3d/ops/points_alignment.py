"""Rotation, translation and scale that align point clouds."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pointgrad.ops import checks
from pointgrad.ops.sums import sum_dtype

from ..structures.utils import list_to_padded
from . import _clouds
from ._linalg import full_precision, nearest_rotation
from .knn import knn_points
from .utils import convert_pointclouds_to_tensor, eyes, is_pointclouds, smallest_size, wmean

if TYPE_CHECKING:
    from ..structures import Pointclouds

__all__ = ["corresponding_points_alignment", "iterative_closest_point"]

AMBIGUOUS_ROT_SINGULAR_THR = 1e-15


class SimilarityTransform(NamedTuple):
    """The transform `s * X @ R + T` of points X (N, P, D).

    Attributes:
        R: (N, D, D) rotations or reflections.
        T: (N, D) translations.
        s: (N,) scales.
    """

    R: Tensor
    T: Tensor
    s: Tensor


class ICPSolution(NamedTuple):
    """Result of `iterative_closest_point`.

    Attributes:
        converged: Whether the error stopped decreasing.
        rmse: (N,) root mean squared distance to the nearest points, or None without iterations.
        Xt: The transformed points, Pointclouds if X was.
        RTs: The transform.
        t_history: The transform after each iteration.
    """

    converged: bool
    rmse: Tensor | None
    Xt: Any
    RTs: SimilarityTransform
    t_history: list[SimilarityTransform]


def iterative_closest_point(
    X: "Tensor | Pointclouds",
    Y: "Tensor | Pointclouds",
    init_transform: SimilarityTransform | None = None,
    max_iterations: int = 100,
    relative_rmse_thr: float = 1e-6,
    estimate_scale: bool = False,
    allow_reflection: bool = False,
    verbose: bool = False,
) -> ICPSolution:
    """Align clouds X with clouds Y by iterative closest point (Besl and McKay 1992).

    The result is a local optimum. Differences from the original: the padding of Pointclouds is never aligned (the
    original aligns it if the clouds of X and Y have the same sizes), and a perfect fit counts as converged.

    Args:
        X: Pointclouds, or points (N, P1, D).
        Y: Pointclouds, or points (N, P2, D).
        init_transform: Initial transform (R, T, s); by default the identity.
        max_iterations: Largest number of iterations.
        relative_rmse_thr: Stop when the error of each cloud decreases by no more than this fraction.
        estimate_scale: Also estimate scales, otherwise 1.
        allow_reflection: Allow reflections.
        verbose: Print the error of each iteration.

    Returns:
        `ICPSolution(converged, rmse, Xt, RTs, t_history)`.

    Example:
        >>> X = torch.tensor([[[0., 0., 0.], [1., 0., 0.], [0., 2., 0.], [0., 0., 3.]]])
        >>> solution = iterative_closest_point(X, X + 0.1)
        >>> solution.converged, solution.RTs.T
        (True, tensor([[0.1000, 0.1000, 0.1000]]))
    """
    start, sizes_x = convert_pointclouds_to_tensor(X)
    target, sizes_y = convert_pointclouds_to_tensor(Y)
    batch, _, dims = start.shape
    fits = target.shape[0] == batch and target.shape[2] == dims
    checks.shape(fits, "Y", lambda: f"(N, P2, D) with N = {batch} and D = {dims}, like X", target)
    mask = _clouds.within(sizes_x, start.shape[1], start).to(start.dtype) if is_pointclouds(X) else None
    if init_transform is None:
        identity = eyes(dims, batch, start.device, start.dtype)
        transform = SimilarityTransform(identity, start.new_zeros(batch, dims), start.new_ones(batch))
    else:
        transform = _check_transform(init_transform, batch, dims)
    moved = _apply_similarity_transform(start, *transform)
    rmse: Tensor | None = None
    converged, history = False, []
    for iteration in range(max_iterations):
        near = knn_points(moved, target, sizes_x, sizes_y, return_nn=True).knn
        assert near is not None
        transform = corresponding_points_alignment(start, near[:, :, 0], mask, estimate_scale, allow_reflection)
        moved = _apply_similarity_transform(start, *transform)
        history.append(transform)
        previous, error = rmse, (moved - near[:, :, 0]).square().sum(2, keepdim=True)
        rmse = _root(wmean(error, mask)[:, 0, 0])
        if verbose:
            print(f"ICP iteration {iteration}: mean/max rmse = {rmse.mean():1.2e}/{rmse.max():1.2e}")
        if previous is not None and bool((previous - rmse <= relative_rmse_thr * previous).all()):
            converged = True
            break
    if verbose:
        print(f"ICP has {'converged' if converged else 'not converged'} in {len(history)} iterations.")
    aligned = X.update_padded(moved) if is_pointclouds(X) else moved  # type: ignore[union-attr]
    return ICPSolution(converged, rmse, aligned, transform, history)


def corresponding_points_alignment(
    X: "Tensor | Pointclouds",
    Y: "Tensor | Pointclouds",
    weights: Tensor | list[Tensor] | None = None,
    estimate_scale: bool = False,
    allow_reflection: bool = False,
    eps: float = 1e-9,
) -> SimilarityTransform:
    """Find the transforms with which `s * X @ R + T` is nearest to Y in the least-squares sense (Umeyama 1991).

    Gradients are finite for equal singular values, such as those of symmetric shapes (those of the original are not).
    Weights enter the mean once and the covariance squared, as in the original.

    Args:
        X: Pointclouds, or points (N, P, D).
        Y: The corresponding points, in the same layout.
        weights: (N, P) non-negative weights, or a list of N tensors (P_n,), or None.
        estimate_scale: Also estimate scales, otherwise 1.
        allow_reflection: Allow reflections.
        eps: Least variance and sum of weights to divide by.

    Returns:
        `SimilarityTransform(R, T, s)`.

    Example:
        >>> X = torch.tensor([[[0., 0.], [1., 0.], [0., 1.]]])
        >>> corresponding_points_alignment(X, 2 * X + 1, estimate_scale=True).s.round(decimals=3)
        tensor([2.])
    """
    source, sizes = convert_pointclouds_to_tensor(X)
    target, target_sizes = convert_pointclouds_to_tensor(Y)
    checks.shape(target.shape == source.shape, "Y", lambda: f"{tuple(source.shape)}, like X", target)
    if source.device.type == "cpu":
        same = torch.equal(sizes, target_sizes)
        checks.value(same, "the sizes of the clouds of Y", f"{sizes.tolist()}, like X", target_sizes.tolist())
    dtype, batch = source.dtype, source.shape[0]
    source, target = source.to(sum_dtype(dtype)), target.to(sum_dtype(dtype))
    weight = _weights(weights, source, sizes if is_pointclouds(X) else None)
    mean_x, mean_y = wmean(source, weight, eps=eps), wmean(target, weight, eps=eps)
    central_x, central_y = source - mean_x, target - mean_y
    total = sizes.clamp(min=1)
    if weight is not None:
        central_x, central_y = central_x * weight.unsqueeze(2), central_y * weight.unsqueeze(2)
        total = weight.sum(1).clamp(min=eps)
    with full_precision(source):
        covariance = central_x.mT @ central_y / total[:, None, None]
        rotation, values = nearest_rotation(covariance, allow_reflection)
        turned = (mean_x @ rotation)[:, 0]
    _warn_if_ambiguous(smallest_size(X, source), values)
    scale = source.new_ones(batch)
    if estimate_scale:
        variance = central_x.square().sum((1, 2)) / total
        scale = (rotation * covariance).sum((1, 2)) / variance.clamp(min=eps)
    translation = mean_y[:, 0] - scale[:, None] * turned
    return SimilarityTransform(rotation.to(dtype), translation.to(dtype), scale.to(dtype))


def _weights(weights: Any, points: Tensor, sizes: Tensor | None) -> Tensor | None:
    """Weights (N, P), zero beyond the sizes of the clouds."""
    if isinstance(weights, Sequence):
        lengths = [len(item) for item in weights]
        if sizes is not None and points.device.type == "cpu":
            same = lengths == sizes.tolist()
            checks.value(same, "weights", f"tensors of {sizes.tolist()} numbers, like the clouds", lengths)
        weights = list_to_padded(weights, (points.shape[1],))
    if weights is not None:
        checks.tensor("weights", weights)
        fits = weights.shape == points.shape[:2]
        checks.shape(fits, "weights", lambda: f"(N, P) = {tuple(points.shape[:2])}", weights)
        weights = weights.to(points.dtype)
    if sizes is None:
        return weights
    mask = _clouds.within(sizes, points.shape[1], points)
    return mask.to(points.dtype) if weights is None else torch.where(mask, weights, 0)


def _warn_if_ambiguous(smallest: int | None, values: Tensor) -> None:
    dims = values.shape[1]
    message = "corresponding_points_alignment cannot return a unique rotation"
    if smallest is not None and smallest <= dims:
        warnings.warn(f"{message}: a cloud has only {smallest} points in {dims} dimensions", stacklevel=3)
    elif values.device.type == "cpu" and bool((values <= AMBIGUOUS_ROT_SINGULAR_THR).any()):
        warnings.warn(f"{message}: the points of a cloud lie in a subspace", stacklevel=3)


def _check_transform(transform: Any, batch: int, dims: int) -> SimilarityTransform:
    valid = isinstance(transform, tuple) and len(transform) == 3 and all(isinstance(t, Tensor) for t in transform)
    expected = [(batch, dims, dims), (batch, dims), (batch,)]
    shapes = [tuple(item.shape) for item in transform] if valid else type(transform).__name__
    checks.value(shapes == expected, "init_transform", f"(R, T, s) with shapes {expected}", shapes)
    return SimilarityTransform(*transform)


def _apply_similarity_transform(X: Tensor, R: Tensor, T: Tensor, s: Tensor) -> Tensor:
    with full_precision(X):
        return s[:, None, None] * (X @ R) + T[:, None, :]


def _root(value: Tensor) -> Tensor:
    """Square root with derivative 0 at 0."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1).sqrt(), value)
