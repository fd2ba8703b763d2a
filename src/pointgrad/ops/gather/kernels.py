"""Triton kernels of this room.

Grammar of all kernels: `*_ptr` addresses, BLOCK_* sizes of a tile, `*_mask` which lanes are inside.
Addresses are 64-bit. Each program owns BLOCK_M picks and walks the channels.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import power_of_2


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
        _gather[(triton.cdiv(picks, block_m) * batch,)](
            target,
            source,
            index,
            rows,
            picks,
            channels,
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
    picks = index.numel() // batch
    block_c, block_m = _tile(channels, 4)
    if torch.are_deterministic_algorithms_enabled():
        # Equal rows stand next to each other after a stable sort, so each row is summed by one
        # program, in the order of the index.
        row = torch.where((index < 0) | (index >= num_rows), num_rows, index).reshape(batch, picks)
        row, order = torch.sort(row, dim=1, stable=True)
        bounds = torch.arange(num_rows + 1, device=row.device).expand(batch, num_rows + 1).contiguous()
        begin = torch.searchsorted(row, bounds)
        out = grad.new_empty(shape)
        _sum_sorted[(num_rows * batch,)](
            out, grad, order, begin, num_rows, picks, channels, BLOCK_C=block_c, num_warps=1, enable_fp_fusion=False
        )
        return out
    total = grad.new_zeros(shape, dtype=torch.promote_types(grad.dtype, torch.float32))
    _scatter_add[(triton.cdiv(picks, block_m) * batch,)](
        total,
        grad,
        index,
        num_rows,
        picks,
        channels,
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


@triton.jit
def _gather(out_ptr, features_ptr, index_ptr, rows, picks, channels, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    tiles = tl.cdiv(picks, BLOCK_M)
    cloud = (tl.program_id(0) // tiles).to(tl.int64)
    pick = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    pick_mask = pick < picks
    row = tl.load(index_ptr + cloud * picks + pick, mask=pick_mask, other=-1)
    row_mask = (row >= 0) & (row < rows)  # everything else reads as zero
    from_ptr = features_ptr + (cloud * rows + row) * channels
    to_ptr = out_ptr + (cloud * picks + pick) * channels
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        channel_mask = channel < channels
        value = tl.load(from_ptr[:, None] + channel[None, :], mask=row_mask[:, None] & channel_mask[None, :], other=0)
        tl.store(to_ptr[:, None] + channel[None, :], value, mask=pick_mask[:, None] & channel_mask[None, :])


@triton.jit
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
        mask = row_mask[:, None] & (channel < channels)[None, :]
        value = tl.load(from_ptr[:, None] + channel[None, :], mask=mask, other=0, eviction_policy="evict_first")
        value = value.to(total_ptr.dtype.element_ty)
        tl.atomic_add(to_ptr[:, None] + channel[None, :], value, mask=mask, sem="relaxed")


@triton.jit
def _sum_sorted(out_ptr, grad_ptr, order_ptr, begin_ptr, rows, picks, channels, BLOCK_C: tl.constexpr):
    cloud = (tl.program_id(0) // rows).to(tl.int64)
    row = (tl.program_id(0) % rows).to(tl.int64)
    begin = tl.load(begin_ptr + cloud * (rows + 1) + row)
    end = tl.load(begin_ptr + cloud * (rows + 1) + row + 1)
    wide: tl.constexpr = tl.float64 if out_ptr.dtype.element_ty == tl.float64 else tl.float32
    for start in range(0, channels, BLOCK_C):
        channel = start + tl.arange(0, BLOCK_C)
        mask = channel < channels
        total = tl.zeros((BLOCK_C,), wide)
        for position in range(begin, end):
            pick = tl.load(order_ptr + cloud * picks + position)
            from_ptr = grad_ptr + (cloud * picks + pick) * channels
            total += tl.load(from_ptr + channel, mask=mask, other=0).to(wide)
        tl.store(out_ptr + (cloud * rows + row) * channels + channel, total.to(out_ptr.dtype.element_ty), mask=mask)
