"""Schema, fake and autograd of this room's operators.

`aggregate` and its two adjoints are closed under differentiation (README.md). The gradient of
`neighbor_attention` is made of them and of `neighbor_attention_backward`, whose own gradient is autograd
on a composition of them: none of it builds an (M, K, C) tensor.
"""

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..registry import operator


def _fake_softmax(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    return torch.empty_like(logits)


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, mask, ctx.dim = inputs
    ctx.save_for_backward(output, mask)


def _grad_softmax(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    output, mask = ctx.saved_tensors
    wide = torch.promote_types(grad.dtype, torch.float32)
    # What is masked takes no part, not even by zero times infinity.
    weights, grad_wide = output.to(wide), torch.where(mask, grad, 0).to(wide)
    slopes = weights * (grad_wide - (weights * grad_wide).sum(ctx.dim, keepdim=True))
    return slopes.to(grad.dtype), None, None  # mask: booleans, dim: a number


masked_softmax = operator(
    "masked_softmax(Tensor logits, Tensor mask, int dim) -> Tensor",
    room=__package__,
    kernels=(),
    fake=_fake_softmax,
    save=_save_softmax,
    backward=_grad_softmax,
)


def _check_aggregate(weights: Tensor, values: Tensor, index: Tensor) -> None:
    checks.index_values(index, values.shape[-2])


def _fake_aggregate(weights: Tensor, values: Tensor, index: Tensor) -> Tensor:
    return values.new_empty((*index.shape[:-1], values.shape[-1]))


def _save_aggregate(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weights, values, index = inputs
    for_weights, for_values = ctx.needs_input_grad[:2]
    ctx.save_for_backward(weights if for_values else None, values if for_weights else None, index)
    ctx.groups, ctx.num_rows = weights.shape[-1], values.shape[-2]


def _grad_aggregate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    weights, values, index = ctx.saved_tensors
    for_weights, for_values = ctx.needs_input_grad[:2]
    return (
        aggregate_weights(grad, values, index, ctx.groups) if for_weights else None,
        aggregate_values(weights, grad, index, ctx.num_rows) if for_values else None,
        None,  # index: integers
    )


aggregate = operator(
    "aggregate(Tensor weights, Tensor values, Tensor index) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_aggregate,
    check=_check_aggregate,
    save=_save_aggregate,
    backward=_grad_aggregate,
    autocast="widest",
)


def _check_values(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> None:
    checks.index_values(index, num_rows)


def _fake_values(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-2], num_rows, grad.shape[-1]))


def _save_values(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weights, grad, index, _ = inputs
    for_weights, for_grad = ctx.needs_input_grad[:2]
    ctx.save_for_backward(weights if for_grad else None, grad if for_weights else None, index)
    ctx.groups = weights.shape[-1]


def _grad_values(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    weights, grad, index = ctx.saved_tensors
    for_weights, for_grad = ctx.needs_input_grad[:2]
    return (
        aggregate_weights(grad, grad_out, index, ctx.groups) if for_weights else None,
        aggregate(weights, grad_out, index) if for_grad else None,
        None,  # index: integers
        None,  # num_rows: a number
    )


aggregate_values = operator(
    "aggregate_values(Tensor weights, Tensor grad, Tensor index, SymInt num_rows) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_values,
    check=_check_values,
    save=_save_values,
    backward=_grad_values,
)


def _check_weights(grad: Tensor, values: Tensor, index: Tensor, groups: int) -> None:
    checks.index_values(index, values.shape[-2])


def _fake_weights(grad: Tensor, values: Tensor, index: Tensor, groups: int) -> Tensor:
    return grad.new_empty((*index.shape, groups))


def _save_weights(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, values, index, _ = inputs
    for_grad, for_values = ctx.needs_input_grad[:2]
    ctx.save_for_backward(grad if for_values else None, values if for_grad else None, index)
    ctx.num_rows = values.shape[-2]


def _grad_weights(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    grad, values, index = ctx.saved_tensors
    for_grad, for_values = ctx.needs_input_grad[:2]
    return (
        aggregate(grad_out, values, index) if for_grad else None,
        aggregate_values(grad_out, grad, index, ctx.num_rows) if for_values else None,
        None,  # index: integers
        None,  # groups: a number
    )


aggregate_weights = operator(
    "aggregate_weights(Tensor grad, Tensor values, Tensor index, SymInt groups) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_weights,
    check=_check_weights,
    save=_save_weights,
    backward=_grad_weights,
)
