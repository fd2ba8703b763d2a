"""From lists of neighbours to edges."""

from collections.abc import Callable

import torch
from torch import Tensor

from pointgrad import Neighbors
from pointgrad.ops import checks

# A list of neighbours has room for all that a query may have; this many entries at once bound its memory.
_ENTRIES = 2**26
# "All of them" is often written as a large number. Lists begin with so much room, and grow where one is full.
_ROOM = 128

Search = Callable[[Tensor, Tensor | None, int], Neighbors]


def find(
    search: Search,
    queries: Tensor,
    query_offsets: Tensor | None,
    room: int,
    others: int | None = None,
    *,
    query_first: bool,
    grows: bool = False,
) -> Tensor:
    """(2, E), query after query: row 0 the query and row 1 its neighbour, or the other way.

    search: for a part of the queries, and where its clouds lie, lists with room for so many neighbours.
    room: how many a query may have at most; few of them have, if it `grows`.
    others: leave out each query's own number, and keep at most so many others.
    """
    given = min(room, _ROOM) if grows else room
    while (edges := _in_parts(search, queries, query_offsets, given, room, others, query_first)) is None:
        given = min(room, 8 * given)
    return edges


def _in_parts(
    search: Search,
    queries: Tensor,
    query_offsets: Tensor | None,
    given: int,
    room: int,
    others: int | None,
    query_first: bool,
) -> Tensor | None:
    """With lists of `given` entries; None if one of them is full and should have more."""
    parts, step = [], max(1, _ENTRIES // given)
    for begin in range(0, queries.shape[0], step):
        part, inside = queries, query_offsets
        if queries.shape[0] > step:
            part = queries[begin : begin + step]
            inside = None if query_offsets is None else (query_offsets - begin).clamp(0, part.shape[0])
        index, _, count = search(part, inside, given)
        if given < room and bool((index[:, -1] >= 0).any()):
            return None
        query = torch.arange(begin, begin + part.shape[0], device=index.device).unsqueeze(1)
        if others is None:
            parts.append(_edges(query, index, None, count, query_first))
        else:
            parts.append(_edges(query, *_own(query, index, count, others), query_first))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _own(query: Tensor, index: Tensor, count: Tensor, others: int) -> tuple[Tensor, Tensor, Tensor]:
    """The lists, which entry of each to leave out, and how many that leaves: the query itself; or the last, where it is
    full of others, because the query is too far away or enough equal points stand before it."""
    if index.shape[1] <= others:  # as many as there are points: an entry of nothing to leave out
        index = torch.cat([index, torch.full_like(query, -1)], dim=1)
    own = index == query
    there = own.any(1)
    own[:, -1] |= ~there
    return index, own, count - (there | (index[:, -1] >= 0)).long()


def _edges(query: Tensor, index: Tensor, left_out: Tensor | None, count: Tensor, query_first: bool) -> Tensor:
    """index: (M, k), filled from the left. left_out: (M, k), one entry of each row. count: (M,), without those."""
    total = int(count.sum())
    if total == index.shape[0] * (index.shape[1] - (left_out is not None)):
        if left_out is not None:  # what stands behind it moves up
            behind = left_out.cumsum(1, dtype=torch.int8)[:, :-1] > 0
            index = torch.where(behind, index[:, 1:], index[:, :-1])
        query, neighbor = query.expand_as(index), index
    else:
        kept = index >= 0 if left_out is None else (index >= 0) & ~left_out
        query = torch.repeat_interleave(query.squeeze(1), count, output_size=total)
        neighbor = _select(index, kept)
    return torch.stack([query, neighbor] if query_first else [neighbor, query]).reshape(2, total)


def _select(values: Tensor, kept: Tensor) -> Tensor:
    if values.device.type == "cpu":  # NumPy takes a quarter of the time
        return torch.from_numpy(values.numpy()[kept.numpy()])
    return values.masked_select(kept)


def nothing(like: Tensor) -> Tensor:
    return torch.empty(2, 0, dtype=torch.int64, device=like.device)


def check_flow(flow: object) -> None:
    contract = '"source_to_target" or "target_to_source"'
    checks.value(flow in ("source_to_target", "target_to_source"), "flow", contract, repr(flow))
