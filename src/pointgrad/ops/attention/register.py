"""Schema, fake and autograd of this room's operators.

`aggregate` and its two adjoints are closed under differentiation (docs/operators/attention.md). The gradient of
`neighbor_attention` is made of them and of `neighbor_attention_backward`, whose own gradient is autograd
on a composition of them: none of it builds an (M, K, C) tensor.
"""

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..registry import legacy_operator as operator


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
    return torch.where(mask, slopes, 0).to(grad.dtype), None, None  # mask: booleans, dim: a number


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
    for_weights, for_values = ctx.needed[:2]
    ctx.save_for_backward(weights if for_values else None, values if for_weights else None, index)
    ctx.groups, ctx.num_rows = weights.shape[-1], values.shape[-2]


def _grad_aggregate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    weights, values, index = ctx.saved_tensors
    for_weights, for_values = ctx.needed[:2]
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
    for_weights, for_grad = ctx.needed[:2]
    ctx.save_for_backward(weights if for_grad else None, grad if for_weights else None, index)
    ctx.groups = weights.shape[-1]


def _grad_values(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    weights, grad, index = ctx.saved_tensors
    for_weights, for_grad = ctx.needed[:2]
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
    for_grad, for_values = ctx.needed[:2]
    ctx.save_for_backward(grad if for_values else None, values if for_grad else None, index)
    ctx.num_rows = values.shape[-2]


def _grad_weights(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    grad, values, index = ctx.saved_tensors
    for_grad, for_values = ctx.needed[:2]
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


def _check_attention(
    query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, scale: float
) -> None:
    checks.index_values(index, key.shape[-3])


def _fake_attention(
    query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    norm = query.new_empty((*query.shape[:-1], 2), dtype=torch.promote_types(query.dtype, torch.float32))
    return query.new_empty((*query.shape[:-1], value.shape[-1])), norm


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])


def _grad_attention(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, index, bias, norm = ctx.saved_tensors
    for_query, for_key, for_value, _, for_bias, _ = ctx.needed
    grad_query, weights, slopes = neighbor_attention_backward(grad, query, key, value, index, bias, ctx.scale, norm)
    grad_key = grad_value = grad_bias = None
    if for_key:
        scaled = ctx.scale * query.to(slopes.dtype)
        grad_key = aggregate_values(slopes, scaled.flatten(-2), index, key.shape[-3])
        grad_key = grad_key.reshape(key.shape).to(key.dtype)
    if for_value:
        grad_value = aggregate_values(weights, grad.to(weights.dtype).flatten(-2), index, value.shape[-3])
        grad_value = grad_value.reshape(value.shape).to(value.dtype)
    if for_bias:
        grad_bias = slopes.sum_to_size(bias.shape).to(bias.dtype)
    # index: integers, scale: a number
    return grad_query if for_query else None, grad_key, grad_value, None, grad_bias, None


neighbor_attention = operator(
    "neighbor_attention(Tensor query, Tensor key, Tensor value, Tensor index, Tensor? bias, float scale)"
    " -> (Tensor, Tensor)",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_attention,
    check=_check_attention,
    save=_save_attention,
    backward=_grad_attention,
    autocast="widest",
)


def _check_attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, index: Tensor, *_: Any) -> None:
    checks.index_values(index, key.shape[-3])


def _fake_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    bias: Tensor | None,
    scale: float,
    norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    weights = norm.new_empty((*index.shape, query.shape[-2]))
    return query.new_empty(query.shape), weights, torch.empty_like(weights)


def _save_attention_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale, _ = inputs
    ctx.save_for_backward(*tensors)


def _grad_attention_backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """Second derivatives: autograd on a composition. `norm` is a function of the rest: no gradient."""
    wanted = ctx.needed[:6]
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [x.view_as(x) if need else x for x, need in zip(ctx.saved_tensors, wanted, strict=True)]
        sources = [x for x, need in zip(inputs, wanted, strict=True) if need]
        pairs = zip(_composed_backward(ctx.scale, *inputs), grads, strict=True)
        outputs, upstream = zip(*((y, g) for y, g in pairs if y.requires_grad), strict=True)
        found = iter(torch.autograd.grad(outputs, sources, upstream, create_graph=again, allow_unused=True))
    return *(next(found) if need else None for need in wanted), None, None  # scale, norm


def _composed_backward(
    scale: float, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`neighbor_attention_backward` from operators that are differentiable to any order."""
    wide, heads, rows = torch.promote_types(query.dtype, torch.float32), query.shape[-2], key.shape[-3]
    keys = key.to(wide).flatten(-2)
    logits = scale * aggregate_weights(query.to(wide).flatten(-2), keys, index, heads)
    logits = logits if bias is None else logits + bias.to(wide)
    there = ((index >= 0) & (index < rows)).unsqueeze(-1)
    weights = masked_softmax(logits, there, logits.dim() - 2)
    slopes = aggregate_weights(grad.to(wide).flatten(-2), value.to(wide).flatten(-2), index, heads)
    slopes = torch.where(there, weights * (slopes - (weights * slopes).sum(-2, keepdim=True)), 0)
    grad_query = scale * aggregate(slopes, keys, index)
    return grad_query.reshape(query.shape).to(query.dtype), weights, slopes


neighbor_attention_backward = operator(
    "neighbor_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor index, Tensor? bias,"
    " float scale, Tensor norm) -> (Tensor, Tensor, Tensor)",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_attention_backward,
    check=_check_attention_backward,
    save=_save_attention_backward,
    backward=_grad_attention_backward,
)
