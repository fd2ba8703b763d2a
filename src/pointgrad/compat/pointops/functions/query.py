"""`pointops.functions.query`: neighbours in packed clouds.

A query looks only into the cloud of its own number. `new_xyz` and `new_offset` are given together; without them the
points are asked about themselves. Where there are fewer neighbours than asked for, the index is -1, the distance 1e5.
"""

import numbers
from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of
from ._packed import check_points, starts

__all__ = ["BallQuery", "KNNQuery", "RandomBallQuery", "ball_query", "knn_query", "random_ball_query"]

_NOTHING2 = 1e10  # the squared distance where there is no neighbour
_SAME2 = 1e-5  # a point not farther than this, squared, is in every ball, whatever min_radius


def knn_query(
    nsample: int,
    xyz: Tensor,
    offset: Tensor | None,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The `nsample` nearest points, nearest first, ties to the smallest index.

    xyz: (N, 3). new_xyz: (M, 3). offset, new_offset: (B,) where each cloud ends; None for a single cloud.
    returns: idx (M, nsample) int32 and dist (M, nsample), not squared, in the dtype of the points, at least float32.

    Any `nsample`; the original writes past its end above 128. Gradients of dist reach xyz and new_xyz, zero where two
    points coincide; the original's backward is not there. Points may be farther than 1e5 apart.

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
    """Points at a distance in [min_radius, max_radius), nearest first; if there are more than `nsample`, so many of
    them spread evenly over the whole list: the ranks `int(count / nsample * i)`.

    As in the original, a point at a distance of at most sqrt(1e-5) is taken although it is below min_radius: the centre
    itself. Arguments and result otherwise as for `knn_query`.

    The original's order is wrong (its heap is never built), its buffer ends after 2048 candidates unchecked, and in a
    full ball its distances are indices. Here a full ball costs: all its points are listed, in as many searches, each
    for four times more, as it takes, and the host waits for each.

    >>> line = torch.arange(5.0)[:, None] * torch.tensor([1., 0., 0.])
    >>> ball_query(2, 4.0, 0.0, line, torch.tensor([5]), line[:1], torch.tensor([1]))[0]  # two of 0, 1, 2, 3
    tensor([[0, 2]], dtype=torch.int32)
    """
    found, inner, hole = _everything(nsample, max_radius, min_radius, xyz, offset, new_xyz, new_offset)
    count = (found.count - hole).unsqueeze(1)
    place = torch.arange(nsample, device=xyz.device)
    spread = (count.float() / nsample * place).long()  # in float32, as the original
    return _pick(found, torch.where(count > nsample, spread, place), count, inner, hole)


def random_ball_query(
    nsample: int,
    max_radius: float,
    min_radius: float,
    xyz: Tensor,
    offset: Tensor,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `ball_query`, but `nsample` of the points at random, without repetition, drawn anew for each query.

    From torch's CPU generator: a seed gives the same points on every device. Nearest first; the original's order is
    random too.
    """
    if _check_radii(max_radius, min_radius) <= _SAME2:
        nsample = count_of("nsample", nsample)
        queries, offsets, query_offsets = _clouds(xyz, offset, new_xyz, new_offset)
        found = pointgrad.ball_query(
            xyz, max_radius, nsample, queries,
            select="random", closed=False, offsets=offsets, query_offsets=query_offsets,
        )  # fmt: skip
        return found.index.int(), distance(found)
    found, inner, hole = _everything(nsample, max_radius, min_radius, xyz, offset, new_xyz, new_offset)
    count = (found.count - hole).unsqueeze(1)
    width = max(found.index.shape[1], nsample)
    lot = torch.rand(found.index.shape[0], width, device="cpu").to(xyz.device)
    lot = lot.masked_fill(torch.arange(width, device=xyz.device) >= count, 2.0)
    return _pick(found, lot.argsort(dim=1)[:, :nsample].sort(dim=1).values, count, inner, hole)


class KNNQuery:
    apply = staticmethod(knn_query)


class BallQuery:
    apply = staticmethod(ball_query)


class RandomBallQuery:
    apply = staticmethod(random_ball_query)


def nearest(
    nsample: int, xyz: Tensor, offset: Tensor | None, new_xyz: Tensor | None, new_offset: Tensor | None
) -> pointgrad.Neighbors:
    """What `knn_query` finds."""
    nsample = count_of("nsample", nsample)
    queries, offsets, query_offsets = _clouds(xyz, offset, new_xyz, new_offset)
    return pointgrad.knn(xyz, nsample, queries, offsets=offsets, query_offsets=query_offsets)


def distance(found: pointgrad.Neighbors) -> Tensor:
    """Not squared, 1e5 where there is none; with a gradient of zero at zero, where that of the root is infinite."""
    distance2 = found.distance2.masked_fill(found.index < 0, _NOTHING2)
    if not distance2.requires_grad:
        return distance2.sqrt()
    zero = distance2 == 0
    return distance2.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)


def _clouds(
    xyz: Tensor, offset: Tensor | None, new_xyz: Tensor | None, new_offset: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """What pointgrad's searches call queries, offsets and query_offsets."""
    check_points("xyz", xyz)
    begins = None if offset is None else starts("offset", offset)
    if new_xyz is None or (new_offset is None and offset is not None):
        return None, begins, None
    check_points("new_xyz", new_xyz)
    if not checks.autocasts(xyz):
        checks.same_dtype("new_xyz", new_xyz, "xyz", xyz)
    return new_xyz, begins, None if new_offset is None else starts("new_offset", new_offset)


def _check_radii(max_radius: Any, min_radius: Any) -> float:
    """The square of the smaller one."""
    for name, value in (("max_radius", max_radius), ("min_radius", min_radius)):
        checks.kind(isinstance(value, numbers.Real), name, "a number", value)
    checks.value(max_radius > 0, "max_radius", "positive", max_radius)
    checks.value(0 <= min_radius < max_radius, "min_radius", f"in [0, max_radius = {max_radius})", min_radius)
    return min_radius * min_radius


def _everything(
    nsample: int,
    max_radius: float,
    min_radius: float,
    xyz: Tensor,
    offset: Tensor,
    new_xyz: Tensor | None,
    new_offset: Tensor | None,
) -> tuple[pointgrad.Neighbors, Tensor, Tensor]:
    """All points of each ball, nearest first; (M,) how many of them are the centre itself; and how many after those
    are below min_radius, if any can be."""
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
    inner = (found.distance2 <= _SAME2).sum(1)
    hole = ((found.distance2 > _SAME2) & (found.distance2 < limit)).sum(1)
    return found, inner, hole


def _pick(
    found: pointgrad.Neighbors, place: Tensor, count: Tensor, inner: Tensor, hole: Tensor
) -> tuple[Tensor, Tensor]:
    """The entries at these places of a list from which `hole` entries after `inner` ones are left out."""
    there = place < count
    place = torch.where(place < inner.unsqueeze(1), place, place + hole.unsqueeze(1))
    place = torch.where(there, place, 0)
    index = torch.where(there, found.index.gather(1, place), -1)
    distance2 = found.distance2.gather(1, place)
    return index.int(), distance(pointgrad.Neighbors(index, distance2, found.count))
