"""Triton kernels of `sparse_conv_weight`, with groups and depthwise.

The pairs of an output and an input are first listed position by position. A program of `_conv_weight` sums the products
of some of the pairs of one position; the partial sums are added in a fixed order. There are no atomics, so results are
the same from run to run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import INTERPRETED, cdiv, jit, power_of_2, shared_memory
from ..sums import sum_dtype
from .conv_kernels import LARGE, TYPES, precision_of

_CHUNK = 64  # rows whose pairs are counted together


def sparse_conv_weight(
    features: Tensor,
    grad: Tensor,
    sources: Tensor,
    source_schedule: Tensor,
    targets: Tensor | None,
    target_schedule: Tensor | None,
    flip: bool,
    groups: int,
) -> Tensor:
    rows, volume = sources.shape
    inputs, outputs = features.shape[1] // groups, grad.shape[1] // groups
    out = features.new_empty((volume, inputs, grad.shape[1]))
    if not out.numel():
        return out
    if not rows or not len(features):
        return out.zero_()
    features, grad = features.contiguous(), grad.contiguous()
    pairs, begins = _pairs(sources, len(features))
    chunks, wide = cdiv(rows, _CHUNK), sum_dtype(features.dtype)
    depthwise = inputs == outputs == 1
    if depthwise:
        tile = {"BLOCK_R": 32, "BLOCK_C": power_of_2(groups, 16, 64), "num_warps": 4}
        blocks = cdiv(groups, tile["BLOCK_C"])
    else:
        tile = _weight_tile(inputs, outputs, features)
        blocks = cdiv(inputs, tile["BLOCK_I"]) * cdiv(outputs, tile["BLOCK_O"]) * groups
    # Each program sums the pairs of `step` chunks.
    programs = 1024 if depthwise else tile.pop("programs")
    step = max(cdiv(chunks, max(1, programs // (volume * blocks))), 16)
    parts = cdiv(chunks, step)
    partial = features.new_empty((parts, *out.shape), dtype=wide) if parts > 1 else out
    shared = {
        "partial_ptr": partial,
        "features_ptr": features,
        "grad_ptr": grad,
        "pairs_ptr": pairs,
        "begins_ptr": begins,
        "capacity": pairs.shape[1],
        "chunks": chunks,
        "step": step,
        "WIDE": TYPES[wide],
        "VOLUME": volume,
        "FLIP": flip,
        "GROUPS": groups,
        "enable_fp_fusion": True,
        **tile,
    }
    if depthwise:
        _depthwise_weight[(blocks * volume * parts,)](**shared)
    else:
        _conv_weight[(blocks * volume * parts,)](
            **shared,
            INPUTS=inputs,
            OUTPUTS=outputs,
            PRECISION=precision_of(features.dtype),
            WIDEN=INTERPRETED,
        )
    if parts > 1:
        block = 256
        _sum_parts[(cdiv(out.numel(), block),)](
            out_ptr=out,
            partial_ptr=partial,
            count=out.numel(),
            parts=parts,
            BLOCK=block,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out


def _pairs(sources: Tensor, num_inputs: int) -> tuple[Tensor, Tensor]:
    """The pairs of an output and the input that it reads, sorted by kernel position and output.

    Returns:
        (2, P) int32, inputs and outputs, with space for all pairs that the table may hold; and (K * chunks + 1,) int64,
        where the pairs of each position and chunk of outputs begin.
    """
    sources = sources.contiguous()
    rows, volume = sources.shape
    chunks = cdiv(rows, _CHUNK)
    block_k = power_of_2(volume, 1, 32)
    counts = sources.new_empty(volume * chunks + 1)
    pairs = sources.new_empty((2, volume * rows))
    shared = {
        "sources_ptr": sources,
        "rows": rows,
        "chunks": chunks,
        "num_inputs": num_inputs,
        "VOLUME": volume,
        "BLOCK_R": _CHUNK,
        "BLOCK_K": block_k,
        "num_warps": 4,
        "enable_fp_fusion": False,
    }
    grid = (chunks, cdiv(volume, block_k))
    _count_pairs[grid](counts_ptr=counts, **shared)
    begins = counts.cumsum(0)
    _write_pairs[grid](pairs_ptr=pairs, begins_ptr=begins, capacity=pairs.shape[1], **shared)
    return pairs, begins


def _weight_tile(inputs: int, outputs: int, features: Tensor) -> dict[str, int]:
    """Tile sizes, measured on an H200, for 96 KiB of shared memory (AMD: 64); larger ones if the GPU has more."""
    block_i, block_o = power_of_2(inputs, 16, 128), power_of_2(outputs, 16, 128)
    block_r, num_warps, num_stages = 32 if block_i + block_o > 128 else 64, 4, 6
    if features.element_size() == 8:
        block_i, block_o, block_r, num_stages = min(block_i, 32), min(block_o, 32), 16, 2
    elif features.element_size() == 4 and block_i == block_o == 128:
        block_r, num_warps, num_stages = 16, 8, 2
    elif features.element_size() == 4:
        block_i, block_o, block_r, num_stages = min(block_i, 64), min(block_o, 64), 32, 3
    elif block_i == 128 and outputs > 128 and shared_memory(features.device) >= LARGE:
        block_o, num_warps, num_stages = 256, 8, 5
    if torch.version.hip:
        num_stages = 2
    return {
        "programs": 1024 if block_i * block_o < 128 * 128 else 4096 if block_o == 128 else 1458,  # with enough work
        "BLOCK_I": block_i,
        "BLOCK_O": block_o,
        "BLOCK_R": block_r,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


@triton.jit
def _sources_of(sources_ptr, rows, num_inputs, VOLUME: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr):
    """The sources of a chunk of rows at some positions, and whether they exist."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    position = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    mask = (row < rows)[:, None] & (position < VOLUME)[None, :]
    source = tl.load(sources_ptr + row[:, None] * VOLUME + position[None, :], mask=mask, other=-1)
    return row, position, source, (source >= 0) & (source < num_inputs)


@jit
def _count_pairs(
    counts_ptr, sources_ptr, rows, chunks, num_inputs,
    VOLUME: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The number of pairs of each position and chunk, after a first 0."""
    _, position, _, exists = _sources_of(sources_ptr, rows, num_inputs, VOLUME, BLOCK_R, BLOCK_K)
    place = 1 + position.to(tl.int64) * chunks + tl.program_id(0)
    tl.store(counts_ptr, 0)
    tl.store(counts_ptr + place, tl.sum(exists.to(tl.int32), 0), mask=position < VOLUME)


@jit
def _write_pairs(
    pairs_ptr, begins_ptr, sources_ptr, rows, chunks, num_inputs, capacity,
    VOLUME: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row, position, source, exists = _sources_of(sources_ptr, rows, num_inputs, VOLUME, BLOCK_R, BLOCK_K)
    place = position.to(tl.int64) * chunks + tl.program_id(0)
    begin = tl.load(begins_ptr + place, mask=position < VOLUME, other=0)
    count = exists.to(tl.int32)
    at = begin[None, :] + tl.cumsum(count, 0) - count
    tl.store(pairs_ptr + at, source, mask=exists)
    tl.store(pairs_ptr + capacity + at, tl.broadcast_to(row.to(tl.int32)[:, None], source.shape), mask=exists)


@jit
def _conv_weight(
    partial_ptr, features_ptr, grad_ptr, pairs_ptr, begins_ptr, capacity, chunks, step,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, FLIP: tl.constexpr, GROUPS: tl.constexpr, INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    blocks_o: tl.constexpr = (OUTPUTS + BLOCK_O - 1) // BLOCK_O
    blocks: tl.constexpr = ((INPUTS + BLOCK_I - 1) // BLOCK_I) * blocks_o
    # Programs of the same part follow each other: they read the same rows.
    pid = tl.program_id(0)
    block = pid % blocks
    position = (pid // blocks) % VOLUME
    group = (pid // (blocks * VOLUME)) % GROUPS
    part = pid // (blocks * VOLUME * GROUPS)
    i = (block // blocks_o) * BLOCK_I + tl.arange(0, BLOCK_I)
    o = (block % blocks_o) * BLOCK_O + tl.arange(0, BLOCK_O)
    i_mask, o_mask = i < INPUTS, o < OUTPUTS
    begin, count = _pairs_of_part(begins_ptr, position, part, step, chunks)
    width: tl.constexpr = OUTPUTS * GROUPS
    r = tl.arange(0, BLOCK_R)
    total = tl.zeros((BLOCK_I, BLOCK_O), WIDE)
    input_ptr = features_ptr + (group * INPUTS + i)[None, :]
    output_ptr = grad_ptr + (group * OUTPUTS + o)[None, :]
    for start in range(0, count, BLOCK_R):
        mask = start + r < count
        source = tl.load(pairs_ptr + begin + start + r, mask=mask, other=0)
        row = tl.load(pairs_ptr + capacity + begin + start + r, mask=mask, other=0)
        a_mask, b_mask = mask[:, None], mask[:, None]
        if INPUTS % BLOCK_I != 0:
            a_mask = a_mask & i_mask[None, :]
        if OUTPUTS % BLOCK_O != 0:
            b_mask = b_mask & o_mask[None, :]
        a = tl.load(input_ptr + source.to(tl.int64)[:, None] * (INPUTS * GROUPS), mask=a_mask, other=0.0)
        b = tl.load(output_ptr + row.to(tl.int64)[:, None] * width, mask=b_mask, other=0.0)
        if WIDEN:
            a, b = a.to(WIDE), b.to(WIDE)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION, out_dtype=WIDE)
    matrix = VOLUME - 1 - position if FLIP else position
    to_ptr = partial_ptr + ((part.to(tl.int64) * VOLUME + matrix) * INPUTS + i)[:, None] * width
    to_ptr += (group * OUTPUTS + o)[None, :]
    tl.store(to_ptr, total.to(partial_ptr.dtype.element_ty), mask=i_mask[:, None] & o_mask[None, :])


@triton.jit
def _pairs_of_part(begins_ptr, position, part, step, chunks):
    """The begin and the number of the pairs of a position and a part of the chunks."""
    first_ptr = begins_ptr + position.to(tl.int64) * chunks
    begin = tl.load(first_ptr + part * step)
    end = tl.load(first_ptr + tl.minimum((part + 1) * step, chunks))
    return begin, (end - begin).to(tl.int32)


@jit
def _sum_parts(out_ptr, partial_ptr, count, parts, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    total = tl.load(partial_ptr + place, mask=mask, other=0)
    for part in range(1, parts):
        total += tl.load(partial_ptr + tl.full((), part, tl.int64) * count + place, mask=mask, other=0)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=mask)


@jit
def _depthwise_weight(
    partial_ptr, features_ptr, grad_ptr, pairs_ptr, begins_ptr, capacity, chunks, step,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, FLIP: tl.constexpr, GROUPS: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(GROUPS, BLOCK_C)
    pid = tl.program_id(0)
    c = (pid % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < GROUPS
    position = (pid // blocks) % VOLUME
    part = pid // (blocks * VOLUME)
    begin, count = _pairs_of_part(begins_ptr, position, part, step, chunks)
    r = tl.arange(0, BLOCK_R)
    total = tl.zeros((BLOCK_R, BLOCK_C), WIDE)
    for start in range(0, count, BLOCK_R):
        source = tl.load(pairs_ptr + begin + start + r, mask=start + r < count, other=0).to(tl.int64)
        row = tl.load(pairs_ptr + capacity + begin + start + r, mask=start + r < count, other=0).to(tl.int64)
        mask = (start + r < count)[:, None] & c_mask[None, :]
        a = tl.load(features_ptr + source[:, None] * GROUPS + c[None, :], mask=mask, other=0).to(WIDE)
        b = tl.load(grad_ptr + row[:, None] * GROUPS + c[None, :], mask=mask, other=0).to(WIDE)
        total += a * b
    matrix = VOLUME - 1 - position if FLIP else position
    to_ptr = partial_ptr + (part.to(tl.int64) * VOLUME + matrix) * GROUPS + c
    tl.store(to_ptr, tl.sum(total, 0).to(partial_ptr.dtype.element_ty), mask=c_mask)
