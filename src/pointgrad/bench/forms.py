"""Comparisons of functions that take the same arguments: forward, backward or both, checked against float64."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pointgrad.catalog.base import Passes

from .comparison import Call, Check, Comparison, Implementation

Form = Callable[..., Tensor]


def close(truth: Callable[[], Any], tolerance: float) -> Check:
    """A check that the error of each tensor, relative to its norm, is at most `tolerance`."""
    exact = functools.cache(truth)

    def check(received: Any) -> None:
        expected = exact()
        both = [(each,) if isinstance(each, Tensor) else each for each in (received, expected)]
        for actual, desired in zip(*both, strict=True):
            assert actual.shape == desired.shape, f"shape must be {tuple(desired.shape)}, got {tuple(actual.shape)}"
            error = float((actual - desired).norm() / desired.norm().clamp(min=1e-30))
            assert error <= tolerance, f"relative error must be at most {tolerance:.0e}, got {error:.1e}"

    return check


def timed_call(passes: Passes, form: Form, arguments: dict[str, Any], sources: Sequence[str], upstream: Tensor) -> Call:
    """A call that returns the output of a form, its gradients, or both, depending on `passes`."""
    if passes == "forward":
        return lambda: form(**arguments)
    inputs = [arguments[name].detach().requires_grad_() for name in sources]
    given = arguments | dict(zip(sources, inputs, strict=True))
    if passes == "backward":
        output = form(**given)
        return lambda: torch.autograd.grad(output, inputs, upstream, retain_graph=True)
    return lambda: _both(form(**given), inputs, upstream)


def compare(
    passes: Passes,
    ours: Form,
    plain: dict[str, Form],
    arguments: dict[str, Any],
    sources: Sequence[str] = (),
    *,
    compile: str | None = None,
    tolerance: float = 1e-5,
    work: tuple[str, dict[str, Any]] | None = None,
    moved: int = 0,
) -> Comparison:
    """Compare our function with plain forms that take the same arguments.

    Args:
        passes: The timed passes.
        ours: The function of pointgrad.
        plain: Plain forms by name. The first one, in float64, is the ground truth.
        arguments: Keyword arguments of all functions.
        sources: Names of the arguments whose gradients are computed.
        compile: Name of the plain form to compile, by default the first.
        tolerance: Largest relative error.
        work: As in `Comparison`. For the backward pass it becomes `<name>_backward`, with the gradient as `grad`; for
            both passes `<name>_both`.
        moved: As in `Comparison`.
    """
    exact_form = next(iter(plain.values()))
    with torch.no_grad():
        upstream = torch.randn_like(ours(**arguments))

    def truth() -> Any:
        exact = {name: _double(value) for name, value in arguments.items()}
        if passes == "forward":
            return exact_form(**exact)
        inputs = [exact[name].requires_grad_() for name in sources]
        both = _both(exact_form(**exact), inputs, upstream.double())
        return both[1:] if passes == "backward" else both

    def implementation(form: Form) -> Implementation:
        return Implementation(timed_call(passes, form, arguments, sources, upstream))

    if work is not None and passes != "forward":
        suffix = "backward" if passes == "backward" else "both"
        work = (f"{work[0]}_{suffix}", work[1] | {"grad": upstream})
    to_compile = plain[compile] if compile else exact_form

    def compiled() -> Implementation:
        # The backward pass runs repeatedly on the tensors that one forward pass saved, so it must not reuse them.
        with torch._functorch.config.patch(donated_buffer=False):
            return implementation(torch.compile(to_compile))

    return Comparison(
        implementation(ours),
        close(truth, tolerance),
        {name: implementation(form) for name, form in plain.items()},
        compiled=compiled,
        work=work,
        moved=moved,
    )


def _both(output: Tensor, inputs: list[Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
    return output.detach(), *torch.autograd.grad(output, inputs, upstream)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
