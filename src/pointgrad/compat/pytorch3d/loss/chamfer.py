"""Chamfer distance between point clouds."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pointgrad.ops import checks

from ..._scalars import is_traced
from ..ops import _clouds
from ..ops.knn import knn_gather, nearest
from ..ops.utils import is_pointclouds

__all__ = ["chamfer_distance"]

Loss = Tensor | tuple[Tensor, Tensor]


def chamfer_distance(
    x: Any,
    y: Any,
    x_lengths: Tensor | None = None,
    y_lengths: Tensor | None = None,
    x_normals: Tensor | None = None,
    y_normals: Tensor | None = None,
    weights: Tensor | None = None,
    batch_reduction: str | None = "mean",
    point_reduction: str | None = "mean",
    norm: int = 2,
    single_directional: bool = False,
    abs_cosine: bool = True,
) -> tuple[Loss, Loss | None]:
    """Compute the chamfer distance between clouds, and the difference of their normals.

    The native function is `pointgrad.chamfer_distance(x, y, lengths=x_lengths, target_lengths=y_lengths)`, which has no
    normals or weights. Differences from the original: 16-bit clouds give float32 results, so that a mean of squares
    does not overflow; if all weights are zero, the loss is 0 with its usual shape, and the normal loss is None without
    normals; negative weights raise an error on the CPU only, because checking them on a GPU would synchronize.

    Args:
        x: (N, P1, D) points, or Pointclouds (ours or the original's), which also provide lengths and normals.
        y: (N, P2, D) points, or Pointclouds.
        x_lengths, y_lengths: (N,) number of points in each cloud.
        x_normals, y_normals: (N, P1, C) and (N, P2, C) normals, or None.
        weights: (N,) non-negative weights of the pairs of clouds. A mean over pairs is divided by their sum.
        batch_reduction: Reduction over pairs: "mean", "sum" or None.
        point_reduction: Reduction over points: "mean", "sum", "max" (the maximum over both directions; not supported
            with normals), or None, which requires that batch_reduction is None.
        norm: 2 for **squared** Euclidean distances, 1 for sums of absolute differences.
        single_directional: Compute only the distances from x to y.
        abs_cosine: Treat opposite normals as equal.

    Returns:
        `(loss, loss_normals)`. `loss` is the sum of both directions: a scalar, or (N,) if batch_reduction is None; if
        point_reduction is None, the distances of all points, a tuple of (N, P1) and (N, P2), or (N, P1) if
        single_directional. `loss_normals` is 1 minus the (absolute) cosine between the normals of nearest points,
        reduced in the same way, or None without normals.

    Example:
        >>> loss, normals = chamfer_distance(torch.tensor([[[0.], [1.]]]), torch.tensor([[[0.], [3.]]]))
        >>> loss, normals
        (tensor(2.5000), None)
    """
    _check_reductions(batch_reduction, point_reduction)
    checks.value(norm in (1, 2), "norm", "1 or 2", norm)
    x_side = _side("x", x, x_lengths, x_normals)
    y_side = _side("y", y, y_lengths, y_normals)
    _check(x_side, y_side, weights)
    has_normals = x_side.normals is not None and y_side.normals is not None
    allowed = point_reduction != "max" or (x_side.normals is None and y_side.normals is None)
    checks.value(allowed, "x_normals and y_normals", 'None if point_reduction is "max"', "normals")

    directions = [(x_side, y_side)] if single_directional else [(x_side, y_side), (y_side, x_side)]
    losses, losses_normals = [], []
    for source, target in directions:
        distance, index = nearest(source.points, target.points, source.lengths, target.lengths, norm, 1)
        losses.append(_per_cloud(distance.squeeze(2), source, weights, point_reduction))
        if has_normals:
            difference = _normal_difference(source, target, index, abs_cosine)
            losses_normals.append(_per_cloud(difference, source, weights, point_reduction))
    return (
        _reduce(losses, weights, batch_reduction, point_reduction),
        _reduce(losses_normals, weights, batch_reduction, point_reduction) if has_normals else None,
    )


class _Side(NamedTuple):
    points: Tensor
    lengths: Tensor | None
    normals: Tensor | None


def _side(name: str, points: Any, lengths: Any, normals: Any) -> _Side:
    if is_pointclouds(points):
        lengths, normals = points.num_points_per_cloud(), points.normals_padded()
        points = points.points_padded()
    elif not isinstance(points, Tensor):
        raise ValueError(f"{name} must be Pointclouds objects or torch.Tensor (N, P, D), got {type(points).__name__}")
    _clouds.check(name, points, f"{name}_lengths", lengths)
    if normals is not None:
        checks.tensor(f"{name}_normals", normals)
        fits = normals.dim() == 3 and normals.shape[:2] == points.shape[:2]
        checks.shape(fits, f"{name}_normals", lambda: f"(N, P, C) with (N, P) = {tuple(points.shape[:2])}", normals)
    return _Side(points, lengths, normals)


def _check_reductions(batch_reduction: Any, point_reduction: Any) -> None:
    fits = batch_reduction in (None, "mean", "sum")
    checks.value(fits, "batch_reduction", 'one of "mean", "sum" and None', repr(batch_reduction))
    fits = point_reduction in (None, "mean", "sum", "max")
    checks.value(fits, "point_reduction", 'one of "mean", "sum", "max" and None', repr(point_reduction))
    fits = point_reduction is not None or batch_reduction is None
    checks.value(fits, "batch_reduction", "None if point_reduction is None", repr(batch_reduction))


def _check(x: _Side, y: _Side, weights: Any) -> None:
    batch, _, dims = x.points.shape
    fits = y.points.shape[0] == batch and y.points.shape[2] == dims
    checks.shape(fits, "y", lambda: f"(N, P2, D) with N = {batch} and D = {dims}, like x", y.points)
    if not checks.autocasts(x.points):
        checks.same_dtype("y", y.points, "x", x.points)
    checks.device("y", y.points, "x", x.points)
    if weights is not None:
        checks.tensor("weights", weights)
        fits = weights.shape[:1] == (batch,) and weights.numel() == batch  # the original also accepts (N, 1)
        checks.shape(fits, "weights", lambda: f"(N,) = ({batch},)", weights)
        checks.device("weights", weights, "x", x.points)
        if weights.device.type == "cpu" and not is_traced(weights):
            checks.value(bool((weights >= 0).all()), "weights", "at least 0", weights.tolist())


def _normal_difference(source: _Side, target: _Side, index: Tensor, abs_cosine: bool) -> Tensor:
    """(N, P) difference of normals, 0 beyond the lengths."""
    assert source.normals is not None
    assert target.normals is not None
    near = knn_gather(target.normals, index, target.lengths).squeeze(2)
    cosine = functional.cosine_similarity(source.normals, near, dim=2, eps=1e-6)
    difference = 1 - (cosine.abs() if abs_cosine else cosine)
    return torch.where(_clouds.within(source.lengths, difference.shape[1], source.points), difference, 0)


def _per_cloud(value: Tensor, source: _Side, weights: Tensor | None, point_reduction: str | None) -> Tensor:
    """Reduce (N, P) over points to (N,), unless point_reduction is None."""
    if weights is not None:
        value = value * weights.reshape(-1, 1)
    if point_reduction is None:
        return value
    if point_reduction == "max":
        return value.amax(1) if value.shape[1] else value.sum(1)
    total = value.sum(1)
    if point_reduction == "sum":
        return total
    return total / (max(value.shape[1], 1) if source.lengths is None else source.lengths.clamp(min=1))


def _reduce(
    sides: list[Tensor], weights: Tensor | None, batch_reduction: str | None, point_reduction: str | None
) -> Loss:
    if point_reduction is None:
        return (sides[0], sides[1]) if len(sides) == 2 else sides[0]
    both = torch.stack(sides)
    total = both.amax(0) if point_reduction == "max" else both.sum(0)
    if batch_reduction is None:
        return total
    if batch_reduction == "sum":
        return total.sum()
    if weights is None:
        return total.sum() / max(total.shape[0], 1)
    divisor = weights.sum()
    return total.sum() / torch.where(divisor == 0, 1, divisor)
