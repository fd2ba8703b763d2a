"""What the operators of this room mean, in plain PyTorch. The formulas are derived in docs/operators/attention.md.

`index` is (M, K), or (B, M, K) with a leading B everywhere else too. Channels come in groups (heads) of
equal width, C = G * width, and each group has weights of its own: (M, K, G).
"""

import torch
from torch import Tensor


def masked_softmax(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    kept = logits.to(_wide(logits)).masked_fill(~mask, -torch.inf)
    nothing = (kept == -torch.inf).all(dim, keepdim=True)  # its softmax would be 0 / 0
    # Over the last dimension: over another, the last bit depends on the number of threads.
    shares = torch.softmax(kept.movedim(dim, -1), -1).movedim(-1, dim)
    return shares.masked_fill(~mask | nothing, 0).to(logits.dtype).contiguous()


def aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    there, picked = _pick(values, index)
    weights = torch.where(there, weights.to(picked.dtype), 0)
    products = weights.unsqueeze(-1) * _split(picked, weights.shape[-1])  # (M, K, G, width)
    return products.sum(-3).flatten(-2).to(values.dtype)


def aggregate_values(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> Tensor:
    batch, channels, groups = grad.shape[:-2], grad.shape[-1], weights.shape[-1]
    wide = _wide(grad)
    products = weights.to(wide).unsqueeze(-1) * _split(grad.to(wide), groups).unsqueeze(-3)  # (M, K, G, width)
    total = products.new_zeros((*batch, num_rows + 1, channels))
    position = torch.where(_inside(index, num_rows), index, num_rows)  # the last row takes what is nowhere
    per_cloud = index.shape[-2] * index.shape[-1]
    position = position.reshape(*batch, per_cloud, 1).expand(*batch, per_cloud, channels)
    total.scatter_add_(-2, position, products.reshape(position.shape))
    return total[..., :num_rows, :].to(grad.dtype, copy=True)


def aggregate_weights(grad: Tensor, values: Tensor, index: Tensor, groups: int) -> Tensor:
    there, picked = _pick(values, index)
    products = _split(grad.to(picked.dtype), groups).unsqueeze(-3) * _split(picked, groups)
    return torch.where(there, products.sum(-1), 0).to(grad.dtype)


def neighbor_attention(
    query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    wide, heads, there = _wide(query), query.shape[-2], _inside(index, key.shape[-3]).unsqueeze(-1)
    logits = _logits(query.to(wide), key.to(wide), index, bias, scale)
    weights = masked_softmax(logits, there, -2)
    out = aggregate(weights, value.to(wide).flatten(-2), index)
    # The largest logit and the sum of the exponentials below it: with them one logit gives its weight.
    kept = logits.masked_fill(~there, -torch.inf)
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
    scale: float,
    norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    wide, heads, there = _wide(query), query.shape[-2], _inside(index, key.shape[-3]).unsqueeze(-1)
    logits = _logits(query.to(wide), key.to(wide), index, bias, scale)
    weights = masked_softmax(logits, there, -2)
    slopes = aggregate_weights(grad.to(wide).flatten(-2), value.to(wide).flatten(-2), index, heads)
    # What is not there takes no part, not even by zero times infinity.
    slopes = torch.where(there, weights * (slopes - (weights * slopes).sum(-2, keepdim=True)), 0)
    grad_query = scale * aggregate(slopes, key.to(wide).flatten(-2), index)
    return grad_query.reshape(query.shape).to(query.dtype), weights, slopes


def _logits(query: Tensor, key: Tensor, index: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """(M, K, H); where there is no neighbour it is not a number that means anything."""
    logits = scale * aggregate_weights(query.flatten(-2), key.flatten(-2), index, query.shape[-2])
    return logits if bias is None else logits + bias.to(logits.dtype)


def _wide(value: Tensor) -> torch.dtype:
    return torch.promote_types(value.dtype, torch.float32)


def _inside(index: Tensor, rows: int) -> Tensor:
    return (index >= 0) & (index < rows)


def _split(channels: Tensor, groups: int) -> Tensor:
    """(..., C) to (..., G, width)."""
    return channels.reshape(*channels.shape[:-1], groups, channels.shape[-1] // groups)


def _pick(values: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """(M, K, 1) whether there is a neighbour, and (M, K, C) its row, in at least float32; zeros for none."""
    rows, channels = values.shape[-2:]
    there = _inside(index, rows)
    padded = torch.cat([values, values.new_zeros(*values.shape[:-2], 1, channels)], -2)
    position = torch.where(there, index, rows).flatten(-2)
    picked = padded.gather(-2, position.unsqueeze(-1).expand(*position.shape, channels))
    return there.unsqueeze(-1), picked.reshape(*index.shape, channels).to(_wide(values))
