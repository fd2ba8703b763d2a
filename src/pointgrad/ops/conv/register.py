"""Registration of this family's operators: fake outputs and gradients.

Two sets of operators are closed under differentiation (docs/operators/conv.md): `unfold` and `fold`, each the adjoint
of the other; and the three products of a convolution, which are the derivatives of one trilinear form.
"""

from typing import Any

import torch
from torch import Tensor

from ..gather.register import gather
from ..registry import operator
from . import reference
from .reference import Pair


def _fake_unfold(input: Tensor, kernel: Pair, windows: Pair) -> Tensor:
    return input.new_empty(input.shape[0], input.shape[1] * kernel[0] * kernel[1], windows[0] * windows[1])


def _save_unfold(ctx: Any, inputs: Any, output: Tensor) -> None:
    input, *ctx.geometry = inputs
    ctx.size = input.shape[2:]


def _grad_unfold(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    return {"input": fold(grad, ctx.size, *ctx.geometry)}


unfold = operator(reference.unfold, fake=_fake_unfold, save=_save_unfold, backward=_grad_unfold)


def _fake_fold(columns: Tensor, size: Pair, kernel: Pair) -> Tensor:
    return columns.new_empty(columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1]), *size)


def _save_fold(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, _, *ctx.geometry = inputs


def _grad_fold(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    return {"columns": unfold(grad, *ctx.geometry)}


fold = operator(reference.fold, fake=_fake_fold, save=_save_fold, backward=_grad_fold)


def _fake_conv2d(input: Tensor, weight: Tensor, windows: Pair) -> Tensor:
    return input.new_empty(input.shape[0], weight.shape[0], *windows)


def _save_conv2d(ctx: Any, inputs: Any, output: Tensor) -> None:
    input, weight = inputs.input, inputs.weight
    ctx.save_for_backward(input if ctx.needed.weight else None, weight if ctx.needed.input else None)
    ctx.size, ctx.kernel = input.shape[2:], weight.shape[2:]
    ctx.steps, ctx.groups = (inputs.stride, inputs.dilation, inputs.padding), inputs.groups


def _grad_conv2d(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    input, weight = ctx.saved_tensors
    needed = ctx.needed
    return {
        "input": conv2d_input(grad, weight, ctx.size, *ctx.steps, ctx.groups) if needed.input else None,
        "weight": conv2d_weight(grad, input, ctx.kernel, *ctx.steps, ctx.groups) if needed.weight else None,
        "bias": grad.sum((0, 2, 3)) if needed.bias else None,
    }


conv2d = operator(
    reference.conv2d, fake=_fake_conv2d, save=_save_conv2d, backward=_grad_conv2d, kernels=(), autocast="widest"
)


def _fake_conv2d_input(grad: Tensor, weight: Tensor, size: Pair, groups: int) -> Tensor:
    return grad.new_empty(grad.shape[0], weight.shape[1] * groups, *size)


def _save_conv2d_input(ctx: Any, inputs: Any, output: Tensor) -> None:
    grad, weight = inputs.grad, inputs.weight
    ctx.save_for_backward(grad if ctx.needed.weight else None, weight if ctx.needed.grad else None)
    ctx.windows, ctx.kernel = grad.shape[2:], weight.shape[2:]
    ctx.steps, ctx.groups = (inputs.stride, inputs.dilation, inputs.padding), inputs.groups


def _grad_conv2d_input(ctx: Any, upstream: Tensor) -> dict[str, Tensor | None]:
    grad, weight = ctx.saved_tensors
    needed = ctx.needed
    return {
        "grad": conv2d(upstream, weight, None, *ctx.steps, ctx.windows, ctx.groups) if needed.grad else None,
        "weight": conv2d_weight(grad, upstream, ctx.kernel, *ctx.steps, ctx.groups) if needed.weight else None,
    }


conv2d_input = operator(
    reference.conv2d_input,
    fake=_fake_conv2d_input,
    save=_save_conv2d_input,
    backward=_grad_conv2d_input,
    kernels=(),
    autocast="widest",
)


def _fake_conv2d_weight(grad: Tensor, input: Tensor, kernel: Pair, groups: int) -> Tensor:
    return grad.new_empty(grad.shape[1], input.shape[1] // groups, *kernel)


def _save_conv2d_weight(ctx: Any, inputs: Any, output: Tensor) -> None:
    grad, input = inputs.grad, inputs.input
    ctx.save_for_backward(grad if ctx.needed.input else None, input if ctx.needed.grad else None)
    ctx.windows, ctx.size = grad.shape[2:], input.shape[2:]
    ctx.steps, ctx.groups = (inputs.stride, inputs.dilation, inputs.padding), inputs.groups


def _grad_conv2d_weight(ctx: Any, upstream: Tensor) -> dict[str, Tensor | None]:
    grad, input = ctx.saved_tensors
    needed = ctx.needed
    return {
        "grad": conv2d(input, upstream, None, *ctx.steps, ctx.windows, ctx.groups) if needed.grad else None,
        "input": conv2d_input(grad, upstream, ctx.size, *ctx.steps, ctx.groups) if needed.input else None,
    }


conv2d_weight = operator(
    reference.conv2d_weight,
    fake=_fake_conv2d_weight,
    save=_save_conv2d_weight,
    backward=_grad_conv2d_weight,
    kernels=(),
    autocast="widest",
)


def _fake_max_pool2d(input: Tensor, windows: Pair) -> tuple[Tensor, Tensor]:
    shape = (*input.shape[:2], *windows)
    return input.new_empty(shape), input.new_empty(shape, dtype=torch.int64)


def _save_max_pool2d(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
    input, *ctx.geometry, _ = inputs
    _, index = output
    ctx.mark_non_differentiable(index)
    ctx.save_for_backward(index)
    ctx.size = input.shape[2:]


def _grad_max_pool2d(ctx: Any, grad: Tensor, _: None) -> dict[str, Tensor | None]:
    (index,) = ctx.saved_tensors
    return {"input": max_pool2d_backward(grad, index, ctx.size, *ctx.geometry)}


max_pool2d = operator(reference.max_pool2d, fake=_fake_max_pool2d, save=_save_max_pool2d, backward=_grad_max_pool2d)


def _fake_max_pool2d_backward(grad: Tensor, size: Pair) -> Tensor:
    return grad.new_empty(*grad.shape[:2], *size)


def _save_max_pool2d_backward(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.index)


def _grad_max_pool2d_backward(ctx: Any, upstream: Tensor) -> dict[str, Tensor | None]:
    (index,) = ctx.saved_tensors
    pixels = upstream.flatten(2).flatten(0, 1).unsqueeze(-1)  # (N C, H W, 1): each plane is a cloud with one channel
    return {"grad": gather(pixels, index.flatten(2).flatten(0, 1)).reshape(index.shape)}


max_pool2d_backward = operator(
    reference.max_pool2d_backward,
    fake=_fake_max_pool2d_backward,
    save=_save_max_pool2d_backward,
    backward=_grad_max_pool2d_backward,
)
