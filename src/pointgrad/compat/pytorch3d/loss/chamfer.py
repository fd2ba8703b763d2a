"""How far two clouds lie apart."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pointgrad.ops import checks

from ..ops import _clouds
from ..ops.knn import knn_gather, nearest

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
    """How far each point of x is from its nearest in y, and the other way round; and how their normals differ.

    x, y: (N, P1, D) and (N, P2, D); or objects with `points_padded()`, `num_points_per_cloud()` and
        `normals_padded()`, as the original's Pointclouds, which then stand for lengths and normals too.
    x_lengths, y_lengths: (N,), how many points of each cloud count.
    x_normals, y_normals: (N, P1, C) and (N, P2, C), or None.
    weights: (N,), not negative: what each pair of clouds counts, and what a mean over pairs is divided by.
    batch_reduction: "mean", "sum" or None, over pairs: None gives (N,).
    point_reduction: "mean" or "sum" over points; "max", the farthest point of both sides together, without normals; or
        None, for which batch_reduction must be None too: one number per point, (N, P1) and (N, P2) in a tuple, or
        (N, P1) if single_directional.
    norm: 2 for **squared** Euclidean distances, 1 for sums of absolute differences.
    single_directional: only from x to y.
    abs_cosine: normals that point in opposite directions count as equal.
    returns: (loss, loss_normals): the sum of both directions; loss_normals, 1 minus the (absolute) cosine between
        nearest normals, reduced as the loss, or None without normals.

    Native: `pointgrad.chamfer_distance(x, y, lengths=x_lengths, target_lengths=y_lengths)`, which has no normals or
    weights. What differs from the original: 16-bit clouds give float32, where a mean of squares fits; weights
    that are all zero give 0 in the shape of any other weights, and None without normals; negative weights are refused
    on the CPU only, because a GPU would have to wait for them.

    >>> loss, normals = chamfer_distance(torch.tensor([[[0.], [1.]]]), torch.tensor([[[0.], [3.]]]))
    >>> loss, normals
    (tensor(2.5000), None)
    """
    _check_reductions(batch_reduction, point_reduction)
    checks.value(norm in (1, 2), "norm", "1 or 2", norm)
    here = _side("x", x, x_lengths, x_normals)
    there = _side("y", y, y_lengths, y_normals)
    _check(here, there, weights)
    has_normals = here.normals is not None and there.normals is not None
    allowed = point_reduction != "max" or (here.normals is None and there.normals is None)
    checks.value(allowed, "x_normals and y_normals", 'None if point_reduction is "max"', "normals")

    directions = [(here, there)] if single_directional else [(here, there), (there, here)]
    losses, losses_normals = [], []
    for source, aim in directions:
        distance, index = nearest(source.points, aim.points, source.lengths, aim.lengths, norm, 1)
        losses.append(_per_cloud(distance.squeeze(2), source, weights, point_reduction))
        if has_normals:
            differ = _normals_differ(source, aim, index, abs_cosine)
            losses_normals.append(_per_cloud(differ, source, weights, point_reduction))
    return (
        _reduce(losses, weights, batch_reduction, point_reduction),
        _reduce(losses_normals, weights, batch_reduction, point_reduction) if has_normals else None,
    )


class _Side(NamedTuple):
    points: Tensor
    lengths: Tensor | None
    normals: Tensor | None


def _side(name: str, points: Any, lengths: Any, normals: Any) -> _Side:
    if hasattr(points, "points_padded") and hasattr(points, "num_points_per_cloud"):
        lengths, normals = points.num_points_per_cloud(), points.normals_padded()
        points = points.points_padded()
    _clouds.check(name, points, f"{name}_lengths", lengths)
    if normals is not None:
        checks.tensor(f"{name}_normals", normals)
        fits = normals.dim() == 3 and normals.shape[:2] == points.shape[:2]
        checks.shape(fits, f"{name}_normals", lambda: f"(N, P, C) with (N, P) = {tuple(points.shape[:2])}", normals)
    return _Side(points, lengths, normals)


def _check_reductions(batch_reduction: Any, point_reduction: Any) -> None:
    fits = batch_reduction in (None, "mean", "sum")
    checks.value(fits, "batch_reduction", '"mean", "sum" or None', repr(batch_reduction))
    fits = point_reduction in (None, "mean", "sum", "max")
    checks.value(fits, "point_reduction", '"mean", "sum", "max" or None', repr(point_reduction))
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
        fits = weights.shape[:1] == (batch,) and weights.numel() == batch  # (N, 1) is allowed there, too
        checks.shape(fits, "weights", lambda: f"(N,) = ({batch},)", weights)
        checks.device("weights", weights, "x", x.points)
        if weights.device.type == "cpu" and not torch.compiler.is_compiling():
            checks.value(bool((weights >= 0).all()), "weights", "at least 0", weights.tolist())


def _normals_differ(source: _Side, aim: _Side, index: Tensor, abs_cosine: bool) -> Tensor:
    """(N, P), 0 beyond the lengths."""
    assert source.normals is not None
    assert aim.normals is not None
    near = knn_gather(aim.normals, index, aim.lengths).squeeze(2)
    cosine = functional.cosine_similarity(source.normals, near, dim=2, eps=1e-6)
    differ = 1 - (cosine.abs() if abs_cosine else cosine)
    return torch.where(_clouds.within(source.lengths, differ.shape[1], source.points), differ, 0)


def _per_cloud(value: Tensor, source: _Side, weights: Tensor | None, point_reduction: str | None) -> Tensor:
    """(N,), or (N, P) without a reduction."""
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
