"""Triton kernels of this family.

Naming in all kernels: `*_ptr` addresses, BLOCK_* tile sizes, `*_mask` lanes inside the bounds. Addresses are 64-bit.
Each program handles BLOCK_M picks and loops over the channels.
"""

import torch
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2
from ..segments import reduce_segments, sort_by_row
from ..sums import sum_dtype


def gather(features: Tensor, index: Tensor) -> Tensor:
    features, index = features.contiguous(), index.contiguous()
    batch = features.shape[0] if features.dim() == 3 else 1
    rows, channels = features.shape[-2:]
    out = features.new_empty((*index.shape, channels))
    if out.numel():
        # Booleans are copied as bytes; Triton has no 1-bit stores.
        source, target = (t.view(torch.uint8) if t.dtype == torch.bool else t for t in (features, out))
        picks = index.numel() // batch
        block_c, block_m = _tile(channels, features.element_size())
        _gather[(cdiv(picks, block_m) * batch,)](
            out_ptr=target,
            features_ptr=source,
            index_ptr=index,
            rows=rows,
            picks=picks,
            channels=channels,
            BLOCK_M=block_m,
            BLOCK_C=block_c,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out


def gather_backward(grad: Tensor, index: Tensor, num_rows: int, padded: bool) -> Tensor:
    grad, index = grad.contiguous(), index.contiguous()
    batch, channels = grad.shape[0] if padded else 1, grad.shape[-1]
    shape = (batch, num_rows, channels) if padded else (num_rows, channels)
    if not (grad.numel() and num_rows):
        return grad.new_zeros(shape)
    if torch.are_deterministic_algorithms_enabled():
        order, begin = sort_by_row(index.reshape(batch, -1), num_rows)
        return reduce_segments(grad.reshape(-1, channels), begin, order, "sum", grad.dtype)[0].reshape(shape)
    return _add_atomically(grad, index, batch, shape)


def _add_atomically(grad: Tensor, index: Tensor, batch: int, shape: tuple[int, ...]) -> Tensor:
    channels, num_rows, picks = shape[-1], shape[-2], index.numel() // batch
    block_c, block_m = _tile(channels, 4)
    total = grad.new_zeros(shape, dtype=sum_dtype(grad.dtype))
    _scatter_add[(cdiv(picks, block_m) * batch,)](
        total_ptr=total,
        grad_ptr=grad,
        index_ptr=index,
        rows=num_rows,
        picks=picks,
        channels=channels,
        BLOCK_M=block_m,
        BLOCK_C=block_c,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return total.to(grad.dtype)


def _tile(channels: int, element_size: int) -> tuple[int, int]:
    """(BLOCK_C, BLOCK_M): a tile of 8 KiB, so that each thread moves several 16-byte pieces."""
    block_c = power_of_2(channels, 1, 256)
    return block_c, power_of_2(8192 // element_size // block_c, 1, 1024)


@jit
def _gather(out_ptr, features_ptr, index_ptr, rows, picks, channels, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    tiles = tl.cdiv(picks, BLOCK_M)
    cloud = (tl.program_id(0) // tiles).to(tl.int64)
    pick = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    pick_mask = pick < picks
    row = tl.load(index_ptr + cloud * picks + pick, mask=pick_mask, other=-1)
    row_mask = (row >= 0) & (row < rows)  # others read as zero
    from_ptr = features_ptr + (cloud * rows + row) * channels
    to_ptr = out_ptr + (cloud * picks + pick) * channels
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        channel_mask = channel < channels
        mask = row_mask[:, None] & channel_mask[None, :]
        # Features may be read again, outputs are not: keep the features in the cache.
        value = tl.load(from_ptr[:, None] + channel[None, :], mask=mask, other=0, eviction_policy="evict_last")
        mask = pick_mask[:, None] & channel_mask[None, :]
        tl.store(to_ptr[:, None] + channel[None, :], value, mask=mask, eviction_policy="evict_first")


@jit
def _scatter_add(total_ptr, grad_ptr, index_ptr, rows, picks, channels, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    tiles = tl.cdiv(picks, BLOCK_M)
    cloud = (tl.program_id(0) // tiles).to(tl.int64)
    pick = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    pick_mask = pick < picks
    row = tl.load(index_ptr + cloud * picks + pick, mask=pick_mask, other=-1)
    row_mask = (row >= 0) & (row < rows)
    from_ptr = grad_ptr + (cloud * picks + pick) * channels
    to_ptr = total_ptr + (cloud * rows + row) * channels
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        channel_mask = (channel < channels)[None, :]
        # Not masked by the row, so that the loads of index and gradient overlap.
        mask = pick_mask[:, None] & channel_mask
        value = tl.load(from_ptr[:, None] + channel[None, :], mask=mask, other=0, eviction_policy="evict_first")
        value = value.to(total_ptr.dtype.element_ty)
        tl.atomic_add(to_ptr[:, None] + channel[None, :], value, mask=row_mask[:, None] & channel_mask, sem="relaxed")
