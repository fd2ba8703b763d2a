"""Triton kernels of this family: keys to sort rows by, and the numbers of sorted voxels. README.md explains them.

A position is a place in the sorted order. A segment is what voxels are numbered in: a padded cloud, or all packed
clouds together.
"""

import struct
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import cdiv, jit, power_of_2
from .bitmap_kernels import WORD, number_cells
from .row_kernels import BOX, MOST, NUMBERS, add_before, cell_of, cloud_of, extents, voxel_of

Groups = tuple[Tensor, Tensor, Tensor, Tensor]

_PARTS = 256  # programs that measure the extent
_BLOCK = 1024
_MOST_CLOUDS = 2**30  # the number of a cloud fits in half a key
_MOST_ROWS = 2**28  # most rows for a bitmap, whose words are numbered with 32 bits
_WORDS = 2**24  # size of a bitmap that takes less time than a sort, for any number of rows
_WORDS_PER_ROW = 4  # the same in relation to the rows
_ROWS_PER_CELL = 64  # most rows per cell for a bitmap

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
    box, cells = _box(points, source) if packed else ({}, 0)
    if not packed or cells >= MOST.value:
        return _number(points, source, _order_by_words(points, source))
    words = cells // WORD
    # Rows of one voxel wait for each other to count it, so few voxels are counted faster after a sort.
    if rows <= min(_MOST_ROWS, _ROWS_PER_CELL * cells) and words <= max(_WORDS, _WORDS_PER_ROW * rows):
        return number_cells(points, source, box, words)
    return _number(points, source, _order_by_cell(points, source, box, cells))


def _box(points: Tensor, source: dict[str, Any]) -> tuple[dict[str, int], int]:
    """The box around the voxels of packed clouds, for `cell_of`, and the number of cells of all clouds."""
    parts = min(_PARTS, cdiv(source["rows"], _BLOCK))
    found = points.new_empty((6, parts), dtype=torch.int64)
    extents[(parts,)](extents_ptr=found, parts=parts, BLOCK=_BLOCK, num_warps=4, **source)
    parts_of = found.cpu().numpy()
    low, high = parts_of[:3].min(1).tolist(), parts_of[3:].max(1).tolist()
    # Without valid rows, low is above high.
    extent_i, extent_j, extent_k = (max(last - first + 1, 1) for first, last in zip(low, high, strict=True))
    cloud_cells = cdiv(extent_i * extent_j * extent_k, WORD) * WORD
    return dict(zip(BOX, (*low, extent_j, extent_k, cloud_cells), strict=True)), cloud_cells * source["batch"]


def _order_by_cell(points: Tensor, source: dict[str, Any], box: dict[str, int], cells: int) -> Tensor:
    """The rows of packed clouds sorted by cloud and voxel."""
    keys = points.new_empty(source["rows"], dtype=torch.int32 if cells < MOST_32.value else torch.int64)
    _keys[(cdiv(source["rows"], _BLOCK),)](keys_ptr=keys, BLOCK=_BLOCK, num_warps=4, **box, **source)
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


@jit(do_not_specialize=[*NUMBERS, *BOX])
def _keys(
    keys_ptr, points_ptr, valid_ptr, sizes_ptr, rows, num_points, batch, x, y, z,
    low_i, low_j, low_k, extent_j, extent_k, cloud_cells,
    PACKED: tl.constexpr, SIZES: tl.constexpr, VALID: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The cell of each row; the largest number for rows without a voxel."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    i, j, k, fits = voxel_of(points_ptr, valid_ptr, row, row_mask, x, y, z, VALID)
    cloud, _ = cloud_of(sizes_ptr, row, num_points, batch, PACKED, SIZES, STEPS)
    key = cell_of(i, j, k, cloud, low_i, low_j, low_k, extent_j, extent_k, cloud_cells)
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


@jit(do_not_specialize=NUMBERS)
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
    i, j, k, fits = voxel_of(points_ptr, valid_ptr, row, place_mask, x, y, z, VALID)
    cloud, inside = cloud_of(sizes_ptr, row, num_points, batch, PACKED, SIZES, STEPS)
    group = tl.where(fits & inside, 2 * cloud, 2 * (batch if PACKED else cloud) + 1)
    if SHORT:
        word = _pair(_ordered(j), _ordered(k)) if WORD == 0 else _pair(group, _ordered(i))
    else:
        word = k if WORD == 0 else (j if WORD == 1 else (i if WORD == 2 else group))
    tl.store(keys_ptr + place, word, mask=place_mask)


@jit(do_not_specialize=[*NUMBERS, "size", "blocks"])
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
    i, j, k, fits = voxel_of(points_ptr, valid_ptr, row, n_mask, x, y, z, VALID)
    cloud, inside = cloud_of(sizes_ptr, row, num_points, batch, PACKED, SIZES, STEPS)
    fits = fits & inside
    before_i, before_j, before_k, before_fits = voxel_of(
        points_ptr, valid_ptr, previous, previous_mask, x, y, z, VALID
    )  # fmt: skip
    before_cloud, inside = cloud_of(sizes_ptr, previous, num_points, batch, PACKED, SIZES, STEPS)
    before_fits = before_fits & inside

    same = (i == before_i) & (j == before_j) & (k == before_k) & (cloud == before_cloud) & fits & before_fits
    opens = fits & ~same
    closes = before_fits & ~same
    flags = opens.to(tl.int64)
    before = add_before(count_ptr + rows + 1 + segment * blocks, tl.sum(flags, 0), p, BLOCK_W)
    before += tl.cumsum(flags, 0) - flags  # voxels that open at earlier positions
    number = before + flags - 1
    shift = first * 0 if PACKED else first
    tl.store(inverse_ptr + row, tl.where(fits, number, -1), mask=n_mask)
    tl.store(coordinates_ptr + (shift + number) * 3, i, mask=opens)
    tl.store(coordinates_ptr + (shift + number) * 3 + 1, j, mask=opens)
    tl.store(coordinates_ptr + (shift + number) * 3 + 2, k, mask=opens)
    # The number of rows is the difference of two positions, which may belong to two programs.
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
