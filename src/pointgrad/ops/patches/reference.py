"""The operators of this family in plain PyTorch. The formulas are derived in docs/operators/patches.md.

A place is a position along `order`. Of a cloud with n points, patch t has the queries at the places
[t * patch, min((t + 1) * patch, n)) and the keys at the places [s, min(s + patch, n)), where
s = max(0, min(t * patch, n - patch)): the last patch shares keys with the one before it.

Matrix products of 16-bit inputs are those of flash attention: factors are rounded to 16 bits, sums are float32.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .. import clouds
from ..sums import sum_dtype


class Windows(NamedTuple):
    """The patches of all clouds, with rows counted through all clouds, also of padded ones.

    Attributes:
        rows: (P, patch) the row of each key, -1 where there is none.
        own: (P, patch) whether the row is a query of this patch.
        order: (R,) the row at each place, -1 where there is none.
        inverse: (R,) the number of each row's query among the P * patch entries, -1 where there is none.
    """

    rows: Tensor
    own: Tensor
    order: Tensor
    inverse: Tensor


def windows(order: Tensor, sizes: Tensor | None, patch: int) -> Windows:
    slots, device = num_slots(order, sizes, patch), order.device
    begin, count = clouds.bounds(order.unsqueeze(-1), sizes)
    first = _first_slots(begin, order, patch)
    listed = (order >= 0) & (order < order.shape[-1])
    order = torch.where(listed, order if order.dim() == 1 else order + begin.unsqueeze(1), -1).flatten()
    if not len(begin) or not len(order):
        rows = order.new_full((slots, patch), -1)
        return Windows(rows, rows >= 0, order, torch.full_like(order, -1))

    # Sizes that were not checked, on a GPU, give places and slots that are not used.
    place = torch.arange(len(order), device=device)
    cloud = (torch.searchsorted(begin, place, right=True) - 1).clamp(min=0)
    within, points = place - begin[cloud], count[cloud]
    number = within // patch
    entry = (first[cloud] + number) * patch + within - _start(number, points, patch)
    used = (within >= 0) & (within < points) & (order >= 0)
    order = torch.where(used, order, -1)
    inverse = order.new_full((len(order) + 1,), -1)  # the last entry is dropped
    inverse.scatter_(0, torch.where(used, order, len(order)), torch.where(used, entry, -1))

    slot = torch.arange(slots, device=device)
    cloud = (torch.searchsorted(first, slot, right=True) - 1).clamp(min=0)
    number, points, begin = (values.unsqueeze(1) for values in (slot - first[cloud], count[cloud], begin[cloud]))
    within = _start(number, points, patch) + torch.arange(patch, device=device)
    used = (number >= 0) & (number * patch < points) & (within < points)
    rows = torch.where(used, order[torch.where(used, begin + within, 0)], -1)
    return Windows(rows, (rows >= 0) & (within >= number * patch), order, inverse[:-1].clone())


def num_slots(order: Tensor, sizes: Tensor | None, patch: int) -> int:
    """A number of patches that is enough for clouds of any sizes."""
    if order.dim() == 2:
        return order.shape[0] * ((order.shape[1] + patch - 1) // patch)
    return order.shape[0] // patch + clouds.batch_size(order.unsqueeze(-1), sizes)


def _first_slots(begin: Tensor, order: Tensor, patch: int) -> Tensor:
    """(B,) the number of each cloud's first patch.

    A cloud with n points has at most n // patch + 1 patches, and the next cloud starts at least as many later: no sum
    over the clouds before it is needed.
    """
    cloud = torch.arange(len(begin), device=begin.device)
    if order.dim() == 2:
        return cloud * ((order.shape[1] + patch - 1) // patch)
    return begin // patch + cloud


def _start(number: Tensor, count: Tensor, patch: int) -> Tensor:
    """The first key of a patch, as a place within its cloud."""
    return torch.minimum(number * patch, count - patch).clamp(min=0)


def patch_index(order: Tensor, sizes: Tensor | None, patch: int) -> tuple[Tensor, Tensor]:
    rows, _, _, inverse = windows(order, sizes, patch)
    if order.dim() == 1:
        return rows, inverse
    batch, num_rows = order.shape
    rows = rows.reshape(batch, num_slots(order, sizes, patch) // max(batch, 1), patch)
    inverse = inverse.reshape(batch, num_rows)
    cloud = torch.arange(batch, device=order.device).unsqueeze(1)
    local_rows = torch.where(rows >= 0, rows - cloud.unsqueeze(2) * num_rows, -1)
    return local_rows, torch.where(inverse >= 0, inverse - cloud * math.prod(rows.shape[1:]), -1)


def patch_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    coordinates: Tensor | None,
    bias_table: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    found = windows(order, sizes, min(patch, max(order.shape[-1], 1)))  # a longer patch holds no more points
    queries, keys, values = _gather(query, found, own=True), _gather(key, found), _gather(value, found)
    logits = _logits(queries, keys, found, coordinates, bias_table, factor(scale, query))
    out = (_rounded(logits.softmax(-1), query) @ values).transpose(1, 2).flatten(0, 1)  # (P * patch, H, D)
    norm = logits.logsumexp(-1).transpose(1, 2).flatten(0, 1)
    entry = torch.where(found.order >= 0, found.inverse[found.order], -1)
    norm = _pick(norm, entry).reshape(*order.shape, query.shape[-2]).transpose(-1, -2)
    return _pick(out, found.inverse).reshape(query.shape).to(query.dtype), norm.contiguous()


def patch_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    coordinates: Tensor | None,
    bias_table: Tensor | None,
    scale: float | None,
    out: Tensor,
    norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = windows(order, sizes, min(patch, max(order.shape[-1], 1)))  # a longer patch holds no more points
    queries, keys, values = _gather(query, found, own=True), _gather(key, found), _gather(value, found)
    grads = _gather(grad, found, own=True)
    weights = _logits(queries, keys, found, coordinates, bias_table, factor(scale, query)).softmax(-1)
    # Other rows must not contribute, not even as zero times infinity.
    pairs = (found.own.unsqueeze(2) & (found.rows >= 0).unsqueeze(1)).unsqueeze(1)
    weights = torch.where(pairs, weights, 0)
    level = (grads * _gather(out, found, own=True)).sum(-1, keepdim=True)
    slopes = torch.where(pairs, weights * (grads @ values.transpose(-1, -2) - level), 0)
    table_grad = query.new_zeros((0, query.shape[-2]))
    if coordinates is not None and bias_table is not None:
        table_grad = torch.zeros_like(bias_table, dtype=slopes.dtype)
        for entry in _table_rows(coordinates, bias_table, found.rows).unbind(-1):
            table_grad.index_add_(0, entry.flatten(), slopes.permute(0, 2, 3, 1).flatten(0, 2))
        table_grad = table_grad.to(query.dtype)
    slopes, weights = _rounded(slopes, query), _rounded(weights, query)
    return (
        _scatter(factor(scale, query) * (slopes @ keys), found.rows, query),
        _scatter(factor(scale, query) * (slopes.transpose(-1, -2) @ queries), found.rows, key),
        _scatter(weights.transpose(-1, -2) @ grads, found.rows, value),
        table_grad,
    )


def factor(scale: float | None, query: Tensor) -> float:
    """The factor of the dot products; None, which does not fix the size in compiled code, means 1 / sqrt(D)."""
    return query.shape[-1] ** -0.5 if scale is None else scale


def table_bound(bias_table: Tensor) -> int:
    """The largest difference of coordinates that has its own row in each third of the table."""
    return (bias_table.shape[0] // 3 - 1) // 2


def _rounded(factors: Tensor, like: Tensor) -> Tensor:
    return factors.to(like.dtype).to(factors.dtype)


def _logits(
    queries: Tensor, keys: Tensor, found: Windows, coordinates: Tensor | None, bias_table: Tensor | None, scale: float
) -> Tensor:
    """(P, H, patch, patch), -inf for missing keys; finite in patches without any."""
    logits = scale * (queries @ keys.transpose(-1, -2))
    if coordinates is not None and bias_table is not None:
        table_rows = _table_rows(coordinates, bias_table, found.rows)
        biases = bias_table.to(logits.dtype).index_select(0, table_rows.flatten())
        logits = logits + biases.reshape(*table_rows.shape, logits.shape[1]).sum(-2).permute(0, 3, 1, 2)
    missing = (found.rows < 0) & (found.rows >= 0).any(1, keepdim=True)
    return logits.masked_fill(missing[:, None, None], -torch.inf)


def _table_rows(coordinates: Tensor, bias_table: Tensor, rows: Tensor) -> Tensor:
    """(P, patch, patch, 3) the rows of the table for each pair of a query and a key."""
    bound = table_bound(bias_table)
    places = _pick(coordinates.reshape(-1, 3), rows.flatten()).reshape(*rows.shape, 3)
    steps = (places.unsqueeze(2) - places.unsqueeze(1)).clamp(-bound, bound) + bound
    return steps + torch.arange(3, device=rows.device) * (2 * bound + 1)


def _gather(features: Tensor, found: Windows, own: bool = False) -> Tensor:
    """(P, H, patch, D) in at least float32, zero for missing rows; queries are also zero for shared keys."""
    rows = torch.where(found.own, found.rows, -1) if own else found.rows
    picked = _pick(features.flatten(0, -3), rows.flatten())
    return picked.to(sum_dtype(features.dtype)).unflatten(0, rows.shape).transpose(1, 2)


def _pick(rows: Tensor, index: Tensor) -> Tensor:
    """The indexed rows, zero for -1."""
    padded = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])
    return padded.index_select(0, torch.where(index >= 0, index, len(rows)))


def _scatter(picked: Tensor, rows: Tensor, features: Tensor) -> Tensor:
    """The adjoint of `_gather`."""
    heads, depth = features.shape[-2:]
    count = math.prod(features.shape[:-2])
    total = picked.new_zeros(count + 1, heads, depth)  # the last row is dropped
    total.index_add_(0, torch.where(rows >= 0, rows, count).flatten(), picked.transpose(1, 2).flatten(0, 1))
    return total[:count].reshape(features.shape).to(features.dtype, copy=True)


def rotary_embedding(features: Tensor, positions: Tensor, base: float) -> Tensor:
    pairs = features.shape[-1] // 6
    frequency = frequencies(features, base)
    angle = positions.to(frequency.dtype).unsqueeze(-1) * frequency  # (N, 3, pairs)
    cos, sin = angle.cos().unsqueeze(-3), angle.sin().unsqueeze(-3)
    first, second = features.to(frequency.dtype).unflatten(-1, (3, 2, pairs)).unbind(-2)  # (N, H, 3, pairs)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], -2)
    return turned.flatten(-3).to(features.dtype)


def frequencies(features: Tensor, base: float) -> Tensor:
    """(D / 6,) the angle by which each pair of channels is rotated for one unit of a coordinate."""
    pairs = features.shape[-1] // 6
    step = torch.arange(pairs, device=features.device, dtype=sum_dtype(features.dtype))
    return torch.pow(base, -step / max(pairs, 1))
