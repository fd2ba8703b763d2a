"""Conversion of neighbor lists to edges."""

from collections.abc import Callable

import torch
from torch import Tensor

from pointgrad import Neighbors
from pointgrad.ops import checks

_MAX_ENTRIES = 2**26  # entries of neighbor lists that are computed at once, which bounds memory
# Programs often request a very large number to get all neighbors. Lists start with this width and grow if one is full.
_INITIAL_WIDTH = 128

Search = Callable[[Tensor, Tensor | None, int], Neighbors]


def find(
    search: Search,
    queries: Tensor,
    query_offsets: Tensor | None,
    max_width: int,
    max_others: int | None = None,
    *,
    query_first: bool,
    grows: bool = False,
) -> Tensor:
    """Edges (2, E), sorted by query: row 0 is the query and row 1 its neighbor, or vice versa.

    Args:
        search: Called with a part of the queries, their offsets and a width; returns neighbor lists of this width.
        queries: (M, D) queries.
        query_offsets: Offsets of the queries.
        max_width: Maximum number of neighbors of a query.
        max_others: Leave out the query itself and keep at most this many other neighbors; None keeps the query.
        query_first: Whether row 0 is the query.
        grows: Start with short lists, because few queries have `max_width` neighbors.
    """
    width = min(max_width, _INITIAL_WIDTH) if grows else max_width
    while (edges := _in_parts(search, queries, query_offsets, width, max_width, max_others, query_first)) is None:
        width = min(max_width, 8 * width)
    return edges


def _in_parts(
    search: Search,
    queries: Tensor,
    query_offsets: Tensor | None,
    width: int,
    max_width: int,
    max_others: int | None,
    query_first: bool,
) -> Tensor | None:
    """Edges from lists of `width` entries; None if a list is full and may have to be longer."""
    parts, step = [], max(1, _MAX_ENTRIES // width)
    for begin in range(0, queries.shape[0], step):
        part, inside = queries, query_offsets
        if queries.shape[0] > step:
            part = queries[begin : begin + step]
            inside = None if query_offsets is None else (query_offsets - begin).clamp(0, part.shape[0])
        index, _, count = search(part, inside, width)
        if width < max_width and bool((index[:, -1] >= 0).any()):
            return None
        query = torch.arange(begin, begin + part.shape[0], device=index.device).unsqueeze(1)
        if max_others is None:
            parts.append(_edges(query, index, None, count, query_first))
        else:
            parts.append(_edges(query, *_drop_self(query, index, count, max_others), query_first))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _drop_self(query: Tensor, index: Tensor, count: Tensor, max_others: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lists, a mask of the one entry of each to leave out, and the number of entries without it.

    The entry is the query itself; or the last one if the list does not contain the query, because it is too far away
    or comes after enough equal points.
    """
    if index.shape[1] <= max_others:  # the list holds all points: append an empty entry to leave out
        index = torch.cat([index, torch.full_like(query, -1)], dim=1)
    left_out = index == query
    contains_query = left_out.any(1)
    left_out[:, -1] |= ~contains_query
    return index, left_out, count - (contains_query | (index[:, -1] >= 0)).long()


def _edges(query: Tensor, index: Tensor, left_out: Tensor | None, count: Tensor, query_first: bool) -> Tensor:
    """Edges of lists (M, k) that are filled from the left; `left_out` masks one entry per row, not in `count`."""
    total = int(count.sum())
    if total == index.shape[0] * (index.shape[1] - (left_out is not None)):
        if left_out is not None:  # shift the entries after it to the left
            after = left_out.cumsum(1, dtype=torch.int8)[:, :-1] > 0
            index = torch.where(after, index[:, 1:], index[:, :-1])
        query, neighbor = query.expand_as(index), index
    else:
        kept = index >= 0 if left_out is None else (index >= 0) & ~left_out
        query = torch.repeat_interleave(query.squeeze(1), count, output_size=total)
        neighbor = _select(index, kept)
    return torch.stack([query, neighbor] if query_first else [neighbor, query]).reshape(2, total)


def _select(values: Tensor, kept: Tensor) -> Tensor:
    if values.device.type == "cpu":  # NumPy is four times as fast
        return torch.from_numpy(values.numpy()[kept.numpy()])
    return values.masked_select(kept)


def no_edges(like: Tensor) -> Tensor:
    """Empty edges (2, 0)."""
    return torch.empty(2, 0, dtype=torch.int64, device=like.device)


def query_first(flow: object) -> bool:
    """Whether row 0 of the edges is the query."""
    contract = '"source_to_target" or "target_to_source"'
    checks.value(flow in ("source_to_target", "target_to_source"), "flow", contract, repr(flow))
    return flow == "target_to_source"


def fake(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    """Edges (2, E) with unknown E."""
    return x.new_empty((2, torch.library.get_ctx().new_dynamic_size()), dtype=torch.int64)
