"""Registration of this family's operators: fake outputs, value checks and gradients.

`aggregate` and its two adjoints are closed under differentiation (docs/operators/attention.md). The gradient of
`neighbor_attention` consists of them and of `neighbor_attention_backward`, whose own gradient is autograd through a
composition of them. No (M, K, C) tensor is built.
"""

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..registry import operator
from ..sums import sum_dtype
from . import reference


def _fits_softmax(logits: Tensor, mask: Tensor, dim: int) -> bool:
    shape, masks = logits.shape, mask.shape
    return (
        0 <= dim < len(shape)
        and len(masks) <= len(shape)
        and all(m in (1, n) for m, n in zip(reversed(masks), reversed(shape), strict=False))
        and mask.dtype == torch.bool
        and logits.dtype in checks.FLOATS
    )


def _fake_softmax(logits: Tensor) -> Tensor:
    return torch.empty_like(logits)


def _save_softmax(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(output, inputs.mask)
    ctx.dim = inputs.dim


def _grad_softmax(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    output, mask = ctx.saved_tensors
    wide = sum_dtype(grad.dtype)
    # Masked entries must not contribute, not even as zero times infinity.
    weights, grad_wide = output.to(wide), torch.where(mask, grad, 0).to(wide)
    slopes = weights * (grad_wide - (weights * grad_wide).sum(ctx.dim, keepdim=True))
    return {"logits": torch.where(mask, slopes, 0).to(grad.dtype)}


masked_softmax = operator(
    reference.masked_softmax,
    contract="logits of floats, a bool mask that broadcasts to their shape, and dim from 0 to their rank",
    fits=_fits_softmax,
    fake=_fake_softmax,
    save=_save_softmax,
    backward=_grad_softmax,
    kernels=(),
)


_AGGREGATED = "of one floating dtype, and int64 index (M, K), where G divides C; or all with a leading B"


def _fit_neighbors(index: Tensor, first: Tensor, second: Tensor) -> int:
    """The rank of an index (M, K) or (B, M, K) that belongs to two tensors of one floating dtype; 0 if it does not."""
    rank, dtype = index.dim(), first.dtype
    fits = index.dtype == torch.int64 and dtype in checks.FLOATS and second.dtype == dtype and 2 <= rank <= 3
    return rank if fits else 0


def _fits_aggregate(weights: Tensor, values: Tensor, index: Tensor) -> bool:
    rank = _fit_neighbors(index, weights, values)
    shape, rows, lists = weights.shape, values.shape, index.shape
    if rank == 0 or len(shape) != rank + 1 or len(rows) != rank:
        return False
    groups = shape[-1]
    in_clouds = rank == 2 or rows[0] == lists[0]
    return in_clouds and shape == (*lists, groups) and groups > 0 and rows[-1] % groups == 0


def _check_values(values: Tensor, index: Tensor) -> None:
    checks.index_values(index, values.shape[-2])


def _fake_aggregate(values: Tensor, index: Tensor) -> Tensor:
    return values.new_empty((*index.shape[:-1], values.shape[-1]))


def _save_aggregate(ctx: Any, inputs: Any, output: Tensor) -> None:
    weights, values, index = inputs
    ctx.save_for_backward(weights if ctx.needed.values else None, values if ctx.needed.weights else None, index)
    ctx.groups, ctx.num_rows = weights.shape[-1], values.shape[-2]


def _grad_aggregate(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    weights, values, index = ctx.saved_tensors
    needed = ctx.needed
    return {
        "weights": aggregate_weights(grad, values, index, ctx.groups) if needed.weights else None,
        "values": aggregate_values(weights, grad, index, ctx.num_rows) if needed.values else None,
    }


aggregate = operator(
    reference.aggregate,
    contract=f"weights (M, K, G) and values (N, C) {_AGGREGATED}",
    fits=_fits_aggregate,
    fake=_fake_aggregate,
    check=_check_values,
    save=_save_aggregate,
    backward=_grad_aggregate,
    autocast="widest",
)


def _fits_aggregate_values(weights: Tensor, grad: Tensor, index: Tensor, num_rows: int) -> bool:
    rank = _fit_neighbors(index, weights, grad)
    shape, sums, lists = weights.shape, grad.shape, index.shape
    if rank == 0 or len(shape) != rank + 1 or len(sums) != rank or num_rows < 0:
        return False
    groups = shape[-1]
    in_clouds = sums[-2] == lists[-2] and (rank == 2 or sums[0] == lists[0])
    return in_clouds and shape == (*lists, groups) and groups > 0 and sums[-1] % groups == 0


def _check_aggregate_values(index: Tensor, num_rows: int) -> None:
    checks.index_values(index, num_rows)


def _fake_aggregate_values(grad: Tensor, num_rows: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-2], num_rows, grad.shape[-1]))


def _save_aggregate_values(ctx: Any, inputs: Any, output: Tensor) -> None:
    weights, grad = inputs.weights, inputs.grad
    ctx.save_for_backward(weights if ctx.needed.grad else None, grad if ctx.needed.weights else None, inputs.index)
    ctx.groups = weights.shape[-1]


def _grad_aggregate_values(ctx: Any, grad_out: Tensor) -> dict[str, Tensor | None]:
    weights, grad, index = ctx.saved_tensors
    return {
        "weights": aggregate_weights(grad, grad_out, index, ctx.groups) if ctx.needed.weights else None,
        "grad": aggregate(weights, grad_out, index) if ctx.needed.grad else None,
    }


aggregate_values = operator(
    reference.aggregate_values,
    contract=f"num_rows >= 0, weights (M, K, G) and grad (M, C) {_AGGREGATED}",
    fits=_fits_aggregate_values,
    fake=_fake_aggregate_values,
    check=_check_aggregate_values,
    save=_save_aggregate_values,
    backward=_grad_aggregate_values,
)


def _fits_aggregate_weights(grad: Tensor, values: Tensor, index: Tensor, groups: int) -> bool:
    rank = _fit_neighbors(index, grad, values)
    sums, rows, lists = grad.shape, values.shape, index.shape
    if rank == 0 or len(sums) != rank or len(rows) != rank or groups < 1:
        return False
    in_clouds = sums[-2] == lists[-2] and (rank == 2 or sums[0] == rows[0] == lists[0])
    return in_clouds and sums[-1] == rows[-1] and sums[-1] % groups == 0


def _fake_aggregate_weights(grad: Tensor, index: Tensor, groups: int) -> Tensor:
    return grad.new_empty((*index.shape, groups))


def _save_aggregate_weights(ctx: Any, inputs: Any, output: Tensor) -> None:
    grad, values = inputs.grad, inputs.values
    ctx.save_for_backward(grad if ctx.needed.values else None, values if ctx.needed.grad else None, inputs.index)
    ctx.num_rows = values.shape[-2]


def _grad_aggregate_weights(ctx: Any, grad_out: Tensor) -> dict[str, Tensor | None]:
    grad, values, index = ctx.saved_tensors
    return {
        "grad": aggregate(grad_out, values, index) if ctx.needed.grad else None,
        "values": aggregate_values(grad_out, grad, index, ctx.num_rows) if ctx.needed.values else None,
    }


aggregate_weights = operator(
    reference.aggregate_weights,
    contract=f"groups G >= 1, grad (M, C) and values (N, C) {_AGGREGATED}",
    fits=_fits_aggregate_weights,
    fake=_fake_aggregate_weights,
    check=_check_values,
    save=_save_aggregate_weights,
    backward=_grad_aggregate_weights,
)


_ATTENTION = (
    "query (M, H, D), key (N, H, D), value (N, H, Dv) and bias (M, K, H), (M, K, 1) or None of one floating dtype, "
    "and int64 index (M, K), with H >= 1; or all with a leading B"
)


def _fits_attention(query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None) -> bool:
    shape, keys, values, lists, dtype = query.shape, key.shape, value.shape, index.shape, query.dtype
    rank = len(shape)
    if not 3 <= rank <= 4 or len(keys) != rank or len(values) != rank or len(lists) != rank - 1:
        return False
    if index.dtype != torch.int64 or dtype not in checks.FLOATS or key.dtype != dtype or value.dtype != dtype:
        return False
    rows, heads, depth = keys[-3:]
    if shape[-2] != heads or shape[-1] != depth or heads == 0 or values[-3] != rows or values[-2] != heads:
        return False
    if lists[-2] != shape[-3] or (rank == 4 and not shape[0] == keys[0] == values[0] == lists[0]):
        return False
    return bias is None or (bias.dtype == dtype and bias.shape in ((*lists, heads), (*lists, 1)))


def _check_attention(key: Tensor, index: Tensor) -> None:
    checks.index_values(index, key.shape[-3])


def _fake_attention(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    norm = query.new_empty((*query.shape[:-1], 2), dtype=sum_dtype(query.dtype))
    return query.new_empty((*query.shape[:-1], value.shape[-1])), norm


def _save_attention(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    _, norm = output
    ctx.mark_non_differentiable(norm)
    ctx.save_for_backward(*tensors, norm)


def _grad_attention(ctx: Any, grad: Tensor, _: Tensor) -> dict[str, Tensor | None]:
    query, key, value, index, bias, norm = ctx.saved_tensors
    grad_query, weights, slopes = neighbor_attention_backward(grad, query, key, value, index, bias, ctx.scale, norm)
    found: dict[str, Tensor | None] = {}
    if ctx.needed.query:
        found["query"] = grad_query
    if ctx.needed.key:
        scaled = reference.factor(ctx.scale, query) * query.to(slopes.dtype)
        grad_key = aggregate_values(slopes, scaled.flatten(-2), index, key.shape[-3])
        found["key"] = grad_key.reshape(key.shape).to(key.dtype)
    if ctx.needed.value:
        grad_value = aggregate_values(weights, grad.to(weights.dtype).flatten(-2), index, value.shape[-3])
        found["value"] = grad_value.reshape(value.shape).to(value.dtype)
    if ctx.needed.bias:
        found["bias"] = slopes.sum_to_size(bias.shape).to(bias.dtype)
    return found


neighbor_attention = operator(
    reference.neighbor_attention,
    contract=_ATTENTION,
    fits=_fits_attention,
    fake=_fake_attention,
    check=_check_attention,
    save=_save_attention,
    backward=_grad_attention,
    autocast="widest",
)


def _fits_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None, norm: Tensor
) -> bool:
    if not _fits_attention(query, key, value, index, bias):
        return False
    shape = query.shape
    return (
        grad.dtype == query.dtype
        and norm.dtype == sum_dtype(query.dtype)
        and grad.shape == (*shape[:-1], value.shape[-1])
        and norm.shape == (*shape[:-1], 2)
    )


def _fake_attention_backward(query: Tensor, index: Tensor, norm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weights = norm.new_empty((*index.shape, query.shape[-2]))
    return query.new_empty(query.shape), weights, torch.empty_like(weights)


_SAVED = ("grad", "query", "key", "value", "index", "bias")  # `norm` is a function of the others and has no gradient


def _save_attention_backward(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*(getattr(inputs, name) for name in _SAVED))
    ctx.scale = inputs.scale


def _grad_attention_backward(ctx: Any, *grads: Tensor) -> dict[str, Tensor | None]:
    """Second derivatives: autograd through a composition of differentiable operators."""
    wanted = [getattr(ctx.needed, name) for name in _SAVED]
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [x.view_as(x) if need else x for x, need in zip(ctx.saved_tensors, wanted, strict=True)]
        sources = {name: x for name, x, need in zip(_SAVED, inputs, wanted, strict=True) if need}
        pairs = zip(_composed_backward(ctx.scale, *inputs), grads, strict=True)
        outputs, upstream = zip(*((y, g) for y, g in pairs if y.requires_grad), strict=True)
        found = torch.autograd.grad(
            outputs, tuple(sources.values()), upstream, create_graph=create_graph, allow_unused=True
        )
    return dict(zip(sources, found, strict=True))


def _composed_backward(
    scale: float | None, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, index: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`neighbor_attention_backward`, composed of operators that are differentiable to any order."""
    wide, heads, rows = sum_dtype(query.dtype), query.shape[-2], key.shape[-3]
    keys = key.to(wide).flatten(-2)
    logits = reference.factor(scale, query) * aggregate_weights(query.to(wide).flatten(-2), keys, index, heads)
    logits = logits if bias is None else logits + bias.to(wide)
    valid = ((index >= 0) & (index < rows)).unsqueeze(-1)
    weights = masked_softmax(logits, valid, logits.dim() - 2)
    slopes = aggregate_weights(grad.to(wide).flatten(-2), value.to(wide).flatten(-2), index, heads)
    slopes = torch.where(valid, weights * (slopes - (weights * slopes).sum(-2, keepdim=True)), 0)
    grad_query = reference.factor(scale, query) * aggregate(slopes, keys, index)
    return grad_query.reshape(query.shape).to(query.dtype), weights, slopes


neighbor_attention_backward = operator(
    reference.neighbor_attention_backward,
    contract=f"grad (M, H, Dv), norm (M, H, 2) in at least float32, {_ATTENTION}",
    fits=_fits_attention_backward,
    fake=_fake_attention_backward,
    check=_check_attention,
    save=_save_attention_backward,
    backward=_grad_attention_backward,
)
