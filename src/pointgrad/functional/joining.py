"""Concatenation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors along an existing dimension, as `torch.cat`.

    Args:
        tensors: Tensors of equal shape except along `dim`. Tensors of shape (0,) are always allowed.
        dim: The dimension to concatenate along.

    Returns:
        The concatenation in the common promoted dtype. Each gradient has the dtype of its tensor.

    Example:
        >>> cat([torch.zeros(1, 2), torch.ones(2, 2)]).tolist()
        [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    """
    given = isinstance(tensors, Sequence) and len(tensors) > 0
    checks.kind(given, "tensors", "a non-empty sequence of tensors", tensors)
    for number, tensor in enumerate(tensors):
        checks.tensor(f"tensors[{number}]", tensor)
    shaped = ([tensor for tensor in tensors if tensor.shape != (0,)] or tensors)[0]
    checks.shape(shaped.dim() > 0, "tensors", "at least one dimension", shaped, verb="have")
    checks.dim("dim", dim, shaped.dim())
    dim %= shaped.dim()
    for number, tensor in enumerate(tensors):
        fits = tensor.shape == (0,) or (
            tensor.dim() == shaped.dim()
            and tensor.shape[:dim] == shaped.shape[:dim]
            and tensor.shape[dim + 1 :] == shaped.shape[dim + 1 :]
        )
        checks.shape(fits, f"tensors[{number}]", lambda: f"{tuple(shaped.shape)} except in dimension {dim}", tensor)
    if not any(tensor.requires_grad for tensor in tensors):
        return torch.cat(list(tensors), dim)  # torch.compile fails on a variadic Function without gradients
    return _Cat.apply(dim, *tensors)


class _Cat(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(dim: int, *tensors: Tensor) -> Tensor:
        return torch.cat(tensors, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dim, *tensors = inputs
        # A tensor of shape (0,) may not have the dimension.
        ctx.sizes = [t.shape[ctx.dim] if t.shape != (0,) else 0 for t in tensors]
        ctx.empty = [t.shape == (0,) for t in tensors]
        ctx.dtypes = [t.dtype for t in tensors]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads: list[Tensor | None] = [None]  # dim: not differentiable
        start = 0
        for number, size in enumerate(ctx.sizes):
            needed = ctx.needs_input_grad[number + 1]
            part = grad.new_zeros(0) if ctx.empty[number] else grad.narrow(ctx.dim, start, size)
            grads.append(part.to(ctx.dtypes[number]) if needed else None)
            start += size
        return tuple(grads)
