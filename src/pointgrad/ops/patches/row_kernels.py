"""Shared by the Triton kernels of this family: the programs of a call, tile sizes, and access to rows."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import INTERPRETED, has_tf32, power_of_2, shared_memory
from ..sums import sum_dtype
from . import reference


class Patches(NamedTuple):
    """Division of a call into programs, and their arguments.

    Attributes:
        programs: Number of pairs of a patch and a head, also of patches that clouds of other sizes would have.
        patch: Number of points of a patch, at most the number of points of a cloud.
        arguments: Arguments of the kernels.
    """

    programs: int
    patch: int
    arguments: dict[str, Any]


def patches_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    coordinates: Tensor | None,
    bias_table: Tensor | None,
    scale: float | None,
) -> Patches:
    heads, depth, wide = *query.shape[-2:], sum_dtype(query.dtype)
    batch, patch = clouds.batch_size(order.unsqueeze(-1), sizes), min(patch, max(order.shape[-1], 1))
    slots = reference.num_slots(order, sizes, patch) if batch and order.shape[-1] else 0
    factor = reference.factor(scale, query)
    arguments = {
        **rows_of("query", query),
        **rows_of("key", key),
        **rows_of("value", value),
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
    return Patches(slots * heads, patch, arguments)


def _precision(query: Tensor) -> str:
    """Precision of float32 products: TF32 only where torch allows it, otherwise a sum of three products in TF32."""
    if query.dtype != torch.float32 or INTERPRETED:
        return "ieee"
    if torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return "tf32x3" if has_tf32(query.device) else "ieee"


def rows_of(name: str, rows: Tensor) -> dict[str, Any]:
    """The address of rows and the steps between rows and between heads. A slice of a larger tensor is not copied."""
    flat = rows.dim() == 3 or rows.stride(0) == rows.shape[1] * rows.stride(1)
    rows = rows if flat and rows.stride(-1) == 1 else rows.contiguous()
    return {f"{name}_ptr": rows, f"{name}_row": rows.stride(-3), f"{name}_head": rows.stride(-2)}


def _tile(block_m: int, block_n: int, num_warps: int, num_stages: int) -> dict[str, int]:
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": num_warps, "num_stages": num_stages}


def fitted(tile: dict[str, int], patch: int) -> dict[str, int]:
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
def find(
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
def row_of(place, end, order_ptr, begin, first_row, num_points):
    """The row at each place of a cloud, and whether there is one."""
    place_mask = place < end
    row = tl.load(order_ptr + begin + place, mask=place_mask, other=-1)
    row_mask = place_mask & (row >= 0) & (row < num_points)
    return first_row + row, row_mask


@triton.jit
def load_rows(from_ptr, row, row_mask, step, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr, DTYPE: tl.constexpr):
    """(rows, BLOCK_D), zero where there is no row."""
    channel = tl.arange(0, BLOCK_D)
    mask = row_mask[:, None]
    if DEPTH < BLOCK_D:
        mask = mask & (channel < DEPTH)[None, :]
    return tl.load(from_ptr + row[:, None] * step + channel[None, :], mask=mask, other=0.0).to(DTYPE)


@triton.jit
def store_rows(to_ptr, row, row_mask, step, values, DEPTH: tl.constexpr, BLOCK_D: tl.constexpr):
    channel = tl.arange(0, BLOCK_D)
    mask = row_mask[:, None] & (channel < DEPTH)[None, :]
    tl.store(to_ptr + row[:, None] * step + channel[None, :], values.to(to_ptr.dtype.element_ty), mask=mask)


@triton.jit
def table_row(coordinates_ptr, from_row, from_mask, to_row, to_mask, axis, BOUND: tl.constexpr):
    """The row of the table for the difference along an axis, of rows that are broadcast against each other."""
    start = tl.load(coordinates_ptr + from_row * 3 + axis, mask=from_mask, other=0)
    end = tl.load(coordinates_ptr + to_row * 3 + axis, mask=to_mask, other=0)
    return tl.minimum(tl.maximum(start - end, -BOUND), BOUND) + BOUND + axis * (2 * BOUND + 1)


@triton.jit
def bias_of(
    coordinates_ptr, table_ptr, from_row, from_mask, to_row, to_mask, head, heads,
    BOUND: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The biases of pairs of a query and a key, whose rows are broadcast against each other."""
    entry = table_row(coordinates_ptr, from_row, from_mask, to_row, to_mask, 0, BOUND)
    total = tl.load(table_ptr + entry * heads + head).to(WIDE)
    for axis in tl.static_range(1, 3):
        entry = table_row(coordinates_ptr, from_row, from_mask, to_row, to_mask, axis, BOUND)
        total += tl.load(table_ptr + entry * heads + head).to(WIDE)
    return total
