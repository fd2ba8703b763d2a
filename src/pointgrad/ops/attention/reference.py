"""The operators of this family in plain PyTorch. The formulas are derived in docs/operators/attention.md.

`index` is (M, K), or (B, M, K) with a leading B in all other shapes too. Channels are divided into groups (heads) of
equal width, C = G * width, and each group has its own weights (M, K, G).
"""

import torch
from torch import Tensor

from ..sums import sum_dtype


def masked_softmax(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    kept = logits.to(sum_dtype(logits.dtype)).masked_fill(~mask, -torch.inf)
    all_masked = (kept == -torch.inf).all(dim, keepdim=True)  # the softmax would be 0 / 0
    # Over the last dimension, because over any other the last bit depends on the number of threads.
    shares = torch.softmax(kept.movedim(dim, -1), -1).movedim(-1, dim)
    return shares.masked_fill(~mask | all_masked, 0).to(logits.dtype).contiguous()


def aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    valid, picked = _pick(values, index)
    weights = torch.where(valid, weights.to(picked.dtype), 0)
    products = weights.unsqueeze(-1) * _split(picked, weights.shape[-1])  # (M, K, G, width)
    return products.sum(-3).flatten(-2).to(values.dtype)


def aggregate_values(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> Tensor:
    batch, channels, groups = grad.shape[:-2], grad.shape[-1], weights.shape[-1]
    wide = sum_dtype(grad.dtype)
    products = weights.to(wide).unsqueeze(-1) * _split(grad.to(wide), groups).unsqueeze(-3)  # (M, K, G, width)
    total = products.new_zeros((*batch, num_rows + 1, channels))
    position = torch.where(_inside(index, num_rows), index, num_rows)  # the last row is dropped below
    per_cloud = index.shape[-2] * index.shape[-1]
    position = position.reshape(*batch, per_cloud, 1).expand(*batch, per_cloud, channels)
    total.scatter_add_(-2, position, products.reshape(position.shape))
    return total[..., :num_rows, :].to(grad.dtype, copy=True)


def aggregate_weights(grad: Tensor, values: Tensor, index: Tensor, groups: int) -> Tensor:
    valid, picked = _pick(values, index)
    products = _split(grad.to(picked.dtype), groups).unsqueeze(-3) * _split(picked, groups)
    return torch.where(valid, products.sum(-1), 0).to(grad.dtype)


def neighbor_attention(
    query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    wide, heads, valid = sum_dtype(query.dtype), query.shape[-2], _inside(index, key.shape[-3]).unsqueeze(-1)
    logits = _logits(query.to(wide), key.to(wide), index, bias, scale)
    weights = masked_softmax(logits, valid, -2)
    out = aggregate(weights, value.to(wide).flatten(-2), index)
    # The largest logit and the sum of the exponentials relative to it, which turn a logit into its weight.
    kept = logits.masked_fill(~valid, -torch.inf)
    lowest = kept.new_full((*kept.shape[:-2], 1, heads), torch.finfo(wide).min)
    top = torch.cat([kept, lowest], dim=-2).amax(-2, keepdim=True)
    norm = torch.stack([top.squeeze(-2), (kept - top).exp().sum(-2)], dim=-1)
    return out.unflatten(-1, (heads, value.shape[-1])).to(query.dtype), norm


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
    wide, heads, valid = sum_dtype(query.dtype), query.shape[-2], _inside(index, key.shape[-3]).unsqueeze(-1)
    logits = _logits(query.to(wide), key.to(wide), index, bias, scale)
    weights = masked_softmax(logits, valid, -2)
    slopes = aggregate_weights(grad.to(wide).flatten(-2), value.to(wide).flatten(-2), index, heads)
    # Missing neighbors must not contribute, not even as zero times infinity.
    slopes = torch.where(valid, weights * (slopes - (weights * slopes).sum(-2, keepdim=True)), 0)
    grad_query = factor(scale, query) * aggregate(slopes, key.to(wide).flatten(-2), index)
    return grad_query.reshape(query.shape).to(query.dtype), weights, slopes


def factor(scale: float | None, query: Tensor) -> float:
    """The factor of the dot products; None, which does not fix the size in compiled code, means 1 / sqrt(D)."""
    return max(query.shape[-1], 1) ** -0.5 if scale is None else scale


def _logits(query: Tensor, key: Tensor, index: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """(M, K, H) logits, meaningless where there is no neighbor."""
    logits = factor(scale, query) * aggregate_weights(query.flatten(-2), key.flatten(-2), index, query.shape[-2])
    return logits if bias is None else logits + bias.to(logits.dtype)


def _inside(index: Tensor, rows: int) -> Tensor:
    return (index >= 0) & (index < rows)


def _split(channels: Tensor, groups: int) -> Tensor:
    """(..., C) to (..., G, width)."""
    return channels.reshape(*channels.shape[:-1], groups, channels.shape[-1] // groups)


def _pick(values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """(M, K, 1) whether there is a neighbor, and (M, K, C) its row in at least float32, zero if there is none."""
    rows, channels = values.shape[-2:]
    valid = _inside(index, rows)
    padded = torch.cat([values, values.new_zeros(*values.shape[:-2], 1, channels)], -2)
    position = torch.where(valid, index, rows).flatten(-2)
    picked = padded.gather(-2, position.unsqueeze(-1).expand(*position.shape, channels))
    return valid.unsqueeze(-1), picked.reshape(*index.shape, channels).to(sum_dtype(values.dtype))
