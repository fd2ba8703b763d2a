"""Triton kernels of `patch_attention` and its gradient.

Each program computes a tile of one head of one patch and reads rows in place, through the order. Naming in all kernels:
`*_ptr` is an address, BLOCK_* a tile size, and `*_mask` marks the lanes in range; a place counts within its cloud.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2
from ..sums import sum_dtype
from .row_kernels import (
    backward_tile,
    bias_of,
    find,
    fitted,
    forward_tile,
    load_rows,
    patches_of,
    row_of,
    rows_of,
    store_rows,
    table_row,
)


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
    arguments = (query, key, value, order, sizes, patch, coordinates, bias_table, scale)
    found = patches_of(*arguments)
    tile = forward_tile(query)
    if found.programs:
        tile["BLOCK_M"] = power_of_2(found.patch, 16, tile["BLOCK_M"])
        tiles = cdiv(found.patch, tile["BLOCK_M"])
        _attend[(found.programs * tiles,)](
            out_ptr=out, norm_ptr=norm, tiles=tiles, **found.arguments, **fitted(tile, found.patch)
        )
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
    grads = [query.new_zeros(query.shape) for _ in range(3)]
    found = patches_of(query, key, value, order, sizes, patch, coordinates, bias_table, scale)
    heads, entries = query.shape[-2], 0 if bias_table is None else len(bias_table)
    # The gradient of the table of each program.
    table_grads = norm.new_empty((found.programs // heads, heads, entries))
    if found.programs:
        grad_rows = rows_of("grad", grad)
        level = torch.empty_like(norm)
        shared = {"norm_ptr": norm.contiguous(), "level_ptr": level, **grad_rows}
        block = power_of_2(2048 // found.arguments["BLOCK_D"], 16, 128)
        _levels[(cdiv(order.numel(), block) * heads,)](
            out_ptr=out.contiguous(),
            level_ptr=level,
            order_ptr=found.arguments["order_ptr"],
            **grad_rows,
            places=order.numel(),
            num_points=order.shape[-1],
            heads=heads,
            DEPTH=found.arguments["DEPTH"],
            BLOCK_D=found.arguments["BLOCK_D"],
            WIDE=found.arguments["WIDE"],
            BLOCK=block,
            num_warps=4,
            enable_fp_fusion=True,
        )
        # Sums of the gradient of the query, to which a program adds once for each tile of keys.
        sums = norm.new_zeros((*norm.shape, found.arguments["BLOCK_D"]))
        _attend_backward[(found.programs,)](
            grad_query_ptr=grads[0],
            grad_key_ptr=grads[1],
            grad_value_ptr=grads[2],
            table_grads_ptr=table_grads,
            sums_ptr=sums,
            ENTRIES=power_of_2(entries, 1, 2**20),
            **shared,
            **found.arguments,
            **fitted(backward_tile(query), found.patch),
        )
    return grads[0], grads[1], grads[2], table_grads.sum(0).T.to(query.dtype).contiguous()


@jit
def _attend(
    out_ptr, norm_ptr, query_ptr, key_ptr, value_ptr,
    query_row, query_head, key_row, key_head, value_row, value_head,
    order_ptr, sizes_ptr, coordinates_ptr, table_ptr, scale, scale_ptr, batch, num_points, patch, heads, tiles,
    BOUND: tl.constexpr, PADDED: tl.constexpr, SIZED: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr,
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
    begin, size, first_row, norm_begin, number = find(slot, sizes_ptr, batch, num_points, patch, heads, PADDED, SIZED)
    place = number * patch + tile * BLOCK_M
    last = tl.minimum((number + 1) * patch, size)
    if (number < 0) | (place >= last):
        return
    place += tl.arange(0, BLOCK_M)
    row, row_mask = row_of(place, last, order_ptr, begin, first_row, num_points)
    query = load_rows(query_ptr + head * query_head, row, row_mask, query_row, DEPTH, BLOCK_D, DTYPE)
    scale = tl.load(scale_ptr) if tl.float64 == WIDE else scale
    scale2 = scale * LOG2_E
    key_ptr += head * key_head
    value_ptr += head * value_head
    # Online softmax, in powers of 2: the sums are relative to the largest logit so far.
    top = tl.full((BLOCK_M,), LOWEST, WIDE)
    total = tl.zeros((BLOCK_M,), WIDE)
    sums = tl.zeros((BLOCK_M, BLOCK_D), WIDE)
    start = tl.maximum(tl.minimum(number * patch, size - patch), 0)
    end = tl.minimum(start + patch, size)
    for at in range(start, end, BLOCK_N):
        source, source_mask = row_of(at + tl.arange(0, BLOCK_N), end, order_ptr, begin, first_row, num_points)
        key = load_rows(key_ptr, source, source_mask, key_row, DEPTH, BLOCK_D, DTYPE)
        logit = tl.dot(query, tl.trans(key), input_precision=PRECISION, out_dtype=WIDE) * scale2
        if BOUND >= 0:
            logit += LOG2_E * bias_of(
                coordinates_ptr, table_ptr, row[:, None], row_mask[:, None], source[None, :], source_mask[None, :],
                head, heads, BOUND, WIDE,
            )  # fmt: skip
        logit = tl.where(source_mask[None, :], logit, -float("inf"))
        higher = tl.maximum(top, tl.max(logit, 1))
        weight = tl.exp2(logit - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, 1)
        value = load_rows(value_ptr, source, source_mask, value_row, DEPTH, BLOCK_D, DTYPE)
        sums = tl.dot(weight.to(DTYPE), value, sums * shrink[:, None], input_precision=PRECISION, out_dtype=WIDE)
        top = higher
    total = tl.where(total == 0, float("nan"), total)  # all logits are -inf
    store_rows(out_ptr + head * DEPTH, row, row_mask, heads * DEPTH, sums / total[:, None], DEPTH, BLOCK_D)
    norm = (top + tl.log2(total)) * LN_2
    tl.store(norm_ptr + norm_begin + head.to(tl.int64) * num_points + place, norm, mask=row_mask)


@jit
def _levels(
    out_ptr, level_ptr, order_ptr, grad_ptr, grad_row, grad_head, places, num_points, heads,
    DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The products of gradient and result of each query, by head and place."""
    head = tl.program_id(0) % heads
    at = (tl.program_id(0) // heads).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    cloud = at // num_points
    row, row_mask = row_of(at, places, order_ptr, 0, 0, num_points)
    row += cloud * num_points
    grad = load_rows(grad_ptr + head * grad_head, row, row_mask, grad_row, DEPTH, BLOCK_D, WIDE)
    out = load_rows(out_ptr + head * DEPTH, row, row_mask, heads * DEPTH, DEPTH, BLOCK_D, WIDE)
    place = at - cloud * num_points
    tl.store(level_ptr + (cloud * heads + head) * num_points + place, tl.sum(grad * out, 1), mask=row_mask)


@jit
def _attend_backward(
    grad_query_ptr, grad_key_ptr, grad_value_ptr, table_grads_ptr, sums_ptr, norm_ptr, level_ptr, grad_ptr, query_ptr,
    key_ptr, value_ptr, grad_row, grad_head, query_row, query_head, key_row, key_head, value_row, value_head,
    order_ptr, sizes_ptr, coordinates_ptr, table_ptr, scale, scale_ptr, batch, num_points, patch, heads,
    BOUND: tl.constexpr, PADDED: tl.constexpr, SIZED: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr, LOWEST: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr, ENTRIES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """All gradients of one head of a patch. README.md explains how."""
    DTYPE: tl.constexpr = WIDE if WIDEN else query_ptr.dtype.element_ty
    head = tl.program_id(0) % heads
    slot = (tl.program_id(0) // heads).to(tl.int64)
    begin, size, first_row, norm_begin, number = find(slot, sizes_ptr, batch, num_points, patch, heads, PADDED, SIZED)
    first = number * patch
    end = tl.minimum(first + patch, size)
    scale = tl.load(scale_ptr) if scale_ptr.dtype.element_ty == tl.float64 else scale
    entry = tl.arange(0, ENTRIES)
    table_grad = tl.zeros((ENTRIES,), WIDE)
    if (number >= 0) & (first < size):
        key_ptr += head * key_head
        value_ptr += head * value_head
        query_ptr += head * query_head
        grad_ptr += head * grad_head
        norm_begin += head.to(tl.int64) * num_points
        for at in range(tl.maximum(tl.minimum(first, size - patch), 0), end, BLOCK_N):
            place = at + tl.arange(0, BLOCK_N)
            row, row_mask = row_of(place, end, order_ptr, begin, first_row, num_points)
            key = load_rows(key_ptr, row, row_mask, key_row, DEPTH, BLOCK_D, DTYPE)
            value = load_rows(value_ptr, row, row_mask, value_row, DEPTH, BLOCK_D, DTYPE)
            key_sums = tl.zeros((BLOCK_N, BLOCK_D), WIDE)
            value_sums = tl.zeros((BLOCK_N, BLOCK_D), WIDE)
            key_sums, value_sums, table_grad = _over_queries(
                key_sums, value_sums, table_grad, key, value, row, row_mask, first, end, sums_ptr, norm_ptr, level_ptr,
                grad_ptr, query_ptr, grad_row, query_row, order_ptr, coordinates_ptr, table_ptr, scale, begin,
                first_row, norm_begin, num_points, head, heads,
                True, BOUND, DEPTH, BLOCK_D, WIDE, PRECISION, DTYPE, ENTRIES, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            # The last patch of the cloud, if it is short, shares the last keys of this one.
            shared = row_mask & (place >= size - patch)
            if (end < size) & (end + patch > size) & (at + BLOCK_N > size - patch):
                key_sums, value_sums, _ = _over_queries(
                    key_sums, value_sums, table_grad, key, value, row, shared, end, size, sums_ptr, norm_ptr,
                    level_ptr, grad_ptr, query_ptr, grad_row, query_row, order_ptr, coordinates_ptr, table_ptr, scale,
                    begin, first_row, norm_begin, num_points, head, heads,
                    False, BOUND, DEPTH, BLOCK_D, WIDE, PRECISION, DTYPE, ENTRIES, BLOCK_M, BLOCK_N,
                )  # fmt: skip
            row_mask = row_mask & (place >= first)
            store_rows(grad_key_ptr + head * DEPTH, row, row_mask, heads * DEPTH, key_sums * scale, DEPTH, BLOCK_D)
            store_rows(grad_value_ptr + head * DEPTH, row, row_mask, heads * DEPTH, value_sums, DEPTH, BLOCK_D)
        tl.debug_barrier()  # the sums are complete
        channel = tl.arange(0, BLOCK_D)
        for at in range(first, end, BLOCK_M):
            place = at + tl.arange(0, BLOCK_M)
            row, row_mask = row_of(place, end, order_ptr, begin, first_row, num_points)
            sum_ptr = sums_ptr + (norm_begin + place)[:, None] * BLOCK_D + channel[None, :]
            sums = tl.load(sum_ptr, mask=row_mask[:, None], other=0.0)
            store_rows(grad_query_ptr + head * DEPTH, row, row_mask, heads * DEPTH, sums * scale, DEPTH, BLOCK_D)
    if BOUND >= 0:
        count = 3 * (2 * BOUND + 1)
        program = tl.program_id(0).to(tl.int64)
        tl.store(table_grads_ptr + program * count + entry, table_grad, mask=entry < count)


@triton.jit
def _over_queries(
    key_sums, value_sums, table_grad, key, value, row, row_mask, start, end, sums_ptr, norm_ptr, level_ptr,
    grad_ptr, query_ptr, grad_row, query_row, order_ptr, coordinates_ptr, table_ptr, scale, begin,
    first_row, norm_begin, num_points, head, heads,
    OWN: tl.constexpr, BOUND: tl.constexpr, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, DTYPE: tl.constexpr, ENTRIES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the gradients of a tile of keys and values from the queries of a patch; and, for the patch of the program
    (OWN), those of the queries and of the table."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    scale2 = scale * LOG2_E
    channel = tl.arange(0, BLOCK_D)
    for at in range(start, end, BLOCK_M):
        place = at + tl.arange(0, BLOCK_M)
        source, source_mask = row_of(place, end, order_ptr, begin, first_row, num_points)
        query = load_rows(query_ptr, source, source_mask, query_row, DEPTH, BLOCK_D, DTYPE)
        grad = load_rows(grad_ptr, source, source_mask, grad_row, DEPTH, BLOCK_D, DTYPE)
        place_mask = place < end  # the order is not read a second time
        norm = tl.load(norm_ptr + norm_begin + place, mask=place_mask, other=0.0) * LOG2_E
        level = tl.load(level_ptr + norm_begin + place, mask=place_mask, other=0.0)
        logit = tl.dot(key, tl.trans(query), input_precision=PRECISION, out_dtype=WIDE) * scale2 - norm[None, :]
        if BOUND >= 0:
            logit += LOG2_E * bias_of(
                coordinates_ptr, table_ptr, source[None, :], source_mask[None, :], row[:, None], row_mask[:, None],
                head, heads, BOUND, WIDE,
            )  # fmt: skip
        # A huge logit may be rounded differently than in the forward and exceed the norm by far.
        weight = tl.exp2(tl.minimum(logit, 0.0, propagate_nan=tl.PropagateNan.ALL))
        slope = tl.dot(value, tl.trans(grad), input_precision=PRECISION, out_dtype=WIDE) - level[None, :]
        slope = weight * slope
        # Rows of queries that do not exist are zero and add nothing. The sums of keys that do not exist are dropped.
        if not OWN:
            weight = tl.where(row_mask[:, None], weight, 0)
            slope = tl.where(row_mask[:, None], slope, 0)
        value_sums = tl.dot(weight.to(DTYPE), grad, value_sums, input_precision=PRECISION, out_dtype=WIDE)
        if OWN and BOUND >= 0:
            entries = tl.arange(0, ENTRIES)
            of_pairs = tl.where(row_mask[:, None] & source_mask[None, :], slope, 0)
            for axis in tl.static_range(3):
                of_pair = table_row(
                    coordinates_ptr, source[None, :], source_mask[None, :], row[:, None], row_mask[:, None], axis, BOUND
                )
                for entry in range(axis * (2 * BOUND + 1), (axis + 1) * (2 * BOUND + 1)):
                    part = tl.sum(tl.sum(tl.where(of_pair == entry, of_pairs, 0), 1), 0)
                    table_grad += tl.where(entries == entry, part, 0)
        slope = slope.to(DTYPE)
        key_sums = tl.dot(slope, query, key_sums, input_precision=PRECISION, out_dtype=WIDE)
        if OWN:
            part = tl.dot(tl.trans(slope), key, input_precision=PRECISION, out_dtype=WIDE)
            sum_ptr = sums_ptr + (norm_begin + place)[:, None] * BLOCK_D + channel[None, :]
            # Faster than a load and a store. No other program adds here, so the order of additions is fixed.
            tl.atomic_add(sum_ptr, part, mask=place_mask[:, None], sem="relaxed")
    return key_sums, value_sums, table_grad
