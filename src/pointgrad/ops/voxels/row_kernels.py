"""Shared by the Triton kernels of this family: the voxel and cloud of each row, their extent, and a look-back.

Naming in all kernels: `*_ptr` is an address, BLOCK_* a tile size, and `*_mask` marks the lanes in range. Rows are those
of the input. A cell is a voxel of the box around all voxels; cells are numbered in the order of cloud, x, y and z.
"""

import triton
import triton.language as tl

from ..launch import jit

NUMBERS = ("rows", "num_points", "batch", "x", "y", "z")  # number arguments of every source
BOX = ("low_i", "low_j", "low_k", "extent_j", "extent_k", "cloud_cells")

MOST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def _coordinate(points_ptr, row, row_mask, edge, axis: tl.constexpr):
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
def voxel_of(points_ptr, valid_ptr, row, row_mask, x, y, z, VALID: tl.constexpr):
    """The voxel of each row, and whether it has one."""
    i, fits_x = _coordinate(points_ptr, row, row_mask, x, 0)
    j, fits_y = _coordinate(points_ptr, row, row_mask, y, 1)
    k, fits_z = _coordinate(points_ptr, row, row_mask, z, 2)
    fits = fits_x & fits_y & fits_z
    if VALID:
        fits = fits & (tl.load(valid_ptr + row, mask=row_mask, other=0) != 0)
    return i, j, k, fits


@triton.jit
def cloud_of(sizes_ptr, row, num_points, batch, PACKED: tl.constexpr, SIZES: tl.constexpr, STEPS: tl.constexpr):
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


@jit(do_not_specialize=[*NUMBERS, "parts"])
def extents(
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
        i, j, k, fits = voxel_of(points_ptr, valid_ptr, row, row < rows, x, y, z, VALID)
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
def cell_of(i, j, k, cloud, low_i, low_j, low_k, extent_j, extent_k, cloud_cells):
    """The number of the cell of each row's voxel. `low_*` is the lowest voxel of the box, `extent_*` its size."""
    return cloud * cloud_cells + ((i - low_i) * extent_j + (j - low_j)) * extent_k + (k - low_k)


@triton.jit
def add_before(word_ptr, own, p, BLOCK_W: tl.constexpr):
    """The sum of `own` over the programs before the p-th.

    Each program publishes own + 1 and later the sum up to itself, as the negative number -sum - 1. A program adds
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
