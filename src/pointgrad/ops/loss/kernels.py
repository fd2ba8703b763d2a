"""Triton kernels of this family.

Naming in all kernels: `*_ptr` is an address, BLOCK_* a tile size, and `*_mask` marks the lanes in range.
Addresses are 64-bit. Each program processes BLOCK_S positions and loops over the classes in tiles of BLOCK_C. Rows that
fit into one tile (WHOLE) are read once. With BY_ROW the classes of a position are consecutive in memory, else the
positions of a class. The coefficients of a position are `base` (different for each position if OWN) plus `hit` at its
class.
"""

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2
from ..sums import sum_dtype
from .reference import hit_and_base


def cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    shape, wide = (logits.shape[0], logits.shape[2]), sum_dtype(logits.dtype)
    loss, top, total = (logits.new_empty(shape, dtype=wide) for _ in range(3))
    tensors = {"loss_ptr": loss, "top_ptr": top, "total_ptr": total}
    _launch(_loss, tensors, logits, target, weight, ignore_index, smoothing)
    return loss, top, total


def cross_entropy_backward(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    smoothing: float,
    top: Tensor,
    total: Tensor,
) -> Tensor:
    out = logits.new_empty(logits.shape)
    tensors = {
        "out_ptr": out,
        "grad_ptr": grad.contiguous(),
        "top_ptr": top.contiguous(),
        "total_ptr": total.contiguous(),
    }
    _launch(_slopes, tensors, logits, target, weight, ignore_index, smoothing)
    return out


def _launch(
    kernel: Any,
    tensors: dict[str, Tensor],
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    smoothing: float,
) -> None:
    clouds, classes, positions = logits.shape
    if clouds == 0 or positions == 0:
        return
    logits, target = logits.contiguous(), target.contiguous()
    hit, base = hit_and_base(logits, target, weight, smoothing)
    by_row = positions == 1
    outer, inner = (1, clouds) if by_row else (clouds, positions)
    unit = math.gcd(classes, 16)
    block_c = power_of_2(classes, 1, 1024 if by_row else 32)
    block_s = power_of_2(2048 // block_c, 1, 64)
    kernel[(cdiv(inner, block_s) * outer,)](
        **tensors,
        logits_ptr=logits,
        target_ptr=target,
        hit_ptr=logits if hit is None else hit,
        base_ptr=logits if base is None else base,
        inner=inner,
        units=classes // unit,
        ignore_index=ignore_index,
        UNIT=unit,
        BY_ROW=by_row,
        HARD=hit is not None,
        BASE=base is not None,
        OWN=hit is None,
        WHOLE=classes <= block_c,
        BLOCK_S=block_s,
        BLOCK_C=block_c,
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit
def _times(factor, value):
    """A product that is zero if the factor is zero, even if the value is infinite."""
    return tl.where(factor == 0, 0.0, factor * value)


@triton.jit
def _tile(x_ptr, start, classes, class_step, position_mask, WIDE: tl.constexpr, BLOCK_C: tl.constexpr):
    """(BLOCK_S, BLOCK_C) logits beginning at class `start`; -inf out of range."""
    c = start + tl.arange(0, BLOCK_C)
    mask = position_mask[:, None] & (c < classes)[None, :]
    return tl.load(x_ptr[:, None] + (c.to(tl.int64) * class_step)[None, :], mask=mask, other=-float("inf")).to(WIDE)


@triton.jit
def _base_tile(
    base_ptr,
    offset,
    start,
    classes,
    class_step,
    position_mask,
    WIDE: tl.constexpr,
    OWN: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """(BLOCK_S, BLOCK_C) or (1, BLOCK_C) coefficients beginning at class `start`; 0 out of range."""
    c = start + tl.arange(0, BLOCK_C)
    if OWN:
        at = offset[:, None] + (c.to(tl.int64) * class_step)[None, :]
        base = tl.load(base_ptr + at, mask=position_mask[:, None] & (c < classes)[None, :], other=0)
    else:
        base = tl.load(base_ptr + c, mask=c < classes, other=0)[None, :]
    return base.to(WIDE)


@triton.jit
def _place(inner, units, UNIT: tl.constexpr, BY_ROW: tl.constexpr, BLOCK_S: tl.constexpr):
    """The positions of this program, the offsets of their logits, and their mask."""
    if BY_ROW:
        s = tl.program_id(0).to(tl.int64) * BLOCK_S + tl.arange(0, BLOCK_S)
        position = s
        offset = s * units * UNIT  # the constant UNIT shows the compiler the alignment of rows
    else:
        tiles = tl.cdiv(inner, BLOCK_S)
        outer = (tl.program_id(0) // tiles).to(tl.int64)
        s = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK_S + tl.arange(0, BLOCK_S)
        position = outer * inner + s
        offset = outer * inner * units * UNIT + s
    return position, offset, s < inner


@jit
def _loss(
    loss_ptr,
    top_ptr,
    total_ptr,
    logits_ptr,
    target_ptr,
    hit_ptr,
    base_ptr,
    inner,
    units,
    ignore_index,
    UNIT: tl.constexpr,
    BY_ROW: tl.constexpr,
    HARD: tl.constexpr,
    BASE: tl.constexpr,
    OWN: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    WIDE: tl.constexpr = loss_ptr.dtype.element_ty
    position, offset, mask = _place(inner, units, UNIT, BY_ROW, BLOCK_S)
    classes = units * UNIT
    class_step = 1 if BY_ROW else inner
    x_ptr = logits_ptr + offset
    # Whole tiles are summed and reduced at the end, because Triton 3.6 fails on a sum over an axis inside a loop.
    dots = tl.zeros((BLOCK_S, BLOCK_C), WIDE)
    amounts = tl.zeros((BLOCK_S, BLOCK_C), WIDE)
    if WHOLE:
        x = _tile(x_ptr, 0, classes, class_step, mask, WIDE, BLOCK_C)
        top = tl.max(x, 1)
        top = tl.where(top == -float("inf"), 0.0, top)
        total = tl.sum(tl.exp(x - top[:, None]), 1)
        if BASE:
            base = _base_tile(base_ptr, offset, 0, classes, class_step, mask, WIDE, OWN, BLOCK_C)
            dots += _times(base, top[:, None] - x)
            amounts += base
    else:
        highest = tl.full((BLOCK_S, BLOCK_C), -float("inf"), WIDE)
        for start in range(0, classes, BLOCK_C):
            x = _tile(x_ptr, start, classes, class_step, mask, WIDE, BLOCK_C)
            highest = tl.where(x > highest, x, highest)
        top = tl.max(highest, 1)
        top = tl.where(top == -float("inf"), 0.0, top)
        totals = tl.zeros((BLOCK_S, BLOCK_C), WIDE)
        for start in range(0, classes, BLOCK_C):
            x = _tile(x_ptr, start, classes, class_step, mask, WIDE, BLOCK_C)
            totals += tl.exp(x - top[:, None])
            if BASE:
                base = _base_tile(base_ptr, offset, start, classes, class_step, mask, WIDE, OWN, BLOCK_C)
                dots += _times(base, top[:, None] - x)
                amounts += base
        total = tl.sum(totals, 1)
    log_total = tl.log(tl.where(total == 0, 1.0, total))
    value = tl.zeros((BLOCK_S,), WIDE)
    if BASE:
        value += tl.sum(dots, 1) + _times(tl.sum(amounts, 1), log_total)
    if HARD:
        t = tl.load(target_ptr + position, mask=mask, other=ignore_index)
        kept = mask & (t != ignore_index) & (t >= 0) & (t < classes)
        hit = tl.load(hit_ptr + t, mask=kept, other=0).to(WIDE)
        x_t = tl.load(x_ptr + t * class_step, mask=kept, other=0).to(WIDE)
        value = tl.where(kept, value + _times(hit, (top - x_t) + log_total), 0.0)
    tl.store(loss_ptr + position, value, mask=mask)
    tl.store(top_ptr + position, top, mask=mask)
    tl.store(total_ptr + position, total, mask=mask)


@jit
def _slopes(
    out_ptr,
    grad_ptr,
    top_ptr,
    total_ptr,
    logits_ptr,
    target_ptr,
    hit_ptr,
    base_ptr,
    inner,
    units,
    ignore_index,
    UNIT: tl.constexpr,
    BY_ROW: tl.constexpr,
    HARD: tl.constexpr,
    BASE: tl.constexpr,
    OWN: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    WIDE: tl.constexpr = grad_ptr.dtype.element_ty
    position, offset, mask = _place(inner, units, UNIT, BY_ROW, BLOCK_S)
    classes = units * UNIT
    class_step = 1 if BY_ROW else inner
    x_ptr = logits_ptr + offset
    to_ptr = out_ptr + offset
    grad = tl.load(grad_ptr + position, mask=mask, other=0)
    top = tl.load(top_ptr + position, mask=mask, other=0)
    total = tl.load(total_ptr + position, mask=mask, other=1)
    live = total != 0
    total = tl.where(live, total, 1.0)
    amount = tl.zeros((BLOCK_S,), WIDE)
    if BASE:
        amounts = tl.zeros((BLOCK_S, BLOCK_C), WIDE)
        for start in range(0, classes, BLOCK_C):
            amounts += _base_tile(base_ptr, offset, start, classes, class_step, mask, WIDE, OWN, BLOCK_C)
        amount += tl.sum(amounts, 1)
    if HARD:
        t = tl.load(target_ptr + position, mask=mask, other=ignore_index)
        kept = mask & (t != ignore_index) & (t >= 0) & (t < classes)
        hit = tl.load(hit_ptr + t, mask=kept, other=0).to(WIDE)
        amount += hit
        live = live & kept
    for start in range(0, classes, BLOCK_C):
        x = _tile(x_ptr, start, classes, class_step, mask, WIDE, BLOCK_C)
        c = start + tl.arange(0, BLOCK_C)
        slope = _times(amount[:, None], tl.exp(x - top[:, None]) / total[:, None])
        if BASE:
            slope -= _base_tile(base_ptr, offset, start, classes, class_step, mask, WIDE, OWN, BLOCK_C)
        if HARD:
            slope -= tl.where(c[None, :] == t[:, None], hit[:, None], 0.0)
        slope = tl.where(live[:, None], grad[:, None] * slope, 0.0)
        inside = mask[:, None] & (c < classes)[None, :]
        tl.store(
            to_ptr[:, None] + (c.to(tl.int64) * class_step)[None, :], slope.to(out_ptr.dtype.element_ty), mask=inside
        )
