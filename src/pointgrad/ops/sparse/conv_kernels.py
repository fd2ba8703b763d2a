"""Triton kernels of the products: `sparse_conv` and `sparse_conv_weight`, with groups and depthwise.

A program of `_conv` computes a tile of 128 outputs, in the order of the schedule, whose rows use similar kernel
positions. It multiplies the gathered input rows by the matrix of each position in the tile's list, and stores the sum
once. A program of `_conv_weight` sums the products of one position over some of the tiles in the position's list; the
partial sums are added in a fixed order. There are no atomics, so results are the same from run to run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import INTERPRETED, power_of_2
from ..sums import sum_dtype
from .reference import TILE

_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}
# The interpreter multiplies the bit patterns of 16-bit numbers, so they are widened there (WIDEN=INTERPRETED).
_PROGRAMS = 2048  # of the weight's gradient, if there is enough work


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
    if features.element_size() > 2:
        weight = weight.contiguous()  # with transposed matrices, products of wide numbers take three times as long
    shared = {
        "out_ptr": out,
        "features_ptr": features,
        "weight_ptr": weight,
        "sources_ptr": sources,
        "schedule_ptr": source_schedule,
        "rows": rows,
        "num_inputs": len(features),
        "channels": features.shape[1],
        "weight_k": weight.stride(0),
        "weight_i": weight.stride(1),
        "weight_o": weight.stride(2),
        "WIDE": _TYPES[sum_dtype(features.dtype)],
        "VOLUME": volume,
        "FLIP": flip,
        "enable_fp_fusion": True,  # fused sums are rounded less often
    }
    if inputs == outputs == 1:
        block_m, block_c = _light_tile(groups)
        _depthwise[(triton.cdiv(rows, block_m), triton.cdiv(groups, block_c))](
            **shared, TILE=TILE, BLOCK_M=block_m, BLOCK_C=block_c, num_warps=4
        )
        return out
    tile = _tile(inputs, outputs, features.dtype)
    blocks = triton.cdiv(outputs, tile["BLOCK_N"])
    _conv[(triton.cdiv(rows, tile["BLOCK_M"]) * blocks, groups)](
        **shared,
        **tile,
        INPUTS=inputs,
        OUTPUTS=outputs,
        TILE=TILE,
        PRECISION=_precision(features.dtype),
        WIDEN=INTERPRETED,
    )
    return out


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
    tiles, wide = triton.cdiv(rows, TILE), sum_dtype(features.dtype)
    depthwise = inputs == outputs == 1
    if depthwise:
        block_r, block_c = 32, power_of_2(groups, 16, 64)
        blocks = triton.cdiv(groups, block_c)
    else:
        tile = _weight_tile(inputs, outputs, features.dtype)
        blocks = triton.cdiv(inputs, tile["BLOCK_I"]) * triton.cdiv(outputs, tile["BLOCK_O"]) * groups
    parts = max(1, min(triton.cdiv(tiles, 8), _PROGRAMS // (volume * blocks)))
    partial = features.new_empty((parts, *out.shape), dtype=wide) if parts > 1 else out
    shared = {
        "partial_ptr": partial,
        "features_ptr": features,
        "grad_ptr": grad,
        "sources_ptr": sources.contiguous(),
        "schedule_ptr": source_schedule.contiguous(),
        "rows": rows,
        "num_inputs": len(features),
        "channels": features.shape[1],
        "parts": parts,
        "WIDE": _TYPES[wide],
        "VOLUME": volume,
        "FLIP": flip,
        "TILE": TILE,
        "enable_fp_fusion": True,
    }
    if depthwise:
        _depthwise_weight[(blocks * volume * parts,)](**shared, BLOCK_R=block_r, BLOCK_C=block_c, num_warps=4)
    else:
        _conv_weight[(blocks * volume * parts,)](
            **shared,
            **tile,
            groups=groups,
            INPUTS=inputs,
            OUTPUTS=outputs,
            PRECISION=_precision(features.dtype),
            WIDEN=INTERPRETED,
        )
    if parts > 1:
        block = 256
        _sum_parts[(triton.cdiv(out.numel(), block),)](
            out_ptr=out,
            partial_ptr=partial,
            count=out.numel(),
            parts=parts,
            BLOCK=block,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out


def _precision(dtype: torch.dtype) -> str:
    """TF32 for float32 only where torch allows it in matrix products."""
    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _tile(inputs: int, outputs: int, dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes, measured on an H200."""
    block_n, block_k = power_of_2(outputs, 16, 256), power_of_2(inputs, 16, 64)
    if dtype.itemsize == 8:
        return {"BLOCK_M": 64, "BLOCK_N": min(block_n, 32), "BLOCK_K": 16, "num_warps": 4, "num_stages": 2}
    if dtype.itemsize == 4:
        return {
            "BLOCK_M": 64,
            "BLOCK_N": min(block_n, 64),
            "BLOCK_K": min(block_k, 32),
            "num_warps": 4,
            "num_stages": 3,
        }
    if block_n == 256:
        stages = 3 if torch.version.hip else 4  # AMD GPUs have 64 KiB of shared memory
        return {"BLOCK_M": TILE, "BLOCK_N": 256, "BLOCK_K": min(block_k, 32), "num_warps": 8, "num_stages": stages}
    block_m, num_warps = (TILE, 8) if block_n == 128 else (64, 4)
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": num_warps, "num_stages": 3}


def _weight_tile(inputs: int, outputs: int, dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes, measured on an H200."""
    block_i, block_o = power_of_2(inputs, 16, 128), power_of_2(outputs, 16, 128)
    block_r, num_warps, num_stages = 64, 8, 3
    if dtype.itemsize == 8:
        block_i, block_o, block_r, num_warps, num_stages = min(block_i, 32), min(block_o, 32), 16, 4, 2
    elif dtype.itemsize == 4 and block_i == block_o == 128:
        block_r, num_stages = 16, 2
    elif dtype.itemsize == 4:
        block_i, block_o, block_r, num_warps = min(block_i, 64), min(block_o, 64), 32, 4
    return {
        "BLOCK_I": block_i,
        "BLOCK_O": block_o,
        "BLOCK_R": block_r,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def _light_tile(channels: int) -> tuple[int, int]:
    """(BLOCK_M, BLOCK_C) of a kernel that is limited by memory bandwidth."""
    block_c = power_of_2(channels, 16, 128)
    return power_of_2(2048 // block_c, 1, TILE), block_c


@triton.jit
def _conv(
    out_ptr, features_ptr, weight_ptr, sources_ptr, schedule_ptr, rows, num_inputs, channels,
    weight_k, weight_i, weight_o,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, FLIP: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    part = tl.program_id(0) // blocks
    group = tl.program_id(1)
    place = part.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    place_mask = place < rows
    row = tl.load(schedule_ptr + place, mask=place_mask, other=0).to(tl.int64)
    row_mask = place_mask & (row >= 0) & (row < rows)
    list_ptr = schedule_ptr + rows + (part * BLOCK_M // TILE).to(tl.int64) * (VOLUME + 1)
    count = tl.minimum(tl.load(list_ptr), VOLUME)
    n = (tl.program_id(0) % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    n_mask = n < OUTPUTS
    from_ptr = sources_ptr + row * VOLUME
    input_ptr = features_ptr + group * INPUTS + k[None, :]
    matrix_ptr = weight_ptr + k[:, None] * weight_i + (group * OUTPUTS + n)[None, :] * weight_o
    total = tl.zeros((BLOCK_M, BLOCK_N), WIDE)
    for item in range(count):
        position = tl.load(list_ptr + 1 + item)
        source = tl.load(from_ptr + position, mask=row_mask, other=-1)
        source_mask = (source >= 0) & (source < num_inputs)
        matrix = VOLUME - 1 - position if FLIP else position
        a_ptr = input_ptr + source.to(tl.int64)[:, None] * channels
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
    to_ptr = out_ptr + row[:, None] * (OUTPUTS * tl.num_programs(1)) + (group * OUTPUTS + n)[None, :]
    tl.store(to_ptr, total.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & n_mask[None, :])


@triton.jit
def _conv_weight(
    partial_ptr, features_ptr, grad_ptr, sources_ptr, schedule_ptr, rows, num_inputs, channels, parts, groups,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, FLIP: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
    TILE: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    blocks_o: tl.constexpr = (OUTPUTS + BLOCK_O - 1) // BLOCK_O
    blocks: tl.constexpr = ((INPUTS + BLOCK_I - 1) // BLOCK_I) * blocks_o
    pieces: tl.constexpr = TILE // BLOCK_R
    # Programs of the same part follow each other: they read the same rows.
    pid = tl.program_id(0)
    block = pid % blocks
    position = (pid // blocks) % VOLUME
    group = (pid // (blocks * VOLUME)) % groups
    part = pid // (blocks * VOLUME * groups)
    i = (block // blocks_o) * BLOCK_I + tl.arange(0, BLOCK_I)
    o = (block % blocks_o) * BLOCK_O + tl.arange(0, BLOCK_O)
    i_mask, o_mask = i < INPUTS, o < OUTPUTS
    tiles = (rows + TILE - 1) // TILE
    list_ptr = schedule_ptr + rows + tiles.to(tl.int64) * (VOLUME + 1) + position.to(tl.int64) * (tiles + 1)
    count = tl.minimum(tl.load(list_ptr), tiles)
    first = (count.to(tl.int64) * part // parts).to(tl.int32)
    last = (count.to(tl.int64) * (part + 1) // parts).to(tl.int32)
    width = OUTPUTS * groups
    r = tl.arange(0, BLOCK_R)
    total = tl.zeros((BLOCK_I, BLOCK_O), WIDE)
    input_ptr = features_ptr + (group * INPUTS + i)[None, :]
    output_ptr = grad_ptr + (group * OUTPUTS + o)[None, :]
    end = (last - first) * pieces
    # Rows are loaded one step ahead, because the addresses of their features depend on them.
    tile = tl.maximum(tl.load(list_ptr + 1 + tl.minimum(first, tiles - 1)), 0).to(tl.int64)
    place = tile * TILE + r
    row = tl.load(schedule_ptr + place, mask=place < rows, other=-1)
    source = tl.load(sources_ptr + row.to(tl.int64) * VOLUME + position, mask=(row >= 0) & (row < rows), other=-1)
    for step in range(end):
        mask = (source >= 0) & (source < num_inputs)
        a_mask, b_mask = mask[:, None], mask[:, None]
        if INPUTS % BLOCK_I != 0:
            a_mask = a_mask & i_mask[None, :]
        if OUTPUTS % BLOCK_O != 0:
            b_mask = b_mask & o_mask[None, :]
        a = tl.load(input_ptr + source.to(tl.int64)[:, None] * channels, mask=a_mask, other=0.0)
        b = tl.load(output_ptr + row.to(tl.int64)[:, None] * width, mask=b_mask, other=0.0)
        if WIDEN:
            a, b = a.to(WIDE), b.to(WIDE)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION, out_dtype=WIDE)
        following = tl.minimum(step + 1, end - 1)
        tile = tl.load(list_ptr + 1 + first + following // pieces).to(tl.int64)
        place = tile * TILE + (following % pieces) * BLOCK_R + r
        row = tl.load(schedule_ptr + place, mask=place < rows, other=-1)
        source = tl.load(sources_ptr + row.to(tl.int64) * VOLUME + position, mask=(row >= 0) & (row < rows), other=-1)
    matrix = VOLUME - 1 - position if FLIP else position
    to_ptr = partial_ptr + ((part.to(tl.int64) * VOLUME + matrix) * INPUTS + i)[:, None] * width
    to_ptr += (group * OUTPUTS + o)[None, :]
    tl.store(to_ptr, total.to(partial_ptr.dtype.element_ty), mask=i_mask[:, None] & o_mask[None, :])


@triton.jit
def _sum_parts(out_ptr, partial_ptr, count, parts, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    total = tl.load(partial_ptr + place, mask=mask, other=0)
    for part in range(1, parts):
        total += tl.load(partial_ptr + tl.full((), part, tl.int64) * count + place, mask=mask, other=0)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _depthwise(
    out_ptr, features_ptr, weight_ptr, sources_ptr, schedule_ptr, rows, num_inputs, channels,
    weight_k, weight_i, weight_o,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, FLIP: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    place = part.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    place_mask = place < rows
    row = tl.load(schedule_ptr + place, mask=place_mask, other=0).to(tl.int64)
    row_mask = place_mask & (row >= 0) & (row < rows)
    list_ptr = schedule_ptr + rows + (part * BLOCK_M // TILE).to(tl.int64) * (VOLUME + 1)
    count = tl.minimum(tl.load(list_ptr), VOLUME)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < channels
    total = tl.zeros((BLOCK_M, BLOCK_C), WIDE)
    for step in range(count):
        position = tl.load(list_ptr + 1 + step)
        source = tl.load(sources_ptr + row * VOLUME + position, mask=row_mask, other=-1).to(tl.int64)
        mask = ((source >= 0) & (source < num_inputs))[:, None] & c_mask[None, :]
        value = tl.load(features_ptr + source[:, None] * channels + c[None, :], mask=mask, other=0).to(WIDE)
        matrix = VOLUME - 1 - position if FLIP else position
        factor = tl.load(weight_ptr + matrix.to(tl.int64) * weight_k + c * weight_o, mask=c_mask, other=0).to(WIDE)
        total += tl.where(mask, value * factor[None, :], 0)
    to_ptr = out_ptr + row[:, None] * channels + c[None, :]
    tl.store(to_ptr, total.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & c_mask[None, :])


@triton.jit
def _depthwise_weight(
    partial_ptr, features_ptr, grad_ptr, sources_ptr, schedule_ptr, rows, num_inputs, channels, parts,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, FLIP: tl.constexpr, TILE: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(channels, BLOCK_C)
    pid = tl.program_id(0)
    c = (pid % blocks) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < channels
    position = (pid // blocks) % VOLUME
    part = pid // (blocks * VOLUME)
    tiles = (rows + TILE - 1) // TILE
    list_ptr = schedule_ptr + rows + tiles.to(tl.int64) * (VOLUME + 1) + position.to(tl.int64) * (tiles + 1)
    count = tl.minimum(tl.load(list_ptr), tiles)
    first = (count.to(tl.int64) * part // parts).to(tl.int32)
    last = (count.to(tl.int64) * (part + 1) // parts).to(tl.int32)
    total = tl.zeros((BLOCK_R, BLOCK_C), WIDE)
    for step in range(first * (TILE // BLOCK_R), last * (TILE // BLOCK_R)):
        tile = tl.load(list_ptr + 1 + step // (TILE // BLOCK_R)).to(tl.int64)
        place = tile * TILE + (step % (TILE // BLOCK_R)) * BLOCK_R + tl.arange(0, BLOCK_R)
        row = tl.load(schedule_ptr + place, mask=place < rows, other=-1).to(tl.int64)
        source = tl.load(sources_ptr + row * VOLUME + position, mask=(row >= 0) & (row < rows), other=-1).to(tl.int64)
        mask = ((source >= 0) & (source < num_inputs))[:, None] & c_mask[None, :]
        a = tl.load(features_ptr + source[:, None] * channels + c[None, :], mask=mask, other=0).to(WIDE)
        b = tl.load(grad_ptr + row[:, None] * channels + c[None, :], mask=mask, other=0).to(WIDE)
        total += a * b
    matrix = VOLUME - 1 - position if FLIP else position
    to_ptr = partial_ptr + (part.to(tl.int64) * VOLUME + matrix) * channels + c
    tl.store(to_ptr, tl.sum(total, 0).to(partial_ptr.dtype.element_ty), mask=c_mask)
