"""What the harness knows about an operator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import pointgrad

from .draw import Draw

Arguments = dict[str, Any]
# From the arguments, the upstream gradients (in float64) and the reference's outputs: the sum of the absolute values of
# what is added up in each floating output, and in the gradient of each differentiable argument, in float64. None, and
# no entry for a gradient: the same bits on every backend.
Magnitudes = Callable[[Arguments, list[Tensor], list[Tensor]], tuple[list[Tensor | None], dict[str, Tensor]]]


@dataclass(frozen=True)
class Operator:
    """name: of the public function, with a variant after a slash if one name has several.
    draw: keyword arguments that the contract allows.
    differentiable: arguments that have a gradient, where they are floating.
    magnitudes: without them all outputs have the same bits on every backend.
    rounds: what is kept for backward, or between two steps, is rounded to the dtype of the input.
    bad: values that are refused, by argument.
    rows: how many rows an `index` counts, None if that is not told.
    """

    name: str
    call: Callable[..., Any]
    draw: Callable[[Draw], Arguments]
    differentiable: tuple[str, ...] = ()
    magnitudes: Magnitudes | None = None
    rounds: bool = False
    bad_arguments: dict[str, Sequence[Any]] = field(default_factory=dict)
    index_rows: Callable[[Arguments], int | None] = lambda arguments: None


def tensors(result: Any) -> list[Tensor]:
    parts = result if isinstance(result, tuple) else (result,)
    return [part for part in parts if part is not None]


def run(
    operator: Operator, arguments: Arguments, upstream: Callable[[Tensor], Tensor] | list[Tensor]
) -> tuple[list[Tensor], list[Tensor], dict[str, Tensor]]:
    """Outputs, the gradients that went into those that have one, and the gradients that came out."""
    sources = {
        name: arguments[name].detach().requires_grad_()
        for name in operator.differentiable
        if isinstance(arguments.get(name), Tensor) and arguments[name].is_floating_point()
    }
    torch.manual_seed(1)  # operators that draw
    outputs = tensors(operator.call(**{**arguments, **sources}))
    live = [output for output in outputs if output.requires_grad]
    if not live:
        return [output.detach() for output in outputs], [], {}
    into = upstream if isinstance(upstream, list) else [upstream(output) for output in live]
    grads = torch.autograd.grad(live, list(sources.values()), into, allow_unused=True)
    found = {name: grad for name, grad in zip(sources, grads, strict=True) if grad is not None}
    return [output.detach() for output in outputs], into, found


def doubled(arguments: Arguments) -> Arguments:
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


def linear_in_each(
    call: Callable[..., Any], differentiable: tuple[str, ...], *, copies: bool = False, **signs: int
) -> Magnitudes:
    """Of an operator that is linear in each argument, with coefficients that are not negative: itself, of absolute
    values. copies: outputs are copied or moved, not computed. signs: -1 for arguments that are subtracted."""
    absolute = Operator("", call, lambda draw: {}, differentiable)

    def magnitudes(
        arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
    ) -> tuple[list[Tensor | None], dict[str, Tensor]]:
        positive = {
            name: value.abs() * signs.get(name, 1) if isinstance(value, Tensor) and value.is_floating_point() else value
            for name, value in doubled(arguments).items()
        }
        with pointgrad.backend("reference"):
            outputs, _, grads = run(absolute, positive, [grad.abs() for grad in upstream])
        floats = [None if copies else output.abs() for output in outputs if output.is_floating_point()]
        return floats, {name: grad.abs() for name, grad in grads.items()}

    return magnitudes
