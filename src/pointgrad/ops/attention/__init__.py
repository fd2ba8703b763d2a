"""Weighted sums over lists of neighbours, and where the weights come from."""

import numbers

import torch
from torch import Tensor

from .. import checks
from . import register

__all__ = ["aggregate", "masked_softmax", "neighbor_attention"]


def masked_softmax(logits: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax over `dim` among the entries where `mask` is True; the others get exactly zero.

    logits: any shape of at least one dimension, float64 to bfloat16; 16-bit logits are computed in float32.
    mask: bool, of the shape of `logits` or broadcast to it.
    returns: shape and dtype of `logits`. A row that is masked everywhere gives zeros, with zero gradients. A
        logit of minus infinity counts as masked; NaN and plus infinity give NaN, as in `torch.softmax`.

    Gradients reach `logits`, to any order. What is masked has no part in them, even if it is NaN.

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
    """The weighted sum of each centre's neighbours, without building the (M, K, C) neighbourhoods.

    weights: (M, K), or (M, K, G) with one weight for each of G groups of neighbouring channels, where G
        divides C; with a leading B if padded. G = C weighs each channel on its own.
    values: (N, C) packed, or (B, N, C) padded; same dtype as `weights`. Under autocast the wider of the two.
    index: (M, K) packed (global), or (B, M, K) padded (local to its cloud); int64 or int32.
    returns: (M, C) or (B, M, C), `out[m, c] = sum_k weights[m, k, c // (C / G)] * values[index[m, k], c]`.
        -1 (nothing here) adds nothing and its weight gets a zero gradient.

    Gradients reach `weights` and `values`, to any order. Sums are kept in at least float32. Any other index
    out of range is a ValueError on the CPU; on a GPU it counts as -1.

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
    """Attention of each centre to its own list of neighbours, without building (M, K, H, D) tensors.

    query: (M, H, D), one query for each of M centres and H heads; with a leading B if padded.
    key, value: (N, H, D) and (N, H, Dv), or with a leading B; same dtype as `query`.
    index: (M, K) packed (global), or (B, M, K) padded (local to its cloud), as a neighbour search returns it;
        int64 or int32.
    bias: (M, K, H), or (M, K, 1) for all heads alike: added to the logits, for instance made from positions.
    scale: of the dot products, 1 / sqrt(D) if not given.
    returns: (M, H, Dv) or (B, M, H, Dv): for each head
        `softmax_k(scale * <query[m], key[index[m, k]]> + bias[m, k])`-weighted sum of `value[index[m, k]]`.
        -1 (nothing here) takes no part, and so does a bias of minus infinity, unless its row is NaN; a centre
        without neighbours gives zeros, with zero gradients.

    Gradients reach `query`, `key`, `value` and `bias`, to any order. Softmax and sums are computed in at least
    float32. Under autocast the inputs are cast to the widest dtype among them. Any other index out of range is
    a ValueError on the CPU; on a GPU it counts as -1.

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
    if scale is None:
        scale = max(query.shape[-1], 1) ** -0.5
    out, _ = register.neighbor_attention(query, key, value, index.long(), bias, float(scale))
    return out


def _spell(*parts: object) -> str:
    """A shape of sizes and names."""
    sizes = [size for part in parts for size in (part if isinstance(part, tuple) else (part,))]
    return f"({', '.join(map(str, sizes))})"
