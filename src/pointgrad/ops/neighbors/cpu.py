"""Calls of the C++ kernels of this family."""

import torch
from torch import Tensor

from .. import clouds, native
from ..sums import sum_dtype
from . import layout

# The order of Select in search.h.
_SELECTS = ("nearest", "first", "random")


def neighbor_index(points: Tensor, sizes: Tensor | None) -> Tensor:
    points = _wide(points)
    size = layout.index_bytes(points, sizes)
    index = native.empty(points, (size,), torch.uint8).zero_()  # zero gaps: equal points give equal bytes
    native.module.neighbor_index(
        index=index,
        bytes=size,
        points=points,
        dtype=points.dtype,
        dims=points.shape[-1],
        **clouds.kernel_arguments(points, sizes),
    )
    return index


def neighbor_search(
    points: Tensor,
    sizes: Tensor | None,
    queries: Tensor | None,
    query_sizes: Tensor | None,
    index: Tensor | None,
    k: int,
    radius: float,
    min_radius: float,
    closed: bool,
    select: str,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    points, queries = _wide(points), None if queries is None else _wide(queries)
    shape = (points if queries is None else queries).shape[:-1]
    found = native.empty(points, (*shape, k), torch.int64)
    distance2 = native.empty(points, (*shape, k))
    count = native.empty(points, shape, torch.int64)
    if index is not None and (index.data_ptr() % 64 != 0 or not index.is_contiguous()):
        index = index.clone(memory_format=torch.contiguous_format)
    native.module.neighbor_search(
        found=found,
        distance2=distance2,
        count=count,
        points=points,
        dtype=points.dtype,
        dims=points.shape[-1],
        **clouds.kernel_arguments(points, sizes),
        same=queries is None,
        queries=queries,
        num_queries=shape[-1],
        query_sizes=None if query_sizes is None else query_sizes.contiguous(),
        index=index,
        index_bytes=0 if index is None else index.numel(),
        k=k,
        radius2=layout.squared(radius, points.dtype, closed),
        min_radius2=layout.squared(min_radius, points.dtype),
        select=_SELECTS.index(select),
        seed=0 if seed is None else int(seed),
    )
    return distance2, found, count


def _wide(points: Tensor) -> Tensor:
    return points.to(sum_dtype(points.dtype)).contiguous()
