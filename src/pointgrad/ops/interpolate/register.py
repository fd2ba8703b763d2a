"""Schema, fake and autograd of this room's operators.

Three operators are closed under differentiation (README.md): `trilinear` sums corners, its adjoint
`trilinear_spread` spreads a gradient over corners, `trilinear_slope` differentiates by the point. With
a tangent each uses the weights' derivative along it, which is what second derivatives need.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..registry import operator
from . import reference


def _fake_trilinear(corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    return corners.new_empty((corners.shape[0], corners.shape[2]))


def _fake_spread(grad: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    return grad.new_empty((grad.shape[0], 8, grad.shape[1]))


def _fake_slope(grad: Tensor, corners: Tensor, points: Tensor, tangent: Tensor | None) -> Tensor:
    return grad.new_empty((grad.shape[0], 3))


def _save_trilinear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    corners, points, tangent = inputs
    by_point = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    ctx.save_for_backward(corners if by_point else None, points, tangent)


def _grad_trilinear(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    corners, points, tangent = ctx.saved_tensors
    for_corners, for_points, for_tangent = ctx.needs_input_grad[:3]
    return (
        trilinear_spread(grad, points, tangent) if for_corners else None,
        trilinear_slope(grad, corners, points, tangent) if for_points else None,
        trilinear_slope(grad, corners, points, None) if for_tangent else None,
    )


def _save_spread(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, points, tangent = inputs
    by_point = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    ctx.save_for_backward(grad if by_point else None, points, tangent)


def _grad_spread(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    grad, points, tangent = ctx.saved_tensors
    for_grad, for_points, for_tangent = ctx.needs_input_grad[:3]
    return (
        trilinear(grad_out, points, tangent) if for_grad else None,
        trilinear_slope(grad, grad_out, points, tangent) if for_points else None,
        trilinear_slope(grad, grad_out, points, None) if for_tangent else None,
    )


def _save_slope(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _grad_slope(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    grad, corners, points, tangent = ctx.saved_tensors
    if tangent is not None:
        return _through_reference(ctx, reference.trilinear_slope, grad_out)
    for_grad, for_corners, for_points = ctx.needs_input_grad[:3]
    return (
        trilinear(corners, points, grad_out) if for_grad else None,
        trilinear_spread(grad, points, grad_out) if for_corners else None,
        trilinear_slope(grad, corners, points, grad_out) if for_points else None,
        None,  # tangent: not given
    )


def _through_reference(ctx: Any, fn: Callable[..., Tensor], grad_out: Tensor) -> tuple[Tensor | None, ...]:
    """Third derivatives: rare, so they are left to autograd on the plain PyTorch form."""
    wanted = ctx.needs_input_grad[:4]
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [x.view_as(x) if need else x for x, need in zip(ctx.saved_tensors, wanted, strict=True)]
        sources = [x for x, need in zip(inputs, wanted, strict=True) if need]
        grads = iter(torch.autograd.grad(fn(*inputs), sources, grad_out, create_graph=again))
    return tuple(next(grads) if need else None for need in wanted)


trilinear = operator(
    "trilinear(Tensor corners, Tensor points, Tensor? tangent) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_trilinear,
    save=_save_trilinear,
    backward=_grad_trilinear,
    autocast="widest",
)

trilinear_spread = operator(
    "trilinear_spread(Tensor grad, Tensor points, Tensor? tangent) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_spread,
    save=_save_spread,
    backward=_grad_spread,
)

trilinear_slope = operator(
    "trilinear_slope(Tensor grad, Tensor corners, Tensor points, Tensor? tangent) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_slope,
    save=_save_slope,
    backward=_grad_slope,
)
