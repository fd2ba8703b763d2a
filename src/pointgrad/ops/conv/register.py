"""Schema, fake and autograd of this room's operators.

Two sets that are closed under differentiation (docs/operators/conv.md): `unfold` and `fold`, each the other's adjoint;
and the three products of a convolution, which are the derivatives of one trilinear form.
"""

from typing import Any

import torch
from torch import Tensor

from ..gather.register import gather
from ..registry import legacy_operator as operator

_GEOMETRY = "SymInt[] kernel, SymInt[] stride, SymInt[] dilation, SymInt[] padding"


def _fake_unfold(
    input: Tensor, kernel: list[int], stride: list[int], dilation: list[int], padding: list[int], windows: list[int]
) -> Tensor:
    return input.new_empty(input.shape[0], input.shape[1] * kernel[0] * kernel[1], windows[0] * windows[1])


def _save_unfold(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, *ctx.geometry = inputs
    ctx.size = input.shape[2:]


def _grad_unfold(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return fold(grad, ctx.size, *ctx.geometry), *[None] * 5  # kernel, stride, dilation, padding, windows: integers


def _fake_fold(columns: Tensor, size: list[int], kernel: list[int], *geometry: list[int]) -> Tensor:
    return columns.new_empty(columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1]), *size)


def _save_fold(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, *ctx.geometry = inputs


def _grad_fold(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return unfold(grad, *ctx.geometry), *[None] * 6  # size, kernel, stride, dilation, padding, windows: integers


def _fake_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    dilation: list[int],
    padding: list[int],
    windows: list[int],
    groups: int,
) -> Tensor:
    return input.new_empty(input.shape[0], weight.shape[0], *windows)


def _save_conv2d(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, weight, _, *ctx.steps, _, ctx.groups = inputs
    for_input, for_weight = ctx.needed[:2]
    ctx.save_for_backward(input if for_weight else None, weight if for_input else None)
    ctx.size, ctx.kernel = input.shape[2:], weight.shape[2:]


def _grad_conv2d(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    input, weight = ctx.saved_tensors
    for_input, for_weight, for_bias = ctx.needed[:3]
    return (
        conv2d_input(grad, weight, ctx.size, *ctx.steps, ctx.groups) if for_input else None,
        conv2d_weight(grad, input, ctx.kernel, *ctx.steps, ctx.groups) if for_weight else None,
        grad.sum((0, 2, 3)) if for_bias else None,
        *[None] * 5,  # stride, dilation, padding, windows, groups: integers
    )


def _fake_conv2d_input(
    grad: Tensor,
    weight: Tensor,
    size: list[int],
    stride: list[int],
    dilation: list[int],
    padding: list[int],
    groups: int,
) -> Tensor:
    return grad.new_empty(grad.shape[0], weight.shape[1] * groups, *size)


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, _, *ctx.steps, ctx.groups = inputs
    for_first, for_second = ctx.needed[:2]
    ctx.save_for_backward(first if for_second else None, second if for_first else None)
    ctx.windows, ctx.size = first.shape[2:], second.shape[2:]


def _grad_conv2d_input(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    grad, weight = ctx.saved_tensors
    for_grad, for_weight = ctx.needed[:2]
    return (
        conv2d(upstream, weight, None, *ctx.steps, ctx.windows, ctx.groups) if for_grad else None,
        conv2d_weight(grad, upstream, ctx.size, *ctx.steps, ctx.groups) if for_weight else None,
        *[None] * 5,  # size, stride, dilation, padding, groups: integers
    )


def _fake_conv2d_weight(
    grad: Tensor,
    input: Tensor,
    kernel: list[int],
    stride: list[int],
    dilation: list[int],
    padding: list[int],
    groups: int,
) -> Tensor:
    return grad.new_empty(grad.shape[1], input.shape[1] // groups, *kernel)


def _grad_conv2d_weight(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    grad, input = ctx.saved_tensors
    for_grad, for_input = ctx.needed[:2]
    return (
        conv2d(input, upstream, None, *ctx.steps, ctx.windows, ctx.groups) if for_grad else None,
        conv2d_input(grad, upstream, ctx.size, *ctx.steps, ctx.groups) if for_input else None,
        *[None] * 5,  # kernel, stride, dilation, padding, groups: integers
    )


def _fake_max_pool2d(
    input: Tensor, kernel: list[int], stride: list[int], dilation: list[int], padding: list[int], windows: list[int]
) -> tuple[Tensor, Tensor]:
    shape = (*input.shape[:2], *windows)
    return input.new_empty(shape), input.new_empty(shape, dtype=torch.int64)


def _save_max_pool2d(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    input, *ctx.geometry, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.size = input.shape[2:]


def _grad_max_pool2d(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
    (index,) = ctx.saved_tensors
    received = max_pool2d_backward(grad, index, ctx.size, *ctx.geometry)
    return received, *[None] * 5  # kernel, stride, dilation, padding, windows: integers


def _fake_max_pool2d_backward(grad: Tensor, index: Tensor, size: list[int], *geometry: list[int]) -> Tensor:
    return grad.new_empty(*grad.shape[:2], *size)


def _save_max_pool2d_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _grad_max_pool2d_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    (index,) = ctx.saved_tensors
    pixels = upstream.flatten(2).flatten(0, 1).unsqueeze(-1)  # (N C, H W, 1): each plane is a cloud of one channel
    picked = gather(pixels, index.flatten(2).flatten(0, 1)).reshape(index.shape)
    return picked, *[None] * 6  # index, size, kernel, stride, dilation, padding: integers


unfold = operator(
    f"unfold(Tensor input, {_GEOMETRY}, SymInt[] windows) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_unfold,
    save=_save_unfold,
    backward=_grad_unfold,
)

fold = operator(
    f"fold(Tensor columns, SymInt[] size, {_GEOMETRY}, SymInt[] windows) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_fold,
    save=_save_fold,
    backward=_grad_fold,
)

conv2d = operator(
    "conv2d(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] dilation, SymInt[] padding, "
    "SymInt[] windows, SymInt groups) -> Tensor",
    room=__package__,
    kernels=(),
    fake=_fake_conv2d,
    save=_save_conv2d,
    backward=_grad_conv2d,
    autocast="widest",
)

conv2d_input = operator(
    "conv2d_input(Tensor grad, Tensor weight, SymInt[] size, SymInt[] stride, SymInt[] dilation, SymInt[] padding, "
    "SymInt groups) -> Tensor",
    room=__package__,
    kernels=(),
    fake=_fake_conv2d_input,
    save=_save_product,
    backward=_grad_conv2d_input,
    autocast="widest",
)

conv2d_weight = operator(
    "conv2d_weight(Tensor grad, Tensor input, SymInt[] kernel, SymInt[] stride, SymInt[] dilation, SymInt[] padding, "
    "SymInt groups) -> Tensor",
    room=__package__,
    kernels=(),
    fake=_fake_conv2d_weight,
    save=_save_product,
    backward=_grad_conv2d_weight,
    autocast="widest",
)

max_pool2d = operator(
    f"max_pool2d(Tensor input, {_GEOMETRY}, SymInt[] windows) -> (Tensor, Tensor)",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_max_pool2d,
    save=_save_max_pool2d,
    backward=_grad_max_pool2d,
)

max_pool2d_backward = operator(
    f"max_pool2d_backward(Tensor grad, Tensor index, SymInt[] size, {_GEOMETRY}) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_max_pool2d_backward,
    save=_save_max_pool2d_backward,
    backward=_grad_max_pool2d_backward,
)
