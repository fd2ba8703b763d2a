"""Schema, fake and autograd of this room's operators.

One search serves both public functions: the k nearest are a ball of infinite radius.
"""

from typing import Any

import torch
from torch import Tensor

from .. import clouds
from ..gather.register import gather, gather_backward
from ..registry import legacy_operator as operator
from .layout import index_bytes


def _check_index(points: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> None:
    clouds.check_values(points, offsets, lengths)


def _fake_index(points: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> Tensor:
    return points.new_empty(index_bytes(points, offsets), dtype=torch.uint8)


def _check_search(
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    queries: Tensor | None,
    query_offsets: Tensor | None,
    query_lengths: Tensor | None,
    *_: Any,
) -> None:
    clouds.check_values(points, offsets, lengths)
    if queries is not None:
        clouds.check_values(queries, query_offsets, query_lengths, prefix="query_")


def _fake_search(
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    queries: Tensor | None,
    query_offsets: Tensor | None,
    query_lengths: Tensor | None,
    index: Tensor | None,
    k: int,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = (points if queries is None else queries).shape[:-1]
    wide = torch.promote_types(points.dtype, torch.float32)
    found = points.new_empty((*rows, k), dtype=torch.int64)
    return points.new_empty((*rows, k), dtype=wide), found, points.new_empty(rows, dtype=torch.int64)


def _save_search(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    points, queries = inputs[0], inputs[3]
    _, found, count = output
    ctx.mark_non_differentiable(found, count)
    ctx.save_for_backward(points, queries, found)


def _grad_search(ctx: Any, grad: Tensor, _found: None, _count: None) -> tuple[Tensor | None, ...]:
    points, queries, found = ctx.saved_tensors
    centers = points if queries is None else queries
    there = (found >= 0).unsqueeze(-1)
    # d |p - q|^2 = 2 (p - q) . (dp - dq), for each pair that was found.
    delta = gather(points.to(grad.dtype), found) - centers.to(grad.dtype).unsqueeze(-2)
    pull = torch.where(there, 2 * grad.unsqueeze(-1) * torch.where(there, delta, 0), 0)
    for_points = for_queries = None
    if ctx.needed[0]:
        for_points = gather_backward(pull, found, points.shape[-2], points.dim() == 3)
        if queries is None:
            for_points = for_points - pull.sum(-2)
        for_points = for_points.to(points.dtype)
    if ctx.needed[3]:
        for_queries = -pull.sum(-2).to(centers.dtype)
    # All others are sizes, prepared data, or numbers that say what to look for.
    return for_points, None, None, for_queries, None, None, None, None, None, None, None, None, None


neighbor_index = operator(
    "neighbor_index(Tensor points, Tensor? offsets, Tensor? lengths) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_index,
    check=_check_index,
)

neighbor_search = operator(
    "neighbor_search(Tensor points, Tensor? offsets, Tensor? lengths, Tensor? queries, Tensor? query_offsets, "
    "Tensor? query_lengths, Tensor? index, SymInt k, float radius, float min_radius, bool closed, str select, "
    "Tensor? seed) -> (Tensor, Tensor, Tensor)",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_search,
    check=_check_search,
    save=_save_search,
    backward=_grad_search,
)
