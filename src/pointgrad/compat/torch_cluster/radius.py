"""The points within a distance, as edges."""

from numbers import Real

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from .._scalars import count_of
from . import _edges
from ._clouds import pair, pair_offsets


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
    """For each point of `y` the points of `x` in the cloud of the same number that are closer than r.

    x: (N, D) or (N,). y: (M, D) or (M,), the queries. batch_x: (N,) and batch_y: (M,), sorted, which cloud each is in.
    r: a point at exactly this distance is not a neighbour.
    max_num_neighbors: at most so many for each query: those of smallest index, on every device. (The original does that
        on a GPU; on a CPU it takes the first that its tree comes across; its documentation says random. For a fair
        choice use `pointgrad.ball_query` with `select="nearest"` or `"random"`.)
    num_workers, batch_size: as for `knn`.
    ignore_same_index: leave out the pair of number i in `y` and number i in `x`.
    returns: (2, E) int64. Row 0: number of the query in `y`; row 1: number of the neighbour in `x`. Query after query,
        in the order of the index.

    Asking for very many to get all of them costs time and memory only where there are so many. Natively:
    `pointgrad.ball_query`, whose (M, k) index needs no wait for E.

    >>> x = torch.tensor([[0.], [1.], [5.]])
    >>> radius(x, torch.tensor([[0.9], [4.]]), 1.0)
    tensor([[0, 0],
            [0, 1]])
    """
    others = bool(ignore_same_index)
    return _within(x, y, r, batch_x, batch_y, max_num_neighbors, batch_size, others=others, query_first=True)


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
    """Edges between each point and the others closer than r.

    loop: a point counts as its own neighbour.
    flow: "source_to_target" gives edges (neighbour, point), "target_to_source" (point, neighbour).
    The rest: as for `radius`.

    No point has more than `max_num_neighbors` edges. In the original it may get one more, because it looks for one more
    and then drops the point itself, which may not be among them.

    >>> radius_graph(torch.tensor([[0.], [1.], [5.]]), 2.0)
    tensor([[1, 0],
            [0, 1]])
    """
    _edges.check_flow(flow)
    query_first = flow == "target_to_source"
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
        return _edges.nothing(points)
    offsets, query_offsets = pair_offsets(points, queries, batch_x, batch_y, batch_size)
    room = min(max_num_neighbors + others, points.shape[0])  # one more for the query itself

    most = max_num_neighbors if others else None

    def search(part: Tensor, part_offsets: Tensor | None, given: int) -> pointgrad.Neighbors:
        if part is points and part_offsets is offsets:
            return pointgrad.ball_query(points, r, given, select="first", closed=False, offsets=offsets)
        return pointgrad.ball_query(
            points, r, given, part, select="first", closed=False, offsets=offsets, query_offsets=part_offsets
        )

    return _edges.find(search, queries, query_offsets, room, most, query_first=query_first, grows=True)
