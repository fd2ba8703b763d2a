"""Nearest neighbors as edges."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops.sums import sum_dtype

from .._scalars import count_of
from .._torchscript import opaque
from . import _edges
from ._clouds import pair, pair_offsets


@opaque(_edges.fake)
def knn(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Find the k nearest points of `x` for each point of `y`, in the cloud with the same number.

    The native function is `pointgrad.knn`, whose (M, k) index needs no synchronization. Differences from the original:
    distances are not limited (on a GPU the original finds nothing beyond 1e5 units); all real dtypes are accepted,
    where 16-bit coordinates are compared in float32 and integers in float64.

    Args:
        x: (N, D) or (N,) points to search.
        y: (M, D) or (M,) queries.
        k: Number of neighbors, not limited (to 100 in the original on a GPU).
        batch_x: (N,) cloud number of each point, sorted.
        batch_y: (M,) cloud number of each query, sorted.
        cosine: Compare angles between vectors instead of distances; here also on the CPU. Zero vectors have no
            neighbors and are never neighbors.
        num_workers: Ignored; use `torch.set_num_threads`.
        batch_size: Number of clouds. Without it, a GPU synchronizes to read the ends of `batch_x` and `batch_y`.

    Returns:
        (2, E) int64 edges: row 0 is the query in `y`, row 1 the neighbor in `x`. Sorted by query, nearest first; ties
        go to the smallest index. Queries in clouds of fewer than k points have fewer edges.

    Example:
        >>> x = torch.tensor([[0.], [1.], [5.]])
        >>> knn(x, torch.tensor([[0.9], [4.]]), 2)
        tensor([[0, 0, 1, 1],
                [1, 0, 2, 1]])
    """
    if torch.jit.is_scripting() or torch.compiler.is_compiling():
        return torch.ops.pointgrad_compat.knn(x, y, k, batch_x, batch_y, cosine, num_workers, batch_size)
    return _nearest(x, y, k, batch_x, batch_y, cosine, batch_size, others=False, query_first=True)


@opaque(_edges.fake)
def knn_graph(
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
) -> Tensor:
    """Create edges between each point and its k nearest neighbors.

    Every point of a cloud of more than k points has exactly k edges. In the original it may have k + 1 where more than
    k points are equal, because it searches k + 1 neighbors and drops the point itself, which may not be among them.

    Args:
        x: (N, D) or (N,) points.
        k: Number of neighbors.
        batch: (N,) cloud number of each point, sorted.
        loop: Count a point as its own neighbor, usually the first.
        flow: "source_to_target" for edges (neighbor, point), "target_to_source" for edges (point, neighbor).
        cosine, num_workers, batch_size: As for `knn`.

    Returns:
        (2, E) int64 edges.

    Example:
        >>> knn_graph(torch.tensor([[0.], [1.], [5.]]), 1)
        tensor([[1, 0, 1],
                [0, 1, 2]])
    """
    if torch.jit.is_scripting() or torch.compiler.is_compiling():
        return torch.ops.pointgrad_compat.knn_graph(x, k, batch, loop, flow, cosine, num_workers, batch_size)
    query_first = _edges.query_first(flow)
    return _nearest(x, x, k, batch, batch, cosine, batch_size, others=not loop, query_first=query_first)


def _nearest(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None,
    batch_y: Tensor | None,
    cosine: bool,
    batch_size: int | None,
    *,
    others: bool,
    query_first: bool,
) -> Tensor:
    k = count_of("k", k)
    points, queries = pair(x, y)
    if points.numel() == 0 or queries.numel() == 0:
        return _edges.no_edges(points)
    offsets, query_offsets = pair_offsets(points, queries, batch_x, batch_y, batch_size)
    if cosine:
        # The squared distance of unit vectors is twice the cosine distance. Zero vectors become NaN, never neighbors.
        same = queries is points
        points = _unit(points)
        queries = points if same else _unit(queries)
    max_width = min(k + others, points.shape[0])  # one more for the query itself

    def search(part: Tensor, part_offsets: Tensor | None, width: int) -> pointgrad.Neighbors:
        if part is points and part_offsets is offsets:
            return pointgrad.knn(points, width, offsets=offsets, any_dims=True)
        return pointgrad.knn(points, width, part, offsets=offsets, query_offsets=part_offsets, any_dims=True)

    return _edges.find(search, queries, query_offsets, max_width, k if others else None, query_first=query_first)


def _unit(vectors: Tensor) -> Tensor:
    wide = vectors.to(sum_dtype(vectors.dtype))
    return wide / wide.norm(dim=1, keepdim=True)
