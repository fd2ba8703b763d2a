"""Registration of this family's operators: fake outputs, value checks and gradients.

`cross_entropy_backward` needs only the logits and two numbers per position. Its own gradient is plain PyTorch and
differentiable to any order. `nll` and its adjoint are linear and closed under differentiation.
"""

from typing import Any

import torch
from torch import Tensor

from .. import checks, native
from ..registry import operator
from ..sums import sum_dtype
from . import reference
from .reference import coefficients, counted


def _fits_weight(weight: Tensor | None, classes: int, wide: torch.dtype) -> bool:
    return weight is None or (weight.dtype == wide and weight.shape == (classes,))


def _fits_classes(logits: Tensor, target: Tensor, weight: Tensor | None) -> bool:
    shape = logits.shape
    return (
        len(shape) == 3
        and target.shape == (shape[0], shape[2])
        and target.dtype == torch.int64
        and logits.dtype in checks.FLOATS
        and _fits_weight(weight, shape[1], sum_dtype(logits.dtype))
    )


def _fits_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor | None) -> bool:
    if not target.is_floating_point():
        return _fits_classes(logits, target, weight)
    dtype = logits.dtype
    return (
        logits.dim() == 3
        and target.shape == logits.shape
        and dtype in checks.FLOATS
        and target.dtype in (dtype, sum_dtype(dtype))
    )


_WEIGHT = "weight (C,) in at least float32 or None"
_LOGITS = f"logits (N, C, S) of floats, int64 target (N, S) or floating target (N, C, S), and {_WEIGHT}"


def _check_target(target: Tensor, classes: int, ignore_index: int) -> None:
    if target.is_floating_point() or target.numel() == 0:
        return
    lowest, highest = native.bounds(target)
    if lowest >= 0 and highest < classes:
        return
    wrong = target[(target != ignore_index) & ((target < 0) | (target >= classes))]
    if wrong.numel():
        contract = f"in [0, C = {classes}), or ignore_index = {ignore_index}"
        checks.value(False, "target", contract, int(wrong[0]))


def _check_cross_entropy(logits: Tensor, target: Tensor, ignore_index: int) -> None:
    _check_target(target, logits.shape[1], ignore_index)


def _fake_cross_entropy(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape, wide = (logits.shape[0], logits.shape[2]), sum_dtype(logits.dtype)
    loss, top, total = (logits.new_empty(shape, dtype=wide) for _ in range(3))
    return loss, top, total


def _save_cross_entropy(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, weight, ctx.ignore_index, ctx.smoothing = inputs
    _, top, total = output
    ctx.mark_non_differentiable(top, total)
    ctx.save_for_backward(logits, target, weight, top, total)


def _grad_cross_entropy(ctx: Any, grad: Tensor, *_: Tensor) -> dict[str, Tensor | None]:
    """As in PyTorch, `weight` has no gradient. `target` has one if it holds coefficients instead of classes."""
    logits, target, weight, top, total = ctx.saved_tensors
    found: dict[str, Tensor | None] = {}
    if ctx.needed.logits:
        settings = (target, weight, ctx.ignore_index, ctx.smoothing)
        found["logits"] = cross_entropy_backward(grad, logits, *settings, top, total)
    if ctx.needed.target:
        x = logits.to(grad.dtype)
        found["target"] = (-grad.unsqueeze(1) * _log_probabilities(x)).to(target.dtype)
    return found


cross_entropy = operator(
    reference.cross_entropy,
    contract=_LOGITS,
    fits=_fits_cross_entropy,
    fake=_fake_cross_entropy,
    check=_check_cross_entropy,
    save=_save_cross_entropy,
    backward=_grad_cross_entropy,
)


def _fits_backward(
    grad: Tensor, logits: Tensor, target: Tensor, weight: Tensor | None, top: Tensor, total: Tensor
) -> bool:
    if not _fits_cross_entropy(logits, target, weight):
        return False
    clouds, _, positions = logits.shape
    shape, wide = (clouds, positions), sum_dtype(logits.dtype)
    return grad.shape == top.shape == total.shape == shape and grad.dtype == top.dtype == total.dtype == wide


def _fake_backward(logits: Tensor) -> Tensor:
    return logits.new_empty(logits.shape)


def _save_backward(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.grad, inputs.logits, inputs.target, inputs.weight)
    ctx.ignore_index, ctx.smoothing = inputs.ignore_index, inputs.smoothing


def _grad_backward(ctx: Any, upstream: Tensor) -> dict[str, Tensor | None]:
    """The gradient of `g (A p - a)` by g, x and a. `top` and `total` are functions of the logits."""
    grad, logits, target, weight = ctx.saved_tensors
    x, v, g = logits.to(grad.dtype), upstream.to(grad.dtype), grad.unsqueeze(1)
    a = coefficients(x, target, weight, ctx.ignore_index, ctx.smoothing)
    p = _log_probabilities(x).exp()
    flat = _is_flat(x, target, ctx.ignore_index)
    amount, along = a.sum(1, keepdim=True), (p * v).sum(1, keepdim=True)  # A, and p · v
    found: dict[str, Tensor | None] = {}
    if ctx.needed.grad:
        found["grad"] = torch.where(flat, 0, v * (amount * p - a)).sum(1)
    if ctx.needed.logits:
        found["logits"] = torch.where(flat, 0, g * amount * p * (v - along)).to(logits.dtype)
    if ctx.needed.target:
        found["target"] = torch.where(flat, 0, g * (along - v)).to(target.dtype)
    return found


def _log_probabilities(x: Tensor) -> Tensor:
    """Log-softmax, but -inf without a gradient where all logits are -inf."""
    all_minus_inf = (x == -torch.inf).all(1, keepdim=True)
    return torch.where(all_minus_inf, -torch.inf, torch.log_softmax(torch.where(all_minus_inf, 0, x), 1))


def _is_flat(x: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """(N, 1, S) positions without a gradient."""
    flat = (x == -torch.inf).all(1, keepdim=True)
    if target.is_floating_point():
        return flat
    return flat | ~counted(target, x.shape[1], ignore_index).unsqueeze(1)


cross_entropy_backward = operator(
    reference.cross_entropy_backward,
    contract=f"grad, top and total (N, S) in at least float32, {_LOGITS}",
    fits=_fits_backward,
    fake=_fake_backward,
    check=_check_cross_entropy,
    save=_save_backward,
    backward=_grad_backward,
)


def _fits_nll(input: Tensor, target: Tensor, weight: Tensor | None) -> bool:
    return _fits_classes(input, target, weight)


def _check_nll(input: Tensor, target: Tensor, ignore_index: int) -> None:
    _check_target(target, input.shape[1], ignore_index)


def _fake_nll(input: Tensor, target: Tensor) -> Tensor:
    return input.new_empty(target.shape, dtype=sum_dtype(input.dtype))


def _save_nll(ctx: Any, inputs: Any, output: Tensor) -> None:
    input, target, weight, ctx.ignore_index = inputs
    ctx.save_for_backward(target, weight)
    ctx.classes, ctx.dtype = input.shape[1], input.dtype


def _grad_nll(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    """As in PyTorch, `weight` has no gradient."""
    target, weight = ctx.saved_tensors
    return {"input": nll_backward(grad, target, weight, ctx.ignore_index, ctx.classes, ctx.dtype)}


nll = operator(
    reference.nll,
    contract=f"input (N, C, S) of floats, int64 target (N, S), and {_WEIGHT}",
    fits=_fits_nll,
    fake=_fake_nll,
    check=_check_nll,
    save=_save_nll,
    backward=_grad_nll,
    kernels=(),
)


def _fits_nll_backward(grad: Tensor, target: Tensor, weight: Tensor | None, classes: int, dtype: torch.dtype) -> bool:
    wide = grad.dtype
    return (
        grad.dim() == 2
        and target.shape == grad.shape
        and target.dtype == torch.int64
        and classes >= 0
        and dtype in checks.FLOATS
        and wide == sum_dtype(dtype)
        and _fits_weight(weight, classes, wide)
    )


def _fake_nll_backward(grad: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    return grad.new_empty((grad.shape[0], classes, grad.shape[1]), dtype=dtype)


def _save_nll_backward(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.target, inputs.weight)
    ctx.ignore_index = inputs.ignore_index


def _grad_nll_backward(ctx: Any, upstream: Tensor) -> dict[str, Tensor | None]:
    target, weight = ctx.saved_tensors
    return {"grad": nll(upstream, target, weight, ctx.ignore_index)}


nll_backward = operator(
    reference.nll_backward,
    contract=f"grad (N, S) in at least float32, int64 target (N, S), {_WEIGHT}, classes C >= 0, and a floating dtype",
    fits=_fits_nll_backward,
    fake=_fake_nll_backward,
    save=_save_nll_backward,
    backward=_grad_nll_backward,
    kernels=(),
)
