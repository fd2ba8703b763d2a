"""Registration with torch: schemas, fakes and derivatives.

`torch.compile` and `torch.export` then see one operator instead of the code inside it. Kernels are added to these
operators by device; without a kernel, the function under `custom_op` runs.
"""

from typing import Any

import torch
from torch import Tensor

from . import reference
# [kernels]
from .kernels import warn_if_missing
# [/kernels]


@torch.library.custom_op(
    "my_operator::my_operator",
    mutates_args=(),
    schema="(Tensor corners, Tensor points) -> Tensor",
)
def interpolate(corners: Tensor, points: Tensor) -> Tensor:
    # [kernels]
    warn_if_missing(corners.device.type)
    # [/kernels]
    return reference.forward(corners, points)


@interpolate.register_fake
def _(corners: Tensor, points: Tensor) -> Tensor:
    """Only the shape, dtype and device of the result: what compilers need while they trace a program."""
    return corners.new_empty(corners.shape[0], corners.shape[2])


# Two results in one operator, because both read `grad`, and a fused kernel reads it once. `corners` is None if the
# points need no gradient. A result that is not needed is an empty tensor: schemas have no optional results.
@torch.library.custom_op(
    "my_operator::my_operator_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor? corners, Tensor points, bool for_corners) -> (Tensor, Tensor)",
)
def interpolate_backward(
    grad: Tensor, corners: Tensor | None, points: Tensor, for_corners: bool
) -> tuple[Tensor, Tensor]:
    # [kernels]
    warn_if_missing(grad.device.type)
    # [/kernels]
    corners_grad = reference.corners_grad(grad, points) if for_corners else grad.new_empty(0)
    points_grad = grad.new_empty(0) if corners is None else reference.points_grad(grad, corners, points)
    return corners_grad, points_grad


@interpolate_backward.register_fake
def _(grad: Tensor, corners: Tensor | None, points: Tensor, for_corners: bool) -> tuple[Tensor, Tensor]:
    count, features = grad.shape
    corners_grad = grad.new_empty((count, 8, features) if for_corners else 0)
    points_grad = grad.new_empty(0 if corners is None else (count, 3))
    return corners_grad, points_grad


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    corners, points = inputs
    ctx.save_for_backward(corners if ctx.needs_input_grad[1] else None, points)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    corners, points = ctx.saved_tensors
    for_corners, for_points = ctx.needs_input_grad
    corners_grad, points_grad = interpolate_backward(grad, corners, points, for_corners)
    return corners_grad if for_corners else None, points_grad if for_points else None


def _save_for_second(ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor, bool], output: Any) -> None:
    *tensors, ctx.for_corners = inputs
    ctx.save_for_backward(*tensors)


def _second(ctx: Any, corners_change: Tensor, points_change: Tensor) -> tuple[Tensor | None, ...]:
    """The derivative of backward: autograd through the reference, because second derivatives are rare.

    It differentiates the product of backward with its upstream gradients, which are the two arguments.
    """
    create_graph = torch.is_grad_enabled()  # for third derivatives
    with torch.enable_grad():
        # A view of each input, so that autograd stops here and does not continue to where the input comes from.
        needed = ctx.needs_input_grad[:3]
        inputs = [x.view_as(x) if need else x for x, need in zip(ctx.saved_tensors, needed, strict=True)]
        grad, corners, points = inputs
        product = grad.new_zeros(())
        if ctx.for_corners:
            product = product + (corners_change * reference.corners_grad(grad, points)).sum()
        if corners is not None:
            product = product + (points_change * reference.points_grad(grad, corners, points)).sum()
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need]
        found = iter(torch.autograd.grad(product, wanted, create_graph=create_graph))
    return (*(next(found) if need else None for need in needed), None)  # for_corners is a bool


interpolate.register_autograd(_backward, setup_context=_save)
interpolate_backward.register_autograd(_second, setup_context=_save_for_second)
