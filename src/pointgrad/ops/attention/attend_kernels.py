"""Triton kernels of `neighbor_attention` and its gradient. Naming and tiles as in `kernels.py`; groups are heads."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2
from ..sums import sum_dtype
from .reference import factor
from .row_kernels import channels_of, load_rows, neighbor, place


def neighbor_attention(
    query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    norm = query.new_empty((*query.shape[:-1], 2), dtype=sum_dtype(query.dtype))
    _launch_attention(_attend, {"out_ptr": out, "norm_ptr": norm}, query, key, value, index, bias, scale)
    return out, norm


def neighbor_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    bias: Tensor | None,
    scale: float | None,
    norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_query = query.new_empty(query.shape)
    weights = norm.new_empty((*index.shape, query.shape[-2]))
    slopes = torch.empty_like(weights)
    tensors = {
        "grad_query_ptr": grad_query,
        "weights_ptr": weights,
        "slopes_ptr": slopes,
        "grad_ptr": grad,
        "norm_ptr": norm,
    }
    _launch_attention(_attend_backward, tensors, query, key, value, index, bias, scale)
    return grad_query, weights, slopes


def _launch_attention(
    kernel: Any,
    tensors: dict[str, Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    bias: Tensor | None,
    scale: float | None,
    elements: int = 128,
    unroll: int = 2,
    num_warps: int = 1,
) -> None:
    *_, centers, neighbors = index.shape
    batch = index.shape[0] if index.dim() == 3 else 1
    (heads, depth), width, wide = query.shape[-2:], value.shape[-1], sum_dtype(query.dtype)
    if not batch * centers:
        return
    block_d, block_w = (power_of_2(max(size, 1)) for size in (depth, width))
    widest = max(block_d, block_w)
    block_g = power_of_2(heads, 1, max(1, 256 // widest))
    block_m = max(1, elements // (block_g * widest))
    kernel[(batch * cdiv(centers, block_m) * cdiv(heads, block_g),)](
        **{name: tensor.contiguous() for name, tensor in tensors.items()},
        query_ptr=query.contiguous(),
        key_ptr=key.contiguous(),
        value_ptr=value.contiguous(),
        index_ptr=index.contiguous(),
        bias_ptr=query if bias is None else bias.contiguous(),  # without a bias, it is not used
        # A tensor, because Triton passes a Python float as float32.
        scale_ptr=query.new_full((), factor(scale, query), dtype=wide),
        rows=key.shape[-3],
        centers=centers,
        neighbors=neighbors,
        heads=heads,
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
        num_warps=power_of_2(block_g * widest // 512, num_warps, 16),  # a wide head is a single tile
        # With fusion, threads that hold copies of a sum differ in its last bits, and a race decides which is stored.
        enable_fp_fusion=False,
    )


@triton.jit
def _logit(query, key, bias_ptr, pick, row_mask, head, head_mask, heads, BIAS: tl.constexpr, WIDE: tl.constexpr):
    """(BLOCK_M, BLOCK_G) logits, -inf without a neighbor. BIAS: 0 none, 1 one for all heads, 2 one per head."""
    logit = tl.sum(query * key, 2)
    mask = row_mask[:, None] & head_mask[None, :]
    if BIAS == 1:
        logit += tl.load(bias_ptr + pick, mask=row_mask, other=0).to(WIDE)[:, None]
    if BIAS == 2:
        logit += tl.load(bias_ptr + pick[:, None] * heads + head[None, :], mask=mask, other=0).to(WIDE)
    return tl.where(mask, logit, -float("inf"))


@jit
def _attend(
    out_ptr, norm_ptr, query_ptr, key_ptr, value_ptr, index_ptr, bias_ptr, scale_ptr, rows, centers, neighbors, heads,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr, LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, head, head_mask = place(centers, heads, BLOCK_M, BLOCK_G)
    depth, depth_mask = channels_of(head, head_mask, 0, DEPTH, BLOCK_D)
    channel, channel_mask = channels_of(head, head_mask, 0, WIDTH, BLOCK_W)
    query = load_rows(query_ptr, center, center_mask, heads, DEPTH, depth, depth_mask, WIDE) * tl.load(scale_ptr)
    # Online softmax: the sums are relative to the largest logit so far.
    top = tl.full((BLOCK_M, BLOCK_G), LOWEST, WIDE)
    total = tl.zeros((BLOCK_M, BLOCK_G), WIDE)
    mean = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_W), WIDE)
    for first in range(0, neighbors, UNROLL):
        for step in tl.static_range(UNROLL):
            pick, _, row, row_mask = neighbor(index_ptr, cloud, center, center_mask, first + step, neighbors, rows)
            key = load_rows(key_ptr, row, row_mask, heads, DEPTH, depth, depth_mask, WIDE)
            value = load_rows(value_ptr, row, row_mask, heads, WIDTH, channel, channel_mask, WIDE)
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


@jit
def _attend_backward(
    grad_query_ptr, weights_ptr, slopes_ptr, grad_ptr, norm_ptr,
    query_ptr, key_ptr, value_ptr, index_ptr, bias_ptr, scale_ptr, rows, centers, neighbors, heads,
    DEPTH: tl.constexpr, WIDTH: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr, LOWEST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_W: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    cloud, center, center_mask, head, head_mask = place(centers, heads, BLOCK_M, BLOCK_G)
    depth, depth_mask = channels_of(head, head_mask, 0, DEPTH, BLOCK_D)
    channel, channel_mask = channels_of(head, head_mask, 0, WIDTH, BLOCK_W)
    scale = tl.load(scale_ptr)
    query = load_rows(query_ptr, center, center_mask, heads, DEPTH, depth, depth_mask, WIDE) * scale
    grad = load_rows(grad_ptr, center, center_mask, heads, WIDTH, channel, channel_mask, WIDE)
    norm_ptr += (center[:, None] * heads + head[None, :]) * 2
    norm_mask = center_mask[:, None] & head_mask[None, :]
    top = tl.load(norm_ptr, mask=norm_mask, other=LOWEST)
    total = tl.load(norm_ptr + 1, mask=norm_mask, other=0)
    inverse = 1 / tl.where(total == 0, 1, total)
    # A slope is weight * (product - level). The level is known only at the end, so two sums are kept until then.
    level = tl.zeros((BLOCK_M, BLOCK_G), WIDE)
    grad_query = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_D), WIDE)
    mean_key = tl.zeros((BLOCK_M, BLOCK_G, BLOCK_D), WIDE)
    for first in range(0, neighbors, UNROLL):
        for step in tl.static_range(UNROLL):
            k = first + step
            pick, pick_mask, row, row_mask = neighbor(index_ptr, cloud, center, center_mask, k, neighbors, rows)
            key = load_rows(key_ptr, row, row_mask, heads, DEPTH, depth, depth_mask, WIDE)
            value = load_rows(value_ptr, row, row_mask, heads, WIDTH, channel, channel_mask, WIDE)
            logit = _logit(query, key, bias_ptr, pick, row_mask, head, head_mask, heads, BIAS, WIDE)
            # A huge logit may be rounded differently than in the forward and exceed the largest one by far.
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
    # The slope of an infinite product is inf - inf, which the difference of the two sums may not reproduce.
    grad_query = tl.where(tl.abs(level)[:, :, None] == float("inf"), float("nan"), grad_query)
    tl.store(to_ptr, grad_query.to(grad_query_ptr.dtype.element_ty), mask=center_mask[:, None, None] & depth_mask)
    tl.debug_barrier()  # the loop below reads what this program has written
    for first in range(0, neighbors, UNROLL):
        for step in tl.static_range(UNROLL):
            k = first + step
            pick, pick_mask, row, row_mask = neighbor(index_ptr, cloud, center, center_mask, k, neighbors, rows)
            pick_ptr = pick[:, None] * heads + head[None, :]
            mask = pick_mask[:, None] & head_mask[None, :]
            weight = tl.load(weights_ptr + pick_ptr, mask=mask, other=0)
            product = tl.load(slopes_ptr + pick_ptr, mask=mask, other=0)
            # Missing neighbors must not contribute, not even as zero times infinity.
            tl.store(slopes_ptr + pick_ptr, tl.where(row_mask[:, None], product - weight * level, 0), mask=mask)
