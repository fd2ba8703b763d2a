"""Linear map."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear map y = x Aᵀ + b, as `torch.nn.functional.linear`.

    Args:
        input: (..., I), with any number of leading dimensions.
        weight: (O, I), or (I,) for a single output without a dimension.
        bias: (O,), or broadcastable to the result. Not allowed with a weight of shape (I,).

    Returns:
        (..., O), or (...) for a weight of shape (I,). Under autocast, in the lower dtype, as in PyTorch.

    Example:
        >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [0.0, 3.0]]), torch.tensor([0.5, 0.0]))
        tensor([[3.5000, 6.0000]])
    """
    checks.tensor("input", input)
    checks.tensor("weight", weight)
    if bias is not None:
        checks.tensor("bias", bias)
    checks.shape(input.dim() >= 1, "input", "(..., I)", input)
    fits = weight.dim() in (1, 2) and weight.shape[-1] == input.shape[-1]
    checks.shape(fits, "weight", lambda: f"(O, I) or (I,) with I = {input.shape[-1]}", weight)
    if bias is not None and weight.dim() == 2:
        result = (*input.shape[:-1], weight.shape[0])
        trailing = result[max(len(result) - bias.dim(), 0) :]
        fits = len(trailing) == bias.dim() and all(b in (1, n) for b, n in zip(bias.shape, trailing, strict=True))
        checks.shape(fits, "bias", lambda: f"(O,) = ({weight.shape[0]},), or broadcastable to the result", bias)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and not checks.autocasts(input):
            checks.same_dtype(name, value, "input", input)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None:
            checks.device(name, value, "input", input)
    checks.value(bias is None or weight.dim() == 2, "bias", "None for a weight of shape (I,)", "a tensor")
    return _Linear.apply(input, weight, bias)


class _Linear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.linear(input, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        input, weight, bias = inputs
        for_input, for_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(input if for_weight else None, weight if for_input else None)
        ctx.dtypes = [None if value is None else value.dtype for value in inputs]
        ctx.one_output = weight.dim() == 1
        ctx.bias_shape = None if bias is None else bias.shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        for_input, for_weight, for_bias = ctx.needs_input_grad
        dx = da = db = None
        dy = grad.unsqueeze(-1) if ctx.one_output else grad  # (..., O)
        if for_input:
            a = (weight.unsqueeze(0) if ctx.one_output else weight).to(dy.dtype)
            dx = (dy @ a.conj()).to(ctx.dtypes[0])
        if for_weight:
            rows = input.shape[:-1].numel()
            x = input.reshape(rows, input.shape[-1]).to(dy.dtype)
            da = dy.reshape(rows, dy.shape[-1]).mT @ x.conj()
            da = (da.squeeze(0) if ctx.one_output else da).to(ctx.dtypes[1])
        if for_bias:
            db = dy.sum_to_size(ctx.bias_shape).to(ctx.dtypes[2])
        return dx, da, db
