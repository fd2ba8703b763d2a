"""Comparisons of functions that take the same arguments: forward, backward or both, checked against float64."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .comparison import Call, Check, Comparison, Implementation

Form = Callable[..., Tensor]
Mode = Literal["forward", "backward", "forward + backward"]


def close(truth: Callable[[], Any], tolerance: float) -> Check:
    """A check that the error of each tensor, relative to its norm, is at most `tolerance`."""
    exact = functools.cache(truth)

    def check(received: Any) -> None:
        expected = exact()
        both = [(each,) if isinstance(each, Tensor) else each for each in (received, expected)]
        for mine, theirs in zip(*both, strict=True):
            assert mine.shape == theirs.shape, f"shape must be {tuple(theirs.shape)}, got {tuple(mine.shape)}"
            error = float((mine - theirs).norm() / theirs.norm().clamp(min=1e-30))
            assert error <= tolerance, f"relative error must be at most {tolerance:.0e}, got {error:.1e}"

    return check


def timed_call(mode: Mode, form: Form, arguments: Sequence[Any], sources: Sequence[Tensor], upstream: Tensor) -> Call:
    """A call without arguments that runs the forward pass, the backward pass to `sources`, or both.

    The call returns the output in mode "forward", and the gradients otherwise.
    """
    if mode == "forward":
        fixed = [value.detach() if isinstance(value, Tensor) else value for value in arguments]
        return lambda: form(*fixed)
    if mode == "backward":
        kept = [value if any(value is source for source in sources) else _detached(value) for value in arguments]
        output = form(*kept)
        return lambda: torch.autograd.grad(output, sources, upstream, retain_graph=True)
    return lambda: torch.autograd.grad(form(*arguments), sources, upstream)


def compare(
    mode: Mode,
    ours: Form,
    plain: dict[str, Form],
    arguments: Sequence[Any],
    sources: Sequence[Tensor] = (),
    *,
    compile: str | None = None,
    tolerance: float = 1e-5,
    work: tuple[str, dict[str, Any]] | None = None,
    moved: int = 0,
) -> Comparison:
    """Compare our function with plain forms that take the same arguments.

    Args:
        mode: The timed passes.
        ours: The function of pointgrad.
        plain: Plain forms by name. The first one, in float64, is the ground truth.
        arguments: Arguments of all functions.
        sources: The arguments whose gradients are computed. They must require gradients.
        compile: Name of the plain form to compile, by default the first.
        tolerance: Largest relative error.
        work: As in `Comparison`. In mode "backward" it becomes `<name>_backward`, with the incoming gradient as `grad`.
        moved: As in `Comparison`.
    """
    exact_form = next(iter(plain.values()))
    with torch.no_grad():
        upstream = torch.randn_like(ours(*arguments))

    def truth() -> Any:
        exact = [_double(value) for value in arguments]
        if mode == "forward":
            return exact_form(*exact)
        positions = [next(n for n, value in enumerate(arguments) if value is source) for source in sources]
        wanted = [exact[position].requires_grad_() for position in positions]
        return torch.autograd.grad(exact_form(*exact), wanted, upstream.double())

    def implementation(form: Form) -> Implementation:
        return Implementation(timed_call(mode, form, arguments, sources, upstream))

    if work is not None and mode != "forward":
        work = (f"{work[0]}_backward", work[1] | {"grad": upstream}) if mode == "backward" else None
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


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _double(value: Any) -> Any:
    return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else _detached(value)
