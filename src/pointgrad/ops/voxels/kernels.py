"""Triton kernels of this family: sort keys, and the numbers of sorted voxels in one pass. README.md explains them.

Naming in all kernels: `*_ptr` is an address, BLOCK_* a tile size, and `*_mask` marks the lanes in range. A position is
a place in the sorted order; rows are those of the input. A segment is what voxels are numbered in: a padded cloud, or
all packed clouds together.
"""

import struct
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import cdiv, jit, power_of_2

Groups = tuple[Tensor, Tensor, Tensor, Tensor]

_PARTS = 256  # programs that measure the extent
_BLOCK = 1024
_MOST_CLOUDS = 2**30  # whose number fits in half a key
_NUMBERS = ("rows", "num_points", "batch", "x", "y", "z")

MOST = tl.constexpr(0x7FFFFFFFFFFFFFFF)
MOST_32 = tl.constexpr(0x7FFFFFFF)


def voxel_groups(points: Tensor, sizes: Tensor | None, x: float, y: float, z: float) -> Groups:
    return _group(points.contiguous(), sizes, None, (x, y, z))


def unique_voxels(coordinates: Tensor, sizes: Tensor | None, valid: Tensor | None) -> Groups:
    return _group(coordinates.contiguous(), sizes, None if valid is None else valid.contiguous(), (1.0, 1.0, 1.0))


def _group(points: Tensor, sizes: Tensor | None, valid: Tensor | None, edges: tuple[float, float, float]) -> Groups:
    packed, shape = points.dim() == 2, points.shape[:-1]
    rows, batch = points.numel() // 3, clouds.batch_size(points, sizes)
    if not rows or not batch:
        inverse = points.new_full(shape, -1, dtype=torch.int64)
        count = inverse.new_zeros((0,) if packed else shape)
        return inverse, inverse.new_zeros((*count.shape, 3)), count, inverse.new_zeros(batch + packed)
    source = {
        "points_ptr": points,
        "valid_ptr": points if valid is None else valid,
        "sizes_ptr": points if sizes is None else sizes.contiguous(),
        "rows": rows,
        "num_points": points.shape[-2],
        "batch": batch,
        # As integers of 64 bits: Triton rounds a Python float to float32.
        **{name: struct.unpack("q", struct.pack("d", edge))[0] for name, edge in zip("xyz", edges, strict=True)},
        "PACKED": packed,
        "SIZES": sizes is not None,
        "VALID": valid is not None,
        "STEPS": (batch - 1).bit_length(),
        "enable_fp_fusion": False,
    }
    order = _order_by_key(points, source) if packed else None
    return _number(points, source, _order_by_words(points, source) if order is None else order)


def _order_by_key(points: Tensor, source: dict[str, Any]) -> Tensor | None:
    """The rows of packed clouds sorted by cloud and voxel, or None if the two do not fit into one key."""
    rows, batch = source["rows"], source["batch"]
    parts = min(_PARTS, cdiv(rows, _BLOCK))
    extents = points.new_empty((6, parts), dtype=torch.int64)
    _extents[(parts,)](extents_ptr=extents, parts=parts, BLOCK=_BLOCK, num_warps=4, **source)
    found = extents.cpu().numpy()
    cells = batch
    for low, high in zip(found[:3].min(1).tolist(), found[3:].max(1).tolist(), strict=True):
        cells *= max(high - low + 1, 1)  # without valid rows, low is above high
    if cells >= MOST.value:
        return None
    keys = points.new_empty(rows, dtype=torch.int32 if cells < MOST_32.value else torch.int64)
    _keys[(cdiv(rows, _BLOCK),)](
        keys_ptr=keys, extents_ptr=extents, parts=parts, PARTS=_PARTS, BLOCK=_BLOCK, num_warps=4, **source
    )
    return torch.sort(keys).indices


def _order_by_words(points: Tensor, source: dict[str, Any]) -> Tensor:
    """The rows sorted by cloud and voxel, for any coordinates and without synchronization.

    A stable sort by each word of the key, the least significant first. Rows without a voxel are the last of their
    segment.
    """
    # A voxel that was computed in float32 fits into 32 bits.
    short = points.dtype not in (torch.int64, torch.float64) and source["batch"] < _MOST_CLOUDS
    order = None
    for word in range(2 if short else 4):
        keys = points.new_empty(source["rows"], dtype=torch.int64)
        _words[(cdiv(source["rows"], _BLOCK),)](
            keys_ptr=keys,
            order_ptr=keys if order is None else order,
            ORDERED=order is not None,
            WORD=word,
            SHORT=short,
            BLOCK=_BLOCK,
            num_warps=4,
            **source,
        )
        place = torch.sort(keys, stable=True).indices
        order = place if order is None else order[place]
    assert order is not None
    return order


def _number(points: Tensor, source: dict[str, Any], order: Tensor) -> Groups:
    """Number the voxels of sorted rows, and write all results."""
    packed, shape, rows = source["PACKED"], points.shape[:-1], source["rows"]
    segments, size = (1, rows) if packed else (source["batch"], source["num_points"])
    block = power_of_2(size + 1, 64, _BLOCK)
    blocks = cdiv(size + 1, block)
    inverse = points.new_empty(shape, dtype=torch.int64)
    coordinates = (points.new_empty if packed else points.new_zeros)(points.shape, dtype=torch.int64)
    voxel_sizes = points.new_empty(source["batch"] + packed, dtype=torch.int64)
    count = points.new_zeros(rows + 1 + segments * blocks, dtype=torch.int64)  # counts, then words of the programs
    _groups[(segments * blocks,)](
        inverse_ptr=inverse,
        coordinates_ptr=coordinates,
        count_ptr=count,
        voxel_sizes_ptr=voxel_sizes,
        order_ptr=order,
        size=size,
        blocks=blocks,
        BLOCK=block,
        BLOCK_W=256,
        num_warps=4 if block >= 512 else 1,
        **source,
    )
    if packed:
        voxels = int(voxel_sizes[-1])
        return inverse, coordinates.resize_(voxels, 3), count.resize_(voxels), voxel_sizes
    return inverse, coordinates, count.resize_(shape), voxel_sizes


@triton.jit
def _cell(points_ptr, row, row_mask, edge, axis: tl.constexpr):
    """The coordinate of a row's voxel along an axis, and whether it fits in 64 bits."""
    value = tl.load(points_ptr + row * 3 + axis, mask=row_mask, other=0)
    if points_ptr.dtype.element_ty == tl.int64:
        return value, row_mask
    else:
        edge = tl.cast(edge, tl.int64).to(tl.float64, bitcast=True)
        if points_ptr.dtype.element_ty == tl.float64:
            quotient = value / edge
        else:
            quotient = tl.div_rn(value.to(tl.float32), edge.to(tl.float32))
        # The instruction for float32 takes a denormal number for zero.
        whole = tl.where((quotient < 0) & (quotient > -1), -1.0, tl.floor(quotient))
        fits = row_mask & (whole >= -9223372036854775808.0) & (whole < 9223372036854775808.0)  # false for NaN
        return tl.where(fits, whole, 0.0).to(tl.int64), fits


@triton.jit
def _voxel(points_ptr, valid_ptr, row, row_mask, x, y, z, VALID: tl.constexpr):
    """The voxel of each row, and whether it has one."""
    i, fits_x = _cell(points_ptr, row, row_mask, x, 0)
    j, fits_y = _cell(points_ptr, row, row_mask, y, 1)
    k, fits_z = _cell(points_ptr, row, row_mask, z, 2)
    fits = fits_x & fits_y & fits_z
    if VALID:
        fits = fits & (tl.load(valid_ptr + row, mask=row_mask, other=0) != 0)
    return i, j, k, fits


@triton.jit
def _cloud(sizes_ptr, row, num_points, batch, PACKED: tl.constexpr, SIZES: tl.constexpr, STEPS: tl.constexpr):
    """The cloud of each row, and whether the row is inside it. Sizes were not checked: the cloud stays in range."""
    if PACKED:
        cloud = row * 0
        if SIZES:
            for step in tl.static_range(STEPS):
                place = cloud + (1 << (STEPS - 1 - step))
                begin = tl.load(sizes_ptr + place, mask=place < batch, other=MOST)
                cloud = tl.where(begin <= row, place, cloud)
        return cloud, row >= 0
    else:
        cloud = row // num_points
        inside = row >= 0
        if SIZES:
            inside = row - cloud * num_points < tl.load(sizes_ptr + cloud)
        return cloud, inside


@jit(do_not_specialize=[*_NUMBERS, "parts"])
def _extents(
    extents_ptr, points_ptr, valid_ptr, sizes_ptr, rows, num_points, batch, x, y, z, parts,
    PACKED: tl.constexpr, SIZES: tl.constexpr, VALID: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The lowest and highest voxel along each axis, of a part of the rows."""
    low_i = tl.full((BLOCK,), MOST, tl.int64)
    low_j, low_k = low_i, low_i
    high_i = -low_i - 1
    high_j, high_k = high_i, high_i
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, rows, parts * BLOCK):
        row = start + tl.arange(0, BLOCK)
        i, j, k, fits = _voxel(points_ptr, valid_ptr, row, row < rows, x, y, z, VALID)
        low_i = tl.where(fits, tl.minimum(low_i, i), low_i)
        low_j = tl.where(fits, tl.minimum(low_j, j), low_j)
        low_k = tl.where(fits, tl.minimum(low_k, k), low_k)
        high_i = tl.where(fits, tl.maximum(high_i, i), high_i)
        high_j = tl.where(fits, tl.maximum(high_j, j), high_j)
        high_k = tl.where(fits, tl.maximum(high_k, k), high_k)
    part_ptr = extents_ptr + tl.program_id(0)
    tl.store(part_ptr, tl.min(low_i, 0))
    tl.store(part_ptr + parts, tl.min(low_j, 0))
    tl.store(part_ptr + 2 * parts, tl.min(low_k, 0))
    tl.store(part_ptr + 3 * parts, tl.max(high_i, 0))
    tl.store(part_ptr + 4 * parts, tl.max(high_j, 0))
    tl.store(part_ptr + 5 * parts, tl.max(high_k, 0))


@triton.jit
def _extent(extents_ptr, parts, axis: tl.constexpr, PARTS: tl.constexpr):
    """The lowest coordinate along an axis, and the number of coordinates from there to the highest."""
    part = tl.arange(0, PARTS)
    low = tl.min(tl.load(extents_ptr + axis * parts + part, mask=part < parts, other=MOST), 0)
    high = tl.max(tl.load(extents_ptr + (axis + 3) * parts + part, mask=part < parts, other=-MOST - 1), 0)
    return low, high - low + 1


@jit(do_not_specialize=[*_NUMBERS, "parts"])
def _keys(
    keys_ptr, extents_ptr, points_ptr, valid_ptr, sizes_ptr, rows, num_points, batch, x, y, z, parts,
    PACKED: tl.constexpr, SIZES: tl.constexpr, VALID: tl.constexpr, STEPS: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Cloud and voxel of each row in one number; the largest number for rows without a voxel."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    i, j, k, fits = _voxel(points_ptr, valid_ptr, row, row_mask, x, y, z, VALID)
    cloud, _ = _cloud(sizes_ptr, row, num_points, batch, PACKED, SIZES, STEPS)
    low_i, extent_i = _extent(extents_ptr, parts, 0, PARTS)
    low_j, extent_j = _extent(extents_ptr, parts, 1, PARTS)
    low_k, extent_k = _extent(extents_ptr, parts, 2, PARTS)
    key = ((cloud * extent_i + (i - low_i)) * extent_j + (j - low_j)) * extent_k + (k - low_k)
    key = tl.where(fits, key, MOST_32 if keys_ptr.dtype.element_ty == tl.int32 else MOST)
    tl.store(keys_ptr + row, key.to(keys_ptr.dtype.element_ty), mask=row_mask)


@triton.jit
def _ordered(value):
    """Integers of 32 bits that compare like these integers, which float32 represents exactly."""
    bits = value.to(tl.float32).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & MOST_32)).to(tl.int64)


@triton.jit
def _pair(high, low):
    """One integer that compares like a pair of integers of 32 bits."""
    return (high << 32) | (low + 2147483648)


@jit(do_not_specialize=_NUMBERS)
def _words(
    keys_ptr, order_ptr, points_ptr, valid_ptr, sizes_ptr, rows, num_points, batch, x, y, z,
    PACKED: tl.constexpr, SIZES: tl.constexpr, VALID: tl.constexpr, STEPS: tl.constexpr, ORDERED: tl.constexpr,
    WORD: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One word of the key of each row, in the order of an earlier sort."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place_mask = place < rows
    row = place
    if ORDERED:
        row = tl.load(order_ptr + place, mask=place_mask, other=0)
    row = tl.where(place_mask, row, 0)
    i, j, k, fits = _voxel(points_ptr, valid_ptr, row, place_mask, x, y, z, VALID)
    cloud, inside = _cloud(sizes_ptr, row, num_points, batch, PACKED, SIZES, STEPS)
    group = tl.where(fits & inside, 2 * cloud, 2 * (batch if PACKED else cloud) + 1)
    if SHORT:
        word = _pair(_ordered(j), _ordered(k)) if WORD == 0 else _pair(group, _ordered(i))
    else:
        word = k if WORD == 0 else (j if WORD == 1 else (i if WORD == 2 else group))
    tl.store(keys_ptr + place, word, mask=place_mask)


@triton.jit
def _add_before(word_ptr, own, p, BLOCK_W: tl.constexpr):
    """The sum of `own` over the programs before the p-th.

    Each program publishes own + 1 and later, when it knows the sum up to itself, its negative, -sum - 1. A program adds
    the words before its own, back to the nearest sum. Programs are numbered in the order in which they start, so those
    before this one are running or done.
    """
    tl.atomic_xchg(word_ptr + p, tl.where(p == 0, -own - 1, own + 1), sem="relaxed")
    before = own * 0
    end = p
    while end > 0:
        q = end - 1 - tl.arange(0, BLOCK_W)
        word = tl.load(word_ptr + q, mask=q >= 0, other=-1, volatile=True)
        while tl.max((word == 0).to(tl.int32), 0) > 0:
            word = tl.load(word_ptr + q, mask=q >= 0, other=-1, volatile=True)
        nearest = tl.max(tl.where(word < 0, q, -1), 0)  # the first program has a sum, so it is never passed
        before += tl.sum(tl.where(q > nearest, word - 1, tl.where(q == nearest, -word - 1, 0)), 0)
        end = tl.where(nearest >= 0, 0, end - BLOCK_W)
    tl.atomic_xchg(word_ptr + p, -(before + own) - 1, sem="relaxed")
    return before


@triton.jit(do_not_specialize=[*_NUMBERS, "size", "blocks"])
def _groups(
    inverse_ptr, coordinates_ptr, count_ptr, voxel_sizes_ptr, order_ptr, points_ptr, valid_ptr, sizes_ptr,
    rows, num_points, batch, x, y, z, size, blocks,
    PACKED: tl.constexpr, SIZES: tl.constexpr, VALID: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Number the voxels of sorted rows. The position after the last one closes the last voxel."""
    program = tl.atomic_add(count_ptr + rows, 1, sem="relaxed")
    segment = program // blocks
    p = program % blocks
    first = segment * size
    n = p * BLOCK + tl.arange(0, BLOCK)
    n_mask = n < size
    previous_mask = (n > 0) & (n <= size)
    row = tl.load(order_ptr + first + n, mask=n_mask, other=0)
    previous = tl.load(order_ptr + first + n - 1, mask=previous_mask, other=0)
    i, j, k, fits = _voxel(points_ptr, valid_ptr, row, n_mask, x, y, z, VALID)
    cloud, inside = _cloud(sizes_ptr, row, num_points, batch, PACKED, SIZES, STEPS)
    fits = fits & inside
    before_i, before_j, before_k, before_fits = _voxel(
        points_ptr, valid_ptr, previous, previous_mask, x, y, z, VALID
    )  # fmt: skip
    before_cloud, inside = _cloud(sizes_ptr, previous, num_points, batch, PACKED, SIZES, STEPS)
    before_fits = before_fits & inside

    same = (i == before_i) & (j == before_j) & (k == before_k) & (cloud == before_cloud) & fits & before_fits
    opens = fits & ~same
    closes = before_fits & ~same
    flags = opens.to(tl.int64)
    before = _add_before(count_ptr + rows + 1 + segment * blocks, tl.sum(flags, 0), p, BLOCK_W)
    before += tl.cumsum(flags, 0) - flags  # voxels that open at earlier positions
    number = before + flags - 1
    shift = first * 0 if PACKED else first
    tl.store(inverse_ptr + row, tl.where(fits, number, -1), mask=n_mask)
    tl.store(coordinates_ptr + (shift + number) * 3, i, mask=opens)
    tl.store(coordinates_ptr + (shift + number) * 3 + 1, j, mask=opens)
    tl.store(coordinates_ptr + (shift + number) * 3 + 2, k, mask=opens)
    # The number of rows is the difference of two positions, which two programs may know.
    tl.atomic_add(count_ptr + shift + number, -n, mask=opens, sem="relaxed")
    tl.atomic_add(count_ptr + shift + before - 1, n, mask=closes, sem="relaxed")
    if PACKED:
        # Each cloud begins where the rows of a later cloud, or those without a voxel, follow those of an earlier one.
        group = tl.where(fits, cloud, batch)
        before_group = tl.where(before_fits, before_cloud, tl.where(n == 0, -1, batch))
        for step in range(tl.max(tl.where(n <= size, group - before_group, 0), 0)):
            begins = before_group + 1 + step
            tl.store(voxel_sizes_ptr + begins, before, mask=(n <= size) & (begins <= group))
    else:
        tl.store(voxel_sizes_ptr + segment + n * 0, before, mask=n == size)
