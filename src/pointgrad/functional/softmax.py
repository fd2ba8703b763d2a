"""Softmax and log-softmax, which are also defined for rows of -inf."""

import warnings
from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks
from pointgrad.ops.sums import sum_dtype


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax exp(x_i) / sum_j exp(x_j) along `dim`, as `torch.nn.functional.softmax`.

    Args:
        input: Any shape, floating-point; integers only if `dtype` is given.
        dim: The dimension along which the results sum to 1.
        dtype: A floating-point dtype to which the input is cast; that of `input` by default.

    Returns:
        The shape of `input`. A row in which every value is -inf gives zeros and a zero gradient (NaN in PyTorch).

    Example:
        >>> softmax(torch.tensor([[0.0, 0.0], [1e20, 0.0], [-torch.inf, -torch.inf]]), dim=1).tolist()
        [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]
    """
    return _Softmax.apply(*_checked("softmax", input, dim, _stacklevel, dtype))


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Tensor:
    """Log-softmax x_i - log sum_j exp(x_j) along `dim`, as `torch.nn.functional.log_softmax`.

    It is more accurate than log(softmax(x)).

    Args:
        input: Any shape, floating-point; integers only if `dtype` is given.
        dim: The dimension of the sum.
        dtype: A floating-point dtype to which the input is cast; that of `input` by default.

    Returns:
        The shape of `input`. A row in which every value is -inf gives -inf and a zero gradient (NaN in PyTorch).

    Example:
        >>> log_softmax(torch.tensor([[0.0, 1e20], [-torch.inf, -torch.inf]]), dim=1).tolist()
        [[-1.0000000200408773e+20, 0.0], [-inf, -inf]]
    """
    return _LogSoftmax.apply(*_checked("log_softmax", input, dim, _stacklevel, dtype))


# Forwards return new tensors: torch.compile up to 2.11 loses the gradient of a tensor that was modified in place, or
# that `to` returned unchanged.


class _Softmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, dim: int) -> Tensor:
        return torch.softmax(input, dim).masked_fill(_is_all_minus_inf(input, dim), 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        input, ctx.dim = inputs
        ctx.dtype = input.dtype
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        y, dy = _widened(output), _widened(grad)
        dx = y * (dy - (y * dy).sum(ctx.dim, keepdim=True))
        return dx.to(ctx.dtype), None  # dim: not differentiable


class _LogSoftmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, dim: int) -> Tensor:
        return torch.log_softmax(input, dim).masked_fill(_is_all_minus_inf(input, dim), -torch.inf)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        input, ctx.dim = inputs
        ctx.dtype = input.dtype
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        y, dy = _widened(output), _widened(grad)
        dx = dy - y.exp() * dy.sum(ctx.dim, keepdim=True)
        dx = torch.where(_is_all_minus_inf(output, ctx.dim), 0, dx)
        return dx.to(ctx.dtype), None  # dim: not differentiable


def _is_all_minus_inf(rows: Tensor, dim: int) -> Tensor:
    """Whether every value of a row is -inf."""
    if rows.numel() == 0:
        return rows == -torch.inf
    return rows.detach().amax(dim, keepdim=True) == -torch.inf


def _widened(value: Tensor) -> Tensor:
    return value.to(sum_dtype(value.dtype))


def _checked(
    name: str, input: Tensor, dim: int | None, stacklevel: int, dtype: torch.dtype | None
) -> tuple[Tensor, int]:
    checks.tensor("input", input)
    if dim is None:
        dim = 0 if input.dim() in (0, 1, 3) else 1
        warnings.warn(
            f"Implicit dimension choice for {name} has been deprecated. "
            "Change the call to include dim=X as an argument.",
            stacklevel=stacklevel,
        )
    checks.kind(dtype is None or isinstance(dtype, torch.dtype), "dtype", "a torch.dtype or None", dtype)
    if dtype is not None:
        input = input.to(dtype)
    checks.dtype("input" if dtype is None else "dtype", input, checks.FLOATS)
    checks.dim("dim", dim, input.dim())
    return input, dim
