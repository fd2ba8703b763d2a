"""Reductions of segments of rows on a GPU without atomics, shared by the Triton kernels of several families.

Segment s consists of the rows from `begin[s]` to `begin[s + 1]`, where row r is `values[r]`, or `values[order[r]]`
after a sort. Results are the same from run to run. Naming in all kernels: `*_ptr` is an address, BLOCK_* a tile size,
and `*_mask` marks the lanes in range.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, jit, power_of_2
from .sums import sum_dtype

# Segments of at least twice this many rows are cut at multiples of it. Each piece is first reduced by its own program,
# so that no single program has to process a very long segment.
_PIECE = 512


def reduce_segments(
    values: Tensor,
    begin: Tensor,
    order: Tensor | None,
    reduce: str,
    dtype: torch.dtype,
    *,
    tile: tuple[int, int, int] | None = None,
    num_warps: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Reduce each segment by "sum", "mean", "max" or "min".

    Args:
        values: (N, C), contiguous.
        begin: (S + 1,) int64, contiguous. Values out of range are clamped.
        order: (R,) int64, or None.
        reduce: The name of the reduction.
        dtype: The dtype of the result.
        tile: BLOCK_S, BLOCK_R, BLOCK_C; by default a tile of about the rows of one segment.
        num_warps: By default 2 for "max" and "min", else 1.

    Returns:
        (S, C) the results, 0 for an empty segment; and for "max" and "min" (S, C) int64, the row of `values` that holds
        the extreme value (the first of equal values, the first NaN if there is one), -1 for an empty segment.
    """
    segments, channels = begin.shape[0] - 1, values.shape[1]
    rows = values.shape[0] if order is None else order.shape[0]
    extreme = reduce in ("max", "min")
    out = values.new_empty((segments, channels), dtype=dtype)
    arg = values.new_empty((segments, channels) if extreme else (0,), dtype=torch.int64)
    if not out.numel():
        return out, arg
    pieces = rows // _PIECE if rows >= 2 * _PIECE else 0
    wide = sum_dtype(values.dtype)
    part = values.new_empty((pieces, channels), dtype=wide)
    part_arg = values.new_empty((pieces, channels) if extreme else (0,), dtype=torch.int64)
    block_s, block_r, block_c = tile or _tile(rows // segments, channels)
    num_warps = num_warps or (2 if extreme else 1)  # the rows of extremes take registers
    ends = torch.finfo(wide) if wide.is_floating_point else torch.iinfo(wide)
    infinite = wide.is_floating_point
    worst = {"max": -torch.inf if infinite else ends.min, "min": torch.inf if infinite else ends.max}.get(reduce, 0)
    for is_piece in (True, False) if pieces else (False,):
        if is_piece:
            count, sizes = pieces, (1, power_of_2(2048 // block_c, 1, _PIECE), block_c)
        else:
            count, sizes = segments, (block_s, block_r, block_c)
        _reduce[(cdiv(count, sizes[0]) * cdiv(channels, block_c),)](
            out_ptr=part if is_piece else out,
            arg_ptr=part_arg if is_piece else arg,
            values_ptr=values,
            order_ptr=begin if order is None else order,
            begin_ptr=begin,
            part_ptr=part,
            part_arg_ptr=part_arg,
            segments=segments,
            rows=rows,
            channels=channels,
            REDUCE=reduce,
            WORST=worst,
            ORDERED=order is not None,
            IS_PIECE=is_piece,
            PIECES=pieces > 0,
            PIECE=_PIECE,
            WIDE=_TRITON_TYPES[wide],
            BLOCK_S=sizes[0],
            BLOCK_R=sizes[1],
            BLOCK_C=sizes[2],
            num_warps=4 if is_piece else num_warps,
            enable_fp_fusion=False,
        )
    return out, arg


def sort_by_row(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Sort the entries of an index (B, M) by row, stably, and return `order` and `begin` for `reduce_segments`.

    Rows and entries are numbered through the whole batch. Entries out of range come after the last row.
    """
    batch = index.shape[0]
    first = torch.arange(batch, device=index.device).unsqueeze(1) * num_rows
    row = torch.where((index < 0) | (index >= num_rows), batch * num_rows, index + first).reshape(-1)
    row, order = torch.sort(row.int() if batch * num_rows < 2**31 else row, stable=True)
    return order, torch.searchsorted(row, torch.arange(batch * num_rows + 1, device=row.device, dtype=row.dtype))


_TRITON_TYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.int64: tl.int64,
    torch.int32: tl.int32,
}


def _tile(rows_per_segment: int, channels: int) -> tuple[int, int, int]:
    """(BLOCK_S, BLOCK_R, BLOCK_C) with 512 elements, so that each thread moves several 16-byte pieces (measured)."""
    block_c = power_of_2(channels, 1, 128)
    block_r = power_of_2(max(rows_per_segment // 2, 1), 1, 512 // block_c)
    return 512 // (block_c * block_r), block_r, block_c


@triton.jit
def _segment_of(row, begin_ptr, segments):
    """The segment of each row: a search with 256 probes per step, because each step waits for memory."""
    low = row * 0
    step = tl.full((), 0, tl.int64) + tl.cdiv(segments, 256)
    while step > 0:
        probe = low[:, None] + tl.arange(0, 256)[None, :] * step
        value = tl.load(begin_ptr + probe, mask=probe < segments, other=9223372036854775807)
        low += tl.maximum(tl.sum((value <= row[:, None]).to(tl.int64), 1) - 1, 0) * step
        step = tl.where(step > 1, tl.cdiv(step, 256), 0)
    return low


@triton.jit
def _better(value, arg, best, best_arg, REDUCE: tl.constexpr):
    """Whether a value replaces the best so far. Of equal values, and of NaNs, the one with the smaller row is kept."""
    value_nan, best_nan = value != value, best != best
    ahead = value > best if REDUCE == "max" else value < best
    tie = (value == best) | (value_nan & best_nan)
    return (ahead & ~best_nan) | (value_nan & ~best_nan) | (tie & (arg < best_arg))


@jit
def _reduce(
    out_ptr, arg_ptr, values_ptr, order_ptr, begin_ptr, part_ptr, part_arg_ptr, segments, rows, channels,
    REDUCE: tl.constexpr, WORST: tl.constexpr, ORDERED: tl.constexpr, IS_PIECE: tl.constexpr, PIECES: tl.constexpr,
    PIECE: tl.constexpr, WIDE: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    EXTREME: tl.constexpr = (REDUCE == "max") | (REDUCE == "min")
    NO_ROW: tl.constexpr = 9223372036854775807
    tiles = tl.cdiv(channels, BLOCK_C)
    channel = (tl.program_id(0) % tiles) * BLOCK_C + tl.arange(0, BLOCK_C)[None, None, :]
    channel_mask = channel < channels
    segment = (tl.program_id(0) // tiles).to(tl.int64) * BLOCK_S + tl.arange(0, BLOCK_S)
    if IS_PIECE:
        begin = segment * PIECE
        owner = _segment_of(begin, begin_ptr, segments)
        first, last = tl.load(begin_ptr + owner), tl.load(begin_ptr + owner + 1)
        # Only pieces that lie within one long segment are used below.
        segment_mask = (first <= begin) & (begin + PIECE <= last) & (last - first >= 2 * PIECE)
        end = tl.where(segment_mask, begin + PIECE, begin)
    else:
        segment_mask = segment < segments
        begin = tl.load(begin_ptr + segment, mask=segment_mask, other=0)
        end = tl.load(begin_ptr + segment + 1, mask=segment_mask, other=0)
        begin = tl.minimum(tl.maximum(begin, 0), rows)
        end = tl.maximum(tl.minimum(end, rows), begin)
    size = end - begin
    # A long segment consists of rows before the first piece, whole pieces, and rows after the last piece.
    head = size
    pieces = size * 0
    if PIECES and not IS_PIECE:
        first_piece = (begin + PIECE - 1) // PIECE
        pieces = tl.where(size >= 2 * PIECE, end // PIECE - first_piece, 0)
        head = tl.where(pieces > 0, first_piece * PIECE - begin, size)
    loose = size - pieces * PIECE  # rows outside of whole pieces

    best = tl.full((BLOCK_S, BLOCK_R, BLOCK_C), WORST, WIDE)
    best_arg = tl.full((BLOCK_S, BLOCK_R, BLOCK_C), NO_ROW, tl.int64)
    for start in range(0, tl.max(loose), BLOCK_R):
        place = start + tl.arange(0, BLOCK_R)[None, :]
        place_mask = place < loose[:, None]
        row = begin[:, None] + place + tl.where(place >= head[:, None], pieces[:, None] * PIECE, 0)
        if ORDERED:
            row = tl.load(order_ptr + row, mask=place_mask, other=0)
        mask = place_mask[:, :, None] & channel_mask
        value = tl.load(values_ptr + row[:, :, None] * channels + channel, mask=mask, other=0).to(WIDE)
        if EXTREME:
            arg = tl.broadcast_to(row[:, :, None], (BLOCK_S, BLOCK_R, BLOCK_C))
            take = mask & _better(value, arg, best, best_arg, REDUCE)
            best = tl.where(take, value, best)
            best_arg = tl.where(take, arg, best_arg)
        else:
            best += value
    if PIECES and not IS_PIECE:
        for start in range(0, tl.max(pieces), BLOCK_R):
            place = start + tl.arange(0, BLOCK_R)[None, :]
            at = (first_piece[:, None] + place)[:, :, None] * channels + channel
            mask = (place < pieces[:, None])[:, :, None] & channel_mask
            value = tl.load(part_ptr + at, mask=mask, other=0)
            if EXTREME:
                arg = tl.load(part_arg_ptr + at, mask=mask, other=NO_ROW)
                take = mask & _better(value, arg, best, best_arg, REDUCE)
                best = tl.where(take, value, best)
                best_arg = tl.where(take, arg, best_arg)
            else:
                best += value

    at = segment[:, None] * channels + tl.reshape(channel, (1, BLOCK_C))
    mask = segment_mask[:, None] & tl.reshape(channel_mask, (1, BLOCK_C))
    if EXTREME:
        nan = best != best
        some_nan = tl.max(nan.to(tl.int32), 1) > 0
        plain = tl.where(nan, WORST, best)
        extreme = tl.max(plain, 1) if REDUCE == "max" else tl.min(plain, 1)
        wins = tl.where(some_nan[:, None, :], nan, plain == extreme[:, None, :])
        arg = tl.min(tl.where(wins, best_arg, NO_ROW), 1)
        # Loaded again, because the reductions above do not keep the bits of a NaN and the sign of a zero.
        valid = arg != NO_ROW
        total = tl.load(values_ptr + arg * channels + tl.reshape(channel, (1, BLOCK_C)), mask=mask & valid, other=0)
        if IS_PIECE:
            tl.store(arg_ptr + at, arg, mask=mask)
        else:
            tl.store(arg_ptr + at, tl.where(valid, arg, -1), mask=mask)
    else:
        total = tl.sum(best, 1)
        if REDUCE == "mean" and not IS_PIECE:
            total = total / tl.maximum(size, 1)[:, None].to(WIDE)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=mask)
