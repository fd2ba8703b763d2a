"""Triton kernels that build kernel maps: a hash table of voxels, its lookups, and the schedules.

An entry of the hash table is 64 bits: a fingerprint of the voxel above the row that holds it, or -1. The table is at
most a quarter full, so that most lookups read one entry.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from .reference import KEY_BITS, TILE, is_symmetric, schedule_size

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
    voxels = _pack(coordinates, sizes)
    table = _insert(voxels)
    wanted = voxels if outputs is None else _pack(outputs, output_sizes)
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
    # One warp for each program: the loops end when the last of its lookups does.
    block_k = min(32, triton.next_power_of_2(volume))
    block_m = max(_LOOKUPS // block_k, 1)
    if rows:
        _look_up[(triton.cdiv(rows, block_m),)](
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
            KEY_BITS=KEY_BITS,
            BLOCK_M=block_m,
            BLOCK_K=block_k,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
    if not mirrored and rows + inputs:
        _complete[(triton.cdiv(rows, block_m) + triton.cdiv(inputs, block_m),)](
            sources_ptr=sources,
            targets_ptr=targets,
            key_ptr=keys[0],
            target_key_ptr=keys[1],
            rows=rows,
            inputs=inputs,
            VOLUME=volume,
            KEY_BITS=KEY_BITS,
            BLOCK_M=block_m,
            BLOCK_K=block_k,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
    schedules = [_schedule(part, key) for part, key in zip((sources, targets), keys, strict=True)]
    if mirrored:
        schedules[1] = sources.new_empty(0)
    return sources, schedules[0], targets, schedules[1]


def _pack(coordinates: Tensor, sizes: Tensor | None) -> Tensor:
    """(R, 2) int64 of each row: x and y, z and cloud; the cloud of a row that is missing is -1."""
    coordinates = coordinates.contiguous()
    rows = coordinates.numel() // 3
    packed = coordinates.new_empty((rows, 2))
    if rows:
        sizes = None if sizes is None else sizes.contiguous()
        batch = clouds.batch_size(coordinates, sizes)
        block = 256
        _pack_rows[(triton.cdiv(rows, block),)](
            packed_ptr=packed,
            coordinates_ptr=coordinates,
            sizes_ptr=coordinates if sizes is None else sizes,
            rows=rows,
            batch=batch,
            cloud_rows=coordinates.shape[-2],
            STEPS=batch.bit_length(),
            PACKED=coordinates.dim() == 2,
            SIZED=sizes is not None,
            BLOCK=block,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return packed


def _insert(voxels: Tensor) -> Tensor:
    """The hash table of packed voxels, at most a quarter full."""
    slots = triton.next_power_of_2(4 * len(voxels) + 1)
    table = voxels.new_full((slots,), -1)
    if len(voxels):
        block = 32
        _insert_rows[(triton.cdiv(len(voxels), block),)](
            table_ptr=table,
            voxels_ptr=voxels,
            rows=len(voxels),
            slots=slots,
            BLOCK=block,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return table


def _schedule(table: Tensor, key: Tensor) -> Tensor:
    """See `reference.schedule`."""
    rows, volume = table.shape
    tiles = triton.cdiv(rows, TILE)
    out = table.new_empty((schedule_size(rows, volume),))
    lists = out[rows + tiles * (volume + 1) :]
    if rows:
        key, order = torch.sort(key, stable=True)
        used = table.new_empty((tiles, volume), dtype=torch.uint8)
        _tile_lists[(tiles,)](
            order_out_ptr=out,
            lists_ptr=out[rows:],
            used_ptr=used,
            order_ptr=order,
            key_ptr=key,
            table_ptr=table,
            rows=rows,
            VOLUME=volume,
            IN_KEY=volume <= KEY_BITS,
            TILE=TILE,
            BLOCK_K=triton.next_power_of_2(volume),
            num_warps=4,
            enable_fp_fusion=False,
        )
        _position_lists[(volume,)](
            lists_ptr=lists,
            used_ptr=used,
            tiles=tiles,
            VOLUME=volume,
            BLOCK_T=1024,
            num_warps=4,
            enable_fp_fusion=False,
        )
    else:
        lists.zero_()
    return out


@triton.jit
def _pack_rows(
    packed_ptr, coordinates_ptr, sizes_ptr, rows, batch, cloud_rows,
    STEPS: tl.constexpr, PACKED: tl.constexpr, SIZED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    cloud = row * 0
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
        valid = valid & (batch > 0)
    else:
        cloud = row // cloud_rows
        if SIZED:
            valid = valid & (row - cloud * cloud_rows < tl.load(sizes_ptr + cloud, mask=row_mask, other=0))
    x = tl.load(coordinates_ptr + 3 * row, mask=row_mask, other=0)
    y = tl.load(coordinates_ptr + 3 * row + 1, mask=row_mask, other=0)
    z = tl.load(coordinates_ptr + 3 * row + 2, mask=row_mask, other=0)
    valid = valid & (x == x.to(tl.int32)) & (y == y.to(tl.int32)) & (z == z.to(tl.int32))
    cloud = tl.where(valid, cloud, -1)
    tl.store(packed_ptr + 2 * row, (x << 32) | (y & 0xFFFFFFFF), mask=row_mask)
    tl.store(packed_ptr + 2 * row + 1, (z << 32) | (cloud & 0xFFFFFFFF), mask=row_mask)


@triton.jit
def _mixed(value):
    value ^= value >> 16
    value *= 0x7FEB352D
    value ^= value >> 15
    value *= 0x846CA68B
    value ^= value >> 16
    return value


@triton.jit
def _slot_and_fingerprint(x, y, z, cloud, slots):
    """The first entry to probe, and a fingerprint of 31 bits, of int32 coordinates."""
    hashed = _mixed(x.to(tl.uint32) * 0x9E3779B1 + y.to(tl.uint32) * 0x85EBCA77 + cloud.to(tl.uint32) * 0xC2B2AE3D)
    hashed = _mixed(hashed + z.to(tl.uint32) * 0x27D4EB2F)
    fingerprint = (hashed * 0x165667B1 + y.to(tl.uint32)) >> 1
    return (hashed & (slots - 1).to(tl.uint32)).to(tl.int64), fingerprint.to(tl.int64)


@triton.jit
def _insert_rows(table_ptr, voxels_ptr, rows, slots, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    xy = tl.load(voxels_ptr + 2 * row, mask=row_mask, other=0)
    zc = tl.load(voxels_ptr + 2 * row + 1, mask=row_mask, other=-1)
    cloud = zc.to(tl.int32)
    slot, fingerprint = _slot_and_fingerprint(
        (xy >> 32).to(tl.int32), xy.to(tl.int32), (zc >> 32).to(tl.int32), cloud, slots
    )
    entry = (fingerprint << 32) | row
    active = row_mask & (cloud >= 0)
    last = slots.to(tl.int64) - 1
    while tl.max(active.to(tl.int32)) > 0:
        # Entries are never -2, so inactive lanes change nothing.
        old = tl.atomic_cas(table_ptr + slot, tl.where(active, -1, -2).to(tl.int64), entry, sem="relaxed")
        other = old & 0xFFFFFFFF
        same = active & (old != -1) & ((old >> 32) == fingerprint)
        same = same & (tl.load(voxels_ptr + 2 * other, mask=same, other=0) == xy)
        same = same & (tl.load(voxels_ptr + 2 * other + 1, mask=same, other=0) == zc)
        tl.atomic_min(table_ptr + slot, entry, mask=same, sem="relaxed")  # of equal voxels, the first counts
        active = active & (old != -1) & ~same
        slot = tl.where(active, (slot + 1) & last, slot)


@triton.jit
def _row_of(x, y, z, cloud, active, voxels_ptr, table_ptr, slots):
    """The row that holds each voxel, or -1."""
    slot, fingerprint = _slot_and_fingerprint(x, y, z, cloud, slots)
    last = slots.to(tl.int64) - 1
    xy = (x.to(tl.int64) << 32) | (y.to(tl.int64) & 0xFFFFFFFF)
    zc = (z.to(tl.int64) << 32) | (cloud.to(tl.int64) & 0xFFFFFFFF)
    found = x * 0 - 1
    while tl.max(active.to(tl.int32)) > 0:
        entry = tl.load(table_ptr + slot, mask=active, other=-1)
        row = entry & 0xFFFFFFFF
        same = active & (entry != -1) & ((entry >> 32) == fingerprint)
        same = same & (tl.load(voxels_ptr + 2 * row, mask=same, other=0) == xy)
        same = same & (tl.load(voxels_ptr + 2 * row + 1, mask=same, other=0) == zc)
        found = tl.where(same, row.to(tl.int32), found)
        active = active & (entry != -1) & ~same
        slot = (slot + 1) & last
    return found


@triton.jit
def _in_32_bits(value):
    return value == value.to(tl.int32).to(tl.int64)


@triton.jit
def _look_up(
    sources_ptr, targets_ptr, key_ptr, wanted_ptr, voxels_ptr, table_ptr, rows, slots,
    kernel_y: tl.constexpr, kernel_z: tl.constexpr, stride_x: tl.constexpr, stride_y: tl.constexpr,
    stride_z: tl.constexpr, padding_x: tl.constexpr, padding_y: tl.constexpr, padding_z: tl.constexpr,
    dilation_x: tl.constexpr, dilation_y: tl.constexpr, dilation_z: tl.constexpr,
    VOLUME: tl.constexpr, SAME: tl.constexpr, MIRRORED: tl.constexpr, KEY_BITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
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
    key = row * 0
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
            bits = (found >= 0).to(tl.int64) << (position % KEY_BITS).to(tl.int64)[None, :]
            key |= _or_over_positions(bits)
        else:
            target_ptr = targets_ptr + found.to(tl.int64) * VOLUME + position[None, :]
            value = tl.broadcast_to(row.to(tl.int32)[:, None], (BLOCK_M, BLOCK_K))
            tl.atomic_min(target_ptr, value, mask=found >= 0, sem="relaxed")
    if MIRRORED:
        tl.store(key_ptr + row, key.to(key_ptr.dtype.element_ty), mask=row_mask)


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _or_over_positions(bits):
    return tl.reduce(bits, 1, _or)


@triton.jit
def _complete(
    sources_ptr, targets_ptr, key_ptr, target_key_ptr, rows, inputs,
    VOLUME: tl.constexpr, KEY_BITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Remove the sources of repeated outputs, mark the targets that do not exist, and compute the keys."""
    programs = tl.cdiv(rows, BLOCK_M)
    of_sources = tl.program_id(0) < programs
    first = tl.where(of_sources, tl.program_id(0), tl.program_id(0) - programs)
    row = first.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    key = row * 0
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
            bits = ((found >= 0) & ~repeated).to(tl.int64) << (position % KEY_BITS).to(tl.int64)[None, :]
            key |= _or_over_positions(bits)
        tl.store(key_ptr + row, key.to(key_ptr.dtype.element_ty), mask=row_mask)
    else:
        row_mask = row < inputs
        for start in tl.static_range(0, VOLUME, BLOCK_K):
            position = start + tl.arange(0, BLOCK_K)
            mask = row_mask[:, None] & (position < VOLUME)[None, :]
            here_ptr = targets_ptr + row[:, None] * VOLUME + position[None, :]
            missing = tl.load(here_ptr, mask=mask, other=_NOTHING) == _NOTHING
            # Programs for sources compare with rows only, so they may read either value.
            tl.store(here_ptr, -1, mask=mask & missing)
            bits = (~missing).to(tl.int64) << (position % KEY_BITS).to(tl.int64)[None, :]
            key |= _or_over_positions(bits)
        tl.store(target_key_ptr + row, key.to(target_key_ptr.dtype.element_ty), mask=row_mask)


@triton.jit
def _tile_lists(
    order_out_ptr, lists_ptr, used_ptr, order_ptr, key_ptr, table_ptr, rows,
    VOLUME: tl.constexpr, IN_KEY: tl.constexpr, TILE: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0).to(tl.int64)
    place = tile * TILE + tl.arange(0, TILE)
    mask = place < rows
    row = tl.load(order_ptr + place, mask=mask, other=0)
    tl.store(order_out_ptr + place, row.to(tl.int32), mask=mask)
    position = tl.arange(0, BLOCK_K)
    if IN_KEY:
        together = tl.reduce(tl.load(key_ptr + place, mask=mask, other=0).to(tl.int64), 0, _or)
        used = ((together >> position.to(tl.int64)) & 1).to(tl.int32)
    else:
        used = tl.zeros((BLOCK_K,), tl.int32)
        for step in range(0, TILE, 8):
            some = tile * TILE + step + tl.arange(0, 8)
            some_mask = some < rows
            one = tl.load(order_ptr + some, mask=some_mask, other=0)
            found_ptr = table_ptr + one[:, None] * VOLUME + position[None, :]
            found = tl.load(found_ptr, mask=some_mask[:, None] & (position < VOLUME)[None, :], other=-1)
            used |= tl.max((found >= 0).to(tl.int32), 0)
    used = tl.where(position < VOLUME, used, 0)
    tl.store(used_ptr + tile * VOLUME + position, used.to(tl.uint8), mask=position < VOLUME)
    count = tl.sum(used)
    before = tl.cumsum(used, 0) - used
    slot = tl.where(used > 0, before, count + position - before)
    list_ptr = lists_ptr + tile * (VOLUME + 1)
    tl.store(list_ptr, count)
    tl.store(list_ptr + 1 + slot, tl.where(used > 0, position, -1), mask=position < VOLUME)


@triton.jit
def _position_lists(lists_ptr, used_ptr, tiles, VOLUME: tl.constexpr, BLOCK_T: tl.constexpr):
    position = tl.program_id(0).to(tl.int64)
    list_ptr = lists_ptr + position * (tiles + 1)
    count = 0
    for start in range(0, tiles, BLOCK_T):
        tile = start + tl.arange(0, BLOCK_T)
        used = tl.load(used_ptr + tile.to(tl.int64) * VOLUME + position, mask=tile < tiles, other=0).to(tl.int32)
        before = count + tl.cumsum(used, 0) - used
        tl.store(list_ptr + 1 + before, tile, mask=used > 0)
        count += tl.sum(used)
    tl.store(list_ptr, count)
    for start in range(count, tiles, BLOCK_T):
        slot = start + tl.arange(0, BLOCK_T)
        tl.store(list_ptr + 1 + slot, -1, mask=slot < tiles)
