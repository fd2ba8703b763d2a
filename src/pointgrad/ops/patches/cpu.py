"""Calls of the C++ kernels of this family."""

from typing import Any

from torch import Tensor

from .. import clouds, native
from ..sums import sum_dtype
from .reference import factor, table_bound


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
    shape = (*order.shape[:-1], query.shape[-2], order.shape[-1])
    out, norm = _results(order, sizes, (query, query.shape), (query, shape, sum_dtype(query.dtype)))
    native.module.patch_attention(
        out=out, norm=norm, **_arguments(query, key, value, order, sizes, patch, coordinates, bias_table, scale)
    )
    return out, norm


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
    """The kernel does not need `out` and `norm`: it has all logits of a query at once."""
    grads = _results(order, sizes, *((given, given.shape) for given in (query, key, value)))
    table_grad = query.new_zeros((0, query.shape[-2]) if bias_table is None else bias_table.shape)
    native.module.patch_attention_backward(
        grad_query=grads[0],
        grad_key=grads[1],
        grad_value=grads[2],
        table_grad=table_grad,
        grad=grad.contiguous(),
        **_arguments(query, key, value, order, sizes, patch, coordinates, bias_table, scale),
    )
    return grads[0], grads[1], grads[2], table_grad


def _results(order: Tensor, sizes: Tensor | None, *shapes: Any) -> list[Tensor]:
    """Tensors for results, zero where clouds may be padded."""
    results = [native.empty(*shape) for shape in shapes]
    if order.dim() == 2 and sizes is not None:
        for result in results:
            result.zero_()
    return results


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    order: Tensor,
    sizes: Tensor | None,
    patch: int,
    coordinates: Tensor | None,
    bias_table: Tensor | None,
    scale: float | None,
) -> dict[str, Any]:
    return {
        "query": query.contiguous(),
        "key": key.contiguous(),
        "value": value.contiguous(),
        "order": order.contiguous(),
        "patch": patch,
        "coordinates": None if coordinates is None else coordinates.contiguous(),
        "table": None if bias_table is None else bias_table.contiguous(),
        "bound": 0 if bias_table is None else table_bound(bias_table),
        "scale": factor(scale, query),
        "dtype": query.dtype,
        "heads": query.shape[-2],
        "depth": query.shape[-1],
        **clouds.kernel_arguments(order.unsqueeze(-1), sizes),
    }
