"""Neighbour search: the k nearest points, or those in a ball, and an index that is built once and asked often.

A pair whose squared distance is not finite (a NaN or infinite coordinate, or an overflow) is never a
neighbour. Squared distances have gradients to points and queries; which points were found has none.
"""

import numbers
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .. import checks, clouds, registry
from . import register

__all__ = ["NeighborIndex", "Neighbors", "ball_query", "knn", "to_edges"]

Select = Literal["nearest", "first", "random"]
_SELECTS = get_args(Select)  # asked once: torch 2.6 cannot trace the question


class Neighbors(NamedTuple):
    """index, distance2: (M, K) or (B, M, K), -1 and infinity where there are fewer. count: (M,) or (B, M)."""

    index: Tensor  # type: ignore[assignment]  # tuple.index is not needed here
    distance2: Tensor
    count: Tensor  # type: ignore[assignment]  # nor here


def knn(
    points: Tensor,
    k: int,
    queries: Tensor | None = None,
    *,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
) -> Neighbors:
    """The k nearest points of each query, nearest first, ties to the smallest index.

    points: (N, D) packed, or (B, N, D) padded; any D; any floating dtype, 16 bits compared in float32.
    k: how many, at least 1; there is no upper limit.
    queries: (M, D) or (B, M, D), dtype as the points; without them the points are asked about themselves
        (and each finds itself first, unless an equal point has a smaller index).
    offsets, lengths: where each cloud of the points lies, as everywhere; `query_offsets` and
        `query_lengths` the same for the queries. A query looks only into the cloud of its own number.
    returns: `Neighbors(index, distance2, count)`. Indices are int64, global for packed points, local for
        padded ones. `distance2` is float32, or float64 for float64 points. Where a cloud has fewer than k
        points, and beyond `query_lengths`, the index is -1 and the distance infinity.

    Gradients: `distance2` to points and queries, twice. Up to three dimensions the search goes through a
    spatial index, above through all points. Every backend returns the same bits. To ask the same
    points several times, build a `NeighborIndex`.

    >>> line = torch.tensor([[0.], [1.], [3.]])
    >>> knn(line, 2).index
    tensor([[0, 1],
            [1, 0],
            [2, 1]])
    """
    _check_count(k)
    checks.clouds(points, offsets, lengths, most_dims=checks.ANY)
    points, queries = _check_queries(points, offsets, queries, query_offsets, query_lengths)
    return _search(points, offsets, lengths, queries, query_offsets, query_lengths, None, k)


def ball_query(
    points: Tensor,
    radius: float,
    k: int,
    queries: Tensor | None = None,
    *,
    select: Select = "nearest",
    min_radius: float = 0.0,
    closed: bool = True,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
) -> Neighbors:
    """At most k points within a ball around each query.

    radius, min_radius: a point counts if `min_radius**2 <= distance2 <= radius**2`, both ends included. Radii are
        rounded to the precision of the distance, and squared in it.
    closed: whether a point at exactly `radius` counts; if not, `distance2 < radius**2`.
    select: which k, if there are more: "nearest", nearest first; "first", those of smallest index, in the
        order of the index; "random", drawn without repetition, nearest first. One number is drawn from
        torch's default CPU generator, so a seed gives the same neighbours on every device.
    The rest, the result and its gradients: as for `knn`.

    >>> line = torch.tensor([[0.], [1.], [3.]])
    >>> ball_query(line, 1.5, 2).index
    tensor([[ 0,  1],
            [ 1,  0],
            [ 2, -1]])
    """
    limits = _check_ball(radius, k, select, min_radius, closed)
    checks.clouds(points, offsets, lengths, most_dims=checks.ANY)
    points, queries = _check_queries(points, offsets, queries, query_offsets, query_lengths)
    return _search(points, offsets, lengths, queries, query_offsets, query_lengths, None, k, *limits)


class NeighborIndex:
    """The points, prepared for many searches.

    points, offsets, lengths: as for `knn`, with one to three dimensions. The index keeps a copy of its own: it
    answers for the points as they were when it was built, whatever happens to them afterwards, and
    gradients of `distance2` flow back to them.

    >>> index = NeighborIndex(torch.tensor([[0.], [1.], [3.]]))
    >>> index.knn(1, torch.tensor([[0.8], [2.5]])).index
    tensor([[1],
            [2]])
    """

    def __init__(self, points: Tensor, *, offsets: Tensor | None = None, lengths: Tensor | None = None) -> None:
        checks.clouds(points, offsets, lengths, most_dims=3)
        self._points = points.clone()
        self._offsets, self._lengths = _own(offsets), _own(lengths)
        self._backend = registry.chosen(points.device)
        self._index = register.neighbor_index(self._points.detach(), self._offsets, self._lengths)

    def knn(
        self,
        k: int,
        queries: Tensor | None = None,
        *,
        query_offsets: Tensor | None = None,
        query_lengths: Tensor | None = None,
    ) -> Neighbors:
        """As the function `knn`."""
        _check_count(k)
        return self._search(queries, query_offsets, query_lengths, k)

    def ball_query(
        self,
        radius: float,
        k: int,
        queries: Tensor | None = None,
        *,
        select: Select = "nearest",
        min_radius: float = 0.0,
        closed: bool = True,
        query_offsets: Tensor | None = None,
        query_lengths: Tensor | None = None,
    ) -> Neighbors:
        """As the function `ball_query`."""
        limits = _check_ball(radius, k, select, min_radius, closed)
        return self._search(queries, query_offsets, query_lengths, k, *limits)

    def _search(
        self, queries: Tensor | None, query_offsets: Tensor | None, query_lengths: Tensor | None, *wanted: Any
    ) -> Neighbors:
        points, offsets, lengths = self._points, self._offsets, self._lengths
        if queries is not None and isinstance(queries, Tensor):
            checks.same_dtype("queries", queries, "points", points)
        _check_queries(points, offsets, queries, query_offsets, query_lengths)
        # What one backend prepared says nothing to another, which a caller may have forced since.
        index = self._index if registry.chosen(points.device) == self._backend else None
        return _search(points, offsets, lengths, queries, query_offsets, query_lengths, index, *wanted)


def to_edges(index: Tensor, num_points: int | None = None) -> Tensor:
    """The neighbours as a list of edges, for graph libraries: what a graph convolution calls `edge_index`.

    index: (M, K) or (B, M, K), as a search returns it; -1 gives no edge.
    num_points: N, how many points each cloud has room for; needed for padded (B, M, K) only, whose points
        and queries are then numbered through all clouds.
    returns: (2, E) int64, ordered by query: row 0 the neighbour (where a message comes from), row 1 the
        query (where it goes). E depends on the data, so a GPU waits for it.

    >>> to_edges(torch.tensor([[0, 1], [1, -1]]))
    tensor([[0, 1, 1],
            [0, 0, 1]])
    """
    checks.tensor("index", index)
    checks.shape(index.dim() in (2, 3), "index", "(M, K) or (B, M, K)", index)
    checks.dtype("index", index, checks.INDICES)
    index = index.long()
    if index.dim() == 3:
        checks.kind(checks.is_integer(num_points), "num_points", "an int for padded (B, M, K)", num_points)
        assert num_points is not None
        if index.device.type == "cpu" and not torch.compiler.is_compiling():
            checks.index_values(index, num_points)
        first = torch.arange(index.shape[0], device=index.device)[:, None, None] * num_points
        index = torch.where(index >= 0, index + first, -1).flatten(0, 1)
    query, place = (index >= 0).nonzero(as_tuple=True)
    return torch.stack([index[query, place], query])


def _check_count(k: Any) -> None:
    checks.kind(checks.is_integer(k), "k", "an int", k)
    checks.value(1 <= k < 2**63, "k", "at least 1", k)


def _check_ball(radius: Any, k: Any, select: Any, min_radius: Any, closed: Any) -> tuple[float, float, bool, str]:
    """What limits the search: both radii, whether the ball is closed, and how to choose."""
    for name, value in (("radius", radius), ("min_radius", min_radius)):
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        checks.kind(is_number, name, "a number", value)
    _check_count(k)
    checks.kind(isinstance(select, str), "select", '"nearest", "first" or "random"', select)
    checks.value(select in _SELECTS, "select", '"nearest", "first" or "random"', repr(select))
    checks.kind(isinstance(closed, bool), "closed", "a bool", closed)
    checks.value(radius > 0, "radius", "positive", radius)
    below = 0 <= min_radius < radius
    checks.value(below, "min_radius", lambda: f"at least 0 and below radius = {radius}", min_radius)
    return float(radius), float(min_radius), closed, select


def _check_queries(
    points: Tensor, offsets: Tensor | None, queries: Any, query_offsets: Any, query_lengths: Any
) -> tuple[Tensor, Tensor | None]:
    """The points and queries in one dtype."""
    if queries is None:
        for name, sizes in (("query_offsets", query_offsets), ("query_lengths", query_lengths)):
            checks.value(sizes is None, name, "None without queries", "a tensor")
        return points, None
    clouds.check_partner(points, offsets, queries, query_offsets, query_lengths, "queries", "query_")
    if queries.dtype != points.dtype:
        widest = torch.promote_types(points.dtype, queries.dtype)
        return points.to(widest), queries.to(widest)
    return points, queries


def _search(
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    queries: Tensor | None,
    query_offsets: Tensor | None,
    query_lengths: Tensor | None,
    index: Tensor | None,
    k: int,
    radius: float = torch.inf,
    min_radius: float = 0.0,
    closed: bool = True,
    select: str = "nearest",
) -> Neighbors:
    seed = torch.randint(0, 2**62, (), device="cpu").to(points.device) if select == "random" else None
    sizes = (None if x is None else x.long() for x in (offsets, lengths, query_offsets, query_lengths))
    offsets, lengths, query_offsets, query_lengths = sizes
    distance2, found, count = register.neighbor_search(
        points, offsets, lengths, queries, query_offsets, query_lengths,
        index, k, radius, min_radius, closed, select, seed,
    )  # fmt: skip
    return Neighbors(found, distance2, count)


def _own(sizes: Tensor | None) -> Tensor | None:
    return None if sizes is None else sizes.to(torch.int64, copy=True)
