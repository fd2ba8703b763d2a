"""Registration of this family's operators: fake outputs, value checks and gradients.

One search serves both public functions: the k nearest points are a ball of infinite radius.
"""

from typing import Any

import torch
from torch import Tensor

from .. import clouds
from ..gather.register import gather, gather_backward
from ..registry import operator
from ..sums import sum_dtype
from . import reference
from .layout import index_bytes


def _check_index(points: Tensor, sizes: Tensor | None) -> None:
    clouds.check_values(points, sizes)


def _fake_index(points: Tensor, sizes: Tensor | None) -> Tensor:
    return points.new_empty(index_bytes(points, sizes), dtype=torch.uint8)


neighbor_index = operator(
    reference.neighbor_index, contract=clouds.CONTRACT, fits=clouds.fit, fake=_fake_index, check=_check_index
)


def _fits_search(
    points: Tensor,
    sizes: Tensor | None,
    queries: Tensor | None,
    query_sizes: Tensor | None,
    index: Tensor | None,
    k: int,
    select: str,
    seed: Tensor | None,
) -> bool:
    if not clouds.fit(points, sizes) or k < 1 or select not in ("nearest", "first", "random"):
        return False
    if seed is None:
        if select == "random":
            return False
    elif seed.dtype != torch.int64 or seed.numel() != 1:
        return False
    if index is not None and (index.dtype != torch.uint8 or index.dim() != 1):
        return False
    if queries is None:
        return query_sizes is None
    return (
        clouds.fit(queries, query_sizes)
        and queries.dtype == points.dtype
        and queries.dim() == points.dim()
        and queries.shape[-1] == points.shape[-1]
        and clouds.batch_size(queries, query_sizes) == clouds.batch_size(points, sizes)
    )


def _check_search(points: Tensor, sizes: Tensor | None, queries: Tensor | None, query_sizes: Tensor | None) -> None:
    clouds.check_values(points, sizes)
    if queries is not None:
        clouds.check_values(queries, query_sizes, prefix="query_")


def _fake_search(points: Tensor, queries: Tensor | None, k: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = (points if queries is None else queries).shape[:-1]
    found = points.new_empty((*rows, k), dtype=torch.int64)
    distance2 = points.new_empty((*rows, k), dtype=sum_dtype(points.dtype))
    return distance2, found, points.new_empty(rows, dtype=torch.int64)


def _save_search(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, found, count = output
    ctx.mark_non_differentiable(found, count)
    ctx.save_for_backward(inputs.points, inputs.queries, found)


def _grad_search(ctx: Any, grad: Tensor, _found: None, _count: None) -> dict[str, Tensor | None]:
    points, queries, found = ctx.saved_tensors
    centers = points if queries is None else queries
    valid = (found >= 0).unsqueeze(-1)
    # d |p - q|^2 = 2 (p - q) . (dp - dq), for each pair that was found.
    delta = gather(points.to(grad.dtype), found) - centers.to(grad.dtype).unsqueeze(-2)
    pull = torch.where(valid, 2 * grad.unsqueeze(-1) * torch.where(valid, delta, 0), 0)
    for_points = for_queries = None
    if ctx.needed.points:
        for_points = gather_backward(pull, found, points.shape[-2], points.dim() == 3)
        if queries is None:
            for_points = for_points - pull.sum(-2)
        for_points = for_points.to(points.dtype)
    if ctx.needed.queries:
        for_queries = -pull.sum(-2).to(centers.dtype)
    return {"points": for_points, "queries": for_queries}


neighbor_search = operator(
    reference.neighbor_search,
    contract=(
        f"{clouds.CONTRACT}, queries that match them in layout, number of clouds, D and dtype or None, uint8 index "
        '(bytes,) or None, k >= 1, select "nearest", "first" or "random", and an int64 seed if select is "random"'
    ),
    fits=_fits_search,
    fake=_fake_search,
    check=_check_search,
    save=_save_search,
    backward=_grad_search,
)
