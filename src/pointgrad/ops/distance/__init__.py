"""How far two clouds lie apart."""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .. import checks, clouds
from ..neighbors import knn
from ..scatter import segment

__all__ = ["NearestDistances", "chamfer_distance"]

Direction = Literal["both", "to_targets", "to_points"]
Reduction = Literal["mean", "sum", "none"]
_DIRECTIONS, _REDUCTIONS = get_args(Direction), get_args(Reduction)  # asked once: torch 2.6 cannot trace the question


class NearestDistances(NamedTuple):
    """to_targets: (N,) or (B, N), from each point the squared distance to the nearest target of its cloud.
    to_points: the same from each target. 0 where there is none; None for a direction that was not asked for."""

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
) -> Tensor | NearestDistances:
    """The squared distance from each point to the nearest target, and from each target to the nearest point.

    points, targets: (N, D) and (M, D) packed, or (B, N, D) and (B, M, D) padded, any D, same dtype.
    offsets, lengths: where the clouds of the points lie; `target_offsets`, `target_lengths` for the targets.
    direction: "both" adds both directions; "to_targets" only looks from the points, "to_points" from the targets.
    reduction: over the points of a cloud: "mean", "sum", or "none", which returns `NearestDistances` as they are.
    batch_reduction: over clouds: "mean", "sum", or "none" for one number per cloud, (B,).
    returns: float32, or float64 for float64 clouds: a number, (B,), or `NearestDistances`.

    A point that has no nearest target, because the cloud has none or because it is not finite, adds nothing and
    is not counted in a mean; so a pair with an empty cloud has distance 0. Gradients reach both clouds, twice.

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
    checks.clouds(points, offsets, lengths, most_dims=checks.ANY)
    clouds.check_partner(points, offsets, targets, target_offsets, target_lengths, "targets", "target_")
    if points.device.type == "cpu" and not torch.compiler.is_compiling():  # or the search would name its own arguments
        clouds.check_values(points, offsets, lengths)
        clouds.check_values(targets, target_offsets, target_lengths, prefix="target_")
    here = (points, offsets, lengths)
    there = (targets, target_offsets, target_lengths)
    to_targets = _nearest(here, there) if direction != "to_points" else None
    to_points = _nearest(there, here) if direction != "to_targets" else None
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
    return total.sum() if batch_reduction == "sum" else total.sum() / max(total.shape[0], 1)


Clouds = tuple[Tensor, Tensor | None, Tensor | None]


def _nearest(source: Clouds, aim: Clouds) -> tuple[Tensor, Tensor]:
    """From each point of the source, how far the nearest of the aim is, squared, 0 without one; and which have one."""
    points, offsets, lengths = source
    targets, target_offsets, target_lengths = aim
    found = knn(
        targets, 1, points,
        offsets=target_offsets, lengths=target_lengths, query_offsets=offsets, query_lengths=lengths,
    )  # fmt: skip
    has_one = found.count > 0
    return torch.where(has_one, found.distance2.squeeze(-1), 0), has_one


def _per_cloud(distance2: Tensor, has_one: Tensor, offsets: Tensor | None, reduction: str) -> Tensor:
    """(B,) the sum or mean over those that have a nearest."""
    both = torch.stack([distance2, has_one.to(distance2.dtype)], dim=-1)
    # Without offsets padded, or a single packed cloud.
    sums = both.sum(-2).reshape(-1, 2) if offsets is None else segment(both, offsets)
    total, count = sums.unbind(1)
    return total if reduction == "sum" else total / count.clamp(min=1)
