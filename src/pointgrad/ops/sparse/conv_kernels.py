"""Triton kernels of `sparse_conv`, with groups and depthwise.

A program computes a block of outputs, in the order of the schedule, whose rows use similar kernel positions. It
multiplies the gathered input rows by the matrix of each position that any of them uses, and stores the sum once. There
are no atomics, so results are the same from run to run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import INTERPRETED, cdiv, jit, power_of_2, shared_memory
from ..sums import sum_dtype
from .reference import TILE, WORD

# The interpreter multiplies the bit patterns of 16-bit numbers, so they are widened there (WIDEN=INTERPRETED).
TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}
LARGE = 200 << 10  # bytes of shared memory of data center GPUs


def sparse_conv(
    features: Tensor,
    weight: Tensor,
    sources: Tensor,
    source_schedule: Tensor,
    targets: Tensor | None,
    target_schedule: Tensor | None,
    flip: bool,
    groups: int,
) -> Tensor:
    rows, volume = sources.shape
    inputs, outputs = weight.shape[1], weight.shape[2] // groups
    out = features.new_empty((rows, weight.shape[2]))
    if not out.numel():
        return out
    if not inputs or not len(features):
        return out.zero_()
    features, sources, source_schedule = features.contiguous(), sources.contiguous(), source_schedule.contiguous()
    precision = precision_of(features.dtype)
    if precision == "tf32":
        # Tensor cores multiply by TF32 matrices only if the inputs of an output are adjacent.
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    elif features.element_size() > 2:
        weight = weight.contiguous()  # with transposed matrices, products of wide numbers take three times as long
    shared = {
        "out_ptr": out,
        "features_ptr": features,
        "weight_ptr": weight,
        "sources_ptr": sources,
        "schedule_ptr": source_schedule,
        "rows": rows,
        "num_inputs": len(features),
        "weight_k": weight.stride(0),
        "weight_i": weight.stride(1),
        "weight_o": weight.stride(2),
        "WIDE": TYPES[sum_dtype(features.dtype)],
        "VOLUME": volume,
        "FLIP": flip,
        "GROUPS": groups,
        "TILE": TILE,
        "WORD": WORD,
        "enable_fp_fusion": True,  # fused sums are rounded less often
    }
    if inputs == outputs == 1:
        block_m, block_c = _light_tile(groups)
        _depthwise[(cdiv(rows, block_m), cdiv(groups, block_c))](
            **shared, BLOCK_M=block_m, BLOCK_C=block_c, num_warps=4
        )
        return out
    tile = _tile(inputs, outputs, features)
    blocks = cdiv(outputs, tile["BLOCK_N"])
    _conv[(cdiv(rows, tile["BLOCK_M"]) * blocks, groups)](
        **shared,
        **tile,
        INPUTS=inputs,
        OUTPUTS=outputs,
        PRECISION=precision,
        WIDEN=INTERPRETED,
    )
    return out


def precision_of(dtype: torch.dtype) -> str:
    """TF32 for float32 only where torch allows it in matrix products."""
    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _tile(inputs: int, outputs: int, features: Tensor) -> dict[str, int]:
    """Tile sizes, measured on an H200, for 96 KiB of shared memory (AMD: 64); larger ones if the GPU has more."""
    block_n, block_k = power_of_2(outputs, 16, 256), power_of_2(inputs, 16, 64)
    if features.element_size() == 8:
        return {"BLOCK_M": 64, "BLOCK_N": min(block_n, 32), "BLOCK_K": 16, "num_warps": 4, "num_stages": 2}
    if precision_of(features.dtype) == "tf32":
        if block_n == 256:
            stages = 3 if torch.version.hip else 4
            return {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 16, "num_warps": 8, "num_stages": stages}
        if block_n == 128:
            return {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": min(block_k, 32), "num_warps": 4, "num_stages": 3}
        return {"BLOCK_M": 64, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": 4, "num_stages": 2}
    if features.element_size() == 4:
        return {
            "BLOCK_M": 64,
            "BLOCK_N": min(block_n, 64),
            "BLOCK_K": min(block_k, 32),
            "num_warps": 4,
            "num_stages": 3,
        }
    if block_n == 256:
        stages = 3 if torch.version.hip else 4
        return {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": min(block_k, 32), "num_warps": 8, "num_stages": stages}
    if block_n == 128 and 64 < inputs <= 128 and shared_memory(features.device) >= LARGE:
        return {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 2}
    if block_n == 128:
        return {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": block_k, "num_warps": 4, "num_stages": 3}
    stages = 2 if inputs <= block_k else 3  # with one step, the loop over positions is pipelined
    return {"BLOCK_M": 64, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": 4, "num_stages": stages}


def _light_tile(channels: int) -> tuple[int, int]:
    """(BLOCK_M, BLOCK_C) of a kernel that is limited by memory bandwidth."""
    block_c = power_of_2(channels, 16, 128)
    return power_of_2(2048 // block_c, 1, 128), block_c


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _positions_in_use(masks_ptr, part, rows, word, WORDS: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr):
    """One bit for each position of a word that any row of a block uses."""
    TILES: tl.constexpr = (BLOCK_M + TILE - 1) // TILE
    tile = part.to(tl.int64) * BLOCK_M // TILE + tl.arange(0, TILES)
    masks = tl.load(masks_ptr + tile * WORDS + word, mask=tile < tl.cdiv(rows, TILE), other=0)
    return tl.reduce(masks, 0, _or).to(tl.uint32, bitcast=True)


@triton.jit
def _count_bits(bits):
    return tl.sum(((bits >> tl.arange(0, 32).to(tl.uint32)) & 1).to(tl.int32), 0)


@triton.jit
def _lowest_bit(bits):
    """The place of the lowest bit, from the exponent of a float."""
    lowest = bits & (~bits + 1)
    return (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@jit
def _conv(
    out_ptr, features_ptr, weight_ptr, sources_ptr, schedule_ptr, rows, num_inputs,
    weight_k, weight_i, weight_o,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, FLIP: tl.constexpr, GROUPS: tl.constexpr, INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr, TILE: tl.constexpr, WORD: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    WORDS: tl.constexpr = (VOLUME + WORD - 1) // WORD
    part = tl.program_id(0) // blocks
    group = tl.program_id(1)
    place = part.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    place_mask = place < rows
    row = tl.load(schedule_ptr + place, mask=place_mask, other=0).to(tl.int64)
    row_mask = place_mask & (row >= 0) & (row < rows)
    n = (tl.program_id(0) % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    n_mask = n < OUTPUTS
    from_ptr = sources_ptr + row * VOLUME
    input_ptr = features_ptr + group * INPUTS + k[None, :]
    matrix_ptr = weight_ptr + k[:, None] * weight_i + (group * OUTPUTS + n)[None, :] * weight_o
    total = tl.zeros((BLOCK_M, BLOCK_N), WIDE)
    for word in range(WORDS):
        bits = _positions_in_use(schedule_ptr + rows, part, rows, word, WORDS, TILE, BLOCK_M)
        for _ in range(_count_bits(bits)):
            position = tl.minimum(word * WORD + _lowest_bit(bits), VOLUME - 1)
            bits = bits & (bits - 1)
            source = tl.load(from_ptr + position, mask=row_mask, other=-1)
            source_mask = (source >= 0) & (source < num_inputs)
            matrix = VOLUME - 1 - position if FLIP else position
            a_ptr = input_ptr + source.to(tl.int64)[:, None] * (INPUTS * GROUPS)
            b_ptr = matrix_ptr + matrix.to(tl.int64) * weight_k
            for at in range(0, INPUTS, BLOCK_K):
                if INPUTS % BLOCK_K != 0 or OUTPUTS % BLOCK_N != 0:
                    a = tl.load(a_ptr + at, mask=source_mask[:, None] & (k + at < INPUTS)[None, :], other=0.0)
                    b_mask = (k + at < INPUTS)[:, None] & n_mask[None, :]
                    b = tl.load(b_ptr + at * weight_i, mask=b_mask, other=0.0)
                else:
                    a = tl.load(a_ptr + at, mask=source_mask[:, None], other=0.0)
                    b = tl.load(b_ptr + at * weight_i)
                if WIDEN:
                    a, b = a.to(WIDE), b.to(WIDE)
                total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=WIDE)
    to_ptr = out_ptr + row[:, None] * (OUTPUTS * GROUPS) + (group * OUTPUTS + n)[None, :]
    tl.store(to_ptr, total.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & n_mask[None, :])


@jit
def _depthwise(
    out_ptr, features_ptr, weight_ptr, sources_ptr, schedule_ptr, rows, num_inputs,
    weight_k, weight_i, weight_o,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, FLIP: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr,
    WORD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    WORDS: tl.constexpr = (VOLUME + WORD - 1) // WORD
    part = tl.program_id(0)
    place = part.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    place_mask = place < rows
    row = tl.load(schedule_ptr + place, mask=place_mask, other=0).to(tl.int64)
    row_mask = place_mask & (row >= 0) & (row < rows)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < GROUPS
    total = tl.zeros((BLOCK_M, BLOCK_C), WIDE)
    for word in range(WORDS):
        bits = _positions_in_use(schedule_ptr + rows, part, rows, word, WORDS, TILE, BLOCK_M)
        for _ in range(_count_bits(bits)):
            position = tl.minimum(word * WORD + _lowest_bit(bits), VOLUME - 1)
            bits = bits & (bits - 1)
            source = tl.load(sources_ptr + row * VOLUME + position, mask=row_mask, other=-1).to(tl.int64)
            mask = ((source >= 0) & (source < num_inputs))[:, None] & c_mask[None, :]
            value = tl.load(features_ptr + source[:, None] * GROUPS + c[None, :], mask=mask, other=0).to(WIDE)
            matrix = VOLUME - 1 - position if FLIP else position
            factor_ptr = weight_ptr + matrix.to(tl.int64) * weight_k + c * weight_o
            factor = tl.load(factor_ptr, mask=c_mask, other=0).to(WIDE)
            total += tl.where(mask, value * factor[None, :], 0)
    to_ptr = out_ptr + row[:, None] * GROUPS + c[None, :]
    tl.store(to_ptr, total.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & c_mask[None, :])
