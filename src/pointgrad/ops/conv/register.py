"""Registration of this family's operators: fake outputs and gradients.

Two sets of operators are closed under differentiation (docs/operators/conv.md): `unfold` and `fold`, each the adjoint
of the other; and the three products of a convolution, which are the derivatives of one trilinear form.
"""

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..gather.register import gather
from ..registry import operator
from . import reference
from .reference import Pair

_FAR = 2**62  # positions in an image beyond this could overflow
_STEPS = "pairs of integers, stride and dilation at least 1, padding at least 0"
_GEOMETRY = f"kernel, windows, {_STEPS}, and positions below 2^62"


def _fit_steps(stride: Pair, dilation: Pair, padding: Pair) -> bool:
    return (
        len(stride) == len(dilation) == len(padding) == 2
        and min(stride) >= 1
        and min(dilation) >= 1
        and 0 <= min(padding) <= max(padding) < _FAR
    )


def _fit_geometry(kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair) -> bool:
    """Whether there are windows, and a kernel, and no position overflows."""
    if len(kernel) != 2 or len(windows) != 2 or not _fit_steps(stride, dilation, padding):
        return False
    (ky, kx), (sy, sx), (dy, dx), (wy, wx) = kernel, stride, dilation, windows
    last_y, last_x = (wy - 1) * sy + ky * dy, (wx - 1) * sx + kx * dx
    return min(ky, kx, wy, wx) >= 1 and last_y < _FAR and last_x < _FAR


def _fit_images(images: Tensor) -> bool:
    shape = images.shape
    return len(shape) == 4 and shape[2] > 0 and shape[3] > 0 and images.dtype in checks.FLOATS


def _fits_unfold(input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair) -> bool:
    return _fit_images(input) and _fit_geometry(kernel, stride, dilation, padding, windows)


def _fake_unfold(input: Tensor, kernel: Pair, windows: Pair) -> Tensor:
    return input.new_empty(input.shape[0], input.shape[1] * kernel[0] * kernel[1], windows[0] * windows[1])


def _save_unfold(ctx: Any, inputs: Any, output: Tensor) -> None:
    input, *ctx.geometry = inputs
    ctx.size = input.shape[2:]


def _grad_unfold(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    return {"input": fold(grad, ctx.size, *ctx.geometry)}


_IMAGES = "(N, C, H, W) of floats with at least one pixel"

unfold = operator(
    reference.unfold,
    contract=f"input {_IMAGES}, {_GEOMETRY}",
    fits=_fits_unfold,
    fake=_fake_unfold,
    save=_save_unfold,
    backward=_grad_unfold,
)


def _fits_fold(
    columns: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair
) -> bool:
    shape = columns.shape
    return (
        len(shape) == 3
        and columns.dtype in checks.FLOATS
        and _fit_geometry(kernel, stride, dilation, padding, windows)
        and len(size) == 2
        and min(size) >= 1
        and shape[1] % (kernel[0] * kernel[1]) == 0
        and shape[2] == windows[0] * windows[1]
    )


def _fake_fold(columns: Tensor, size: Pair, kernel: Pair) -> Tensor:
    return columns.new_empty(columns.shape[0], columns.shape[1] // (kernel[0] * kernel[1]), *size)


def _save_fold(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, _, *ctx.geometry = inputs


def _grad_fold(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    return {"columns": unfold(grad, *ctx.geometry)}


fold = operator(
    reference.fold,
    contract=f"columns (N, C * kernel, windows) of floats, a size of at least 1, {_GEOMETRY}",
    fits=_fits_fold,
    fake=_fake_fold,
    save=_save_fold,
    backward=_grad_fold,
)


def _fits_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    dilation: Pair,
    padding: Pair,
    windows: Pair,
    groups: int,
) -> bool:
    weights = weight.shape
    return (
        len(weights) == 4
        and _fit_images(input)
        and _fit_geometry(weights[2:], stride, dilation, padding, windows)
        and groups >= 1
        and weights[1] * groups == input.shape[1]
        and weights[0] % groups == 0
        and weight.dtype == input.dtype
        and (bias is None or (bias.dtype == input.dtype and bias.shape == weights[:1]))
    )


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


_WEIGHT = "weight (O, C / groups, kh, kw)"

conv2d = operator(
    reference.conv2d,
    contract=f"input {_IMAGES}, {_WEIGHT} and bias (O,) or None of the same dtype, {_GEOMETRY}, and groups >= 1",
    fits=_fits_conv2d,
    fake=_fake_conv2d,
    save=_save_conv2d,
    backward=_grad_conv2d,
    kernels=(),
    autocast="widest",
)


def _fits_conv2d_input(
    grad: Tensor, weight: Tensor, size: Pair, stride: Pair, dilation: Pair, padding: Pair, groups: int
) -> bool:
    weights = weight.shape
    return (
        len(weights) == 4
        and len(size) == 2
        and min(size) >= 1
        and _fit_images(grad)
        and _fit_geometry(weights[2:], stride, dilation, padding, grad.shape[2:])
        and groups >= 1
        and weights[0] == grad.shape[1]
        and weights[0] % groups == 0
        and weight.dtype == grad.dtype
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
    contract=f"grad {_IMAGES}, {_WEIGHT} of the same dtype with O as in grad, a size of at least 1, {_STEPS}",
    fits=_fits_conv2d_input,
    fake=_fake_conv2d_input,
    save=_save_conv2d_input,
    backward=_grad_conv2d_input,
    kernels=(),
    autocast="widest",
)


def _fits_conv2d_weight(
    grad: Tensor, input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, groups: int
) -> bool:
    return (
        _fit_images(grad)
        and _fit_images(input)
        and _fit_geometry(kernel, stride, dilation, padding, grad.shape[2:])
        and groups >= 1
        and grad.shape[0] == input.shape[0]
        and grad.shape[1] % groups == 0
        and input.shape[1] % groups == 0
        and grad.dtype == input.dtype
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
    contract=f"grad and input {_IMAGES}, with the same N and dtype and groups that divide C, kernel, {_STEPS}",
    fits=_fits_conv2d_weight,
    fake=_fake_conv2d_weight,
    save=_save_conv2d_weight,
    backward=_grad_conv2d_weight,
    kernels=(),
    autocast="widest",
)


def _fits_max_pool2d(input: Tensor, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair, windows: Pair) -> bool:
    return _fits_unfold(input, kernel, stride, dilation, padding, windows) and kernel[0] * kernel[1] < 2**31


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


max_pool2d = operator(
    reference.max_pool2d,
    contract=f"input {_IMAGES}, {_GEOMETRY}, and a kernel of fewer than 2^31 pixels",
    fits=_fits_max_pool2d,
    fake=_fake_max_pool2d,
    save=_save_max_pool2d,
    backward=_grad_max_pool2d,
)


def _fits_max_pool2d_backward(
    grad: Tensor, index: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, padding: Pair
) -> bool:
    return (
        len(size) == 2
        and min(size) >= 1
        and _fit_images(grad)
        and index.shape == grad.shape
        and index.dtype == torch.int64
        and _fit_geometry(kernel, stride, dilation, padding, grad.shape[2:])
    )


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
    contract=f"grad {_IMAGES}, int64 index of the same shape, a size of at least 1, kernel, {_STEPS}",
    fits=_fits_max_pool2d_backward,
    fake=_fake_max_pool2d_backward,
    save=_save_max_pool2d_backward,
    backward=_grad_max_pool2d_backward,
)
