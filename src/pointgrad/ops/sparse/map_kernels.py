"""Triton kernels that build kernel maps: a hash table of voxels, its lookups, and the tables.

The hash table holds the row of each voxel, or -1. It is at most an eighth full, so that most lookups read one entry.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import cdiv, jit, power_of_2
from .reference import KEY_BITS, is_symmetric
from .schedule_kernels import key_dtype, key_of, key_words_of, no_positions, place_of_gray_code, schedules
from .window_kernels import NOTHING, geometry_of, in_32_bits, read

_SLOTS_PER_ROW = 8  # minimum size of the hash table
_LOOKUPS = 128  # lookups per program
_WARPS = 1


def kernel_table(
    coordinates: Tensor,
    sizes: Tensor | None,
    outputs: Tensor | None,
    output_sizes: Tensor | None,
    readers: Tensor | None,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    volume = kernel[0] * kernel[1] * kernel[2]
    mirrored = outputs is None and is_symmetric(kernel, padding, dilation)
    inputs = coordinates.numel() // 3
    rows = inputs if outputs is None else outputs.numel() // 3
    sources = coordinates.new_empty((rows, volume), dtype=torch.int32)
    targets = coordinates.new_empty((0 if mirrored else inputs, volume), dtype=torch.int32)
    keys = coordinates.new_empty(rows + len(targets), dtype=key_dtype(volume, mirrored))
    # One warp for each program: the loops end when the last of its lookups does.
    block_k = min(32, power_of_2(volume))
    shape: dict[str, Any] = {
        "VOLUME": volume,
        "KEY_WORDS": key_words_of(*kernel),
        "KEY_BITS": KEY_BITS,
        "BLOCK_M": max(_LOOKUPS // block_k, 1),
        "BLOCK_K": block_k,
        "num_warps": _WARPS,
        "enable_fp_fusion": False,
    }
    if readers is None or outputs is None:
        voxels, table = _pack(coordinates, sizes, insert=True)
        wanted = voxels if outputs is None else _pack(outputs, output_sizes, insert=False)[0]
        targets.fill_(NOTHING.value)
        if rows:
            _look_up[(cdiv(rows, shape["BLOCK_M"]),)](
                sources_ptr=sources,
                targets_ptr=targets,
                key_ptr=keys,
                wanted_ptr=wanted,
                voxels_ptr=voxels,
                table_ptr=table,
                rows=rows,
                slots=len(table),
                **geometry_of(kernel, stride, padding, dilation),
                SAME=outputs is None,
                MIRRORED=mirrored,
                **shape,
            )
        if not mirrored:
            _complete_both(sources, targets, keys, False, shape)
    else:
        sources.fill_(NOTHING.value)
        read(sources, targets, coordinates, readers, outputs.shape[-2], kernel, stride, padding, dilation)
        _complete_both(targets, sources, keys, True, shape)
    return sources, *schedules(sources, targets, keys, shape["KEY_WORDS"])


def _complete_both(table: Tensor, inverse: Tensor, keys: Tensor, second: bool, shape: dict[str, Any]) -> None:
    """Complete a table and its inverse. `second`: the table's keys follow those of the inverse."""
    block_m = shape["BLOCK_M"]
    programs = cdiv(len(table), block_m) + cdiv(len(inverse), block_m)
    if programs:
        _complete[(programs,)](
            table_ptr=table,
            inverse_ptr=inverse,
            key_ptr=keys,
            rows=len(table),
            inverse_rows=len(inverse),
            SECOND=second,
            **shape,
        )


def _pack(coordinates: Tensor, sizes: Tensor | None, insert: bool) -> tuple[Tensor, Tensor]:
    """(R, 2) int64 of each row: x and y, z and cloud, -1 if the row is missing; and their hash table."""
    coordinates = coordinates.contiguous()
    rows = coordinates.numel() // 3
    packed = coordinates.new_empty((rows, 2))
    slots = power_of_2(_SLOTS_PER_ROW * rows + 1) if insert else 0
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


@jit
def _pack_rows(
    packed_ptr, table_ptr, coordinates_ptr, sizes_ptr, rows, batch, cloud_rows, slots,
    STEPS: tl.constexpr, PACKED: tl.constexpr, SIZED: tl.constexpr, INSERT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    cloud = row * 0
    first, end = row * 0, row * 0 + rows  # range of the rows of the cloud
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


@jit
def _look_up(
    sources_ptr, targets_ptr, key_ptr, wanted_ptr, voxels_ptr, table_ptr, rows, slots,
    kernel_x: tl.constexpr, kernel_y: tl.constexpr, kernel_z: tl.constexpr, stride_x: tl.constexpr,
    stride_y: tl.constexpr, stride_z: tl.constexpr, padding_x: tl.constexpr, padding_y: tl.constexpr,
    padding_z: tl.constexpr, dilation_x: tl.constexpr, dilation_y: tl.constexpr, dilation_z: tl.constexpr,
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
    key = no_positions(row, key_ptr)
    for start in tl.static_range(0, VOLUME, BLOCK_K):
        position = start + tl.arange(0, BLOCK_K)
        rest = position // kernel_z
        at_x = x[:, None] * stride_x + ((rest // kernel_y) * dilation_x - padding_x)[None, :]
        at_y = y.to(tl.int64)[:, None] * stride_y + ((rest % kernel_y) * dilation_y - padding_y)[None, :]
        at_z = z[:, None] * stride_z + ((position % kernel_z) * dilation_z - padding_z)[None, :]
        active = valid[:, None] & (position < VOLUME)[None, :] & in_32_bits(at_x) & in_32_bits(at_y) & in_32_bits(at_z)
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
            key |= key_of(found >= 0, position, key.dtype, KEY_WORDS, KEY_BITS)
        else:
            target_ptr = targets_ptr + found.to(tl.int64) * VOLUME + position[None, :]
            value = tl.broadcast_to(row.to(tl.int32)[:, None], (BLOCK_M, BLOCK_K))
            tl.atomic_min(target_ptr, value, mask=found >= 0, sem="relaxed")
    if MIRRORED:
        tl.store(key_ptr + row, place_of_gray_code(key).to(key_ptr.dtype.element_ty), mask=row_mask)


@jit(do_not_specialize=["rows", "inverse_rows"])
def _complete(
    table_ptr, inverse_ptr, key_ptr, rows, inverse_rows,
    SECOND: tl.constexpr, VOLUME: tl.constexpr, KEY_WORDS: tl.constexpr, KEY_BITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Remove the entries of repeated rows, mark the entries of the inverse that do not exist, and compute the keys.

    Keys that are second follow the others and have one more bit.
    """
    BIT: tl.constexpr = VOLUME if VOLUME < KEY_BITS else KEY_BITS
    programs = tl.cdiv(rows, BLOCK_M)
    of_table = tl.program_id(0) < programs
    first = tl.where(of_table, tl.program_id(0), tl.program_id(0) - programs)
    row = first.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    key = no_positions(row, key_ptr)
    bit = tl.full((BLOCK_M,), 1, key.dtype) << BIT
    if of_table:
        row_mask = row < rows
        for start in tl.static_range(0, VOLUME, BLOCK_K):
            position = start + tl.arange(0, BLOCK_K)
            mask = row_mask[:, None] & (position < VOLUME)[None, :]
            here_ptr = table_ptr + row[:, None] * VOLUME + position[None, :]
            found = tl.load(here_ptr, mask=mask, other=-1)
            back_ptr = inverse_ptr + found.to(tl.int64) * VOLUME + position[None, :]
            repeated = (found >= 0) & (tl.load(back_ptr, mask=found >= 0, other=0) != row[:, None])
            tl.store(here_ptr, -1, mask=repeated)
            key |= key_of((found >= 0) & ~repeated, position, key.dtype, KEY_WORDS, KEY_BITS)
        key = place_of_gray_code(key)
        if SECOND:
            tl.store(key_ptr + inverse_rows + row, (key | bit).to(key_ptr.dtype.element_ty), mask=row_mask)
        else:
            tl.store(key_ptr + row, key.to(key_ptr.dtype.element_ty), mask=row_mask)
    else:
        row_mask = row < inverse_rows
        for start in tl.static_range(0, VOLUME, BLOCK_K):
            position = start + tl.arange(0, BLOCK_K)
            mask = row_mask[:, None] & (position < VOLUME)[None, :]
            here_ptr = inverse_ptr + row[:, None] * VOLUME + position[None, :]
            missing = tl.load(here_ptr, mask=mask, other=NOTHING) == NOTHING
            # Programs for the table compare with rows only, so they may read either value.
            tl.store(here_ptr, -1, mask=mask & missing)
            key |= key_of(~missing, position, key.dtype, KEY_WORDS, KEY_BITS)
        key = place_of_gray_code(key)
        if SECOND:
            tl.store(key_ptr + row, key.to(key_ptr.dtype.element_ty), mask=row_mask)
        else:
            tl.store(key_ptr + rows + row, (key | bit).to(key_ptr.dtype.element_ty), mask=row_mask)
