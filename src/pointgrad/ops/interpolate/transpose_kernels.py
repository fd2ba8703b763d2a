"""A Triton kernel that transposes matrices, between grids with channels first and rows of channels."""

import torch
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2


def transposed(matrices: Tensor, dtype: torch.dtype, tile: int = 64, num_warps: int = 4) -> Tensor:
    """(B, M, N) as contiguous (B, N, M)."""
    batch, rows, columns = matrices.shape
    if rows == 1 or columns == 1:
        return matrices.reshape(batch, columns, rows).to(dtype)
    out = matrices.new_empty((batch, columns, rows), dtype=dtype)
    # Tiles are short along the channels and long along the voxels, so that few lanes are idle.
    block_r = power_of_2(rows, 1, tile)
    block_c = power_of_2(columns, 1, tile * tile // block_r)
    block_r = power_of_2(rows, 1, tile * tile // block_c)
    _transpose[(batch * cdiv(rows, block_r) * cdiv(columns, block_c),)](
        out_ptr=out,
        in_ptr=matrices,
        rows=rows,
        columns=columns,
        BLOCK_R=block_r,
        BLOCK_C=block_c,
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return out


@jit
def _transpose(out_ptr, in_ptr, rows, columns, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """(B, rows, columns) to (B, columns, rows), tile by tile."""
    tiles_c = tl.cdiv(columns, BLOCK_C)
    tiles = tl.cdiv(rows, BLOCK_R) * tiles_c
    matrix = (tl.program_id(0) // tiles).to(tl.int64) * rows * columns
    tile = tl.program_id(0) % tiles
    row = (tile // tiles_c).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = (tile % tiles_c).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(in_ptr + matrix + row[:, None] * columns + column[None, :], mask=mask, other=0)
    values = tl.trans(values.to(out_ptr.dtype.element_ty))
    tl.store(out_ptr + matrix + column[:, None] * rows + row[None, :], values, mask=tl.trans(mask))
