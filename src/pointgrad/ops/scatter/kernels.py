"""Triton kernels of this family. The reductions are in `ops/segments.py`.

Naming in all kernels: `*_ptr` is an address, BLOCK_* a tile size, and `*_mask` marks the lanes in range.
"""

import torch
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2
from ..segments import reduce_segments, sort_by_row
from ..sums import sum_dtype


def histogram(index: Tensor, size: int) -> Tensor:
    index = index.contiguous()
    shape = (*index.shape[:-1], size)
    if not (index.numel() and size):
        return index.new_zeros(shape)
    # Atomics on few counts would serialize, so the programs spread over several copies, which are added afterwards.
    bins = index.numel() // index.shape[-1] * size
    copies = power_of_2(4096 // bins, 1, 256)
    counts = index.new_zeros((copies, *shape))
    _count[(cdiv(index.numel(), 1024),)](
        counts_ptr=counts,
        index_ptr=index,
        total=index.numel(),
        picks=index.shape[-1],
        size=size,
        bins=bins,
        copies=copies,
        BLOCK=1024,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return counts.sum(0) if copies > 1 else counts[0]


def scatter_extreme(values: Tensor, index: Tensor, num_rows: int, largest: bool) -> tuple[Tensor, Tensor]:
    values = values.contiguous()
    picks, channels = values.shape[-2:]
    shape = (*values.shape[:-2], num_rows, channels)
    if not values.numel() or not num_rows:
        return values.new_zeros(shape), values.new_full(shape, -1, dtype=torch.int64)
    order, begin = sort_by_row(index.reshape(-1, picks), num_rows)
    flat = values.reshape(-1, channels)
    best, arg = reduce_segments(flat, begin, order, "max" if largest else "min", values.dtype)
    if values.dim() == 3:  # from rows of the whole batch to rows of each cloud
        arg = torch.where(arg < 0, arg, arg % picks)
    return best.reshape(shape), arg.reshape(shape)


def place_elements(grad: Tensor, arg: Tensor, num_rows: int) -> Tensor:
    grad, arg = grad.contiguous(), arg.contiguous()
    groups, channels = grad.shape[-2:]
    out = grad.new_zeros((*grad.shape[:-2], num_rows, channels))
    if grad.numel() and num_rows:
        _place[(cdiv(grad.numel(), 1024),)](
            out_ptr=out,
            grad_ptr=grad,
            arg_ptr=arg,
            total=grad.numel(),
            rows=num_rows,
            groups=groups,
            channels=channels,
            BLOCK=1024,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out


def segment_sum(values: Tensor, offsets: Tensor, mean: bool) -> Tensor:
    reduce = "mean" if mean else "sum"
    return reduce_segments(values.contiguous(), offsets.contiguous(), None, reduce, values.dtype)[0]


def segment_extreme(values: Tensor, offsets: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    reduce = "max" if largest else "min"
    return reduce_segments(values.contiguous(), offsets.contiguous(), None, reduce, values.dtype)


def segment_spread(grad: Tensor, offsets: Tensor, num_rows: int, mean: bool) -> Tensor:
    grad, offsets = grad.contiguous(), offsets.contiguous()
    out = grad.new_empty((num_rows, grad.shape[1]))
    _combine_with_segments("share" if mean else "copy", out, (out, out), grad, offsets)
    return out


def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    logits, offsets = logits.contiguous(), offsets.contiguous()
    wide = sum_dtype(logits.dtype)
    highest, _ = reduce_segments(logits, offsets, None, "max", wide)
    power = torch.empty_like(logits, dtype=wide)
    _combine_with_segments("power", power, (logits, logits), highest, offsets)
    total, _ = reduce_segments(power, offsets, None, "sum", wide)
    out = torch.empty_like(logits)
    _combine_with_segments("divide", out, (power, power), total, offsets)
    return out


def segment_softmax_backward(grad: Tensor, output: Tensor, offsets: Tensor) -> Tensor:
    grad, output, offsets = grad.contiguous(), output.contiguous(), offsets.contiguous()
    wide = sum_dtype(grad.dtype)
    total, _ = reduce_segments(grad.to(wide) * output.to(wide), offsets, None, "sum", wide)
    out = torch.empty_like(grad)
    _combine_with_segments("softmax_backward", out, (grad, output), total, offsets)
    return out


def _combine_with_segments(
    operation: str, out: Tensor, inputs: tuple[Tensor, Tensor], row: Tensor, offsets: Tensor
) -> None:
    """Fill `out` (E, C) from two `inputs` (E, C) and, for each row, the `row` (S, C) of its segment."""
    rows, channels = out.shape
    if not out.numel() or not row.shape[0]:
        return
    segment = torch.searchsorted(offsets, torch.arange(rows, device=out.device), right=True) - 1
    block_c = power_of_2(channels, 1, 256)
    block_m = 1024 // block_c
    _combine[(cdiv(rows, block_m),)](
        out_ptr=out,
        first_ptr=inputs[0],
        second_ptr=inputs[1],
        row_ptr=row,
        segment_ptr=segment,
        offsets_ptr=offsets,
        rows=rows,
        segments=row.shape[0],
        channels=channels,
        OPERATION=operation,
        WIDE=tl.float64 if out.dtype == torch.float64 else tl.float32,
        BLOCK_M=block_m,
        BLOCK_C=block_c,
        num_warps=4,
        enable_fp_fusion=False,
    )


@jit
def _count(counts_ptr, index_ptr, total, picks, size, bins, copies, BLOCK: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index_ptr + entry, mask=entry < total, other=-1)
    row_mask = (row >= 0) & (row < size)
    one = tl.full((BLOCK,), 1, tl.int64)
    counts_ptr += (tl.program_id(0) % copies).to(tl.int64) * bins
    tl.atomic_add(counts_ptr + entry // picks * size + row, one, mask=row_mask, sem="relaxed")


@jit
def _place(out_ptr, grad_ptr, arg_ptr, total, rows, groups, channels, BLOCK: tl.constexpr):
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    entry_mask = entry < total
    row = tl.load(arg_ptr + entry, mask=entry_mask, other=-1)
    grad = tl.load(grad_ptr + entry, mask=entry_mask, other=0)
    cloud = entry // (groups * channels)
    to_ptr = out_ptr + (cloud * rows + row) * channels + entry % channels
    tl.store(to_ptr, grad, mask=(row >= 0) & (row < rows))


@jit
def _combine(
    out_ptr, first_ptr, second_ptr, row_ptr, segment_ptr, offsets_ptr, rows, segments, channels,
    OPERATION: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    place_mask = place < rows
    segment = tl.load(segment_ptr + place, mask=place_mask, other=0)
    segment_mask = place_mask & (segment >= 0) & (segment < segments)
    if OPERATION == "share":
        begin = tl.load(offsets_ptr + segment, mask=segment_mask, other=0)
        end = tl.load(offsets_ptr + segment + 1, mask=segment_mask, other=1)
        size = tl.maximum(end - begin, 1).to(WIDE)[:, None]
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)[None, :]
        channel_mask = channel < channels
        mask = place_mask[:, None] & channel_mask
        at = place[:, None] * channels + channel
        from_ptr = row_ptr + segment[:, None] * channels + channel
        row = tl.load(from_ptr, mask=segment_mask[:, None] & channel_mask, other=0).to(WIDE)
        if OPERATION == "copy":
            value = row
        elif OPERATION == "share":
            value = row / size
        else:
            value = tl.load(first_ptr + at, mask=mask, other=0).to(WIDE)
            if OPERATION == "power":
                # If all logits of a segment are -inf, exp(-inf) gives 0 everywhere.
                value = tl.exp(value - tl.where(row == float("-inf"), 0.0, row))
            elif OPERATION == "divide":
                value = value / tl.where(row == 0, 1.0, row)
            else:
                value = tl.load(second_ptr + at, mask=mask, other=0).to(WIDE) * (value - row)
        tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=mask)
