"""Attention on gathered copies of patches: by torch's flash attention, or in plain PyTorch.

Flash attention has no gradient for a bias and does not propagate NaN. Then logits of a limited number of pairs are held.

Patches with equal numbers of queries and of keys are computed together, so that nothing is masked.
"""

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from .. import clouds
from ..sums import sum_dtype
from .reference import factor, table_bound

_PAIRS = 2**22  # logits that plain PyTorch holds at a time
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


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
    num_rows, heads = order.numel(), query.shape[-2]
    out = query.new_zeros(query.shape)
    norm = query.new_zeros((num_rows, heads), dtype=sum_dtype(query.dtype))  # by place
    rows = _rows(order)
    plain = bias_table is not None or not _finite(query, key, value)
    for queries, keys in _groups(order, sizes, patch, heads, plain):
        at, of = rows[queries], rows[keys]
        q, k, v = _gather(query, at), _gather(key, of), _gather(value, of)
        if not plain:
            found, norms = _flash(q, k, v, scale=factor(scale, query))
        else:
            table_rows = _table_rows(coordinates, bias_table, at, of)
            logits = _logits(q, k, table_rows, bias_table, factor(scale, query))
            found, norms = logits.softmax(-1) @ v.to(logits.dtype), logits.logsumexp(-1)
        _put(out, at, found)
        norm[queries] = norms.transpose(1, 2)
    return out, norm.reshape(*order.shape, heads).transpose(-1, -2).contiguous()


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
    heads, factors = query.shape[-2], factor(scale, query)
    grads = [torch.zeros_like(given, memory_format=torch.contiguous_format) for given in (query, key, value)]
    wide = sum_dtype(query.dtype)
    table_grad = query.new_zeros((0, heads) if bias_table is None else bias_table.shape, dtype=wide)
    norm = norm.transpose(-1, -2).reshape(-1, heads)
    rows = _rows(order)
    plain = bias_table is not None or not _finite(query, key, value, grad)
    for queries, keys in _groups(order, sizes, patch, heads, plain):
        at, of = rows[queries], rows[keys]
        q, k, v, g = _gather(query, at), _gather(key, of), _gather(value, of), _gather(grad, at)
        if not plain:
            norms = norm[queries].transpose(1, 2)
            found = _flash_backward(g, q, k, v, _gather(out, at), norms, 0.0, False, scale=factors)
        else:
            table_rows = _table_rows(coordinates, bias_table, at, of)
            weights = _logits(q, k, table_rows, bias_table, factors).softmax(-1)
            q, k, v, g = (given.to(wide) for given in (q, k, v, g))
            level = (g * _gather(out, at)).sum(-1, keepdim=True)
            slopes = weights * (g @ v.transpose(-1, -2) - level)
            for entry in table_rows:
                table_grad.index_add_(0, entry.flatten(), slopes.permute(0, 2, 3, 1).flatten(0, 2))
            turned = slopes.transpose(-1, -2)
            found = (factors * (slopes @ k), factors * (turned @ q), weights.transpose(-1, -2) @ g)
        _put(grads[0], at, found[0])
        # Groups with borrowed keys come last.
        for total, part in zip(grads[1:], found[1:], strict=True):
            _put(total, of, part, add=keys is not queries)
    return grads[0], grads[1], grads[2], table_grad.to(query.dtype)


def _groups(
    order: Tensor, sizes: Tensor | None, patch: int, heads: int, chunked: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """The places (G, M) of the queries and (G, K) of the keys of G patches; first those whose keys are its queries."""
    begin, count = clouds.bounds(order.unsqueeze(-1), sizes)
    whole = count // patch
    number = torch.arange(int(whole.sum())) - (whole.cumsum(0) - whole).repeat_interleave(whole)
    starts = begin.repeat_interleave(whole) + number * patch
    groups = [(starts, 0, patch, patch)] if len(starts) else []
    rest: dict[tuple[bool, int], list[int]] = defaultdict(list)
    for first, points in zip(begin.tolist(), count.tolist(), strict=True):
        if points % patch:
            rest[points > patch, points % patch].append(first + points - min(points, patch))
    for (borrows, queries), firsts in sorted(rest.items()):
        keys = patch if borrows else queries
        groups.append((torch.tensor(firsts), keys - queries, queries, keys))
    for firsts, skipped, queries, keys in groups:
        size = max(1, _PAIRS // (heads * queries * keys)) if chunked else len(firsts)
        for part in firsts.split(size):
            window = part.unsqueeze(1) + torch.arange(keys)
            yield (window[:, skipped:], window) if skipped else (window, window)


def _rows(order: Tensor) -> Tensor:
    """(R,) the row at each place, counted through all clouds."""
    if order.dim() == 1:
        return order
    return (order + torch.arange(order.shape[0]).unsqueeze(1) * order.shape[1]).flatten()


def _gather(features: Tensor, rows: Tensor) -> Tensor:
    """(G, H, M, D) for rows (G, M)."""
    return features.flatten(0, -3).index_select(0, rows.flatten()).unflatten(0, rows.shape).transpose(1, 2)


def _put(total: Tensor, rows: Tensor, values: Tensor, add: bool = False) -> None:
    parts = values.transpose(1, 2).flatten(0, 1).to(total.dtype)
    flat = total.view(-1, *total.shape[-2:])
    if add:
        flat.index_add_(0, rows.flatten(), parts)
    else:
        flat.index_copy_(0, rows.flatten(), parts)


def _finite(*tensors: Tensor) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _logits(q: Tensor, k: Tensor, table_rows: list[Tensor], bias_table: Tensor | None, scale: float) -> Tensor:
    """(G, H, M, K) in at least float32."""
    wide = sum_dtype(q.dtype)
    logits = scale * (q.to(wide) @ k.to(wide).transpose(-1, -2))
    for entry in table_rows:
        assert bias_table is not None
        picked = bias_table.to(wide).index_select(0, entry.flatten())
        logits += picked.unflatten(0, entry.shape).permute(0, 3, 1, 2)
    return logits


def _table_rows(coordinates: Tensor | None, bias_table: Tensor | None, queries: Tensor, keys: Tensor) -> list[Tensor]:
    """For each axis, (G, M, K) the row of the table for each pair of a query and a key; nothing without a table."""
    if coordinates is None or bias_table is None:
        return []
    bound = table_bound(bias_table)
    axes = coordinates.reshape(-1, 3).unbind(-1)
    steps = [(axis[queries].unsqueeze(2) - axis[keys].unsqueeze(1)).clamp(-bound, bound) for axis in axes]
    return [step + (number * (2 * bound + 1) + bound) for number, step in enumerate(steps)]
