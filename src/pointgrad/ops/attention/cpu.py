"""Hands tensors to the C++ kernels of this room."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import native


def aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    out = native.empty(values, (*index.shape[:-1], values.shape[-1]))
    groups = weights.shape[-1]
    _call(
        native.module.aggregate, [out], [weights, values], index, values.shape[-2], groups, values.shape[-1] // groups
    )
    return out


def aggregate_values(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> Tensor:
    summed_in = torch.promote_types(grad.dtype, torch.float32)
    total = native.empty(grad, (*grad.shape[:-2], num_rows, grad.shape[-1]), summed_in)
    groups = weights.shape[-1]
    _call(native.module.aggregate_values, [total], [weights, grad], index, num_rows, groups, grad.shape[-1] // groups)
    return total.to(grad.dtype)


def aggregate_weights(grad: Tensor, values: Tensor, index: Tensor, groups: int) -> Tensor:
    out = native.empty(grad, (*index.shape, groups))
    width = grad.shape[-1] // groups
    _call(native.module.aggregate_weights, [out], [grad, values], index, values.shape[-2], groups, width)
    return out


def neighbor_attention(
    query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    out = native.empty(query, (*query.shape[:-1], value.shape[-1]))
    norm = native.empty(query, (*query.shape[:-1], 2), torch.promote_types(query.dtype, torch.float32))
    _attend(native.module.neighbor_attention, [out, norm], [], query, key, value, index, bias, scale)
    return out, norm


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
    """Needs no `norm`: here all logits of a centre are at hand at once."""
    grad_query = native.empty(query, query.shape)
    weights = native.empty(query, (*index.shape, query.shape[-2]), norm.dtype)
    slopes = native.empty(weights, weights.shape)
    outputs = [grad_query, weights, slopes]
    _attend(native.module.neighbor_attention_backward, outputs, [grad], query, key, value, index, bias, scale)
    return grad_query, weights, slopes


def _attend(
    kernel: Callable[..., None],
    outputs: list[Tensor],
    first: list[Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    bias: Tensor | None,
    scale: float,
) -> None:
    solid = [tensor.contiguous() for tensor in (*first, query, key, value, index)]
    bias = None if bias is None else bias.contiguous()
    kernel(
        *(tensor.data_ptr() for tensor in (*outputs, *solid)),
        native.address(bias),
        scale,
        native.DTYPE_CODES[query.dtype],
        index.shape[0] if index.dim() == 3 else 1,
        key.shape[-3],
        *index.shape[-2:],
        *query.shape[-2:],
        value.shape[-1],
        0 if bias is None else bias.shape[-1],
        torch.get_num_threads(),
    )


def _call(
    kernel: Callable[..., None],
    outputs: list[Tensor],
    inputs: list[Tensor],
    index: Tensor,
    rows: int,
    groups: int,
    width: int,
) -> None:
    solid = [tensor.contiguous() for tensor in (*inputs, index)]
    kernel(
        *(tensor.data_ptr() for tensor in (*outputs, *solid)),
        native.DTYPE_CODES[inputs[0].dtype],
        index.shape[0] if index.dim() == 3 else 1,
        rows,
        *index.shape[-2:],
        groups,
        width,
        torch.get_num_threads(),
    )
