"""Schema, fake and autograd of this room's operators.

Pairs that are closed under differentiation (docs/operators/scatter.md): the sum by index is gather's backward, and
gather is its own; `segment_sum` and `segment_spread`; `pick_elements` and `place_elements` for the places of extremes.
"""

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..registry import operator


def _check_histogram(index: Tensor, size: int) -> None:
    checks.index_values(index, size)


def _fake_histogram(index: Tensor, size: int) -> Tensor:
    return index.new_empty((*index.shape[:-1], size))


def _check_scatter_extreme(values: Tensor, index: Tensor, num_rows: int, largest: bool) -> None:
    checks.index_values(index, num_rows)


def _fake_scatter_extreme(values: Tensor, index: Tensor, num_rows: int, largest: bool) -> tuple[Tensor, Tensor]:
    shape = (*values.shape[:-2], num_rows, values.shape[-1])
    return values.new_empty(shape), values.new_empty(shape, dtype=torch.int64)


def _save_extreme(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.num_rows = inputs[0].shape[-2]


def _grad_scatter_extreme(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, None, None, None]:
    (arg,) = ctx.saved_tensors
    return place_elements(grad, arg, ctx.num_rows), None, None, None  # index, num_rows, largest: integers


def _fake_pick(values: Tensor, arg: Tensor) -> Tensor:
    return values.new_empty(arg.shape)


def _save_pick(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.num_rows = inputs[0].shape[-2]


def _grad_pick(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (arg,) = ctx.saved_tensors
    return place_elements(grad, arg, ctx.num_rows), None  # arg: integers


def _fake_place(grad: Tensor, arg: Tensor, num_rows: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-2], num_rows, grad.shape[-1]))


def _save_place(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _grad_place(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (arg,) = ctx.saved_tensors
    return pick_elements(grad, arg), None, None  # arg, num_rows: integers


def _check_offsets(offsets: Tensor, rows: int) -> None:
    checks.offsets_values(offsets, rows, total="E")


def _fake_segment_sum(values: Tensor, offsets: Tensor, mean: bool) -> Tensor:
    return values.new_empty((offsets.shape[0] - 1, values.shape[1]))


def _save_segment_sum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, offsets, mean = inputs
    ctx.save_for_backward(offsets)
    ctx.num_rows, ctx.mean = values.shape[0], mean


def _grad_segment_sum(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (offsets,) = ctx.saved_tensors
    return segment_spread(grad, offsets, ctx.num_rows, ctx.mean), None, None  # offsets: integers, mean: a flag


def _fake_segment_spread(grad: Tensor, offsets: Tensor, num_rows: int, mean: bool) -> Tensor:
    return grad.new_empty((num_rows, grad.shape[1]))


def _save_segment_spread(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.mean = inputs[3]


def _grad_segment_spread(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    (offsets,) = ctx.saved_tensors
    return segment_sum(grad, offsets, ctx.mean), None, None, None  # offsets, num_rows: integers, mean: a flag


def _fake_segment_extreme(values: Tensor, offsets: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    shape = (offsets.shape[0] - 1, values.shape[1])
    return values.new_empty(shape), values.new_empty(shape, dtype=torch.int64)


def _grad_segment_extreme(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, None, None]:
    (arg,) = ctx.saved_tensors
    return place_elements(grad, arg, ctx.num_rows), None, None  # offsets: integers, largest: a flag


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])


def _grad_softmax(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    output, offsets = ctx.saved_tensors
    return segment_softmax_backward(grad, output, offsets), None  # offsets: integers


def _save_softmax_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grad_softmax_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    grad, output, offsets = ctx.saved_tensors
    for_grad, for_output, _ = ctx.needed
    by_output = None
    if for_output:
        wide = torch.promote_types(grad.dtype, torch.float32)
        g, y, u = grad.to(wide), output.to(wide), upstream.to(wide)

        def summed(product: Tensor) -> Tensor:
            return segment_spread(segment_sum(product, offsets, False), offsets, product.shape[0], False)

        by_output = (u * (g - summed(g * y)) - g * summed(u * y)).to(output.dtype)
    # The matrix diag(y) - y yᵀ is symmetric, so it is its own adjoint.
    return segment_softmax_backward(upstream, output, offsets) if for_grad else None, by_output, None  # offsets


histogram = operator(
    "histogram(Tensor index, SymInt size) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_histogram,
    check=_check_histogram,
)

scatter_extreme = operator(
    "scatter_extreme(Tensor values, Tensor index, SymInt num_rows, bool largest) -> (Tensor, Tensor)",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_scatter_extreme,
    check=_check_scatter_extreme,
    save=_save_extreme,
    backward=_grad_scatter_extreme,
)

pick_elements = operator(
    "pick_elements(Tensor values, Tensor arg) -> Tensor",
    room=__package__,
    kernels=(),
    fake=_fake_pick,
    save=_save_pick,
    backward=_grad_pick,
)

place_elements = operator(
    "place_elements(Tensor grad, Tensor arg, SymInt num_rows) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_place,
    save=_save_place,
    backward=_grad_place,
)

segment_sum = operator(
    "segment_sum(Tensor values, Tensor offsets, bool mean) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_segment_sum,
    check=lambda values, offsets, mean: _check_offsets(offsets, values.shape[0]),
    save=_save_segment_sum,
    backward=_grad_segment_sum,
)

segment_spread = operator(
    "segment_spread(Tensor grad, Tensor offsets, SymInt num_rows, bool mean) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_segment_spread,
    check=lambda grad, offsets, num_rows, mean: _check_offsets(offsets, num_rows),
    save=_save_segment_spread,
    backward=_grad_segment_spread,
)

segment_extreme = operator(
    "segment_extreme(Tensor values, Tensor offsets, bool largest) -> (Tensor, Tensor)",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_segment_extreme,
    check=lambda values, offsets, largest: _check_offsets(offsets, values.shape[0]),
    save=_save_extreme,
    backward=_grad_segment_extreme,
)

segment_softmax = operator(
    "segment_softmax(Tensor logits, Tensor offsets) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=lambda logits, offsets: torch.empty_like(logits, memory_format=torch.contiguous_format),
    check=lambda logits, offsets: _check_offsets(offsets, logits.shape[0]),
    save=_save_softmax,
    backward=_grad_softmax,
)

segment_softmax_backward = operator(
    "segment_softmax_backward(Tensor grad, Tensor output, Tensor offsets) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=lambda grad, output, offsets: torch.empty_like(grad, memory_format=torch.contiguous_format),
    check=lambda grad, output, offsets: _check_offsets(offsets, grad.shape[0]),
    save=_save_softmax_backward,
    backward=_grad_softmax_backward,
)
