"""Attention of padded and of concatenated sequences by `scaled_dot_product_attention`."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pointgrad.ops import checks

from .. import _scalars


class Options(NamedTuple):
    """Arguments that all functions have in common."""

    dropout_p: float
    softmax_scale: float | None
    causal: bool
    window_size: tuple[int, int]


def options(
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Any,
    return_attn_probs: bool,
    block_table: Any = None,
) -> Options:
    """Check these arguments, and refuse those that are not provided."""
    checks.number("dropout_p", dropout_p)
    if softmax_scale is not None:
        checks.number("softmax_scale", softmax_scale, "a number or None")
    is_pair = isinstance(window_size, (tuple, list)) and len(window_size) == 2
    checks.kind(is_pair and all(map(checks.is_integer, window_size)), "window_size", "two ints", window_size)
    checks.value(0 <= dropout_p < 1, "dropout_p", "in [0, 1)", dropout_p)
    refused = {
        "softcap": softcap != 0,
        "alibi_slopes": alibi_slopes is not None,
        "return_attn_probs": bool(return_attn_probs),
        "block_table": block_table is not None,
    }
    for name, given in refused.items():
        if given:
            raise NotImplementedError(f"pointgrad.compat.flash_attn does not provide the argument {name}")
    left, right = (size if size >= 0 else -1 for size in window_size)
    return Options(dropout_p, softmax_scale, bool(causal), (left, 0 if causal else right))


def unpack(name: str, packed: Any, parts: int, shape: str, axis: int) -> tuple[Tensor, ...]:
    """Split q, k and v, or k and v, that are stacked along an axis before the heads."""
    checks.tensor(name, packed)
    checks.shape(packed.dim() == axis + 3 and packed.shape[axis] == parts, name, shape, packed)
    return packed.unbind(axis)


def attend_padded(q: Any, k: Any, v: Any, options: Options) -> Tensor:
    """Attention of q (B, Lq, H, D) to k and v (B, Lk, G, D), where G divides H: (B, Lq, H, D)."""
    _check_inputs(q, k, v, ("(batch, seqlen, nheads, headdim)", "(batch, seqlen_k, nheads_k, headdim)"), 4)
    checks.shape(q.shape[0] == k.shape[0], "k", lambda: f"the batch size of q, {q.shape[0]}", k, verb="have")
    return _attend(q, k, v, options)


def attend_packed(
    q: Any,
    k: Any,
    v: Any,
    starts_q: Any,
    starts_k: Any,
    max_q: Any,
    max_k: Any,
    options: Options,
    suffixes: tuple[str, str] = ("_q", "_k"),
) -> Tensor:
    """Attention of q (N, H, D) to k and v (M, G, D); `starts_*` (B + 1,) are the first rows of the sequences.

    `suffixes` complete the names of the arguments in error messages.
    """
    _check_inputs(q, k, v, ("(total_q, nheads, headdim)", "(total_k, nheads_k, headdim)"), 3)
    max_q = _check_starts(suffixes[0], starts_q, max_q, q)
    max_k = _check_starts(suffixes[1], starts_k, max_k, k)
    count = len(starts_q) - 1
    same = len(starts_k) == len(starts_q)
    checks.shape(same, "cu_seqlens_k", lambda: f"({count + 1},), as cu_seqlens_q", starts_k)
    if len(q) == count * max_q and len(k) == count * max_k:  # no sequence is shorter than the longest
        batched_q = q.unflatten(0, (count, max_q))
        batched_k, batched_v = (part.unflatten(0, (count, max_k)) for part in (k, v))
        return _attend(batched_q, batched_k, batched_v, options).flatten(0, 1)

    # Sequences of equal lengths are moved together, and one call is made for each pair of lengths.
    lengths = torch.stack([starts_q.diff(), starts_k.diff()], 1)
    pairs, group, counts = lengths.unique(dim=0, return_inverse=True, return_counts=True)
    order_q = group.repeat_interleave(lengths[:, 0], output_size=len(q)).argsort(stable=True)
    order_k = order_q
    if starts_k is not starts_q:
        order_k = group.repeat_interleave(lengths[:, 1], output_size=len(k)).argsort(stable=True)
    q, k, v = q[order_q], k[order_k], v[order_k]
    parts, begin_q, begin_k = [], 0, 0
    for (length_q, length_k), number in zip(pairs.tolist(), counts.tolist(), strict=True):
        end_q, end_k = begin_q + number * length_q, begin_k + number * length_k
        part = _attend(
            q[begin_q:end_q].unflatten(0, (number, length_q)),
            k[begin_k:end_k].unflatten(0, (number, length_k)),
            v[begin_k:end_k].unflatten(0, (number, length_k)),
            options,
        )
        parts.append(part.flatten(0, 1))
        begin_q, begin_k = end_q, end_k
    inverse = torch.empty_like(order_q)
    inverse[order_q] = torch.arange(len(order_q), device=order_q.device)
    return torch.cat(parts)[inverse]


def _attend(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
    """One call of `scaled_dot_product_attention`, whose layout is (B, H, L, D)."""
    dtype = q.dtype
    if dtype == torch.float16 and q.device.type == "cpu":  # float32 is three times as fast there
        q, k, v = q.float(), k.float(), v.float()
    length_q, length_k = q.shape[1], k.shape[1]
    left, right = options.window_size
    is_causal = left < 0 and right == 0 and length_q == length_k
    mask = seeing = None
    if (left >= 0 or right >= 0) and not is_causal:
        last = torch.arange(length_q, device=q.device).unsqueeze(1) + length_k - length_q
        offset = torch.arange(length_k, device=q.device) - last
        mask = torch.ones_like(offset, dtype=torch.bool)
        if left >= 0:
            mask &= offset >= -left
        if right >= 0:
            mask &= offset <= right
        # A row without keys attends to all of them, and its output is replaced by 0: not all of torch's kernels
        # have finite gradients for a row that is masked completely.
        seeing = mask.any(1, keepdim=True)
        mask |= ~seeing
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        dropout_p=options.dropout_p,
        is_causal=is_causal,
        scale=options.softmax_scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return (out if seeing is None else torch.where(seeing, out, 0)).transpose(1, 2).to(dtype)


def _check_inputs(q: Any, k: Any, v: Any, shapes: tuple[str, str], rank: int) -> None:
    for name, given in (("q", q), ("k", k), ("v", v)):
        checks.tensor(name, given)
    checks.shape(q.dim() == rank, "q", shapes[0], q)
    checks.shape(k.dim() == rank and k.shape[-1] == q.shape[-1], "k", f"{shapes[1]} with q's headdim", k)
    checks.shape(v.shape == k.shape, "v", lambda: f"{tuple(k.shape)}, as k", v)
    heads, heads_k = q.shape[-2], k.shape[-2]
    divides = heads_k > 0 and heads % heads_k == 0
    checks.shape(divides, "k", lambda: f"a number of heads that divides q's {heads}", k, verb="have")
    checks.dtype("q", q, checks.FLOATS)
    for name, given in (("k", k), ("v", v)):
        checks.same_dtype(name, given, "q", q)
        checks.device(name, given, "q", q)


def _check_starts(suffix: str, starts: Any, longest: Any, rows: Tensor) -> int:
    """Check the first rows of the sequences and the length of the longest one; return this length."""
    name, max_name = f"cu_seqlens{suffix}", f"max_seqlen{suffix}"
    checks.tensor(name, starts)
    checks.shape(starts.dim() == 1 and len(starts) > 0, name, "(batch + 1,)", starts)
    checks.dtype(name, starts, checks.INDICES)
    checks.device(name, starts, "q", rows)
    longest = _scalars.count_of(max_name, longest, least=0)
    if starts.device.type == "cpu" and not _scalars.is_traced(starts):
        checks.offsets_values(starts, len(rows), name, "the number of rows")
        actual = int(starts.diff().max()) if len(starts) > 1 else 0
        checks.value(longest >= actual, max_name, f"at least {actual}, the length of the longest sequence", longest)
    return longest
