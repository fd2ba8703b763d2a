"""Triton kernels of this room.

Grammar of all kernels: `*_ptr` addresses, BLOCK_* sizes of a tile, `*_mask` which lanes are inside.
Addresses are 64-bit. A program owns BLOCK_M centres of one cloud and BLOCK_G groups of channels, and walks
the neighbours UNROLL at a time, so that several rows are on their way from memory at once. Tiles of rows are
(BLOCK_M, BLOCK_G, BLOCK_W): a group's weight is shared by its WIDTH channels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import power_of_2


def aggregate(weights: Tensor, values: Tensor, index: Tensor, **tile: int) -> Tensor:
    out = values.new_empty((*index.shape[:-1], values.shape[-1]))
    if out.numel():
        _launch(_aggregate, [out, weights, values], index, values.shape[-2], weights.shape[-1], **tile)
    return out


def aggregate_values(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int, **tile: int) -> Tensor:
    shape = (*grad.shape[:-2], num_rows, grad.shape[-1])
    if not (grad.numel() and index.numel() and num_rows):
        return grad.new_zeros(shape)
    if torch.are_deterministic_algorithms_enabled():
        return _sum_by_row(weights, grad, index, num_rows)
    total = grad.new_zeros(shape, dtype=_wide(grad))
    _launch(_aggregate_values, [total, weights, grad], index, num_rows, weights.shape[-1], **tile)
    return total.to(grad.dtype)


def aggregate_weights(grad: Tensor, values: Tensor, index: Tensor, groups: int, **tile: int) -> Tensor:
    out = grad.new_empty((*index.shape, groups))
    if out.numel():
        _launch(_aggregate_weights, [out, grad, values], index, values.shape[-2], groups, **tile)
    return out


def neighbor_attention(
    query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, scale: float, **tile: int
) -> tuple[Tensor, Tensor]:
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    norm = query.new_empty((*query.shape[:-1], 2), dtype=_wide(query))
    _launch_attention(_attend, [out, norm], query, key, value, index, bias, scale, **tile)
    return out, norm


def neighbor_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    bias: Tensor | None,
    scale: float,
    norm: Tensor,
    **tile: int,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_query = query.new_empty(query.shape)
    weights = norm.new_empty((*index.shape, query.shape[-2]))
    slopes = torch.empty_like(weights)
    tensors = [grad_query, weights, slopes, grad, norm]
    _launch_attention(_attend_backward, tensors, query, key, value, index, bias, scale, **tile)
    return grad_query, weights, slopes


def _wide(value: Tensor) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32)


def _launch(
    kernel: Any,
    tensors: list[Tensor],
    index: Tensor,
    rows: int,
    groups: int,
    elements: int = 512,
    unroll: int = 4,
    num_warps: int = 1,
) -> None:
    """Small tiles and one warp: many programs keep the memory busy."""
    *_, centers, neighbors = index.shape
    batch = index.shape[0] if index.dim() == 3 else 1
    values = tensors[-1]
    width = values.shape[-1] // groups
    block_w = power_of_2(width, 1, 256)
    block_g = power_of_2(groups, 1, 256 // block_w)
    block_m = max(1, elements // (block_g * block_w))
    kernel[(batch * triton.cdiv(centers, block_m) * triton.cdiv(groups, block_g),)](
        *(tensor.contiguous() for tensor in tensors),
        index.contiguous(),
        rows,
        centers,
        neighbors,
        groups,
        WIDTH=width,
        WIDE=tl.float64 if values.dtype == torch.float64 else tl.float32,
        BLOCK_M=block_m,
        BLOCK_G=block_g,
        BLOCK_W=block_w,
        UNROLL=power_of_2(neighbors, 1, unroll),
        num_warps=num_warps,
        enable_fp_fusion=True,  # sums may fuse: the result is rounded less often
    )


def _launch_attention(
    kernel: Any,
    tensors: list[Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    bias: Tensor | None,
    scale: float,
    elements: int = 128,
    unroll: int = 2,
    num_warps: int = 1,
) -> None:
    *_, centers, neighbors = index.shape
    batch = index.shape[0] if index.dim() == 3 else 1
    (heads, depth), width, wide = query.shape[-2:], value.shape[-1], _wide(query)
    if not batch * centers:
        return
    block_d, block_w = (triton.next_power_of_2(max(size, 1)) for size in (depth, width))
    widest = max(block_d, block_w)
    block_g = power_of_2(heads, 1, max(1, 256 // widest))
    block_m = max(1, elements // (block_g * widest))
    kernel[(batch * triton.cdiv(centers, block_m) * triton.cdiv(heads, block_g),)](
        *(tensor.contiguous() for tensor in (*tensors, query, key, value, index)),
        query if bias is None else bias.contiguous(),  # a pointer is needed even where it is never read
        # On the device, because Triton takes a number of Python's as float32.
        query.new_full((), scale, dtype=wide),
        key.shape[-3],
        centers,
        neighbors,
        heads,
        DEPTH=depth,
        WIDTH=width,
        BIAS=0 if bias is None else (1 if bias.shape[-1] == 1 else 2),
        WIDE=tl.float64 if wide == torch.float64 else tl.float32,
        LOWEST=torch.finfo(wide).min,
        BLOCK_M=block_m,
        BLOCK_G=block_g,
        BLOCK_D=block_d,
        BLOCK_W=block_w,
        UNROLL=power_of_2(neighbors, 1, unroll),
        num_warps=power_of_2(block_g * widest // 512, num_warps, 16),  # wide heads are one tile
        # Fused, a sum's last bits differ between the threads that hold copies of it: a race decides which is stored.
        enable_fp_fusion=False,
    )


def _sum_by_row(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """Equal rows stand next to each other after a stable sort: one program sums a row, in the index' order."""
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
    _sum_sorted[(batch * num_rows * triton.cdiv(groups, block_g),)](
        out,
        weights,
        grad,
        order,
        begin,
        num_rows,
        centers,
        neighbors,
        groups,
        WIDTH=width,
        WIDE=tl.float64 if grad.dtype == torch.float64 else tl.float32,
        BLOCK_G=block_g,
        BLOCK_W=block_w,
        UNROLL=4,
        num_warps=1,
        enable_fp_fusion=True,
    )
    return out


@triton.jit
def _place(centers, groups, BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr):
    """This program's cloud, its centres counted through all clouds, its groups, and which of them exist."""
    group_tiles = tl.cdiv(groups, BLOCK_G)
    tile = tl.program_id(0) // group_tiles
    group = tl.program_id(0) % group_tiles * BLOCK_G + tl.arange(0, BLOCK_G)
    tiles = tl.cdiv(centers, BLOCK_M)
    cloud = (tile // tiles).to(tl.int64)
    center = (tile % tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    return cloud, cloud * centers + center, center < centers, group, group < groups


@triton.jit
def _neighbor(index_ptr, cloud, center, center_mask, k, neighbors, rows):
    """(BLOCK_M,) numbers of the centres' k-th picks, their rows counted through all clouds, which of both exist."""
    pick = center * neighbors + k
    pick_mask = center_mask & (pick < (center + 1) * neighbors)
    row = tl.load(index_ptr + pick, mask=pick_mask, other=-1)
    return pick, pick_mask, cloud * rows + row, (row >= 0) & (row < rows)


@triton.jit
def _channels(group, group_mask, start, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """(1, BLOCK_G, BLOCK_W) places in a row of the groups' channels from `start` on, and which of them exist."""
    channel = start + tl.arange(0, BLOCK_W)
    mask = group_mask[:, None] & (channel < WIDTH)[None, :]
    return (group[:, None] * WIDTH + channel[None, :])[None, :, :], mask[None, :, :]


@triton.jit
def _load(ptr, row, row_mask, groups, WIDTH: tl.constexpr, channel, channel_mask, WIDE: tl.constexpr):
    """(BLOCK_M, BLOCK_G, BLOCK_W) values of rows, zero for those that do not exist."""
    from_ptr = ptr + (row * groups)[:, None, None] * WIDTH + channel
    return tl.load(from_ptr, mask=row_mask[:, None, None] & channel_mask, other=0).to(WIDE)


@triton.jit
def _aggregate(
    out_ptr, weights_ptr, values_ptr, index_ptr, rows, centers, neighbors, groups,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, group, group_mask = _place(centers, groups, BLOCK_M, BLOCK_G)
    for start in range(0, WIDTH, BLOCK_W):
        channel, channel_mask = _channels(group, group_mask, start, WIDTH, BLOCK_W)
        total = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_W), WIDE)
        for first in range(0, neighbors, UNROLL):
            for step in tl.static_range(UNROLL):
                pick, _, row, row_mask = _neighbor(index_ptr, cloud, center, center_mask, first + step, neighbors, rows)
                weight_ptr = weights_ptr + pick[:, None] * groups + group[None, :]
                weight = tl.load(weight_ptr, mask=row_mask[:, None] & group_mask[None, :], other=0).to(WIDE)
                value = _load(values_ptr, row, row_mask, groups, WIDTH, channel, channel_mask, WIDE)
                total += weight[:, :, None] * value
        to_ptr = out_ptr + (center * groups)[:, None, None] * WIDTH + channel
        tl.store(
            to_ptr,
            total.to(out_ptr.dtype.element_ty),
            mask=center_mask[:, None, None] & channel_mask,
            eviction_policy="evict_first",
        )


@triton.jit
def _aggregate_values(
    total_ptr, weights_ptr, grad_ptr, index_ptr, rows, centers, neighbors, groups,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, group, group_mask = _place(centers, groups, BLOCK_M, BLOCK_G)
    for start in range(0, WIDTH, BLOCK_W):
        channel, channel_mask = _channels(group, group_mask, start, WIDTH, BLOCK_W)
        grad = _load(grad_ptr, center, center_mask, groups, WIDTH, channel, channel_mask, WIDE)
        for first in range(0, neighbors, UNROLL):
            for step in tl.static_range(UNROLL):
                pick, _, row, row_mask = _neighbor(index_ptr, cloud, center, center_mask, first + step, neighbors, rows)
                weight_ptr = weights_ptr + pick[:, None] * groups + group[None, :]
                weight = tl.load(weight_ptr, mask=row_mask[:, None] & group_mask[None, :], other=0).to(WIDE)
                to_ptr = total_ptr + (row * groups)[:, None, None] * WIDTH + channel
                mask = row_mask[:, None, None] & channel_mask
                tl.atomic_add(to_ptr, weight[:, :, None] * grad, mask=mask, sem="relaxed")


@triton.jit
def _aggregate_weights(
    out_ptr, grad_ptr, values_ptr, index_ptr, rows, centers, neighbors, groups,
    WIDTH: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, group, group_mask = _place(centers, groups, BLOCK_M, BLOCK_G)
    for first in range(0, neighbors, UNROLL):
        for step in tl.static_range(UNROLL):
            k = first + step
            pick, pick_mask, row, row_mask = _neighbor(index_ptr, cloud, center, center_mask, k, neighbors, rows)
            products = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_W), WIDE)
            for start in range(0, WIDTH, BLOCK_W):
                channel, channel_mask = _channels(group, group_mask, start, WIDTH, BLOCK_W)
                grad = _load(grad_ptr, center, row_mask, groups, WIDTH, channel, channel_mask, WIDE)
                products += grad * _load(values_ptr, row, row_mask, groups, WIDTH, channel, channel_mask, WIDE)
            to_ptr = out_ptr + pick[:, None] * groups + group[None, :]
            mask = pick_mask[:, None] & group_mask[None, :]
            tl.store(to_ptr, tl.sum(products, 2).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sum_sorted(
    out_ptr, weights_ptr, grad_ptr, order_ptr, begin_ptr, rows, centers, neighbors, groups,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, row, _, group, group_mask = _place(rows, groups, 1, BLOCK_G)
    begin_ptr += cloud + row  # each cloud has one bound more than it has rows
    begin, end = tl.sum(tl.load(begin_ptr)), tl.sum(tl.load(begin_ptr + 1))
    for start in range(0, WIDTH, BLOCK_W):
        channel, channel_mask = _channels(group, group_mask, start, WIDTH, BLOCK_W)
        total = tl.zeros((1, BLOCK_G, BLOCK_W), WIDE)
        for first in range(begin, end, UNROLL):
            for step in tl.static_range(UNROLL):
                position = first + step + tl.arange(0, 1)
                there = position < end
                pick = tl.load(order_ptr + cloud * centers * neighbors + position, mask=there, other=0)
                weight_ptr = weights_ptr + (cloud * centers * neighbors + pick)[:, None] * groups + group[None, :]
                weight = tl.load(weight_ptr, mask=there[:, None] & group_mask[None, :], other=0).to(WIDE)
                center = cloud * centers + pick // neighbors
                grad = _load(grad_ptr, center, there, groups, WIDTH, channel, channel_mask, WIDE)
                total += weight[:, :, None] * grad
        to_ptr = out_ptr + (row * groups)[:, None, None] * WIDTH + channel
        tl.store(to_ptr, total.to(out_ptr.dtype.element_ty), mask=channel_mask)


@triton.jit
def _logit(query, key, bias_ptr, pick, row_mask, head, head_mask, heads, BIAS: tl.constexpr, WIDE: tl.constexpr):
    """(BLOCK_M, BLOCK_G), minus infinity where there is no neighbour. BIAS: none, one for all heads, one each."""
    logit = tl.sum(query * key, 2)
    mask = row_mask[:, None] & head_mask[None, :]
    if BIAS == 1:
        logit += tl.load(bias_ptr + pick, mask=row_mask, other=0).to(WIDE)[:, None]
    if BIAS == 2:
        logit += tl.load(bias_ptr + pick[:, None] * heads + head[None, :], mask=mask, other=0).to(WIDE)
    return tl.where(mask, logit, -float("inf"))


@triton.jit
def _attend(
    out_ptr, norm_ptr, query_ptr, key_ptr, value_ptr, index_ptr, bias_ptr, scale_ptr, rows, centers, neighbors, heads,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr, LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, head, head_mask = _place(centers, heads, BLOCK_M, BLOCK_G)
    depth, depth_mask = _channels(head, head_mask, 0, DEPTH, BLOCK_D)
    channel, channel_mask = _channels(head, head_mask, 0, WIDTH, BLOCK_W)
    query = _load(query_ptr, center, center_mask, heads, DEPTH, depth, depth_mask, WIDE) * tl.load(scale_ptr)
    # The softmax of the neighbours so far, as if the largest logit among them were zero.
    top = tl.full((BLOCK_M, BLOCK_G), LOWEST, WIDE)
    total = tl.zeros((BLOCK_M, BLOCK_G), WIDE)
    mean = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_W), WIDE)
    for first in range(0, neighbors, UNROLL):
        for step in tl.static_range(UNROLL):
            pick, _, row, row_mask = _neighbor(index_ptr, cloud, center, center_mask, first + step, neighbors, rows)
            key = _load(key_ptr, row, row_mask, heads, DEPTH, depth, depth_mask, WIDE)
            value = _load(value_ptr, row, row_mask, heads, WIDTH, channel, channel_mask, WIDE)
            logit = _logit(query, key, bias_ptr, pick, row_mask, head, head_mask, heads, BIAS, WIDE)
            higher = tl.maximum(top, logit)
            shrink, weight = tl.exp(top - higher), tl.exp(logit - higher)
            total = total * shrink + weight
            mean = mean * shrink[:, :, None] + weight[:, :, None] * value
            top = higher
    mean /= tl.where(total == 0, 1, total)[:, :, None]
    to_ptr = out_ptr + (center * heads)[:, None, None] * WIDTH + channel
    tl.store(to_ptr, mean.to(out_ptr.dtype.element_ty), mask=center_mask[:, None, None] & channel_mask)
    norm_ptr += (center[:, None] * heads + head[None, :]) * 2
    norm_mask = center_mask[:, None] & head_mask[None, :]
    tl.store(norm_ptr, top, mask=norm_mask)
    tl.store(norm_ptr + 1, total, mask=norm_mask)


@triton.jit
def _attend_backward(
    grad_query_ptr, weights_ptr, slopes_ptr, grad_ptr, norm_ptr,
    query_ptr, key_ptr, value_ptr, index_ptr, bias_ptr, scale_ptr, rows, centers, neighbors, heads,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr, LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, head, head_mask = _place(centers, heads, BLOCK_M, BLOCK_G)
    depth, depth_mask = _channels(head, head_mask, 0, DEPTH, BLOCK_D)
    channel, channel_mask = _channels(head, head_mask, 0, WIDTH, BLOCK_W)
    scale = tl.load(scale_ptr)
    query = _load(query_ptr, center, center_mask, heads, DEPTH, depth, depth_mask, WIDE) * scale
    grad = _load(grad_ptr, center, center_mask, heads, WIDTH, channel, channel_mask, WIDE)
    norm_ptr += (center[:, None] * heads + head[None, :]) * 2
    norm_mask = center_mask[:, None] & head_mask[None, :]
    top = tl.load(norm_ptr, mask=norm_mask, other=LOWEST)
    total = tl.load(norm_ptr + 1, mask=norm_mask, other=0)
    inverse = 1 / tl.where(total == 0, 1, total)
    # A slope is weight * (product - level), and the level is known only at the end: until then two sums.
    level = tl.zeros((BLOCK_M, BLOCK_G), WIDE)
    grad_query = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_D), WIDE)
    mean_key = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_D), WIDE)
    for first in range(0, neighbors, UNROLL):
        for step in tl.static_range(UNROLL):
            k = first + step
            pick, pick_mask, row, row_mask = _neighbor(index_ptr, cloud, center, center_mask, k, neighbors, rows)
            key = _load(key_ptr, row, row_mask, heads, DEPTH, depth, depth_mask, WIDE)
            value = _load(value_ptr, row, row_mask, heads, WIDTH, channel, channel_mask, WIDE)
            logit = _logit(query, key, bias_ptr, pick, row_mask, head, head_mask, heads, BIAS, WIDE)
            # Rounded differently than in the forward, a huge logit may come out far above the largest.
            weight = tl.exp(tl.where(logit > top, 0, logit - top)) * inverse
            product = tl.where(row_mask[:, None], weight * tl.sum(grad * value, 2), 0)
            level += product
            grad_query += product[:, :, None] * key
            mean_key += weight[:, :, None] * key
            pick_ptr = pick[:, None] * heads + head[None, :]
            mask = pick_mask[:, None] & head_mask[None, :]
            tl.store(weights_ptr + pick_ptr, weight, mask=mask)
            tl.store(slopes_ptr + pick_ptr, product, mask=mask)
    to_ptr = grad_query_ptr + (center * heads)[:, None, None] * DEPTH + depth
    grad_query = (grad_query - level[:, :, None] * mean_key) * scale
    # An infinite product's slope is infinity minus infinity, which the two sums apart would not always show.
    grad_query = tl.where(tl.abs(level)[:, :, None] == float("inf"), float("nan"), grad_query)
    tl.store(to_ptr, grad_query.to(grad_query_ptr.dtype.element_ty), mask=center_mask[:, None, None] & depth_mask)
    tl.debug_barrier()  # what this program wrote is read again
    for first in range(0, neighbors, UNROLL):
        for step in tl.static_range(UNROLL):
            k = first + step
            pick, pick_mask, row, row_mask = _neighbor(index_ptr, cloud, center, center_mask, k, neighbors, rows)
            pick_ptr = pick[:, None] * heads + head[None, :]
            mask = pick_mask[:, None] & head_mask[None, :]
            weight = tl.load(weights_ptr + pick_ptr, mask=mask, other=0)
            product = tl.load(slopes_ptr + pick_ptr, mask=mask, other=0)
            # What is not there takes no part, not even by zero times infinity.
            tl.store(slopes_ptr + pick_ptr, tl.where(row_mask[:, None], product - weight * level, 0), mask=mask)
