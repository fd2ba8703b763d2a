"""From lists of neighbours to edges."""

from collections.abc import Callable

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

# A list of neighbours has room for all that a query may have; this many entries at once bound its memory.
_ENTRIES = 2**26


def find(
    search: Callable[[Tensor, Tensor | None], Tensor],
    queries: Tensor,
    query_offsets: Tensor | None,
    k: int,
    others: int | None = None,
) -> Tensor:
    """(2, E): row 0 the neighbour, row 1 its query, query after query.

    search: gives (M, k) indices, -1 for nothing, for a part of the queries and where its clouds lie.
    others: leave out each query's own number, and keep at most so many others. The search is for one more, then.
    """
    parts, step = [], max(1, _ENTRIES // k)
    for begin in range(0, queries.shape[0], step):
        part = queries[begin : begin + step]
        inside = query_offsets if begin == 0 and part.shape == queries.shape else None
        if query_offsets is not None and inside is None:
            inside = (query_offsets - begin).clamp(0, part.shape[0])
        index = search(part, inside)
        if others is not None:
            own = index == torch.arange(begin, begin + part.shape[0], device=index.device).unsqueeze(1)
            if index.shape[1] > others:  # full of others: the query itself was not found, or is too far away
                own[:, -1] |= ~own.any(1)
            index = index.masked_fill(own, -1)
        edges = pointgrad.to_edges(index)
        edges[1] += begin
        parts.append(edges)
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def nothing(like: Tensor) -> Tensor:
    return torch.empty(2, 0, dtype=torch.int64, device=like.device)


def directed(edge_index: Tensor, flow: str) -> Tensor:
    """Edges from the neighbour to the query, or the other way."""
    return edge_index if flow == "source_to_target" else edge_index.flip(0)


def check_flow(flow: object) -> None:
    contract = '"source_to_target" or "target_to_source"'
    checks.value(flow in ("source_to_target", "target_to_source"), "flow", contract, repr(flow))


def check_count(name: str, count: object, least: int) -> None:
    checks.kind(checks.is_integer(count), name, "an int", count)
    checks.value(count >= least, name, f"at least {least}", count)  # type: ignore[operator]
