"""Triton kernels of `aggregate` and its gradients. Those of attention are in `attend_kernels.py`.

Naming in all kernels: `*_ptr` is an address, BLOCK_* a tile size, and `*_mask` marks the lanes in range.
Addresses are 64-bit. A program processes BLOCK_M centers of one cloud and BLOCK_G groups of channels. Its loop over the
neighbors is unrolled UNROLL times, so that several rows are loaded at once. Tiles of rows are (BLOCK_M, BLOCK_G,
BLOCK_W), where the WIDTH channels of a group share one weight.
"""

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2
from ..sums import sum_dtype
from .attend_kernels import neighbor_attention as neighbor_attention
from .attend_kernels import neighbor_attention_backward as neighbor_attention_backward
from .row_kernels import channels_of, load_rows, neighbor, place


def aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    out = values.new_empty((*index.shape[:-1], values.shape[-1]))
    if out.numel():
        tensors = {"out_ptr": out, "weights_ptr": weights, "values_ptr": values}
        _launch(_aggregate, tensors, index, values.shape[-2], weights.shape[-1], values)
    return out


def aggregate_values(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> Tensor:
    shape = (*grad.shape[:-2], num_rows, grad.shape[-1])
    if not (grad.numel() and index.numel() and num_rows):
        return grad.new_zeros(shape)
    if torch.are_deterministic_algorithms_enabled():
        return _sum_by_row(weights, grad, index, num_rows)
    total = grad.new_zeros(shape, dtype=sum_dtype(grad.dtype))
    tensors = {"total_ptr": total, "weights_ptr": weights, "grad_ptr": grad}
    _launch(_aggregate_values, tensors, index, num_rows, weights.shape[-1], grad)
    return total.to(grad.dtype)


def aggregate_weights(grad: Tensor, values: Tensor, index: Tensor, groups: int) -> Tensor:
    out = grad.new_empty((*index.shape, groups))
    if out.numel():
        tensors = {"out_ptr": out, "grad_ptr": grad, "values_ptr": values}
        _launch(_aggregate_weights, tensors, index, values.shape[-2], groups, values)
    return out


def _launch(
    kernel: Any,
    tensors: dict[str, Tensor],
    index: Tensor,
    rows: int,
    groups: int,
    values: Tensor,
    elements: int = 512,
    unroll: int = 4,
    num_warps: int = 1,
) -> None:
    """Launch with small tiles and one warp, so that many programs keep the memory busy."""
    *_, centers, neighbors = index.shape
    batch = index.shape[0] if index.dim() == 3 else 1
    width = values.shape[-1] // groups
    block_w = power_of_2(width, 1, 256)
    block_g = power_of_2(groups, 1, 256 // block_w)
    block_m = max(1, elements // (block_g * block_w))
    kernel[(batch * cdiv(centers, block_m) * cdiv(groups, block_g),)](
        **{name: tensor.contiguous() for name, tensor in tensors.items()},
        index_ptr=index.contiguous(),
        rows=rows,
        centers=centers,
        neighbors=neighbors,
        groups=groups,
        WIDTH=width,
        WIDE=tl.float64 if values.dtype == torch.float64 else tl.float32,
        BLOCK_M=block_m,
        BLOCK_G=block_g,
        BLOCK_W=block_w,
        UNROLL=power_of_2(neighbors, 1, unroll),
        num_warps=num_warps,
        enable_fp_fusion=True,  # fused sums are rounded less often
    )


def _sum_by_row(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """A stable sort makes entries of the same row adjacent, so that one program sums each row in a fixed order."""
    weights, grad = weights.contiguous(), grad.contiguous()
    *_, centers, neighbors = index.shape
    batch, groups = index.shape[0] if index.dim() == 3 else 1, weights.shape[-1]
    row = torch.where((index < 0) | (index >= num_rows), num_rows, index).reshape(batch, centers * neighbors)
    row, order = torch.sort(row, dim=1, stable=True)
    bounds = torch.arange(num_rows + 1, device=row.device).expand(batch, num_rows + 1).contiguous()
    begin = torch.searchsorted(row, bounds)
    out = grad.new_empty((*grad.shape[:-2], num_rows, grad.shape[-1]))
    width = grad.shape[-1] // groups
    block_w = power_of_2(width, 1, 256)
    block_g = power_of_2(groups, 1, 256 // block_w)
    _sum_sorted[(batch * num_rows * cdiv(groups, block_g),)](
        out_ptr=out,
        weights_ptr=weights,
        grad_ptr=grad,
        order_ptr=order,
        begin_ptr=begin,
        rows=num_rows,
        centers=centers,
        neighbors=neighbors,
        groups=groups,
        WIDTH=width,
        WIDE=tl.float64 if grad.dtype == torch.float64 else tl.float32,
        BLOCK_G=block_g,
        BLOCK_W=block_w,
        UNROLL=4,
        num_warps=1,
        enable_fp_fusion=True,
    )
    return out


@jit
def _aggregate(
    out_ptr, weights_ptr, values_ptr, index_ptr, rows, centers, neighbors, groups,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, group, group_mask = place(centers, groups, BLOCK_M, BLOCK_G)
    for start in range(0, WIDTH, BLOCK_W):
        channel, channel_mask = channels_of(group, group_mask, start, WIDTH, BLOCK_W)
        total = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_W), WIDE)
        for first in range(0, neighbors, UNROLL):
            for step in tl.static_range(UNROLL):
                pick, _, row, row_mask = neighbor(index_ptr, cloud, center, center_mask, first + step, neighbors, rows)
                weight_ptr = weights_ptr + pick[:, None] * groups + group[None, :]
                weight = tl.load(weight_ptr, mask=row_mask[:, None] & group_mask[None, :], other=0).to(WIDE)
                value = load_rows(values_ptr, row, row_mask, groups, WIDTH, channel, channel_mask, WIDE)
                total += weight[:, :, None] * value
        to_ptr = out_ptr + (center * groups)[:, None, None] * WIDTH + channel
        tl.store(
            to_ptr,
            total.to(out_ptr.dtype.element_ty),
            mask=center_mask[:, None, None] & channel_mask,
            eviction_policy="evict_first",
        )


@jit
def _aggregate_values(
    total_ptr, weights_ptr, grad_ptr, index_ptr, rows, centers, neighbors, groups,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, group, group_mask = place(centers, groups, BLOCK_M, BLOCK_G)
    for start in range(0, WIDTH, BLOCK_W):
        channel, channel_mask = channels_of(group, group_mask, start, WIDTH, BLOCK_W)
        grad = load_rows(grad_ptr, center, center_mask, groups, WIDTH, channel, channel_mask, WIDE)
        for first in range(0, neighbors, UNROLL):
            for step in tl.static_range(UNROLL):
                pick, _, row, row_mask = neighbor(index_ptr, cloud, center, center_mask, first + step, neighbors, rows)
                weight_ptr = weights_ptr + pick[:, None] * groups + group[None, :]
                weight = tl.load(weight_ptr, mask=row_mask[:, None] & group_mask[None, :], other=0).to(WIDE)
                to_ptr = total_ptr + (row * groups)[:, None, None] * WIDTH + channel
                mask = row_mask[:, None, None] & channel_mask
                tl.atomic_add(to_ptr, weight[:, :, None] * grad, mask=mask, sem="relaxed")


@jit
def _aggregate_weights(
    out_ptr, grad_ptr, values_ptr, index_ptr, rows, centers, neighbors, groups,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, group, group_mask = place(centers, groups, BLOCK_M, BLOCK_G)
    for first in range(0, neighbors, UNROLL):
        for step in tl.static_range(UNROLL):
            k = first + step
            pick, pick_mask, row, row_mask = neighbor(index_ptr, cloud, center, center_mask, k, neighbors, rows)
            products = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_W), WIDE)
            for start in range(0, WIDTH, BLOCK_W):
                channel, channel_mask = channels_of(group, group_mask, start, WIDTH, BLOCK_W)
                grad = load_rows(grad_ptr, center, row_mask, groups, WIDTH, channel, channel_mask, WIDE)
                products += grad * load_rows(values_ptr, row, row_mask, groups, WIDTH, channel, channel_mask, WIDE)
            to_ptr = out_ptr + pick[:, None] * groups + group[None, :]
            mask = pick_mask[:, None] & group_mask[None, :]
            tl.store(to_ptr, tl.sum(products, 2).to(out_ptr.dtype.element_ty), mask=mask)


@jit
def _sum_sorted(
    out_ptr, weights_ptr, grad_ptr, order_ptr, begin_ptr, rows, centers, neighbors, groups,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, row, _, group, group_mask = place(rows, groups, 1, BLOCK_G)
    begin_ptr += cloud + row  # each cloud has one bound more than rows
    begin, end = tl.sum(tl.load(begin_ptr)), tl.sum(tl.load(begin_ptr + 1))
    for start in range(0, WIDTH, BLOCK_W):
        channel, channel_mask = channels_of(group, group_mask, start, WIDTH, BLOCK_W)
        total = tl.zeros((1, BLOCK_G, BLOCK_W), WIDE)
        for first in range(begin, end, UNROLL):
            for step in tl.static_range(UNROLL):
                position = first + step + tl.arange(0, 1)
                valid = position < end
                pick = tl.load(order_ptr + cloud * centers * neighbors + position, mask=valid, other=0)
                weight_ptr = weights_ptr + (cloud * centers * neighbors + pick)[:, None] * groups + group[None, :]
                weight = tl.load(weight_ptr, mask=valid[:, None] & group_mask[None, :], other=0).to(WIDE)
                center = cloud * centers + pick // neighbors
                grad = load_rows(grad_ptr, center, valid, groups, WIDTH, channel, channel_mask, WIDE)
                total += weight[:, :, None] * grad
        to_ptr = out_ptr + (row * groups)[:, None, None] * WIDTH + channel
        tl.store(to_ptr, total.to(out_ptr.dtype.element_ty), mask=channel_mask)
