"""Hands tensors to the C++ kernels of this room."""

import torch
from torch import Tensor

from .. import clouds, native
from . import layout

# The order of Select in search.h.
_SELECTS = ("nearest", "first", "random")


def neighbor_index(points: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> Tensor:
    points, sizes = _wide(points), _sizes(points, offsets, lengths)
    batch = clouds.batch_size(points, offsets)
    size = layout.index_bytes(points, offsets)
    index = native.empty(points, (size,), torch.uint8).zero_()  # gaps too: the same points give the same bytes
    native.module.neighbor_index(
        index.data_ptr(),
        size,
        points.data_ptr(),
        native.DTYPE_CODES[points.dtype],
        points.shape[-1],
        points.dim() == 2,
        batch,
        points.shape[-2],
        native.address(sizes),
        torch.get_num_threads(),
    )
    return index


def neighbor_search(
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    queries: Tensor | None,
    query_offsets: Tensor | None,
    query_lengths: Tensor | None,
    index: Tensor | None,
    k: int,
    radius: float,
    min_radius: float,
    closed: bool,
    select: str,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    points, sizes = _wide(points), _sizes(points, offsets, lengths)
    query_sizes = None if queries is None else _sizes(queries, query_offsets, query_lengths)
    queries = None if queries is None else _wide(queries)
    shape = (points if queries is None else queries).shape[:-1]
    found = native.empty(points, (*shape, k), torch.int64)
    distance2 = native.empty(points, (*shape, k))
    count = native.empty(points, shape, torch.int64)
    if index is not None and (index.data_ptr() % 64 != 0 or not index.is_contiguous()):
        index = index.clone(memory_format=torch.contiguous_format)
    native.module.neighbor_search(
        found.data_ptr(),
        distance2.data_ptr(),
        count.data_ptr(),
        points.data_ptr(),
        native.DTYPE_CODES[points.dtype],
        points.shape[-1],
        points.dim() == 2,
        clouds.batch_size(points, offsets),
        points.shape[-2],
        native.address(sizes),
        queries is None,
        native.address(queries),
        shape[-1],
        native.address(query_sizes),
        native.address(index),
        0 if index is None else index.numel(),
        k,
        layout.squared(radius, points.dtype, closed),
        layout.squared(min_radius, points.dtype),
        _SELECTS.index(select),
        0 if seed is None else int(seed),
        torch.get_num_threads(),
    )
    return distance2, found, count


def _sizes(points: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    sizes = offsets if points.dim() == 2 else lengths
    return None if sizes is None else sizes.contiguous()


def _wide(points: Tensor) -> Tensor:
    return points.to(torch.promote_types(points.dtype, torch.float32)).contiguous()
