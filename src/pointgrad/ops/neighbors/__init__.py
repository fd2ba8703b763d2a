"""Neighbor search: the k nearest points, the points in a ball, and an index for repeated searches.

A pair whose squared distance is not finite (a NaN or infinite coordinate, or an overflow) is never a pair of neighbors.
Squared distances have gradients to points and queries; indices have none.
"""

import copy
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .. import checks, clouds, registry
from . import register

__all__ = ["NeighborIndex", "Neighbors", "ball_query", "knn", "to_edges"]

Select = Literal["nearest", "first", "random"]
_SELECTS = get_args(Select)  # at import: torch 2.6 cannot trace get_args


class Neighbors(NamedTuple):
    """Result of a neighbor search.

    Attributes:
        index: (M, K) or (B, M, K) int64, -1 where there are fewer than K neighbors.
        distance2: (M, K) or (B, M, K) squared distances, infinite where the index is -1.
        count: (M,) or (B, M) int64, the number of neighbors that were found.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index
    distance2: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count


def knn(
    points: Tensor,
    k: int,
    queries: Tensor | None = None,
    *,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    query_lengths: Tensor | None = None,
    any_dims: bool = False,
) -> Neighbors:
    """Find the k nearest points of each query, nearest first.

    Ties go to the smallest index. Every backend returns the same bits. To search the same points several times, build a
    `NeighborIndex`.

    Args:
        points: (N, D) packed, or (B, N, D) padded. Any D, any floating dtype; 16-bit points are compared in float32. Up
            to three dimensions the search uses a spatial index, above it compares all pairs.
        k: Number of neighbors, at least 1. There is no upper limit.
        queries: (M, D) or (B, M, D), with the dtype of the points. By default the points themselves; each then finds
            itself first, unless an equal point has a smaller index.
        offsets: (B + 1,), packed points only: cloud b is `points[offsets[b]:offsets[b + 1]]`. By default one cloud.
        query_offsets: The same for packed queries. Queries of cloud b search the points of cloud b.
        lengths: (B,), padded points only: cloud b is `points[b, :lengths[b]]`. By default all N points.
        query_lengths: The same for padded queries.
        any_dims: Accept clouds of exactly 3 points with more than 3 dimensions. Their shape, (..., 3, D), is refused by
            default, because it is almost always that of transposed points (B, 3, N).

    Returns:
        `Neighbors(index, distance2, count)`. Indices are global for packed points and local for padded ones.
        `distance2` is float32, or float64 for float64 points. Where a cloud has fewer than k points, and beyond
        `query_lengths`, the index is -1 and the distance is infinite.

    Gradients flow from `distance2` to points and queries, twice.

    Example:
        >>> line = torch.tensor([[0.], [1.], [3.]])
        >>> knn(line, 2).index
        tensor([[0, 1],
                [1, 0],
                [2, 1]])
    """
    _check_count(k)
    checks.clouds(points, offsets, lengths, most_dims=checks.ANY, any_dims=any_dims)
    points, queries = _check_queries(points, offsets, queries, query_offsets, query_lengths)
    sizes, query_sizes = clouds.as_sizes(offsets, lengths), clouds.as_sizes(query_offsets, query_lengths)
    return _search(points, sizes, queries, query_sizes, None, k)


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
    any_dims: bool = False,
) -> Neighbors:
    """Find at most k points within a radius of each query.

    Args:
        points: See `knn`.
        radius: A point is a neighbor if `min_radius**2 <= distance2 <= radius**2`. Radii are rounded to the precision
            of the distance and squared in it.
        k: Largest number of neighbors.
        queries: See `knn`.
        select: Which k neighbors are returned if there are more. "nearest": the nearest, nearest first. "first": those
            with the smallest indices, in index order. "random": drawn without repetition, nearest first; one number is
            drawn from torch's default CPU generator, so a seed gives the same neighbors on every device.
        min_radius: Inner radius, included.
        closed: Whether a point at exactly `radius` is a neighbor. If not, `distance2 < radius**2`.
        offsets: See `knn`.
        query_offsets: See `knn`.
        lengths: See `knn`.
        query_lengths: See `knn`.
        any_dims: See `knn`.

    Returns:
        `Neighbors(index, distance2, count)`, with gradients, as `knn` returns it.

    Example:
        >>> line = torch.tensor([[0.], [1.], [3.]])
        >>> ball_query(line, 1.5, 2).index
        tensor([[ 0,  1],
                [ 1,  0],
                [ 2, -1]])
    """
    limits = _check_ball(radius, k, select, min_radius, closed)
    checks.clouds(points, offsets, lengths, most_dims=checks.ANY, any_dims=any_dims)
    points, queries = _check_queries(points, offsets, queries, query_offsets, query_lengths)
    sizes, query_sizes = clouds.as_sizes(offsets, lengths), clouds.as_sizes(query_offsets, query_lengths)
    return _search(points, sizes, queries, query_sizes, None, k, *limits)


class NeighborIndex:
    """A spatial index of points for repeated searches.

    The index keeps a copy of the points. Later changes of the points have no effect on it, and gradients of `distance2`
    flow back to them.

    Args:
        points: (N, D) packed, or (B, N, D) padded, with D from 1 to 3.
        offsets: See `knn`.
        lengths: See `knn`.

    Example:
        >>> index = NeighborIndex(torch.tensor([[0.], [1.], [3.]]))
        >>> index.knn(1, torch.tensor([[0.8], [2.5]])).index
        tensor([[1],
                [2]])
    """

    def __init__(self, points: Tensor, *, offsets: Tensor | None = None, lengths: Tensor | None = None) -> None:
        checks.clouds(points, offsets, lengths, most_dims=3)
        self._points = points.clone()
        sizes = clouds.as_sizes(offsets, lengths)
        self._sizes = None if sizes is None else sizes.clone()
        self._backend = registry.chosen(points.device)
        self._index = register.neighbor_index(self._points.detach(), self._sizes)

    def __deepcopy__(self, memo: dict[int, Any]) -> "NeighborIndex":
        """A copy with memory of its own, whose gradients flow to the same points."""
        copied = copy.copy(self)
        copied._points, copied._index = self._points.clone(), self._index.clone()
        copied._sizes = None if self._sizes is None else self._sizes.clone()
        return copied

    def knn(
        self,
        k: int,
        queries: Tensor | None = None,
        *,
        query_offsets: Tensor | None = None,
        query_lengths: Tensor | None = None,
    ) -> Neighbors:
        """Find the k nearest points of each query. See the function `knn`."""
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
        """Find at most k points within a radius of each query. See the function `ball_query`."""
        limits = _check_ball(radius, k, select, min_radius, closed)
        return self._search(queries, query_offsets, query_lengths, k, *limits)

    def _search(
        self, queries: Tensor | None, query_offsets: Tensor | None, query_lengths: Tensor | None, *wanted: Any
    ) -> Neighbors:
        points, sizes = self._points, self._sizes
        if queries is not None and isinstance(queries, Tensor):
            checks.same_dtype("queries", queries, "points", points)
        _check_queries(points, sizes, queries, query_offsets, query_lengths)
        # A different backend, forced since the index was built, cannot use it.
        index = self._index if registry.chosen(points.device) == self._backend else None
        query_sizes = clouds.as_sizes(query_offsets, query_lengths)
        return _search(points, sizes, queries, query_sizes, index, *wanted)


def to_edges(index: Tensor, num_points: int | None = None) -> Tensor:
    """Convert neighbor lists to the edge list that graph libraries call `edge_index`.

    Args:
        index: (M, K) or (B, M, K), as a search returns it. -1 gives no edge.
        num_points: N, the size of the padded points (B, N, D). Needed for a padded index only, whose points and queries
            are numbered through all clouds.

    Returns:
        (2, E) int64, ordered by query. Row 0 holds the neighbors (where messages come from), row 1 the queries (where
        they go to). E depends on the data, so a GPU is synchronized.

    Example:
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
        batch = index.shape[0]
        inside = num_points >= 0 and batch * num_points < 2**63
        checks.value(inside, "num_points", lambda: f"at least 0 and below 2^63 / {max(batch, 1)}", num_points)
        if index.device.type == "cpu" and not torch.compiler.is_compiling():
            checks.index_values(index, num_points)
        first = torch.arange(batch, device=index.device)[:, None, None] * num_points
        # On a GPU an index out of range counts as -1.
        index = torch.where((index >= 0) & (index < num_points), index + first, -1).flatten(0, 1)
    query, place = (index >= 0).nonzero(as_tuple=True)
    return torch.stack([index[query, place], query])


def _check_count(k: Any) -> None:
    checks.kind(checks.is_integer(k), "k", "an int", k)
    checks.value(1 <= k < 2**63, "k", "at least 1", k)


def _check_ball(radius: Any, k: Any, select: Any, min_radius: Any, closed: Any) -> tuple[float, float, bool, str]:
    """Check the arguments of a ball query; returns both radii, whether the ball is closed, and the selection."""
    for name, value in (("radius", radius), ("min_radius", min_radius)):
        checks.number(name, value)
    _check_count(k)
    checks.kind(isinstance(select, str), "select", '"nearest", "first" or "random"', select)
    checks.value(select in _SELECTS, "select", '"nearest", "first" or "random"', repr(select))
    checks.boolean("closed", closed)
    checks.value(radius > 0, "radius", "positive", radius)
    below = 0 <= min_radius < radius
    checks.value(below, "min_radius", lambda: f"at least 0 and below radius = {radius}", min_radius)
    return float(radius), float(min_radius), closed, select


def _check_queries(
    points: Tensor, offsets: Tensor | None, queries: Any, query_offsets: Any, query_lengths: Any
) -> tuple[Tensor, Tensor | None]:
    """Check the queries; returns points and queries in one dtype."""
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
    sizes: Tensor | None,
    queries: Tensor | None,
    query_sizes: Tensor | None,
    index: Tensor | None,
    k: int,
    radius: float = torch.inf,
    min_radius: float = 0.0,
    closed: bool = True,
    select: str = "nearest",
) -> Neighbors:
    seed = torch.randint(0, 2**62, (), device="cpu").to(points.device) if select == "random" else None
    distance2, found, count = register.neighbor_search(
        points, sizes, queries, query_sizes, index, k, radius, min_radius, closed, select, seed
    )
    return Neighbors(found, distance2, count)
