"""Schema, fake and autograd of this room's operators.

`cross_entropy_backward` needs only the logits and two numbers per position. Its own gradient is plain PyTorch,
differentiable to any order. `nll` and its adjoint are linear and closed under differentiation.
"""

from typing import Any

import torch
from torch import Tensor

from .. import checks, native
from ..registry import legacy_operator as operator
from .reference import coefficients, counted


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


def _check_cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float
) -> None:
    _check_target(target, logits.shape[1], ignore_index)


def _fake_cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    shape, wide = (logits.shape[0], logits.shape[2]), torch.promote_types(logits.dtype, torch.float32)
    loss, top, total = (logits.new_empty(shape, dtype=wide) for _ in range(3))
    return loss, top, total


def _save_cross_entropy(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, target, weight, ctx.ignore_index, ctx.smoothing = inputs
    _, top, total = output
    ctx.mark_non_differentiable(top, total)
    ctx.save_for_backward(logits, target, weight, top, total)


def _grad_cross_entropy(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    logits, target, weight, top, total = ctx.saved_tensors
    for_logits, for_target, *_ = ctx.needed
    rule = (target, weight, ctx.ignore_index, ctx.smoothing)
    dlogits = cross_entropy_backward(grad, logits, *rule, top, total) if for_logits else None
    dtarget = None
    if for_target:  # coefficients: classes have no gradient
        x = logits.to(grad.dtype)
        dtarget = (-grad.unsqueeze(1) * _log_probabilities(x)).to(target.dtype)
    return dlogits, dtarget, None, None, None  # weight: not with classes, as in PyTorch; the rest: numbers


cross_entropy = operator(
    "cross_entropy(Tensor logits, Tensor target, Tensor? weight, SymInt ignore_index, float smoothing)"
    " -> (Tensor, Tensor, Tensor)",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_cross_entropy,
    check=_check_cross_entropy,
    save=_save_cross_entropy,
    backward=_grad_cross_entropy,
)


def _check_backward(
    grad: Tensor, logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, *_: Any
) -> None:
    _check_target(target, logits.shape[1], ignore_index)


def _fake_backward(grad: Tensor, logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, logits, target, weight, ctx.ignore_index, ctx.smoothing, *_ = inputs
    ctx.save_for_backward(grad, logits, target, weight)


def _grad_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of `g (A p - a)`, a function of g, x and a, by hand."""
    grad, logits, target, weight = ctx.saved_tensors
    for_grad, for_logits, for_target, *_ = ctx.needed
    x, v, g = logits.to(grad.dtype), upstream.to(grad.dtype), grad.unsqueeze(1)
    a = coefficients(x, target, weight, ctx.ignore_index, ctx.smoothing)
    p = _log_probabilities(x).exp()
    flat = _is_flat(x, target, ctx.ignore_index)
    amount, along = a.sum(1, keepdim=True), (p * v).sum(1, keepdim=True)  # A, and p · v
    dgrad = dlogits = dtarget = None
    if for_grad:
        dgrad = torch.where(flat, 0, v * (amount * p - a)).sum(1)
    if for_logits:
        dlogits = torch.where(flat, 0, g * amount * p * (v - along)).to(logits.dtype)
    if for_target:
        dtarget = torch.where(flat, 0, g * (along - v)).to(target.dtype)
    # weight, ignore_index, smoothing: as in the forward; top, total: functions of the logits
    return dgrad, dlogits, dtarget, None, None, None, None, None


def _log_probabilities(x: Tensor) -> Tensor:
    """-inf for all of a row of nothing but -inf, and no gradient there."""
    nothing = (x == -torch.inf).all(1, keepdim=True)
    return torch.where(nothing, -torch.inf, torch.log_softmax(torch.where(nothing, 0, x), 1))


def _is_flat(x: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """(N, 1, S): positions that pass no gradient."""
    flat = (x == -torch.inf).all(1, keepdim=True)
    if target.is_floating_point():
        return flat
    return flat | ~counted(target, x.shape[1], ignore_index).unsqueeze(1)


cross_entropy_backward = operator(
    "cross_entropy_backward(Tensor grad, Tensor logits, Tensor target, Tensor? weight, SymInt ignore_index,"
    " float smoothing, Tensor top, Tensor total) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_backward,
    check=_check_backward,
    save=_save_backward,
    backward=_grad_backward,
)


def _check_nll(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> None:
    _check_target(target, input.shape[1], ignore_index)


def _fake_nll(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    return input.new_empty(target.shape, dtype=torch.promote_types(input.dtype, torch.float32))


def _save_nll(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, target, weight, ctx.ignore_index = inputs
    ctx.save_for_backward(target, weight)
    ctx.classes, ctx.dtype = input.shape[1], input.dtype


def _grad_nll(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    target, weight = ctx.saved_tensors
    dinput = nll_backward(grad, target, weight, ctx.ignore_index, ctx.classes, ctx.dtype)
    return dinput, None, None, None  # target: classes; weight: as in PyTorch; ignore_index: a number


nll = operator(
    "nll(Tensor input, Tensor target, Tensor? weight, SymInt ignore_index) -> Tensor",
    room=__package__,
    kernels=(),
    fake=_fake_nll,
    check=_check_nll,
    save=_save_nll,
    backward=_grad_nll,
)


def _fake_nll_backward(
    grad: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, classes: int, dtype: torch.dtype
) -> Tensor:
    return grad.new_empty((grad.shape[0], classes, grad.shape[1]), dtype=dtype)


def _save_nll_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, target, weight, ctx.ignore_index, _, _ = inputs
    ctx.save_for_backward(target, weight)


def _grad_nll_backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    target, weight = ctx.saved_tensors
    return nll(upstream, target, weight, ctx.ignore_index), None, None, None, None, None  # what is not a gradient


nll_backward = operator(
    "nll_backward(Tensor grad, Tensor target, Tensor? weight, SymInt ignore_index, SymInt classes, ScalarType dtype)"
    " -> Tensor",
    room=__package__,
    kernels=(),
    fake=_fake_nll_backward,
    save=_save_nll_backward,
    backward=_grad_nll_backward,
)
