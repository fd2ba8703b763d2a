"""`pointops.functions.query`: neighbor search in packed clouds.

A query searches only the cloud with its own number. `new_xyz` and `new_offset` must be given together; without them the
points themselves are the queries. Missing neighbors have index -1 and distance 1e5.
"""

import numbers
from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of
from ._packed import check_points, to_offsets

__all__ = ["BallQuery", "KNNQuery", "RandomBallQuery", "ball_query", "knn_query", "random_ball_query"]

_MISSING2 = 1e10  # squared distance of missing neighbors
_COINCIDENT2 = 1e-5  # up to this squared distance a point is in every ball, regardless of min_radius


def knn_query(
    nsample: int,
    xyz: Tensor,
    offset: Tensor | None,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Find the `nsample` nearest points, nearest first; ties go to the smallest index.

    `nsample` is not limited; the original writes out of bounds above 128. Distances are differentiable, which the
    original does not support, with zero gradient where two points coincide. Points may be more than 1e5 apart.

    Args:
        nsample: Number of neighbors.
        xyz: (N, 3) points.
        offset: (B,) ends of the clouds of `xyz`; None for a single cloud.
        new_xyz: (M, 3) queries; `xyz` if None.
        new_offset: (B,) ends of the clouds of `new_xyz`.

    Returns:
        `idx` (M, nsample) int32 and `dist` (M, nsample), Euclidean distances in the dtype of the points but at least
        float32, differentiable in `xyz` and `new_xyz`.

    Example:
        >>> line = torch.tensor([[0., 0., 0.], [1., 0., 0.], [3., 0., 0.]])
        >>> knn_query(2, line, torch.tensor([2, 3]))[0]
        tensor([[ 0,  1],
                [ 1,  0],
                [ 2, -1]], dtype=torch.int32)
    """
    found = nearest(nsample, xyz, offset, new_xyz, new_offset)
    return found.index.int(), distance(found)


def ball_query(
    nsample: int,
    max_radius: float,
    min_radius: float,
    xyz: Tensor,
    offset: Tensor,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Find points at a distance in [min_radius, max_radius), nearest first.

    If a ball has more than `nsample` points, `nsample` of them are taken at evenly spaced ranks,
    `int(count / nsample * i)`. As in the original, points at a distance of at most sqrt(1e-5), such as the center
    itself, are included even if min_radius is larger.

    In the original the order is wrong (its heap is never built), the buffer overflows after 2048 candidates, and the
    distances of a full ball are indices. Here a full ball is expensive: the search is repeated with four times as many
    neighbors until all points of the ball are found, and the host waits for each search.

    Args:
        nsample: Number of neighbors.
        max_radius: Outer radius, exclusive.
        min_radius: Inner radius, inclusive.
        xyz, offset, new_xyz, new_offset: As for `knn_query`.

    Returns:
        `idx` and `dist`, as for `knn_query`.

    Example:
        >>> line = torch.arange(5.0)[:, None] * torch.tensor([1., 0., 0.])
        >>> ball_query(2, 4.0, 0.0, line, torch.tensor([5]), line[:1], torch.tensor([1]))[0]  # two of 0, 1, 2, 3
        tensor([[0, 2]], dtype=torch.int32)
    """
    found, inner, hole = all_in_ball(nsample, max_radius, min_radius, xyz, offset, new_xyz, new_offset)
    count = (found.count - hole).unsqueeze(1)
    rank = torch.arange(nsample, device=xyz.device)
    spread = (count.float() / nsample * rank).long()  # in float32, as in the original
    return _select(found, torch.where(count > nsample, spread, rank), count, inner, hole)


def random_ball_query(
    nsample: int,
    max_radius: float,
    min_radius: float,
    xyz: Tensor,
    offset: Tensor,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Like `ball_query`, but take `nsample` random points of each ball, without repetition.

    Random numbers come from torch's CPU generator, so that a seed gives the same points on every device. The result is
    sorted by distance; in the original its order is random.

    Args:
        nsample, max_radius, min_radius, xyz, offset, new_xyz, new_offset: As for `ball_query`.

    Returns:
        `idx` and `dist`, as for `knn_query`.
    """
    if _check_radii(max_radius, min_radius) <= _COINCIDENT2:
        nsample = count_of("nsample", nsample)
        queries, offsets, query_offsets = _clouds(xyz, offset, new_xyz, new_offset)
        found = pointgrad.ball_query(
            xyz, max_radius, nsample, queries,
            select="random", closed=False, offsets=offsets, query_offsets=query_offsets,
        )  # fmt: skip
        return found.index.int(), distance(found)
    found, inner, hole = all_in_ball(nsample, max_radius, min_radius, xyz, offset, new_xyz, new_offset)
    count = (found.count - hole).unsqueeze(1)
    width = max(found.index.shape[1], nsample)
    key = torch.rand(found.index.shape[0], width, device="cpu").to(xyz.device)
    key = key.masked_fill(torch.arange(width, device=xyz.device) >= count, 2.0)
    return _select(found, key.argsort(dim=1)[:, :nsample].sort(dim=1).values, count, inner, hole)


class KNNQuery:
    apply = staticmethod(knn_query)


class BallQuery:
    apply = staticmethod(ball_query)


class RandomBallQuery:
    apply = staticmethod(random_ball_query)


def nearest(
    nsample: int, xyz: Tensor, offset: Tensor | None, new_xyz: Tensor | None, new_offset: Tensor | None
) -> pointgrad.Neighbors:
    """Neighbors of `knn_query`."""
    nsample = count_of("nsample", nsample)
    queries, offsets, query_offsets = _clouds(xyz, offset, new_xyz, new_offset)
    return pointgrad.knn(xyz, nsample, queries, offsets=offsets, query_offsets=query_offsets)


def distance(found: pointgrad.Neighbors) -> Tensor:
    """Euclidean distances, 1e5 for missing neighbors; the gradient is zero, not infinite, at distance zero."""
    distance2 = found.distance2.masked_fill(found.index < 0, _MISSING2)
    if not distance2.requires_grad:
        return distance2.sqrt()
    zero = distance2 == 0
    return distance2.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)


def _clouds(
    xyz: Tensor, offset: Tensor | None, new_xyz: Tensor | None, new_offset: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Arguments `queries`, `offsets` and `query_offsets` of pointgrad's searches."""
    check_points("xyz", xyz)
    offsets = None if offset is None else to_offsets("offset", offset)
    if new_xyz is None or (new_offset is None and offset is not None):
        return None, offsets, None
    check_points("new_xyz", new_xyz)
    if not checks.autocasts(xyz):
        checks.same_dtype("new_xyz", new_xyz, "xyz", xyz)
    return new_xyz, offsets, None if new_offset is None else to_offsets("new_offset", new_offset)


def _check_radii(max_radius: Any, min_radius: Any) -> float:
    """Check both radii and return the square of min_radius."""
    for name, value in (("max_radius", max_radius), ("min_radius", min_radius)):
        checks.kind(isinstance(value, numbers.Real), name, "a number", value)
    checks.value(max_radius > 0, "max_radius", "positive", max_radius)
    checks.value(0 <= min_radius < max_radius, "min_radius", f"in [0, max_radius = {max_radius})", min_radius)
    return min_radius * min_radius


def all_in_ball(
    nsample: int,
    max_radius: float,
    min_radius: float,
    xyz: Tensor,
    offset: Tensor,
    new_xyz: Tensor | None,
    new_offset: Tensor | None,
) -> tuple[pointgrad.Neighbors, Tensor, Tensor]:
    """All points of each ball, nearest first; (M,) the number that coincide with the center; and (M,) the number of the
    others that are nearer than min_radius."""
    nsample = count_of("nsample", nsample)
    _check_radii(max_radius, min_radius)
    queries, offsets, query_offsets = _clouds(xyz, offset, new_xyz, new_offset)
    index = pointgrad.NeighborIndex(xyz, offsets=offsets)
    k = nsample + 1
    while True:
        found = index.ball_query(max_radius, k, queries, closed=False, query_offsets=query_offsets)
        if k >= xyz.shape[0] or not bool((found.count == k).any()):
            break
        k = min(4 * k, xyz.shape[0])
    limit = found.distance2.new_full((), min_radius) ** 2
    inner = (found.distance2 <= _COINCIDENT2).sum(1)
    hole = ((found.distance2 > _COINCIDENT2) & (found.distance2 < limit)).sum(1)
    return found, inner, hole


def _select(
    found: pointgrad.Neighbors, rank: Tensor, count: Tensor, inner: Tensor, hole: Tensor
) -> tuple[Tensor, Tensor]:
    """Entries of these ranks in a list from which `hole` entries after the first `inner` are removed."""
    valid = rank < count
    rank = torch.where(rank < inner.unsqueeze(1), rank, rank + hole.unsqueeze(1))
    rank = torch.where(valid, rank, 0)
    index = torch.where(valid, found.index.gather(1, rank), -1)
    distance2 = found.distance2.gather(1, rank)
    return index.int(), distance(pointgrad.Neighbors(index, distance2, found.count))
