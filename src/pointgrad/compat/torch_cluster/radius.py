"""Neighbors within a radius as edges."""

from numbers import Real

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from .._scalars import count_of
from .._torchscript import opaque
from . import _edges
from ._clouds import pair, pair_offsets


@opaque(_edges.fake)
def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    batch_size: int | None = None,
    ignore_same_index: bool = False,
) -> Tensor:
    """Find the points of `x` that are closer than r to each point of `y`, in the cloud with the same number.

    The native function is `pointgrad.ball_query`, whose (M, k) index needs no synchronization to find E. A very large
    `max_num_neighbors` costs time and memory only if there are that many neighbors.

    Args:
        x: (N, D) or (N,) points to search.
        y: (M, D) or (M,) queries.
        r: Radius. Points at exactly this distance are not neighbors.
        batch_x: (N,) cloud number of each point, sorted.
        batch_y: (M,) cloud number of each query, sorted.
        max_num_neighbors: Maximum number of neighbors of each query: those with the smallest indices, on every device.
            The original does this on a GPU; on a CPU it takes the first that its tree finds (documented as random).
            For an unbiased choice use `pointgrad.ball_query` with `select="nearest"` or `"random"`.
        num_workers, batch_size: As for `knn`.
        ignore_same_index: Leave out pairs of query i and point i.

    Returns:
        (2, E) int64 edges: row 0 is the query in `y`, row 1 the neighbor in `x`. Sorted by query, then by index.

    Example:
        >>> x = torch.tensor([[0.], [1.], [5.]])
        >>> radius(x, torch.tensor([[0.9], [4.]]), 1.0)
        tensor([[0, 0],
                [0, 1]])
    """
    if torch.jit.is_scripting() or torch.compiler.is_compiling():
        return torch.ops.pointgrad_compat.radius(
            x, y, r, batch_x, batch_y, max_num_neighbors, num_workers, batch_size, ignore_same_index
        )
    others = bool(ignore_same_index)
    return _within(x, y, r, batch_x, batch_y, max_num_neighbors, batch_size, others=others, query_first=True)


@opaque(_edges.fake)
def radius_graph(
    x: Tensor,
    r: float,
    batch: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Create edges between each point and the other points that are closer than r.

    No point has more than `max_num_neighbors` edges. In the original it may have one more, because it searches one more
    neighbor and drops the point itself, which may not be among them.

    Args:
        x: (N, D) or (N,) points.
        r: Radius. Points at exactly this distance are not neighbors.
        batch: (N,) cloud number of each point, sorted.
        loop: Count a point as its own neighbor.
        max_num_neighbors, num_workers, batch_size: As for `radius`.
        flow: "source_to_target" for edges (neighbor, point), "target_to_source" for edges (point, neighbor).

    Returns:
        (2, E) int64 edges.

    Example:
        >>> radius_graph(torch.tensor([[0.], [1.], [5.]]), 2.0)
        tensor([[1, 0],
                [0, 1]])
    """
    if torch.jit.is_scripting() or torch.compiler.is_compiling():
        return torch.ops.pointgrad_compat.radius_graph(
            x, r, batch, loop, max_num_neighbors, flow, num_workers, batch_size
        )
    query_first = _edges.query_first(flow)
    return _within(x, x, r, batch, batch, max_num_neighbors, batch_size, others=not loop, query_first=query_first)


def _within(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None,
    batch_y: Tensor | None,
    max_num_neighbors: int,
    batch_size: int | None,
    *,
    others: bool,
    query_first: bool,
) -> Tensor:
    checks.kind((isinstance(r, Real) and not isinstance(r, bool)) or isinstance(r, Tensor), "r", "a number", r)
    checks.value(r >= 0, "r", "at least 0", r)
    max_num_neighbors = count_of("max_num_neighbors", max_num_neighbors, 0)
    points, queries = pair(x, y)
    r = float(r)
    if points.numel() == 0 or queries.numel() == 0 or r == 0 or max_num_neighbors == 0:
        return _edges.no_edges(points)
    offsets, query_offsets = pair_offsets(points, queries, batch_x, batch_y, batch_size)
    max_width = min(max_num_neighbors + others, points.shape[0])  # one more for the query itself
    max_others = max_num_neighbors if others else None

    def search(part: Tensor, part_offsets: Tensor | None, width: int) -> pointgrad.Neighbors:
        if part is points and part_offsets is offsets:
            return pointgrad.ball_query(points, r, width, select="first", closed=False, offsets=offsets, any_dims=True)
        return pointgrad.ball_query(
            points, r, width, part,
            select="first", closed=False, offsets=offsets, query_offsets=part_offsets, any_dims=True,
        )  # fmt: skip

    return _edges.find(search, queries, query_offsets, max_width, max_others, query_first=query_first, grows=True)
