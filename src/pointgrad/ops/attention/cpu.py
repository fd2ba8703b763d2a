"""Hands tensors to the C++ kernels of this room."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import native


def aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    out = native.empty(values, (*index.shape[:-1], values.shape[-1]))
    groups = weights.shape[-1]
    _call(native.module.aggregate, [out], [weights, values], index, values.shape[-2], groups, values.shape[-1] // groups)
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
    batch = index.shape[0] if index.dim() == 3 else 1
    kernel(
        *(tensor.data_ptr() for tensor in (*outputs, *solid)),
        native.DTYPE_CODES[inputs[0].dtype],
        batch,
        rows,
        index.shape[-2],
        index.shape[-1],
        groups,
        width,
        torch.get_num_threads(),
    )
