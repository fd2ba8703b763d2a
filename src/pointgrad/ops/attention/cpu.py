"""Calls of the C++ kernels of this family."""

from typing import Any

from torch import Tensor

from .. import native
from ..sums import sum_dtype
from .reference import factor


def aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    out = native.empty(values, (*index.shape[:-1], values.shape[-1]))
    native.module.aggregate(
        out=out,
        weights=weights.contiguous(),
        values=values.contiguous(),
        dtype=values.dtype,
        **_neighbors(index, values.shape[-2]),
        **_channels(values, weights.shape[-1]),
    )
    return out


def aggregate_values(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> Tensor:
    total = native.empty(grad, (*grad.shape[:-2], num_rows, grad.shape[-1]), sum_dtype(grad.dtype))
    native.module.aggregate_values(
        total=total,
        weights=weights.contiguous(),
        grad=grad.contiguous(),
        dtype=grad.dtype,
        **_neighbors(index, num_rows),
        **_channels(grad, weights.shape[-1]),
    )
    return total.to(grad.dtype)


def aggregate_weights(grad: Tensor, values: Tensor, index: Tensor, groups: int) -> Tensor:
    out = native.empty(grad, (*index.shape, groups))
    native.module.aggregate_weights(
        out=out,
        grad=grad.contiguous(),
        values=values.contiguous(),
        dtype=grad.dtype,
        **_neighbors(index, values.shape[-2]),
        **_channels(grad, groups),
    )
    return out


def neighbor_attention(
    query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    out = native.empty(query, (*query.shape[:-1], value.shape[-1]))
    norm = native.empty(query, (*query.shape[:-1], 2), sum_dtype(query.dtype))
    native.module.neighbor_attention(out=out, norm=norm, **_attention(query, key, value, index, bias, scale))
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
    """The kernel does not need `norm`: it has all logits of a center at once."""
    grad_query = native.empty(query, query.shape)
    weights = native.empty(query, (*index.shape, query.shape[-2]), norm.dtype)
    slopes = native.empty(weights, weights.shape)
    native.module.neighbor_attention_backward(
        grad_query=grad_query,
        weights=weights,
        slopes=slopes,
        grad=grad.contiguous(),
        **_attention(query, key, value, index, bias, scale),
    )
    return grad_query, weights, slopes


def _neighbors(index: Tensor, rows: int) -> dict[str, Any]:
    """The arguments that describe lists of neighbors."""
    centers, neighbors = index.shape[-2:]
    return {
        "index": index.contiguous(),
        "batch": index.shape[0] if index.dim() == 3 else 1,
        "rows": rows,
        "centers": centers,
        "neighbors": neighbors,
    }


def _channels(values: Tensor, groups: int) -> dict[str, int]:
    """The arguments that describe groups of channels."""
    return {"groups": groups, "width": values.shape[-1] // groups}


def _attention(
    query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, scale: float | None
) -> dict[str, Any]:
    """The arguments that describe queries, keys, values and lists of neighbors."""
    *batch, num_rows, heads, depth = key.shape
    centers, neighbors = index.shape[-2:]
    return {
        "query": query.contiguous(),
        "key": key.contiguous(),
        "value": value.contiguous(),
        "bias": None if bias is None else bias.contiguous(),
        "scale": factor(scale, query),
        "dtype": query.dtype,
        "heads": heads,
        "depth": depth,
        "value_width": value.shape[-1],
        "bias_heads": 0 if bias is None else bias.shape[-1],
        "index": index.contiguous(),
        "batch": batch[0] if batch else 1,
        "rows": num_rows,
        "centers": centers,
        "neighbors": neighbors,
    }
