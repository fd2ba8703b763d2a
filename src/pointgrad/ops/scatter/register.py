"""Registration of this family's operators: fake outputs, value checks and gradients.

Each of these pairs is closed under differentiation (docs/operators/scatter.md): the sum by index and `gather`;
`segment_sum` and `segment_spread`; `pick_elements` and `place_elements`, which move the elements of extremes.
"""

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..registry import operator
from ..sums import sum_dtype
from . import reference


def _fits_histogram(index: Tensor, size: int) -> bool:
    return 1 <= index.dim() <= 2 and index.dtype == torch.int64 and size >= 0


def _check_histogram(index: Tensor, size: int) -> None:
    checks.index_values(index, size)


def _fake_histogram(index: Tensor, size: int) -> Tensor:
    return index.new_empty((*index.shape[:-1], size))


histogram = operator(
    reference.histogram,
    contract="int64 index (E,) or (B, E), and size >= 0",
    fits=_fits_histogram,
    fake=_fake_histogram,
    check=_check_histogram,
)


def _fits_scatter_extreme(values: Tensor, index: Tensor, num_rows: int) -> bool:
    shape = values.shape
    return (
        2 <= len(shape) <= 3
        and shape == (*index.shape, shape[-1])
        and num_rows >= 0
        and index.dtype == torch.int64
        and values.dtype in checks.NUMBERS
    )


def _check_scatter_extreme(index: Tensor, num_rows: int) -> None:
    checks.index_values(index, num_rows)


def _fake_scatter_extreme(values: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    shape = (*values.shape[:-2], num_rows, values.shape[-1])
    return values.new_empty(shape), values.new_empty(shape, dtype=torch.int64)


def _save_extreme(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    _, arg = output
    ctx.mark_non_differentiable(arg)
    ctx.save_for_backward(arg)
    ctx.num_rows = inputs.values.shape[-2]


def _grad_extreme(ctx: Any, grad: Tensor, _: None) -> dict[str, Tensor | None]:
    (arg,) = ctx.saved_tensors
    return {"values": place_elements(grad, arg, ctx.num_rows)}


scatter_extreme = operator(
    reference.scatter_extreme,
    contract="values (E, C) of floats, int64 or int32 and int64 index (E,), or (B, E, C) and (B, E), and num_rows >= 0",
    fits=_fits_scatter_extreme,
    fake=_fake_scatter_extreme,
    check=_check_scatter_extreme,
    save=_save_extreme,
    backward=_grad_extreme,
)


def _fits_pick(values: Tensor, arg: Tensor) -> bool:
    shape, picks = values.shape, arg.shape
    same = len(picks) == len(shape) and picks[-1] == shape[-1] and (len(shape) == 2 or picks[0] == shape[0])
    return 2 <= len(shape) <= 3 and same and arg.dtype == torch.int64


def _fake_pick(values: Tensor, arg: Tensor) -> Tensor:
    return values.new_empty(arg.shape)


def _save_pick(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.arg)
    ctx.num_rows = inputs.values.shape[-2]


def _grad_pick(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    (arg,) = ctx.saved_tensors
    return {"values": place_elements(grad, arg, ctx.num_rows)}


pick_elements = operator(
    reference.pick_elements,
    contract="values (E, C) and int64 arg (G, C), or (B, E, C) and (B, G, C)",
    fits=_fits_pick,
    fake=_fake_pick,
    save=_save_pick,
    backward=_grad_pick,
    kernels=(),
)


def _fits_place(grad: Tensor, arg: Tensor, num_rows: int) -> bool:
    shape = grad.shape
    return 2 <= len(shape) <= 3 and shape == arg.shape and num_rows >= 0 and arg.dtype == torch.int64


def _fake_place(grad: Tensor, num_rows: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-2], num_rows, grad.shape[-1]))


def _save_place(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.arg)


def _grad_place(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    (arg,) = ctx.saved_tensors
    return {"grad": pick_elements(grad, arg)}


place_elements = operator(
    reference.place_elements,
    contract="grad (G, C) or (B, G, C), int64 arg of the same shape, and num_rows >= 0",
    fits=_fits_place,
    fake=_fake_place,
    save=_save_place,
    backward=_grad_place,
)


_SEGMENTS = "(E, C) of floats, int64 or int32, and int64 offsets (S + 1,)"


def _fits_segments(values: Tensor, offsets: Tensor) -> bool:
    return (
        values.dim() == 2
        and offsets.dim() == 1
        and offsets.numel() > 0
        and offsets.dtype == torch.int64
        and values.dtype in checks.NUMBERS
    )


def _check_offsets(offsets: Tensor, num_rows: int) -> None:
    checks.offsets_values(offsets, num_rows, total="E")


def _check_segments(values: Tensor, offsets: Tensor) -> None:
    _check_offsets(offsets, values.shape[0])


def _fake_segment_sum(values: Tensor, offsets: Tensor) -> Tensor:
    return values.new_empty((offsets.shape[0] - 1, values.shape[1]))


def _save_segment_sum(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.offsets)
    ctx.num_rows, ctx.mean = inputs.values.shape[0], inputs.mean


def _grad_segment_sum(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    (offsets,) = ctx.saved_tensors
    return {"values": segment_spread(grad, offsets, ctx.num_rows, ctx.mean)}


segment_sum = operator(
    reference.segment_sum,
    contract=f"values {_SEGMENTS}",
    fits=_fits_segments,
    fake=_fake_segment_sum,
    check=_check_segments,
    save=_save_segment_sum,
    backward=_grad_segment_sum,
)


def _fits_segment_spread(grad: Tensor, offsets: Tensor, num_rows: int) -> bool:
    shape = grad.shape
    return _fits_segments(grad, offsets) and shape[0] == offsets.numel() - 1 and num_rows >= 0


def _fake_segment_spread(grad: Tensor, num_rows: int) -> Tensor:
    return grad.new_empty((num_rows, grad.shape[1]))


def _save_segment_spread(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.offsets)
    ctx.mean = inputs.mean


def _grad_segment_spread(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    (offsets,) = ctx.saved_tensors
    return {"grad": segment_sum(grad, offsets, ctx.mean)}


segment_spread = operator(
    reference.segment_spread,
    contract="grad (S, C) of floats, int64 or int32, int64 offsets (S + 1,), and num_rows >= 0",
    fits=_fits_segment_spread,
    fake=_fake_segment_spread,
    check=_check_offsets,
    save=_save_segment_spread,
    backward=_grad_segment_spread,
)


def _fake_segment_extreme(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    shape = (offsets.shape[0] - 1, values.shape[1])
    return values.new_empty(shape), values.new_empty(shape, dtype=torch.int64)


segment_extreme = operator(
    reference.segment_extreme,
    contract=f"values {_SEGMENTS}",
    fits=_fits_segments,
    fake=_fake_segment_extreme,
    check=_check_segments,
    save=_save_extreme,
    backward=_grad_extreme,
)


def _fits_softmax(logits: Tensor, offsets: Tensor) -> bool:
    return _fits_segments(logits, offsets) and logits.dtype in checks.FLOATS


def _check_softmax(logits: Tensor, offsets: Tensor) -> None:
    _check_offsets(offsets, logits.shape[0])


def _fake_softmax(logits: Tensor) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _save_softmax(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(output, inputs.offsets)


def _grad_softmax(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    output, offsets = ctx.saved_tensors
    return {"logits": segment_softmax_backward(grad, output, offsets)}


segment_softmax = operator(
    reference.segment_softmax,
    contract="logits (E, C) of floats and int64 offsets (S + 1,)",
    fits=_fits_softmax,
    fake=_fake_softmax,
    check=_check_softmax,
    save=_save_softmax,
    backward=_grad_softmax,
)


def _fits_softmax_backward(grad: Tensor, output: Tensor, offsets: Tensor) -> bool:
    return grad.shape == output.shape and grad.dtype == output.dtype and _fits_softmax(grad, offsets)


def _check_softmax_backward(grad: Tensor, offsets: Tensor) -> None:
    _check_offsets(offsets, grad.shape[0])


def _fake_softmax_backward(grad: Tensor) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _save_softmax_backward(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grad_softmax_backward(ctx: Any, upstream: Tensor) -> dict[str, Tensor | None]:
    grad, output, offsets = ctx.saved_tensors
    found: dict[str, Tensor | None] = {}
    if ctx.needed.grad:
        # The matrix diag(y) - y yᵀ is symmetric, so it is its own adjoint.
        found["grad"] = segment_softmax_backward(upstream, output, offsets)
    if ctx.needed.output:
        wide = sum_dtype(grad.dtype)
        g, y, u = grad.to(wide), output.to(wide), upstream.to(wide)

        def summed(product: Tensor) -> Tensor:
            return segment_spread(segment_sum(product, offsets, False), offsets, product.shape[0], False)

        found["output"] = (u * (g - summed(g * y)) - g * summed(u * y)).to(output.dtype)
    return found


segment_softmax_backward = operator(
    reference.segment_softmax_backward,
    contract="grad and output (E, C) of the same floating dtype, and int64 offsets (S + 1,)",
    fits=_fits_softmax_backward,
    fake=_fake_softmax_backward,
    check=_check_softmax_backward,
    save=_save_softmax_backward,
    backward=_grad_softmax_backward,
)
