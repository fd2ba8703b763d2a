"""Weighted sums over lists of neighbors, and attention."""

import numbers

import torch
from torch import Tensor

from .. import checks
from . import register

__all__ = ["aggregate", "masked_softmax", "neighbor_attention"]


def masked_softmax(logits: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Apply softmax over `dim` to the entries where `mask` is True; all others are exactly zero.

    Gradients flow to `logits`, to any order. Masked entries do not affect them, even if they are NaN.

    Args:
        logits: Any shape with at least one dimension. float64 to bfloat16; 16-bit logits are computed in float32.
        mask: bool, broadcastable to the shape of `logits`.
        dim: The dimension over which the result sums to one.

    Returns:
        Shape and dtype of `logits`. If all entries along `dim` are masked, the results and their gradients are zero. A
        logit of -inf counts as masked; NaN and +inf give NaN, as in `torch.softmax`.

    Example:
        >>> mask = torch.tensor([[True, True, False], [False, False, False]])
        >>> masked_softmax(torch.tensor([[1., 1., 7.], [1., 2., 3.]]), mask)
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    checks.tensor("logits", logits)
    checks.tensor("mask", mask)
    checks.kind(checks.is_integer(dim), "dim", "an int", dim)
    checks.shape(logits.dim() > 0, "logits", "at least one dimension", logits, verb="have")
    trailing = logits.shape[max(logits.dim() - mask.dim(), 0) :]
    fits = len(trailing) == mask.dim() and all(m in (1, n) for m, n in zip(mask.shape, trailing, strict=True))
    checks.shape(fits, "mask", lambda: f"broadcastable to logits {tuple(logits.shape)}", mask)
    checks.dtype("logits", logits, checks.FLOATS)
    checks.dtype("mask", mask, (torch.bool,))
    checks.device("mask", mask, "logits", logits)
    inside = -logits.dim() <= dim < logits.dim()
    checks.value(inside, "dim", lambda: f"in [{-logits.dim()}, {logits.dim()})", dim)
    return register.masked_softmax(logits, mask, dim % logits.dim())


def aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    """Compute the weighted sum of the neighbors of each center, without building (M, K, C) tensors.

    Gradients flow to `weights` and `values`, to any order. Sums are accumulated in at least float32.

    Args:
        weights: (M, K), or (M, K, G) with one weight for each of G groups of consecutive channels, where G divides C;
            with a leading B if padded. G = C gives each channel its own weight.
        values: (N, C) packed, or (B, N, C) padded, in the dtype of `weights`. Under autocast the inputs are cast to the
            wider of the two dtypes.
        index: (M, K) packed (global), or (B, M, K) padded (local to each cloud). int64 or int32. -1 contributes
            nothing, and its weight gets a zero gradient. Any other index out of range raises a ValueError on the CPU
            and counts as -1 on a GPU.

    Returns:
        (M, C) or (B, M, C), where `out[m, c] = sum_k weights[m, k, c // (C / G)] * values[index[m, k], c]`.

    Example:
        >>> values = torch.tensor([[1., 10.], [2., 20.], [3., 30.]])
        >>> aggregate(torch.tensor([[0.5, 0.5], [2., 9.]]), values, torch.tensor([[0, 1], [2, -1]])).tolist()
        [[1.5, 15.0], [6.0, 60.0]]
    """
    for name, value in (("weights", weights), ("values", values), ("index", index)):
        checks.tensor(name, value)
    checks.shape(values.dim() in (2, 3), "values", "(N, C) or (B, N, C)", values)
    fits = index.dim() == values.dim() and index.shape[:-2] == values.shape[:-2]
    checks.shape(fits, "index", "(M, K) with values (N, C), or (B, M, K) with (B, N, C)", index)
    grouped = weights.dim() == index.dim() + 1
    fits = weights.shape[: index.dim()] == index.shape and weights.dim() <= index.dim() + 1
    checks.shape(fits, "weights", lambda: f"{_spell(index.shape)} like index, or {_spell(index.shape, 'G')}", weights)
    if grouped:
        divides = weights.shape[-1] > 0 and values.shape[-1] % weights.shape[-1] == 0
        checks.shape(
            divides, "weights", lambda: f"{_spell(index.shape, 'G')} with G dividing C = {values.shape[-1]}", weights
        )
    checks.dtype("weights", weights, checks.FLOATS)
    checks.dtype("values", values, checks.FLOATS)
    if not checks.autocasts(weights):
        checks.same_dtype("values", values, "weights", weights)
    checks.dtype("index", index, checks.INDICES)
    checks.device("values", values, "weights", weights)
    checks.device("index", index, "weights", weights)
    return register.aggregate(weights if grouped else weights.unsqueeze(-1), values, index.long())


def neighbor_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute attention of each center to its own list of neighbors, without building (M, K, H, D) tensors.

    For each head, the result is the sum of `value[index[m, k]]` over k, with the weights
    `softmax_k(scale * dot(query[m], key[index[m, k]]) + bias[m, k])`. A center without neighbors gives zeros, with zero
    gradients. Gradients flow to `query`, `key`, `value` and `bias`, to any order. Softmax and sums are computed in at
    least float32. Under autocast the inputs are cast to the widest dtype among them.

    Args:
        query: (M, H, D), one query for each of M centers and H heads; with a leading B if padded.
        key: (N, H, D), with a leading B if padded; same dtype as `query`.
        value: (N, H, Dv), with a leading B if padded; same dtype as `query`.
        index: (M, K) packed (global), or (B, M, K) padded (local to each cloud), as returned by a neighbor search.
            int64 or int32. -1 is left out. Any other index out of range raises a ValueError on the CPU and counts as -1
            on a GPU.
        bias: (M, K, H), or (M, K, 1) shared by all heads; with a leading B if padded. Added to the logits, for example
            computed from positions. -inf leaves a neighbor out, unless its row is NaN.
        scale: Factor of the dot products, by default 1 / sqrt(D).

    Returns:
        (M, H, Dv) or (B, M, H, Dv).

    Example:
        >>> query, key = torch.zeros(1, 1, 2), torch.zeros(3, 1, 2)
        >>> value = torch.tensor([1., 2., 6.]).reshape(3, 1, 1)
        >>> neighbor_attention(query, key, value, torch.tensor([[0, 2, -1]])).flatten()
        tensor([3.5000])
    """
    tensors = [("query", query), ("key", key), ("value", value), ("index", index)]
    tensors += [] if bias is None else [("bias", bias)]
    for name, given in tensors:
        checks.tensor(name, given)
    is_number = isinstance(scale, (numbers.Real, torch.SymFloat)) and not isinstance(scale, bool)
    checks.kind(scale is None or is_number, "scale", "a number or None", scale)
    heads_fit = query.dim() in (3, 4) and query.shape[-2] > 0
    checks.shape(heads_fit, "query", "(M, H, D) or (B, M, H, D) with at least one head", query)
    batch = query.shape[:-3]
    fits = key.dim() == query.dim() and key.shape[:-3] == batch and key.shape[-2:] == query.shape[-2:]
    checks.shape(fits, "key", lambda: f"{_spell(batch, 'N', *query.shape[-2:])} to match query", key)
    fits = value.dim() == key.dim() and value.shape[:-1] == key.shape[:-1]
    checks.shape(fits, "value", lambda: f"{_spell(key.shape[:-1], 'Dv')} to match key", value)
    fits = index.dim() == len(batch) + 2 and index.shape[:-1] == query.shape[:-2]
    checks.shape(fits, "index", lambda: f"{_spell(query.shape[:-2], 'K')} to match query", index)
    if bias is not None:
        fits = bias.dim() == index.dim() + 1 and bias.shape[:-1] == index.shape
        fits = fits and bias.shape[-1] in (1, query.shape[-2])
        checks.shape(fits, "bias", lambda: f"{_spell(index.shape, query.shape[-2])} or {_spell(index.shape, 1)}", bias)
    for name, given in tensors:
        checks.dtype(name, given, checks.INDICES if name == "index" else checks.FLOATS)
        if name != "index" and not checks.autocasts(query):
            checks.same_dtype(name, given, "query", query)
    for name, given in tensors:
        checks.device(name, given, "query", query)
    scale = None if scale is None else float(scale)
    out, _ = register.neighbor_attention(query, key, value, index.long(), bias, scale)
    return out


def _spell(*parts: object) -> str:
    """The text of a shape that consists of sizes and names."""
    sizes = [size for part in parts for size in (part if isinstance(part, tuple) else (part,))]
    return f"({', '.join(map(str, sizes))})"
