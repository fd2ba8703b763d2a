"""Triton kernels of `patch_attention` and its gradient.

Each program computes a tile of one head of one patch and reads rows in place, through the order. Naming in all kernels:
`*_ptr` is an address, BLOCK_* a tile size, and `*_mask` marks the lanes in range; a place counts within its cloud.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import INTERPRETED, cdiv, has_tf32, jit, power_of_2, shared_memory
from ..sums import sum_dtype
from . import reference


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
    found = _patches(*arguments)
    tile = forward_tile(query)
    if found.programs:
        tile["BLOCK_M"] = power_of_2(found.patch, 16, tile["BLOCK_M"])
        tiles = cdiv(found.patch, tile["BLOCK_M"])
        _attend[(found.programs * tiles,)](
            out_ptr=out, norm_ptr=norm, tiles=tiles, **found.arguments, **_fitted(tile, found.patch)
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
    found = _patches(query, key, value, order, sizes, patch, coordinates, bias_table, scale)
    heads, entries = query.shape[-2], 0 if bias_table is None else len(bias_table)
    # The gradient of the table of each program.
    table_grads = norm.new_empty((found.programs // heads, heads, entries))
    if found.programs:
        grad_rows = _rows("grad", grad)
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
            **_fitted(backward_tile(query), found.patch),
        )
    return grads[0], grads[1], grads[2], table_grads.sum(0).T.to(query.dtype).contiguous()


class _Patches(NamedTuple):
    """Division of a call into programs, and their arguments.

    Attributes:
        programs: Number of pairs of a patch and a head, also of patches that clouds of other sizes would have.
        patch: Number of points of a patch, at most the number of points of a cloud.
        arguments: Arguments of `_attend` and `_attend_backward`.
    """

    programs: int
    patch: int
    arguments: dict[str, Any]


def _patches(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    coordinates: Tensor | None,
    bias_table: Tensor | None,
    scale: float | None,
) -> _Patches:
    heads, depth, wide = *query.shape[-2:], sum_dtype(query.dtype)
    batch, patch = clouds.batch_size(order.unsqueeze(-1), sizes), min(patch, max(order.shape[-1], 1))
    slots = reference.num_slots(order, sizes, patch) if batch and order.shape[-1] else 0
    factor = reference.factor(scale, query)
    arguments = {
        **_rows("query", query),
        **_rows("key", key),
        **_rows("value", value),
        "order_ptr": order.contiguous(),
        "sizes_ptr": order if sizes is None else sizes.contiguous(),
        "coordinates_ptr": order if coordinates is None else coordinates.contiguous(),  # not used without a table
        "table_ptr": query if bias_table is None else bias_table.contiguous(),
        "scale": factor,
        # Triton passes a number as float32.
        "scale_ptr": query.new_full((), factor) if wide == torch.float64 else query,
        "batch": batch,
        "num_points": order.shape[-1],
        "patch": patch,
        "heads": heads,
        "BOUND": -1 if bias_table is None else reference.table_bound(bias_table),
        "PADDED": order.dim() == 2,
        "SIZED": sizes is not None,
        "DEPTH": depth,
        "BLOCK_D": power_of_2(depth, 16),
        "WIDE": tl.float64 if wide == torch.float64 else tl.float32,
        "LOWEST": torch.finfo(wide).min,
        "PRECISION": _precision(query),
        "WIDEN": INTERPRETED,
        "enable_fp_fusion": True,
    }
    return _Patches(slots * heads, patch, arguments)


def _precision(query: Tensor) -> str:
    """Precision of float32 products: TF32 only where torch allows it, otherwise a sum of three products in TF32."""
    if query.dtype != torch.float32 or INTERPRETED:
        return "ieee"
    if torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return "tf32x3" if has_tf32(query.device) else "ieee"


def _rows(name: str, rows: Tensor) -> dict[str, Any]:
    """The address of rows and the steps between rows and between heads. A slice of a larger tensor is not copied."""
    flat = rows.dim() == 3 or rows.stride(0) == rows.shape[1] * rows.stride(1)
    rows = rows if flat and rows.stride(-1) == 1 else rows.contiguous()
    return {f"{name}_ptr": rows, f"{name}_row": rows.stride(-3), f"{name}_head": rows.stride(-2)}


def _tile(block_m: int, block_n: int, num_warps: int, num_stages: int) -> dict[str, int]:
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages}


def _fitted(tile: dict[str, int], patch: int) -> dict[str, int]:
    """A tile that is not larger than a patch."""
    return {**tile, **{name: power_of_2(patch, 16, tile[name]) for name in ("BLOCK_M", "BLOCK_N")}}


def forward_tile(query: Tensor) -> dict[str, int]:
    depth = query.shape[-1]
    if _has_little_space(query):
        return _small_tile(query)
    if query.dtype == torch.float32:
        return _tile(128, 64, 4, 2)
    if depth <= 16:
        return _tile(128, 128, 4, 3)
    return _tile(64, 128, 4, 2) if depth <= 32 else _tile(128, 128, 4, 2)


def backward_tile(query: Tensor) -> dict[str, int]:
    depth = query.shape[-1]
    if _has_little_space(query):
        return _small_tile(query)
    if query.dtype == torch.float32:
        return _tile(64, 128, 8, 2)
    if depth <= 16:
        return _tile(128, 64, 4, 2)
    return _tile(32, 128, 4, 2) if depth <= 32 else _tile(64, 128, 8, 2)


def _has_little_space(query: Tensor) -> bool:
    """Whether rows are so long, or shared memory is so small, that large tiles do not fit."""
    long_rows = query.shape[-1] * query.dtype.itemsize > 128 or query.dtype == torch.float64
    return long_rows or shared_memory(query.device) < 96 << 10


def _small_tile(query: Tensor) -> dict[str, int]:
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
def _entry(coordinates_ptr, from_row, from_mask, to_row, to_mask, axis, BOUND: tl.constexpr):
    """The row of the table for the difference along an axis, of rows that are broadcast against each other."""
    start = tl.load(coordinates_ptr + from_row * 3 + axis, mask=from_mask, other=0)
    end = tl.load(coordinates_ptr + to_row * 3 + axis, mask=to_mask, other=0)
    return tl.minimum(tl.maximum(start - end, -BOUND), BOUND) + BOUND + axis * (2 * BOUND + 1)


@triton.jit
def _bias(
    coordinates_ptr, table_ptr, from_row, from_mask, to_row, to_mask, head, heads,
    BOUND: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The biases of pairs of a query and a key, whose rows are broadcast against each other."""
    entry = _entry(coordinates_ptr, from_row, from_mask, to_row, to_mask, 0, BOUND)
    total = tl.load(table_ptr + entry * heads + head).to(WIDE)
    for axis in tl.static_range(1, 3):
        entry = _entry(coordinates_ptr, from_row, from_mask, to_row, to_mask, axis, BOUND)
        total += tl.load(table_ptr + entry * heads + head).to(WIDE)
    return total


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
    begin, size, first_row, norm_begin, number = _find(slot, sizes_ptr, batch, num_points, patch, heads, PADDED, SIZED)
    place = number * patch + tile * BLOCK_M
    last = tl.minimum((number + 1) * patch, size)
    if (number < 0) | (place >= last):
        return
    place += tl.arange(0, BLOCK_M)
    row, row_mask = _row_of(place, last, order_ptr, begin, first_row, num_points)
    query = _load(query_ptr + head * query_head, row, row_mask, query_row, DEPTH, BLOCK_D, DTYPE)
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
        source, source_mask = _row_of(at + tl.arange(0, BLOCK_N), end, order_ptr, begin, first_row, num_points)
        key = _load(key_ptr, source, source_mask, key_row, DEPTH, BLOCK_D, DTYPE)
        logit = tl.dot(query, tl.trans(key), input_precision=PRECISION, out_dtype=WIDE) * scale2
        if BOUND >= 0:
            logit += LOG2_E * _bias(
                coordinates_ptr, table_ptr, row[:, None], row_mask[:, None], source[None, :], source_mask[None, :],
                head, heads, BOUND, WIDE,
            )  # fmt: skip
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


@jit
def _levels(
    out_ptr, level_ptr, order_ptr, grad_ptr, grad_row, grad_head, places, num_points, heads,
    DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The products of gradient and result of each query, by head and place."""
    head = tl.program_id(0) % heads
    at = (tl.program_id(0) // heads).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    cloud = at // num_points
    row, row_mask = _row_of(at, places, order_ptr, 0, 0, num_points)
    row += cloud * num_points
    grad = _load(grad_ptr + head * grad_head, row, row_mask, grad_row, DEPTH, BLOCK_D, WIDE)
    out = _load(out_ptr + head * DEPTH, row, row_mask, heads * DEPTH, DEPTH, BLOCK_D, WIDE)
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
    begin, size, first_row, norm_begin, number = _find(slot, sizes_ptr, batch, num_points, patch, heads, PADDED, SIZED)
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
            row, row_mask = _row_of(place, end, order_ptr, begin, first_row, num_points)
            key = _load(key_ptr, row, row_mask, key_row, DEPTH, BLOCK_D, DTYPE)
            value = _load(value_ptr, row, row_mask, value_row, DEPTH, BLOCK_D, DTYPE)
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
            _store(grad_key_ptr + head * DEPTH, row, row_mask, heads * DEPTH, key_sums * scale, DEPTH, BLOCK_D)
            _store(grad_value_ptr + head * DEPTH, row, row_mask, heads * DEPTH, value_sums, DEPTH, BLOCK_D)
        tl.debug_barrier()  # the sums are complete
        channel = tl.arange(0, BLOCK_D)
        for at in range(first, end, BLOCK_M):
            place = at + tl.arange(0, BLOCK_M)
            row, row_mask = _row_of(place, end, order_ptr, begin, first_row, num_points)
            sum_ptr = sums_ptr + (norm_begin + place)[:, None] * BLOCK_D + channel[None, :]
            sums = tl.load(sum_ptr, mask=row_mask[:, None], other=0.0)
            _store(grad_query_ptr + head * DEPTH, row, row_mask, heads * DEPTH, sums * scale, DEPTH, BLOCK_D)
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
        source, source_mask = _row_of(place, end, order_ptr, begin, first_row, num_points)
        query = _load(query_ptr, source, source_mask, query_row, DEPTH, BLOCK_D, DTYPE)
        grad = _load(grad_ptr, source, source_mask, grad_row, DEPTH, BLOCK_D, DTYPE)
        place_mask = place < end  # the order is not read a second time
        norm = tl.load(norm_ptr + norm_begin + place, mask=place_mask, other=0.0) * LOG2_E
        level = tl.load(level_ptr + norm_begin + place, mask=place_mask, other=0.0)
        logit = tl.dot(key, tl.trans(query), input_precision=PRECISION, out_dtype=WIDE) * scale2 - norm[None, :]
        if BOUND >= 0:
            logit += LOG2_E * _bias(
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
                of_pair = _entry(
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
