"""Reduction: mean."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks
from pointgrad.ops.sums import fixed_sum


def mean(
    input: Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Mean of all elements or along dimensions, as `torch.mean`. The mean of no elements is NaN.

    Args:
        input: Any shape, floating-point or complex; integers only if `dtype` is given.
        dim: One or several dimensions; None or () for all.
        keepdim: Keep the reduced dimensions with size 1.
        dtype: The dtype of the sum and of the result; that of `input` by default.

    Returns:
        The mean.

    Example:
        >>> mean(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), dim=1)
        tensor([1.5000, 4.5000])
    """
    checks.tensor("input", input)
    if dtype is None:
        checks.dtype("input", input, (*checks.FLOATS, torch.complex64, torch.complex128))
    else:
        checks.value(dtype.is_floating_point or dtype.is_complex, "dtype", "floating-point or complex", dtype)
    given = (dim,) if isinstance(dim, int) else tuple(dim or ())
    for number in given:
        checks.dim("dim", number, input.dim())
    rank = max(input.dim(), 1)
    dims = tuple(number % rank for number in given) or tuple(range(input.dim()))
    checks.value(len(set(dims)) == len(dims), "dim", "free of duplicates", given)
    return _Mean.apply(input, dims, keepdim, dtype)


class _Mean(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, dims: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None) -> Tensor:
        if len(dims) < input.dim() or not input.numel():
            return torch.mean(input, dims, keepdim, dtype=dtype)
        values = input if dtype is None else input.to(dtype)
        total = fixed_sum(values) / input.numel()
        if total.dtype != values.dtype:  # torch 2.11 compiles a cast that changes nothing to a gradient of zero
            total = total.to(values.dtype)
        return total.reshape([1] * input.dim()) if keepdim else total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, dims, keepdim, _ = inputs
        ctx.shape, ctx.dtype = input.shape, input.dtype
        ctx.lost = () if keepdim or not input.dim() else tuple(sorted(dims))
        ctx.count = math.prod([input.shape[d] for d in dims]) if input.dim() else 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        for d in ctx.lost:
            grad = grad.unsqueeze(d)
        dx = (grad / max(ctx.count, 1)).to(ctx.dtype).expand(ctx.shape)
        return dx, None, None, None  # dims, keepdim, dtype: not differentiable
