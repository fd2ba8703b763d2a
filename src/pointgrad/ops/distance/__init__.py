"""Distances between clouds."""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .. import checks, clouds
from ..neighbors import knn
from ..scatter import segment
from ..sums import fixed_sum

__all__ = ["NearestDistances", "chamfer_distance"]

Direction = Literal["both", "to_targets", "to_points"]
Reduction = Literal["mean", "sum", "none"]
_DIRECTIONS, _REDUCTIONS = get_args(Direction), get_args(Reduction)  # at import: torch 2.6 cannot trace it


class NearestDistances(NamedTuple):
    """Result of `chamfer_distance(..., reduction="none")`.

    Attributes:
        to_targets: (N,) or (B, N), the squared distance from each point to the nearest target of its cloud, 0 if there
            is none. None if `direction` excludes it.
        to_points: (M,) or (B, M), the same from each target.
    """

    to_targets: Tensor | None
    to_points: Tensor | None


def chamfer_distance(
    points: Tensor,
    targets: Tensor,
    *,
    offsets: Tensor | None = None,
    target_offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    target_lengths: Tensor | None = None,
    direction: Direction = "both",
    reduction: Reduction = "mean",
    batch_reduction: Reduction = "mean",
    any_dims: bool = False,
) -> Tensor | NearestDistances:
    """Chamfer distance: squared distances between points and their nearest targets, in both directions.

    A point without a nearest target, because the cloud has none or the point is not finite, contributes nothing and is
    not counted in a mean. So a pair with an empty cloud has distance 0.

    Args:
        points: (N, D) packed, or (B, N, D) padded, any D.
        targets: (M, D) or (B, M, D), with the dtype of the points.
        offsets: (B + 1,), packed points only: cloud b is `points[offsets[b]:offsets[b + 1]]`. By default one cloud.
        target_offsets: The same for packed targets.
        lengths: (B,), padded points only: cloud b is `points[b, :lengths[b]]`. By default all N points.
        target_lengths: The same for padded targets.
        direction: "both" adds both directions, "to_targets" uses only distances from points to targets, "to_points"
            only distances from targets to points.
        reduction: Reduction over the points of a cloud: "mean", "sum", or "none", which returns `NearestDistances`.
        batch_reduction: Reduction over clouds: "mean", "sum", or "none", which returns one value per cloud (B,).
        any_dims: See `knn`.

    Returns:
        float32, or float64 for float64 clouds: a scalar, (B,), or `NearestDistances`.

    Gradients flow to both clouds, twice.

    Example:
        >>> chamfer_distance(torch.tensor([[0.], [1.]]), torch.tensor([[0.], [3.]]))
        tensor(2.5000)
    """
    for name, value, allowed in (
        ("direction", direction, _DIRECTIONS),
        ("reduction", reduction, _REDUCTIONS),
        ("batch_reduction", batch_reduction, _REDUCTIONS),
    ):
        contract = ", ".join(f'"{one}"' for one in allowed[:-1]) + f' or "{allowed[-1]}"'
        checks.kind(isinstance(value, str), name, contract, value)
        checks.value(value in allowed, name, contract, repr(value))
    checks.clouds(points, offsets, lengths, most_dims=checks.ANY, any_dims=any_dims)
    clouds.check_partner(points, offsets, targets, target_offsets, target_lengths, "targets", "target_")
    if points.device.type == "cpu" and not torch.compiler.is_compiling():  # errors of knn would name its arguments
        clouds.check_values(points, clouds.as_sizes(offsets, lengths))
        clouds.check_values(targets, clouds.as_sizes(target_offsets, target_lengths), prefix="target_")
    ours = (points, offsets, lengths)
    theirs = (targets, target_offsets, target_lengths)
    to_targets = _nearest(ours, theirs) if direction != "to_points" else None
    to_points = _nearest(theirs, ours) if direction != "to_targets" else None
    if reduction == "none":
        return NearestDistances(*(None if side is None else side[0] for side in (to_targets, to_points)))
    sides = [
        _per_cloud(*side, where, reduction)
        for side, where in ((to_targets, offsets), (to_points, target_offsets))
        if side is not None
    ]
    total = torch.stack(sides).sum(0)
    if batch_reduction == "none":
        return total
    summed = fixed_sum(total)
    return summed if batch_reduction == "sum" else summed / max(total.shape[0], 1)


Clouds = tuple[Tensor, Tensor | None, Tensor | None]


def _nearest(source: Clouds, target: Clouds) -> tuple[Tensor, Tensor]:
    """The squared distance of each source point to its nearest target, 0 without one, and whether there is a target."""
    points, offsets, lengths = source
    targets, target_offsets, target_lengths = target
    found = knn(
        targets, 1, points,
        offsets=target_offsets, lengths=target_lengths, query_offsets=offsets, query_lengths=lengths, any_dims=True,
    )  # fmt: skip
    has_one = found.count > 0
    return torch.where(has_one, found.distance2.squeeze(-1), 0), has_one


def _per_cloud(distance2: Tensor, has_one: Tensor, offsets: Tensor | None, reduction: str) -> Tensor:
    """(B,) the sum or mean over the points that have a nearest neighbor."""
    both = torch.stack([distance2, has_one.to(distance2.dtype)], dim=-1)
    # Without offsets: padded clouds, or a single packed cloud.
    sums = both.sum(-2).reshape(-1, 2) if offsets is None else segment(both, offsets)
    total, count = sums.unbind(1)
    return total if reduction == "sum" else total / count.clamp(min=1)
