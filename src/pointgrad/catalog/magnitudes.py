"""Magnitudes: the sums of absolute values relative to which the rounding of a result is bounded."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import pointgrad

Arguments = dict[str, Any]
Upstream = Callable[[Tensor], Tensor] | list[Tensor]
# One magnitude per floating output, None for an output that has the same bits on every backend; then one per
# differentiable argument whose gradient may round differently.
Sums = tuple[list[Tensor | None], dict[str, Tensor]]
# From the arguments, the upstream gradients (in float64) and the outputs of the reference.
Magnitudes = Callable[[Arguments, list[Tensor], list[Tensor]], Sums]


def tensors(result: Any) -> list[Tensor]:
    """The tensors of a result, which may be one tensor or a tuple with other values in it."""
    parts = result if isinstance(result, tuple) else (result,)
    return [part for part in parts if isinstance(part, Tensor)]


def is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def run(
    call: Callable[..., Any], differentiable: Sequence[str], arguments: Arguments, upstream: Upstream
) -> tuple[list[Tensor], list[Tensor], dict[str, Tensor]]:
    """Calls an operator and differentiates it.

    Returns:
        The outputs, the upstream gradients of those that have one, and the gradients by argument.
    """
    sources = {
        name: arguments[name].detach().requires_grad_() for name in differentiable if is_float(arguments.get(name))
    }
    torch.manual_seed(1)  # for operators that draw
    outputs = tensors(call(**{**arguments, **sources}))
    live = [output for output in outputs if output.requires_grad]
    if not live:
        return [output.detach() for output in outputs], [], {}
    given = upstream if isinstance(upstream, list) else [upstream(output) for output in live]
    grads = torch.autograd.grad(live, list(sources.values()), given, allow_unused=True)
    found = {name: grad for name, grad in zip(sources, grads, strict=True) if grad is not None}
    return [output.detach() for output in outputs], given, found


def doubled(arguments: Arguments) -> Arguments:
    """The arguments with every floating tensor in float64."""
    return {name: value.double() if is_float(value) else value for name, value in arguments.items()}


def linear_in_each(
    call: Callable[..., Any], differentiable: tuple[str, ...], *, copies: bool = False, **signs: int
) -> Magnitudes:
    """Magnitudes of an operator that is linear in each argument, with coefficients that are not negative.

    They are the operator itself, applied to absolute values.

    Args:
        copies: Outputs are copied or moved, not computed.
        signs: -1 for arguments that are subtracted.
    """

    def magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
        positive = {
            name: value.abs() * signs.get(name, 1) if is_float(value) else value
            for name, value in doubled(arguments).items()
        }
        with pointgrad.backend("reference"):
            outputs, _, grads = run(call, differentiable, positive, [grad.abs() for grad in upstream])
        floats = [None if copies else output.abs() for output in outputs if output.is_floating_point()]
        return floats, {name: grad.abs() for name, grad in grads.items()}

    return magnitudes


def steepness(dtype: torch.dtype) -> int:
    """Weight of the rounding of an exponential's argument, which is at most this large unless the result is 0."""
    return 745 if dtype == torch.float64 else 104
