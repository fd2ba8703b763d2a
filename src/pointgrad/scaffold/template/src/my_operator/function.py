"""The operator as a `torch.autograd.Function`: the shortest form with a derivative by hand.

Use it to understand and to try out a derivative. `register.py` has the same derivative in the form that
`torch.compile` and `torch.export` see as one operator, and that selects kernels.
"""

from typing import Any

import torch
from torch import Tensor

from . import reference


class Trilinear(torch.autograd.Function):
    """Call it as `Trilinear.apply(corners, points)`."""

    @staticmethod
    def forward(corners: Tensor, points: Tensor) -> Tensor:
        """Compute the result. Autograd records nothing in here, so any code will do, also a kernel."""
        return reference.forward(corners, points)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Store in `ctx` what backward needs. `ctx` belongs to one call: forward fills it, backward reads it.

        `save_for_backward` does more than `ctx.corners = corners`: it detects writes to the tensors before backward,
        it lets hooks move them to other memory, and it creates no reference cycle between an output and its graph.
        Anything that is no tensor is stored as an attribute: `ctx.scale = 2`.
        """
        corners, points = inputs
        # needs_input_grad has one entry per input. Only the gradient of the points reads the corners, which are large.
        ctx.save_for_backward(corners if ctx.needs_input_grad[1] else None, points)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of the inputs, given those of the outputs.

        There is one argument per output of forward, with the shape of that output, and one result per input, with the
        shape of that input; None for an input that needs no gradient or has none, such as an integer.

        These are differentiable operations on saved tensors, so autograd can differentiate them again. A kernel
        called here would hide its derivative: the second derivative would be wrong without an error. Then give the
        kernel a Function of its own, as in `register.py`, or mark backward with `@once_differentiable`.
        """
        corners, points = ctx.saved_tensors
        for_corners, for_points = ctx.needs_input_grad
        return (
            reference.corners_grad(grad, points) if for_corners else None,
            reference.points_grad(grad, corners, points) if for_points else None,
        )
