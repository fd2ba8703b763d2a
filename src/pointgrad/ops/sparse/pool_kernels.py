"""Triton kernels of the maximum over kernel positions and its gradient."""

import torch
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2


def sparse_max(features: Tensor, sources: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor]:
    features, sources = features.contiguous(), sources.contiguous()
    (rows, volume), channels = sources.shape, features.shape[1]
    best = features.new_empty((rows, channels))
    arg = torch.empty_like(best, dtype=torch.int32)
    if best.numel():
        block_m, block_c = _tile(channels)
        _max[(cdiv(rows, block_m), cdiv(channels, block_c))](
            best_ptr=best,
            arg_ptr=arg,
            features_ptr=features,
            sources_ptr=sources,
            rows=rows,
            num_inputs=len(features),
            channels=channels,
            WIDE=_wide(features.dtype),
            VOLUME=volume,
            BLOCK_M=block_m,
            BLOCK_C=block_c,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return best, arg


def sparse_max_backward(grad: Tensor, arg: Tensor, sources: Tensor, targets: Tensor | None) -> Tensor:
    grad, arg = grad.contiguous(), arg.contiguous()
    table = (sources if targets is None else targets).contiguous()
    (rows, volume), channels = table.shape, grad.shape[1]
    out = grad.new_empty((rows, channels))
    if out.numel():
        block_m, block_c = _tile(channels)
        _max_backward[(cdiv(rows, block_m), cdiv(channels, block_c))](
            out_ptr=out,
            grad_ptr=grad,
            arg_ptr=arg,
            table_ptr=table,
            rows=rows,
            num_outputs=len(grad),
            channels=channels,
            WIDE=_wide(grad.dtype),
            VOLUME=volume,
            FLIP=targets is None,
            BLOCK_M=block_m,
            BLOCK_C=block_c,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out


def _wide(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32


def _tile(channels: int) -> tuple[int, int]:
    block_c = power_of_2(channels, 1, 128)
    return power_of_2(1024 // block_c, 1, 128), block_c


@jit
def _max(
    best_ptr, arg_ptr, features_ptr, sources_ptr, rows, num_inputs, channels,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row_mask, c_mask = row < rows, (c < channels)[None, :]
    best = tl.zeros((BLOCK_M, BLOCK_C), WIDE)
    arg = tl.full((BLOCK_M, BLOCK_C), -1, tl.int32)
    for position in range(VOLUME):
        source = tl.load(sources_ptr + row * VOLUME + position, mask=row_mask, other=-1)
        inside = ((source >= 0) & (source < num_inputs))[:, None]
        from_ptr = features_ptr + source.to(tl.int64)[:, None] * channels + c[None, :]
        value = tl.load(from_ptr, mask=inside & c_mask, other=0).to(WIDE)
        better = inside & ((arg < 0) | (value > best) | ((value != value) & (best == best)))
        best = tl.where(better, value, best)
        arg = tl.where(better, source[:, None], arg)
    to = row[:, None] * channels + c[None, :]
    tl.store(best_ptr + to, best.to(best_ptr.dtype.element_ty), mask=row_mask[:, None] & c_mask)
    tl.store(arg_ptr + to, arg, mask=row_mask[:, None] & c_mask)


@jit
def _max_backward(
    out_ptr, grad_ptr, arg_ptr, table_ptr, rows, num_outputs, channels,
    WIDE: tl.constexpr, VOLUME: tl.constexpr, FLIP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row_mask, c_mask = row < rows, (c < channels)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_C), WIDE)
    for step in range(VOLUME):
        position = VOLUME - 1 - step if FLIP else step
        output = tl.load(table_ptr + row * VOLUME + position, mask=row_mask, other=-1).to(tl.int64)
        mask = ((output >= 0) & (output < num_outputs))[:, None] & c_mask
        at = output[:, None] * channels + c[None, :]
        wins = mask & (tl.load(arg_ptr + at, mask=mask, other=-1) == row.to(tl.int32)[:, None])
        total += tl.load(grad_ptr + at, mask=wins, other=0).to(WIDE)
    tl.store(
        out_ptr + row[:, None] * channels + c[None, :],
        total.to(out_ptr.dtype.element_ty),
        mask=row_mask[:, None] & c_mask,
    )
