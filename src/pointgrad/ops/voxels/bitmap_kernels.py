"""Triton kernels that number the voxels of packed clouds by a bitmap with one bit for each cell, without a sort."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit
from .row_kernels import BOX, NUMBERS, add_before, cell_of, cloud_of, voxel_of

WORD = 32  # bits of a word
_BLOCK = 1024
_BLOCK_W = 2048  # words per program


def number_cells(
    points: Tensor, source: dict[str, Any], box: dict[str, int], words: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Number the voxels in the order of their cells, which fill this number of words, and write all results."""
    rows, blocks = source["rows"], cdiv(words, _BLOCK_W)
    bitmap = points.new_zeros(words + 1 + blocks, dtype=torch.int32)  # then a counter, and a word for each program
    before = points.new_empty(words, dtype=torch.int32)
    inverse, count = (points.new_empty(rows, dtype=torch.int64) for _ in range(2))
    coordinates = points.new_empty((rows, 3), dtype=torch.int64)
    voxel_sizes = points.new_empty(source["batch"] + 1, dtype=torch.int64)
    grid = (cdiv(rows, _BLOCK),)
    _mark[grid](bitmap_ptr=bitmap, BLOCK=_BLOCK, num_warps=4, **box, **source)
    _count_words[(blocks,)](
        before_ptr=before,
        count_ptr=count,
        voxel_sizes_ptr=voxel_sizes,
        bitmap_ptr=bitmap,
        words=words,
        cloud_words=words // source["batch"],
        batch=source["batch"],
        BLOCK=_BLOCK_W,
        BLOCK_W=256,
        num_warps=4,
        enable_fp_fusion=False,
    )
    _assign[grid](
        inverse_ptr=inverse,
        coordinates_ptr=coordinates,
        count_ptr=count,
        before_ptr=before,
        bitmap_ptr=bitmap,
        BLOCK=_BLOCK,
        num_warps=4,
        **box,
        **source,
    )
    voxels = int(voxel_sizes[-1])
    return inverse, coordinates.resize_(voxels, 3), count.resize_(voxels), voxel_sizes


@triton.jit
def _ones(word):
    """The number of bits that are 1."""
    bits = word.to(tl.uint32, bitcast=True)
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    bits = bits + (bits >> 8)
    return ((bits + (bits >> 16)) & 63).to(tl.int32)


@jit(do_not_specialize=[*NUMBERS, *BOX])
def _mark(
    bitmap_ptr, points_ptr, valid_ptr, sizes_ptr, rows, num_points, batch, x, y, z,
    low_i, low_j, low_k, extent_j, extent_k, cloud_cells,
    PACKED: tl.constexpr, SIZES: tl.constexpr, VALID: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Set the bits of all cells with a row."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    i, j, k, fits = voxel_of(points_ptr, valid_ptr, row, row_mask, x, y, z, VALID)
    cloud, _ = cloud_of(sizes_ptr, row, num_points, batch, PACKED, SIZES, STEPS)
    cell = cell_of(i, j, k, cloud, low_i, low_j, low_k, extent_j, extent_k, cloud_cells)
    bit = tl.full((BLOCK,), 1, tl.int32) << (cell & 31).to(tl.int32)
    # Many rows may have the same cell. Most of them find its bit set, and do not write the word.
    word = tl.load(bitmap_ptr + (cell >> 5), mask=fits, other=0, volatile=True)
    tl.atomic_or(bitmap_ptr + (cell >> 5), bit, mask=fits & ((word & bit) == 0), sem="relaxed")


@jit(do_not_specialize=["words", "cloud_words", "batch"])
def _count_words(
    before_ptr, count_ptr, voxel_sizes_ptr, bitmap_ptr, words, cloud_words, batch,
    BLOCK: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """The number of voxels before each word and each cloud. Sets the counts of rows to zero."""
    p = tl.atomic_add(bitmap_ptr + words, 1, sem="relaxed")
    place = p * BLOCK + tl.arange(0, BLOCK)
    mask = place < words
    ones = _ones(tl.load(bitmap_ptr + place, mask=mask, other=0))
    own = tl.sum(ones, 0)
    first = add_before(bitmap_ptr + words + 1, own, p, BLOCK_W)
    before = first + tl.cumsum(ones, 0) - ones
    tl.store(before_ptr + place, before, mask=mask)
    tl.store(voxel_sizes_ptr + place // cloud_words, before.to(tl.int64), mask=mask & (place % cloud_words == 0))
    tl.store(voxel_sizes_ptr + batch + place * 0, (before + ones).to(tl.int64), mask=place == words - 1)
    for start in range(0, own, BLOCK):
        voxel = start + tl.arange(0, BLOCK)
        tl.store(count_ptr + first + voxel, tl.zeros((BLOCK,), tl.int64), mask=voxel < own)


@jit(do_not_specialize=[*NUMBERS, *BOX])
def _assign(
    inverse_ptr, coordinates_ptr, count_ptr, before_ptr, bitmap_ptr, points_ptr, valid_ptr, sizes_ptr,
    rows, num_points, batch, x, y, z, low_i, low_j, low_k, extent_j, extent_k, cloud_cells,
    PACKED: tl.constexpr, SIZES: tl.constexpr, VALID: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The number of each row's voxel: that of the bits before its own. All rows of a voxel write its coordinates."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    i, j, k, fits = voxel_of(points_ptr, valid_ptr, row, row_mask, x, y, z, VALID)
    cloud, _ = cloud_of(sizes_ptr, row, num_points, batch, PACKED, SIZES, STEPS)
    cell = cell_of(i, j, k, cloud, low_i, low_j, low_k, extent_j, extent_k, cloud_cells)
    bit = tl.full((BLOCK,), 1, tl.int32) << (cell & 31).to(tl.int32)
    word = tl.load(bitmap_ptr + (cell >> 5), mask=fits, other=0)
    number = tl.load(before_ptr + (cell >> 5), mask=fits, other=0) + _ones(word & (bit - 1))
    number = number.to(tl.int64)
    tl.store(inverse_ptr + row, tl.where(fits, number, -1), mask=row_mask)
    tl.store(coordinates_ptr + 3 * number, i, mask=fits)
    tl.store(coordinates_ptr + 3 * number + 1, j, mask=fits)
    tl.store(coordinates_ptr + 3 * number + 2, k, mask=fits)
    tl.atomic_add(count_ptr + number, 1, mask=fits, sem="relaxed")
