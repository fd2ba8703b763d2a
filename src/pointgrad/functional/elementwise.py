"""Functions of one number: the logarithm and the rectifier."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks


def log(input: Tensor) -> Tensor:
    """`torch.log`: the natural logarithm of each element.

    input: any shape; integers and booleans count as the default dtype. 0 gives -inf, what is negative NaN.

    >>> log(torch.tensor([1.0, 0.0, -1.0]))
    tensor([0., -inf, nan])
    """
    checks.tensor("input", input)
    if not (input.is_floating_point() or input.is_complex()):
        input = input.to(torch.get_default_dtype())
    return _Log.apply(input)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """`torch.nn.functional.relu`: max(0, x); its slope at 0 is 0.

    input: any shape, floating or integer. inplace: overwrite `input` and return it; what others saved of it for their
        backward is then gone, and autograd says so (docs/book/inplace.md).

    >>> relu(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """
    checks.tensor("input", input)
    if input.is_complex() or input.dtype == torch.bool:
        checks.dtype("input", input, (*checks.FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
    if not inplace:
        return _Relu.apply(input)
    # torch sees what a Function overwrote only afterwards, when a leaf's values are lost; its compiler sees it before.
    if input.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        base = input if input._base is None else input._base
        kind = "a leaf" if base is input else "a view of a leaf"
        if base.is_leaf:
            raise RuntimeError(f"{kind} Variable that requires grad is being used in an in-place operation.")
    return _ReluInPlace.apply(input)


class _Log(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor) -> Tensor:
        return torch.log(input)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (input,) = ctx.saved_tensors
        return (grad / input.conj()).to(input.dtype)


class _Relu(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor) -> Tensor:
        return torch.relu(input)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return torch.where(output <= 0, 0, grad)


class _ReluInPlace(torch.autograd.Function):
    @staticmethod
    def forward(input: Tensor) -> Tensor:
        torch.relu_(input)
        return input

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.mark_dirty(inputs[0])
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (output,) = ctx.saved_tensors
        return torch.where(output <= 0, 0, grad)
