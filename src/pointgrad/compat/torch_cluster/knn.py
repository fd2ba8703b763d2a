"""The k nearest points, as edges."""

import torch
from torch import Tensor

import pointgrad

from .._scalars import count_of
from . import _edges
from ._clouds import pair, pair_offsets


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
    """For each point of `y` its k nearest points of `x` in the cloud of the same number.

    x: (N, D) or (N,). y: (M, D) or (M,), the queries. batch_x: (N,) and batch_y: (M,), sorted, which cloud each is in.
    k: at least 1; there is no upper limit (100 in the original on a GPU).
    cosine: compare by the angle between the vectors instead; here on the CPU too. A vector of zeros has no angle, so it
        finds nothing and is not found.
    num_workers: accepted and ignored: `torch.set_num_threads` decides.
    batch_size: the number of clouds; without it a GPU waits for the last entries of `batch_x` and `batch_y`.
    returns: (2, E) int64. Row 0: number of the query in `y`; row 1: number of the neighbour in `x`. Query after query,
        nearest first, ties by the smallest index; fewer than k where a cloud is short.

    Any distance is looked at (on a GPU the original finds nothing beyond 1e5 units), and all real dtypes are taken: 16
    bits are compared in float32, integers in float64. Natively: `pointgrad.knn`, whose (M, k) index needs no wait.

    >>> x = torch.tensor([[0.], [1.], [5.]])
    >>> knn(x, torch.tensor([[0.9], [4.]]), 2)
    tensor([[0, 0, 1, 1],
            [1, 0, 2, 1]])
    """
    return _nearest(x, y, k, batch_x, batch_y, cosine, batch_size)


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
    """Edges between each point and its k nearest others.

    loop: a point counts as its own neighbour, usually the first.
    flow: "source_to_target" gives edges (neighbour, point), "target_to_source" (point, neighbour).
    The rest: as for `knn`.

    Every point of a cloud of more than k points has exactly k edges. In the original it may get k + 1 where more than k
    points are equal, because it looks for k + 1 and then drops the point itself, which may not be among them.

    >>> knn_graph(torch.tensor([[0.], [1.], [5.]]), 1)
    tensor([[1, 0, 1],
            [0, 1, 2]])
    """
    _edges.check_flow(flow)
    query_first = flow == "target_to_source"
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
    others: bool = False,
    query_first: bool = True,
) -> Tensor:
    k = count_of("k", k)
    points, queries = pair(x, y)
    if points.numel() == 0 or queries.numel() == 0:
        return _edges.nothing(points)
    offsets, query_offsets = pair_offsets(points, queries, batch_x, batch_y, batch_size)
    if cosine:
        # Between unit vectors the squared distance is twice the cosine distance. Zeros become NaN: nobody's neighbour.
        same = queries is points
        points = _unit(points)
        queries = points if same else _unit(queries)
    room = min(k + others, points.shape[0])  # one more for the query itself

    def search(part: Tensor, part_offsets: Tensor | None, given: int) -> pointgrad.Neighbors:
        if part is points and part_offsets is offsets:
            return pointgrad.knn(points, given, offsets=offsets)
        return pointgrad.knn(points, given, part, offsets=offsets, query_offsets=part_offsets)

    return _edges.find(search, queries, query_offsets, room, k if others else None, query_first=query_first)


def _unit(vectors: Tensor) -> Tensor:
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return wide / wide.norm(dim=1, keepdim=True)
