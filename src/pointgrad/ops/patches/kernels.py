"""Triton kernels of `patch_attention` and its gradient.

Each program computes a tile of one head of one patch and reads rows in place, through the order. Naming in all kernels:
`*_ptr` is an address, BLOCK_* a tile size, and `*_mask` marks the lanes in range; a place counts within its cloud.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import INTERPRETED, power_of_2
from ..sums import sum_dtype
from . import reference

_LOG2_E = math.log2(math.e)


def patch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    coordinates: Tensor | None,
    bias_table: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    wide = sum_dtype(query.dtype)
    out = query.new_zeros(query.shape)
    norm = query.new_zeros((*order.shape[:-1], query.shape[-2], order.shape[-1]), dtype=wide)
    bias = {
        "coordinates_ptr": order if coordinates is None else coordinates.contiguous(),  # not used without a table
        "table_ptr": query if bias_table is None else bias_table.contiguous(),
        "BOUND": -1 if bias_table is None else reference.table_bound(bias_table),
    }
    results = {"out_ptr": out, "norm_ptr": norm, **bias}
    _launch(_attend, forward_tile(query), "BLOCK_M", results, query, key, value, order, sizes, patch, scale)
    return out, norm


def patch_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    coordinates: Tensor | None,
    bias_table: Tensor | None,
    scale: float | None,
    out: Tensor,
    norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if bias_table is not None:  # the gradient of the table is a histogram of all pairs
        return reference.patch_attention_backward(
            grad, query, key, value, order, sizes, patch, coordinates, bias_table, scale, out, norm
        )
    grads = [query.new_zeros(query.shape) for _ in range(3)]
    level = torch.empty_like(norm)
    shared = {"norm_ptr": norm.contiguous(), "level_ptr": level, **_rows("grad", grad)}
    arguments = (query, key, value, order, sizes, patch, scale)
    results = {"grad_query_ptr": grads[0], "out_ptr": out.contiguous(), **shared}
    _launch(_attend_query, query_tile(query), "BLOCK_M", results, *arguments)
    results = {"grad_key_ptr": grads[1], "grad_value_ptr": grads[2], **shared}
    _launch(_attend_key, key_tile(query), "BLOCK_N", results, *arguments)
    return grads[0], grads[1], grads[2], query.new_zeros((0, query.shape[-2]))


def _launch(
    kernel: Any,
    tile: dict[str, int],
    along: str,
    results: dict[str, Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    scale: float | None,
) -> None:
    """Start a program for each head and each tile `along` the queries or keys of each patch."""
    heads, depth, wide = *query.shape[-2:], sum_dtype(query.dtype)
    batch, patch = clouds.batch_size(order.unsqueeze(-1), sizes), min(patch, max(order.shape[-1], 1))
    slots = reference.num_slots(order, sizes, patch) if batch else 0
    tile = {**tile, **{name: power_of_2(patch, 16, tile[name]) for name in ("BLOCK_M", "BLOCK_N")}}
    tiles = triton.cdiv(patch, tile[along])
    if not slots * order.shape[-1]:
        return
    factor = reference.factor(scale, query)
    factors: dict[str, Any] = {"scale": factor, "scale2": factor * _LOG2_E}
    if wide == torch.float64:  # Triton passes a number as float32
        factors = {name: query.new_full((), number) for name, number in factors.items()}
    kernel[(slots * tiles * heads,)](
        **results,
        **_rows("query", query),
        **_rows("key", key),
        **_rows("value", value),
        **factors,
        order_ptr=order.contiguous(),
        sizes_ptr=order if sizes is None else sizes.contiguous(),
        batch=batch,
        num_points=order.shape[-1],
        patch=patch,
        heads=heads,
        tiles=tiles,
        LOADED=wide == torch.float64,
        PADDED=order.dim() == 2,
        SIZED=sizes is not None,
        DEPTH=depth,
        BLOCK_D=power_of_2(depth, 16, 2**16),
        WIDE=tl.float64 if wide == torch.float64 else tl.float32,
        LOWEST=torch.finfo(wide).min,
        # TF32 only where torch allows it in matrix products.
        PRECISION="tf32" if query.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee",
        WIDEN=INTERPRETED,
        enable_fp_fusion=True,
        **tile,
    )


def _rows(name: str, rows: Tensor) -> dict[str, Any]:
    """The address of rows and the steps between rows and between heads. A slice of a larger tensor is not copied."""
    flat = rows.dim() == 3 or rows.stride(0) == rows.shape[1] * rows.stride(1)
    rows = rows if flat and rows.stride(-1) == 1 else rows.contiguous()
    return {f"{name}_ptr": rows, f"{name}_row": rows.stride(-3), f"{name}_head": rows.stride(-2)}


def _tile(block_m: int, block_n: int, num_warps: int, num_stages: int) -> dict[str, int]:
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages}


def forward_tile(query: Tensor) -> dict[str, int]:
    if query.dtype.itemsize > 2:
        return _wide_tile(query)
    return _tile(128, 64, 4, 3) if query.shape[-1] <= 64 else _tile(128, 32, 8, 2)


def query_tile(query: Tensor) -> dict[str, int]:
    if query.dtype.itemsize > 2:
        return _wide_tile(query)
    return _tile(128, 64, 8, 2) if query.shape[-1] <= 64 else _tile(64, 32, 4, 2)


def key_tile(query: Tensor) -> dict[str, int]:
    if query.dtype.itemsize > 2:
        return _wide_tile(query)
    return _tile(64, 128, 8, 2) if query.shape[-1] <= 64 else _tile(32, 64, 4, 2)


def _wide_tile(query: Tensor) -> dict[str, int]:
    """Tiles of float32 and float64, which fill the registers sooner."""
    bytes_of_row = query.shape[-1] * query.dtype.itemsize
    if bytes_of_row <= 256:
        return _tile(64, 32, 4, 2)
    return _tile(32, 32, 4, 1) if bytes_of_row <= 512 else _tile(16, 16, 4, 1)


@triton.jit
def _find(
    slot, sizes_ptr, batch, num_points, patch, heads, PADDED: tl.constexpr, SIZED: tl.constexpr,
):  # fmt: skip
    """The cloud of a slot: its first place among all places, its size, its first row, the place of its norms, and the
    number of the patch in the cloud."""
    if PADDED:
        slots = tl.cdiv(num_points, patch)
        cloud = slot // slots
        number = slot % slots
        begin = cloud * num_points
        size = number * 0 + num_points
        if SIZED:
            size = tl.minimum(tl.maximum(tl.load(sizes_ptr + cloud), 0), num_points)
        return begin, size, begin, begin * heads, number
    begin = slot * 0
    size = begin + num_points
    number = slot
    if SIZED:
        # The last cloud whose first slot is at most this one: a search with 256 probes per step.
        cloud = slot * 0
        step = cloud + tl.cdiv(batch, 256)
        while step > 0:
            probe = cloud + tl.arange(0, 256) * step
            probe_mask = probe < batch
            start = tl.load(sizes_ptr + probe, mask=probe_mask, other=0)
            first = tl.minimum(tl.maximum(start, 0), num_points) // patch + probe
            cloud += tl.maximum(tl.sum((probe_mask & (first <= slot)).to(tl.int64)) - 1, 0) * step
            step = tl.where(step > 1, tl.cdiv(step, 256), 0)
        begin = tl.minimum(tl.maximum(tl.load(sizes_ptr + cloud), 0), num_points)
        end = tl.minimum(tl.maximum(tl.load(sizes_ptr + cloud + 1), 0), num_points)
        size = tl.maximum(end - begin, 0)
        number = slot - (begin // patch + cloud)
    return begin, size, slot * 0, begin, number


@triton.jit
def _row_of(place, end, order_ptr, begin, first_row, num_points):
    """The row at each place of a cloud, and whether there is one."""
    place_mask = place < end
    row = tl.load(order_ptr + begin + place, mask=place_mask, other=-1)
    row_mask = place_mask & (row >= 0) & (row < num_points)
    return first_row + row, row_mask


@triton.jit
def _load(from_ptr, row, row_mask, step, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, DTYPE: tl.constexpr):
    """(rows, BLOCK_D), zero where there is no row."""
    channel = tl.arange(0, BLOCK_D)
    mask = row_mask[:, None]
    if DEPTH < BLOCK_D:
        mask = mask & (channel < DEPTH)[None, :]
    return tl.load(from_ptr + row[:, None] * step + channel[None, :], mask=mask, other=0.0).to(DTYPE)


@triton.jit
def _store(to_ptr, row, row_mask, step, values, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr):
    channel = tl.arange(0, BLOCK_D)
    mask = row_mask[:, None] & (channel < DEPTH)[None, :]
    tl.store(to_ptr + row[:, None] * step + channel[None, :], values.to(to_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _bias(
    coordinates_ptr, table_ptr, from_row, from_mask, to_row, to_mask, head, heads,
    BOUND: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """(BLOCK_M, BLOCK_N) the biases of pairs of a query and a key."""
    total = tl.zeros((BLOCK_M, BLOCK_N), WIDE)
    for axis in tl.static_range(3):
        start = tl.load(coordinates_ptr + from_row * 3 + axis, mask=from_mask, other=0)
        end = tl.load(coordinates_ptr + to_row * 3 + axis, mask=to_mask, other=0)
        step = start[:, None] - end[None, :]
        entry = tl.minimum(tl.maximum(step, -BOUND), BOUND) + BOUND + axis * (2 * BOUND + 1)
        total += tl.load(table_ptr + entry * heads + head).to(WIDE)
    return total


@triton.jit
def _attend(
    out_ptr, norm_ptr, coordinates_ptr, table_ptr, query_ptr, key_ptr, value_ptr,
    query_row, query_head, key_row, key_head, value_row, value_head, scale, scale2,
    order_ptr, sizes_ptr, batch, num_points, patch, heads, tiles,
    BOUND: tl.constexpr, LOADED: tl.constexpr, PADDED: tl.constexpr, SIZED: tl.constexpr, DEPTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr, LOWEST: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    LOG2_E: tl.constexpr = 1.4426950408889634
    LN_2: tl.constexpr = 0.6931471805599453
    DTYPE: tl.constexpr = WIDE if WIDEN else query_ptr.dtype.element_ty
    # Programs of the heads of one tile follow each other: they read the same rows.
    head = tl.program_id(0) % heads
    tile = tl.program_id(0) // heads % tiles
    slot = (tl.program_id(0) // heads // tiles).to(tl.int64)
    begin, size, first_row, norm_begin, number = _find(slot, sizes_ptr, batch, num_points, patch, heads, PADDED, SIZED)
    place = number * patch + tile * BLOCK_M
    last = tl.minimum((number + 1) * patch, size)
    if (number < 0) | (place >= last):
        return
    place += tl.arange(0, BLOCK_M)
    row, row_mask = _row_of(place, last, order_ptr, begin, first_row, num_points)
    query = _load(query_ptr + head * query_head, row, row_mask, query_row, DEPTH, BLOCK_D, DTYPE)
    scale2 = tl.load(scale2) if LOADED else scale2
    key_ptr += head * key_head
    value_ptr += head * value_head
    # Online softmax, in powers of 2: the sums are relative to the largest logit so far.
    top = tl.full((BLOCK_M,), LOWEST, WIDE)
    total = tl.zeros((BLOCK_M,), WIDE)
    sums = tl.zeros((BLOCK_M, BLOCK_D), WIDE)
    start = tl.maximum(tl.minimum(number * patch, size - patch), 0)
    end = tl.minimum(start + patch, size)
    for at in range(start, end, BLOCK_N):
        source, source_mask = _row_of(at + tl.arange(0, BLOCK_N), end, order_ptr, begin, first_row, num_points)
        key = _load(key_ptr, source, source_mask, key_row, DEPTH, BLOCK_D, DTYPE)
        logit = tl.dot(query, tl.trans(key), input_precision=PRECISION, out_dtype=WIDE) * scale2
        if BOUND >= 0:
            logit += LOG2_E * _bias(
                coordinates_ptr,
                table_ptr,
                row,
                row_mask,
                source,
                source_mask,
                head,
                heads,
                BOUND,
                WIDE,
                BLOCK_M,
                BLOCK_N,
            )
        logit = tl.where(source_mask[None, :], logit, -float("inf"))
        higher = tl.maximum(top, tl.max(logit, 1))
        weight = tl.exp2(logit - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        value = _load(value_ptr, source, source_mask, value_row, DEPTH, BLOCK_D, DTYPE)
        sums = tl.dot(weight.to(DTYPE), value, sums * shrink[:, None], input_precision=PRECISION, out_dtype=WIDE)
        top = higher
    total = tl.where(total == 0, float("nan"), total)  # all logits are -inf
    _store(out_ptr + head * DEPTH, row, row_mask, heads * DEPTH, sums / total[:, None], DEPTH, BLOCK_D)
    norm = (top + tl.log2(total)) * LN_2
    tl.store(norm_ptr + norm_begin + head.to(tl.int64) * num_points + place, norm, mask=row_mask)


@triton.jit
def _attend_query(
    grad_query_ptr, out_ptr, norm_ptr, level_ptr, grad_ptr, query_ptr, key_ptr, value_ptr,
    grad_row, grad_head, query_row, query_head, key_row, key_head, value_row, value_head, scale, scale2,
    order_ptr, sizes_ptr, batch, num_points, patch, heads, tiles,
    LOADED: tl.constexpr, PADDED: tl.constexpr, SIZED: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr, LOWEST: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradient of the query, and the product of gradient and result, which `_attend_key` reads."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    DTYPE: tl.constexpr = WIDE if WIDEN else query_ptr.dtype.element_ty
    head = tl.program_id(0) % heads
    tile = tl.program_id(0) // heads % tiles
    slot = (tl.program_id(0) // heads // tiles).to(tl.int64)
    begin, size, first_row, norm_begin, number = _find(slot, sizes_ptr, batch, num_points, patch, heads, PADDED, SIZED)
    place = number * patch + tile * BLOCK_M
    last = tl.minimum((number + 1) * patch, size)
    if (number < 0) | (place >= last):
        return
    place += tl.arange(0, BLOCK_M)
    row, row_mask = _row_of(place, last, order_ptr, begin, first_row, num_points)
    query = _load(query_ptr + head * query_head, row, row_mask, query_row, DEPTH, BLOCK_D, DTYPE)
    grad = _load(grad_ptr + head * grad_head, row, row_mask, grad_row, DEPTH, BLOCK_D, DTYPE)
    out = _load(out_ptr + head * DEPTH, row, row_mask, heads * DEPTH, DEPTH, BLOCK_D, WIDE)
    level = tl.sum(grad.to(WIDE) * out, 1)
    norm_at = norm_begin + head.to(tl.int64) * num_points + place
    tl.store(level_ptr + norm_at, level, mask=row_mask)
    norm = tl.load(norm_ptr + norm_at, mask=row_mask, other=0.0) * LOG2_E
    scale = tl.load(scale) if LOADED else scale
    scale2 = tl.load(scale2) if LOADED else scale2
    key_ptr += head * key_head
    value_ptr += head * value_head
    sums = tl.zeros((BLOCK_M, BLOCK_D), WIDE)
    start = tl.maximum(tl.minimum(number * patch, size - patch), 0)
    end = tl.minimum(start + patch, size)
    for at in range(start, end, BLOCK_N):
        source, source_mask = _row_of(at + tl.arange(0, BLOCK_N), end, order_ptr, begin, first_row, num_points)
        key = _load(key_ptr, source, source_mask, key_row, DEPTH, BLOCK_D, DTYPE)
        value = _load(value_ptr, source, source_mask, value_row, DEPTH, BLOCK_D, DTYPE)
        logit = tl.dot(query, tl.trans(key), input_precision=PRECISION, out_dtype=WIDE) * scale2 - norm[:, None]
        # A huge logit may be rounded differently than in the forward and exceed the norm by far.
        weight = tl.exp2(tl.where(logit > 0, 0, logit))
        slope = tl.dot(grad, tl.trans(value), input_precision=PRECISION, out_dtype=WIDE) - level[:, None]
        slope = tl.where(source_mask[None, :], weight * slope, 0)
        sums = tl.dot(slope.to(DTYPE), key, sums, input_precision=PRECISION, out_dtype=WIDE)
    _store(grad_query_ptr + head * DEPTH, row, row_mask, heads * DEPTH, sums * scale, DEPTH, BLOCK_D)


@triton.jit
def _attend_key(
    grad_key_ptr, grad_value_ptr, norm_ptr, level_ptr, grad_ptr, query_ptr, key_ptr, value_ptr,
    grad_row, grad_head, query_row, query_head, key_row, key_head, value_row, value_head, scale, scale2,
    order_ptr, sizes_ptr, batch, num_points, patch, heads, tiles,
    LOADED: tl.constexpr, PADDED: tl.constexpr, SIZED: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr, LOWEST: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradients of keys and values. A key belongs to its patch and may be borrowed by the last one."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    DTYPE: tl.constexpr = WIDE if WIDEN else query_ptr.dtype.element_ty
    head = tl.program_id(0) % heads
    tile = tl.program_id(0) // heads % tiles
    slot = (tl.program_id(0) // heads // tiles).to(tl.int64)
    begin, size, first_row, norm_begin, number = _find(slot, sizes_ptr, batch, num_points, patch, heads, PADDED, SIZED)
    first_key = number * patch + tile * BLOCK_N
    last = tl.minimum((number + 1) * patch, size)
    if (number < 0) | (first_key >= last):
        return
    place = first_key + tl.arange(0, BLOCK_N)
    row, row_mask = _row_of(place, last, order_ptr, begin, first_row, num_points)
    key = _load(key_ptr + head * key_head, row, row_mask, key_row, DEPTH, BLOCK_D, DTYPE)
    value = _load(value_ptr + head * value_head, row, row_mask, value_row, DEPTH, BLOCK_D, DTYPE)
    # The queries of the last patch follow those of this one, if the last patch borrows any of these keys.
    borrowed = (size - patch < first_key + BLOCK_N) & (last + patch > size)
    end = tl.where(borrowed, size, last)
    scale = tl.load(scale) if LOADED else scale
    scale2 = tl.load(scale2) if LOADED else scale2
    query_ptr += head * query_head
    grad_ptr += head * grad_head
    norm_begin += head.to(tl.int64) * num_points
    key_sums = tl.zeros((BLOCK_N, BLOCK_D), WIDE)
    value_sums = tl.zeros((BLOCK_N, BLOCK_D), WIDE)
    for at in range(number * patch, end, BLOCK_M):
        source_place = at + tl.arange(0, BLOCK_M)
        source, source_mask = _row_of(source_place, end, order_ptr, begin, first_row, num_points)
        query = _load(query_ptr, source, source_mask, query_row, DEPTH, BLOCK_D, DTYPE)
        grad = _load(grad_ptr, source, source_mask, grad_row, DEPTH, BLOCK_D, DTYPE)
        norm = tl.load(norm_ptr + norm_begin + source_place, mask=source_mask, other=0.0) * LOG2_E
        level = tl.load(level_ptr + norm_begin + source_place, mask=source_mask, other=0.0)
        logit = tl.dot(key, tl.trans(query), input_precision=PRECISION, out_dtype=WIDE) * scale2 - norm[None, :]
        pair_mask = source_mask[None, :] & ((source_place < last)[None, :] | (place >= size - patch)[:, None])
        weight = tl.where(pair_mask, tl.exp2(tl.where(logit > 0, 0, logit)), 0)
        value_sums = tl.dot(weight.to(DTYPE), grad, value_sums, input_precision=PRECISION, out_dtype=WIDE)
        slope = tl.dot(value, tl.trans(grad), input_precision=PRECISION, out_dtype=WIDE) - level[None, :]
        slope = tl.where(pair_mask, weight * slope, 0)
        key_sums = tl.dot(slope.to(DTYPE), query, key_sums, input_precision=PRECISION, out_dtype=WIDE)
    _store(grad_key_ptr + head * DEPTH, row, row_mask, heads * DEPTH, key_sums * scale, DEPTH, BLOCK_D)
    _store(grad_value_ptr + head * DEPTH, row, row_mask, heads * DEPTH, value_sums, DEPTH, BLOCK_D)
