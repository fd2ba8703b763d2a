"""Elementwise functions: log and relu."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def log(input: Tensor) -> Tensor:
    """Natural logarithm of each element, as `torch.log`.

    Args:
        input: Any shape. Integers and booleans are converted to the default dtype.

    Returns:
        The shape of `input`; -inf at 0, NaN for negative values.

    Example:
        >>> log(torch.tensor([1.0, 0.0, -1.0]))
        tensor([0., -inf, nan])
    """
    checks.tensor("input", input)
    checks.dtype("input", input, (*checks.FLOATS, *_INTEGERS, torch.bool, torch.complex64, torch.complex128))
    if not (input.is_floating_point() or input.is_complex()):
        input = input.to(torch.get_default_dtype())
    return _Log.apply(input)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Rectified linear unit max(0, x), as `torch.nn.functional.relu`. The derivative at 0 is 0.

    Args:
        input: Any shape, floating-point or integer.
        inplace: Overwrite `input` and return it. If another operator saved its previous values for backward, backward
            raises an error (docs/book/inplace.md).

    Returns:
        The shape and dtype of `input`.

    Raises:
        RuntimeError: If `inplace` is set and `input` is a leaf that requires grad, or a view of one.

    Example:
        >>> relu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])
    """
    checks.tensor("input", input)
    checks.boolean("inplace", inplace)
    checks.dtype("input", input, (*checks.FLOATS, *_INTEGERS))
    if not inplace:
        return _Relu.apply(input)
    # torch would raise only after the Function has overwritten the leaf; the compiler raises before.
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
