"""Triton kernels that build kernel maps: a hash table of voxels, its lookups, and the schedules.

The hash table holds the row of each voxel, or -1. It is at most an eighth full, so that most lookups read one entry.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import cdiv, jit, power_of_2
from .reference import KEY_BITS, TILE, WORD, is_symmetric, key_bits, schedule_size

_LOOKUPS = 128  # of a program
_WARPS = 1
_NOTHING = tl.constexpr(2147483647)  # in targets, until they are complete


def kernel_table(
    coordinates: Tensor,
    sizes: Tensor | None,
    outputs: Tensor | None,
    output_sizes: Tensor | None,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    volume = kernel[0] * kernel[1] * kernel[2]
    mirrored = outputs is None and is_symmetric(kernel, padding, dilation)
    voxels, table = _pack(coordinates, sizes, insert=True)
    wanted = voxels if outputs is None else _pack(outputs, output_sizes, insert=False)[0]
    inputs, rows = len(voxels), len(wanted)
    sources = voxels.new_empty((rows, volume), dtype=torch.int32)
    targets = voxels.new_full((0 if mirrored else inputs, volume), _NOTHING.value, dtype=torch.int32)
    wide = volume > 31  # bits of a key
    keys = [voxels.new_empty((count,), dtype=torch.int64 if wide else torch.int32) for count in (rows, len(targets))]
    geometry = {
        f"{name}_{axis}": number
        for name, numbers in (("kernel", kernel), ("stride", stride), ("padding", padding), ("dilation", dilation))
        for axis, number in zip("xyz", numbers, strict=True)
        if (name, axis) != ("kernel", "x")
    }
    key_words = _key_words(*kernel)
    # One warp for each program: the loops end when the last of its lookups does.
    block_k = min(32, power_of_2(volume))
    block_m = max(_LOOKUPS // block_k, 1)
    if rows:
        _look_up[(cdiv(rows, block_m),)](
            sources_ptr=sources,
            targets_ptr=targets,
            key_ptr=keys[0],
            wanted_ptr=wanted,
            voxels_ptr=voxels,
            table_ptr=table,
            rows=rows,
            slots=len(table),
            **geometry,
            VOLUME=volume,
            SAME=outputs is None,
            MIRRORED=mirrored,
            KEY_WORDS=key_words,
            KEY_BITS=KEY_BITS,
            BLOCK_M=block_m,
            BLOCK_K=block_k,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
    if not mirrored and rows + inputs:
        _complete[(cdiv(rows, block_m) + cdiv(inputs, block_m),)](
            sources_ptr=sources,
            targets_ptr=targets,
            key_ptr=keys[0],
            target_key_ptr=keys[1],
            rows=rows,
            inputs=inputs,
            VOLUME=volume,
            KEY_WORDS=key_words,
            KEY_BITS=KEY_BITS,
            BLOCK_M=block_m,
            BLOCK_K=block_k,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
    schedules = [_schedule(part, key, key_words) for part, key in zip((sources, targets), keys, strict=True)]
    if mirrored:
        schedules[1] = sources.new_empty(0)
    return sources, schedules[0], targets, schedules[1]


@functools.cache
def _key_words(*kernel: int) -> tuple[int, ...]:
    """`reference.key_bits` in words of ten numbers with 6 bits; none if position k has bit k % KEY_BITS."""
    bits = key_bits(list(kernel))
    if len(bits) > KEY_BITS:
        return ()
    return tuple(
        sum(bit << (6 * place) for place, bit in enumerate(bits[first : first + 10]))
        for first in range(0, len(bits), 10)
    )


def _pack(coordinates: Tensor, sizes: Tensor | None, insert: bool) -> tuple[Tensor, Tensor]:
    """(R, 2) int64 of each row: x and y, z and cloud, -1 if the row is missing; and their hash table."""
    coordinates = coordinates.contiguous()
    rows = coordinates.numel() // 3
    packed = coordinates.new_empty((rows, 2))
    slots = power_of_2(8 * rows + 1) if insert else 0
    table = coordinates.new_full((slots,), -1, dtype=torch.int32)
    if rows:
        sizes = None if sizes is None else sizes.contiguous()
        batch = clouds.batch_size(coordinates, sizes)
        block = 32  # one warp: the loop ends when the last of its insertions does
        _pack_rows[(cdiv(rows, block),)](
            packed_ptr=packed,
            table_ptr=table,
            coordinates_ptr=coordinates,
            sizes_ptr=coordinates if sizes is None else sizes,
            rows=rows,
            batch=batch,
            cloud_rows=coordinates.shape[-2],
            slots=slots,
            STEPS=batch.bit_length(),
            PACKED=coordinates.dim() == 2,
            SIZED=sizes is not None,
            INSERT=insert,
            BLOCK=block,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return packed, table


def _schedule(table: Tensor, key: Tensor, key_words: tuple[int, ...]) -> Tensor:
    """See `reference.schedule`."""
    rows, volume = table.shape
    out = table.new_empty((schedule_size(rows, volume),))
    if rows:
        key, order = torch.sort(key, stable=True)
        _write_schedule[(cdiv(rows, TILE), cdiv(volume, WORD))](
            order_out_ptr=out,
            masks_ptr=out[rows:],
            order_ptr=order,
            key_ptr=key,
            table_ptr=table,
            rows=rows,
            VOLUME=volume,
            KEY_WORDS=key_words,
            KEY_BITS=KEY_BITS,
            TILE=TILE,
            WORD=WORD,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return out


@jit
def _pack_rows(
    packed_ptr, table_ptr, coordinates_ptr, sizes_ptr, rows, batch, cloud_rows, slots,
    STEPS: tl.constexpr, PACKED: tl.constexpr, SIZED: tl.constexpr, INSERT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    cloud = row * 0
    first, end = row * 0, row * 0 + rows  # of the rows of the cloud
    valid = row_mask
    if PACKED:
        if SIZED:
            # The last cloud whose offset is at most the row.
            high = cloud + batch
            for _ in range(STEPS):
                middle = (cloud + high) // 2
                right = (high - cloud > 1) & (tl.load(sizes_ptr + middle, mask=middle < batch, other=0) <= row)
                right = right & (middle < batch)
                cloud = tl.where(right, middle, cloud)
                high = tl.where(right, high, tl.maximum(middle, cloud + 1))
            first = tl.load(sizes_ptr + cloud, mask=row_mask & (cloud > 0), other=0)
            end = tl.load(sizes_ptr + cloud + 1, mask=row_mask & (cloud + 1 < batch), other=rows)
        valid = valid & (cloud < batch)
    else:
        cloud = row // cloud_rows
        first = cloud * cloud_rows
        end = first + cloud_rows
        if SIZED:
            valid = valid & (row - first < tl.load(sizes_ptr + cloud, mask=row_mask, other=0))
    x = tl.load(coordinates_ptr + 3 * row, mask=row_mask, other=0)
    y = tl.load(coordinates_ptr + 3 * row + 1, mask=row_mask, other=0)
    z = tl.load(coordinates_ptr + 3 * row + 2, mask=row_mask, other=0)
    valid = valid & (x == x.to(tl.int32)) & (y == y.to(tl.int32)) & (z == z.to(tl.int32))
    cloud = tl.where(valid, cloud, -1)
    tl.store(packed_ptr + 2 * row, (x << 32) | (y & 0xFFFFFFFF), mask=row_mask)
    tl.store(packed_ptr + 2 * row + 1, (z << 32) | (cloud & 0xFFFFFFFF), mask=row_mask)
    if INSERT:
        slot = _slot(x.to(tl.int32), y.to(tl.int32), z.to(tl.int32), cloud.to(tl.int32), slots)
        entry = row.to(tl.int32)
        last = slots.to(tl.int64) - 1
        active = valid
        while tl.max(active.to(tl.int32)) > 0:
            # Entries are never -2, so inactive lanes change nothing.
            old = tl.atomic_cas(table_ptr + slot, tl.where(active, -1, -2), entry, sem="relaxed")
            active = active & (old != -1)
            other = old.to(tl.int64)
            same = active & (other >= first) & (other < end)
            same = same & (tl.load(coordinates_ptr + 3 * other, mask=same, other=0) == x)
            same = same & (tl.load(coordinates_ptr + 3 * other + 1, mask=same, other=0) == y)
            same = same & (tl.load(coordinates_ptr + 3 * other + 2, mask=same, other=0) == z)
            tl.atomic_min(table_ptr + slot, entry, mask=same, sem="relaxed")  # of equal voxels, the first counts
            active = active & ~same
            slot = tl.where(active, (slot + 1) & last, slot)


@triton.jit
def _mixed(value):
    value ^= value >> 16
    value *= 0x7FEB352D
    value ^= value >> 15
    value *= 0x846CA68B
    value ^= value >> 16
    return value


@triton.jit
def _slot(x, y, z, cloud, slots):
    """The first entry to probe for int32 coordinates."""
    hashed = _mixed(x.to(tl.uint32) * 0x9E3779B1 + y.to(tl.uint32) * 0x85EBCA77 + cloud.to(tl.uint32) * 0xC2B2AE3D)
    hashed = _mixed(hashed + z.to(tl.uint32) * 0x27D4EB2F)
    return (hashed & (slots - 1).to(tl.uint32)).to(tl.int64)


@triton.jit
def _row_of(x, y, z, cloud, active, voxels_ptr, table_ptr, slots):
    """The row that holds each voxel, or -1."""
    slot = _slot(x, y, z, cloud, slots)
    last = slots.to(tl.int64) - 1
    xy = (x.to(tl.int64) << 32) | (y.to(tl.int64) & 0xFFFFFFFF)
    zc = (z.to(tl.int64) << 32) | (cloud.to(tl.int64) & 0xFFFFFFFF)
    found = x * 0 - 1
    while tl.max(active.to(tl.int32)) > 0:
        entry = tl.load(table_ptr + slot, mask=active, other=-1)
        active = active & (entry >= 0)
        voxel_ptr = voxels_ptr + 2 * entry.to(tl.int64)
        same = active & (tl.load(voxel_ptr, mask=active, other=0) == xy)
        same = same & (tl.load(voxel_ptr + 1, mask=active, other=0) == zc)
        found = tl.where(same, entry, found)
        active = active & ~same
        slot = (slot + 1) & last
    return found


@triton.jit
def _in_32_bits(value):
    return value == value.to(tl.int32).to(tl.int64)


@jit
def _look_up(
    sources_ptr, targets_ptr, key_ptr, wanted_ptr, voxels_ptr, table_ptr, rows, slots,
    kernel_y: tl.constexpr, kernel_z: tl.constexpr, stride_x: tl.constexpr, stride_y: tl.constexpr,
    stride_z: tl.constexpr, padding_x: tl.constexpr, padding_y: tl.constexpr, padding_z: tl.constexpr,
    dilation_x: tl.constexpr, dilation_y: tl.constexpr, dilation_z: tl.constexpr,
    VOLUME: tl.constexpr, SAME: tl.constexpr, MIRRORED: tl.constexpr, KEY_WORDS: tl.constexpr,
    KEY_BITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask = row < rows
    xy = tl.load(wanted_ptr + 2 * row, mask=row_mask, other=0)
    zc = tl.load(wanted_ptr + 2 * row + 1, mask=row_mask, other=-1)
    x, y, z, cloud = xy >> 32, xy.to(tl.int32), zc >> 32, zc.to(tl.int32)
    valid = row_mask & (cloud >= 0)
    # Outputs that repeat an earlier voxel read nothing. The middle of a symmetric kernel reads the output's own voxel.
    AT_MIDDLE: tl.constexpr = MIRRORED and VOLUME <= BLOCK_K
    if SAME and not AT_MIDDLE:
        own = _row_of(x.to(tl.int32), y, z.to(tl.int32), cloud, valid, voxels_ptr, table_ptr, slots)
        valid = valid & (own == row)
    key = (row * 0).to(key_ptr.dtype.element_ty)
    for start in tl.static_range(0, VOLUME, BLOCK_K):
        position = start + tl.arange(0, BLOCK_K)
        rest = position // kernel_z
        at_x = x[:, None] * stride_x + ((rest // kernel_y) * dilation_x - padding_x)[None, :]
        at_y = y.to(tl.int64)[:, None] * stride_y + ((rest % kernel_y) * dilation_y - padding_y)[None, :]
        at_z = z[:, None] * stride_z + ((position % kernel_z) * dilation_z - padding_z)[None, :]
        active = (
            valid[:, None] & (position < VOLUME)[None, :] & _in_32_bits(at_x) & _in_32_bits(at_y) & _in_32_bits(at_z)
        )
        cloud_2d = tl.broadcast_to(cloud[:, None], (BLOCK_M, BLOCK_K))
        found = _row_of(
            at_x.to(tl.int32), at_y.to(tl.int32), at_z.to(tl.int32), cloud_2d, active, voxels_ptr, table_ptr, slots
        )
        if AT_MIDDLE:
            own = tl.sum(tl.where((position == VOLUME // 2)[None, :], found, 0), 1)
            found = tl.where((own == row)[:, None], found, -1)
        mask = row_mask[:, None] & (position < VOLUME)[None, :]
        tl.store(sources_ptr + row[:, None] * VOLUME + position[None, :], found, mask=mask)
        if MIRRORED:
            key |= _key_of(found >= 0, position, key.dtype, KEY_WORDS, KEY_BITS)
        else:
            target_ptr = targets_ptr + found.to(tl.int64) * VOLUME + position[None, :]
            value = tl.broadcast_to(row.to(tl.int32)[:, None], (BLOCK_M, BLOCK_K))
            tl.atomic_min(target_ptr, value, mask=found >= 0, sem="relaxed")
    if MIRRORED:
        tl.store(key_ptr + row, _place_of_gray_code(key), mask=row_mask)


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _key_bit(position, KEY_WORDS: tl.constexpr, KEY_BITS: tl.constexpr):
    """The bit of each position, see `reference.key_bits`."""
    bit = position.to(tl.int64) % KEY_BITS
    for word in tl.static_range(len(KEY_WORDS)):
        at = position - 10 * word
        packed = tl.full(position.shape, KEY_WORDS[word], tl.int64)
        bit = tl.where((at >= 0) & (at < 10), (packed >> (6 * at).to(tl.int64)) & 63, bit)
    return bit


@triton.jit
def _key_of(present, position, TYPE: tl.constexpr, KEY_WORDS: tl.constexpr, KEY_BITS: tl.constexpr):
    """The bits of the positions (K,) that each row of a mask (M, K) uses."""
    return tl.reduce(present.to(TYPE) << _key_bit(position, KEY_WORDS, KEY_BITS).to(TYPE)[None, :], 1, _or)


@triton.jit
def _place_of_gray_code(code):
    """The place of each Gray code of at most 62 bits among all codes."""
    code ^= code >> 1
    code ^= code >> 2
    code ^= code >> 4
    code ^= code >> 8
    code ^= code >> 16
    if code.dtype == tl.int64:
        code ^= code >> 32
    return code


@jit
def _complete(
    sources_ptr, targets_ptr, key_ptr, target_key_ptr, rows, inputs,
    VOLUME: tl.constexpr, KEY_WORDS: tl.constexpr, KEY_BITS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Remove the sources of repeated outputs, mark the targets that do not exist, and compute the keys."""
    programs = tl.cdiv(rows, BLOCK_M)
    of_sources = tl.program_id(0) < programs
    first = tl.where(of_sources, tl.program_id(0), tl.program_id(0) - programs)
    row = first.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    key = (row * 0).to(key_ptr.dtype.element_ty)
    if of_sources:
        row_mask = row < rows
        for start in tl.static_range(0, VOLUME, BLOCK_K):
            position = start + tl.arange(0, BLOCK_K)
            mask = row_mask[:, None] & (position < VOLUME)[None, :]
            here_ptr = sources_ptr + row[:, None] * VOLUME + position[None, :]
            found = tl.load(here_ptr, mask=mask, other=-1)
            back_ptr = targets_ptr + found.to(tl.int64) * VOLUME + position[None, :]
            repeated = (found >= 0) & (tl.load(back_ptr, mask=found >= 0, other=0) != row[:, None])
            tl.store(here_ptr, -1, mask=repeated)
            key |= _key_of((found >= 0) & ~repeated, position, key.dtype, KEY_WORDS, KEY_BITS)
        tl.store(key_ptr + row, _place_of_gray_code(key), mask=row_mask)
    else:
        row_mask = row < inputs
        for start in tl.static_range(0, VOLUME, BLOCK_K):
            position = start + tl.arange(0, BLOCK_K)
            mask = row_mask[:, None] & (position < VOLUME)[None, :]
            here_ptr = targets_ptr + row[:, None] * VOLUME + position[None, :]
            missing = tl.load(here_ptr, mask=mask, other=_NOTHING) == _NOTHING
            # Programs for sources compare with rows only, so they may read either value.
            tl.store(here_ptr, -1, mask=mask & missing)
            key |= _key_of(~missing, position, key.dtype, KEY_WORDS, KEY_BITS)
        tl.store(target_key_ptr + row, _place_of_gray_code(key), mask=row_mask)


@jit
def _write_schedule(
    order_out_ptr, masks_ptr, order_ptr, key_ptr, table_ptr, rows,
    VOLUME: tl.constexpr, KEY_WORDS: tl.constexpr, KEY_BITS: tl.constexpr, TILE: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1)
    place = tile * TILE + tl.arange(0, TILE)
    mask = place < rows
    row = tl.load(order_ptr + place, mask=mask, other=0)
    if word == 0:
        tl.store(order_out_ptr + place, row.to(tl.int32), mask=mask)
    position = word * WORD + tl.arange(0, WORD)
    if VOLUME <= KEY_BITS:
        key = tl.load(key_ptr + place, mask=mask, other=0).to(tl.int64)
        together = tl.reduce(key ^ (key >> 1), 0, _or)
        used = (together >> _key_bit(position, KEY_WORDS, KEY_BITS)) & 1
    else:
        used = tl.zeros((WORD,), tl.int64)
        for start in range(0, TILE, 8):
            some = tile * TILE + start + tl.arange(0, 8)
            one = tl.load(order_ptr + some, mask=some < rows, other=0)
            inside = (some < rows)[:, None] & (position < VOLUME)[None, :]
            found = tl.load(table_ptr + one[:, None] * VOLUME + position[None, :], mask=inside, other=-1)
            used |= tl.max((found >= 0).to(tl.int64), 0)
    used = tl.where(position < VOLUME, used, 0)
    bits = tl.sum(used << tl.arange(0, WORD).to(tl.int64), 0)
    tl.store(masks_ptr + tile * tl.num_programs(1) + word, bits.to(tl.int32))
