"""The MLP of a transformer block, without keeping the output of GELU for the backward pass."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.shared_mlp import is_plain

PART = 2**23  # hidden numbers that are computed at once in inference


class GeluMLP(nn.Sequential):
    """Linear layer, GELU and linear layer, on the last dimension.

    It computes what `nn.Sequential` of the three layers computes, with less memory. In training, the output of GELU is
    computed again in the backward pass, so of the two hidden tensors only the input of GELU is kept. In inference, the
    hidden layer of many rows is computed in parts.

    Args:
        channels: Number of input and output channels.
        hidden: Number of channels of the hidden layer.

    Example:
        >>> GeluMLP(8, 32)(torch.rand(5, 8)).shape
        torch.Size([5, 8])
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__(nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels))

    def forward(self, rows: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not self._is_plain():
            return cast("Tensor", super().forward(rows))
        first, _, last = cast("tuple[nn.Linear, nn.GELU, nn.Linear]", tuple(self))
        if torch.is_grad_enabled():
            hidden = first(rows)
            # Under autocast, the hidden numbers have a lower dtype than the weights.
            weights = [weight.to(hidden.dtype) for weight in (last.weight, last.bias)]
            return cast("Tensor", _GeluLinear.apply(hidden, *weights))
        count = max(PART // first.out_features, 1)
        parts = [super(GeluMLP, self).forward(part) for part in rows.split(count)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _is_plain(self) -> bool:
        """Whether the layers are those of the constructor, without hooks."""
        kinds = (nn.Linear, nn.GELU, nn.Linear)
        if len(self) != 3 or not all(is_plain(layer, kind) for layer, kind in zip(self, kinds, strict=True)):
            return False
        return self[1].approximate == "none" and self[2].bias is not None


class _GeluLinear(torch.autograd.Function):
    """`linear(gelu(hidden), weight, bias)`, which keeps `hidden` and not the output of GELU."""

    generate_vmap_rule = True

    @staticmethod
    def forward(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.linear(functional.gelu(hidden), weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        hidden, weight, _ = inputs
        ctx.save_for_backward(hidden, weight)
        ctx.save_for_forward(hidden, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (hidden, weight), needed = grads, ctx.saved_tensors, ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            torch.ops.aten.gelu_backward(grad @ weight, hidden) if needed[0] else None,
            rows.mT @ functional.gelu(hidden).reshape(-1, hidden.shape[-1]) if needed[1] else None,
            rows.sum(0) if needed[2] else None,
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (hidden, weight), (change, weight_change, bias_change) = ctx.saved_tensors, tangents
        out = hidden.new_zeros(*hidden.shape[:-1], weight.shape[0])
        if change is not None:
            out = out + functional.linear(torch.ops.aten.gelu_backward(change, hidden), weight)
        if weight_change is not None:
            out = out + functional.linear(functional.gelu(hidden), weight_change)
        return out if bias_change is None else out + bias_change
