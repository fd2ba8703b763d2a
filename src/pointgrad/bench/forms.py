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
    """A check that integers are equal, and the error of each floating tensor is at most `tolerance` times its norm."""
    exact = functools.cache(truth)

    def check(received: Any) -> None:
        expected = exact()
        both = [(each,) if isinstance(each, Tensor) else each for each in (received, expected)]
        for actual, desired in zip(*both, strict=True):
            assert actual.shape == desired.shape, f"shape must be {tuple(desired.shape)}, got {tuple(actual.shape)}"
            if not desired.is_floating_point():
                assert torch.equal(actual, desired), "integers differ"
                continue
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
    tolerance: float = 1e-5,
    work: tuple[str, dict[str, Any]] | None = None,
    only_plain: Sequence[str] = (),
    floor: bool = False,
    check: Check | None = None,
    read: Callable[[Any], Any] = lambda result: result,
    compiled: Callable[[], Form] | None = None,
) -> Comparison:
    """Compare our function with plain forms that take the same arguments.

    Args:
        passes: The timed passes.
        ours: The function of pointgrad.
        plain: Plain forms by name. The first one is the ground truth, in float64 if the result is floating.
        arguments: Keyword arguments of all functions.
        sources: Names of the arguments whose gradients are computed.
        tolerance: Largest relative error.
        work: As in `Comparison`. For the backward pass it becomes `<name>_backward`, with the gradient as `grad`; for
            both passes `<name>_both`.
        only_plain: Names of arguments that ours does not take.
        floor: Compare with the time of a copy of the bytes that must pass through memory.
        check: Replaces the comparison with the ground truth.
        read: Converts the result of ours to that of the plain forms.
        compiled: Builds the compiled form, by default `torch.compile` of the first plain form.
    """
    own = {name: value for name, value in arguments.items() if name not in only_plain}
    with torch.no_grad():
        output: Any = None if check else read(ours(**own))
    floating = isinstance(output, Tensor) and output.is_floating_point()
    upstream = torch.randn_like(output) if floating else torch.empty(0)

    def truth() -> Any:
        exact = {name: _double(value) for name, value in arguments.items()} if floating else arguments
        if passes == "forward":
            return first(**exact)
        inputs = [exact[name].requires_grad_() for name in sources]
        both = _both(first(**exact), inputs, upstream.double())
        return both[1:] if passes == "backward" else both

    def implementation(form: Form) -> Implementation:
        return Implementation(timed_call(passes, form, arguments, sources, upstream))

    def compile_first() -> Implementation:
        # The backward pass runs repeatedly on the tensors that one forward pass saved, so it must not reuse them.
        with torch._functorch.config.patch(donated_buffer=False):
            return implementation(compiled() if compiled else torch.compile(first))

    if work is not None and passes != "forward":
        suffix = "backward" if passes == "backward" else "both"
        work = (f"{work[0]}_{suffix}", work[1] | {"grad": upstream})
    first = next(iter(plain.values()), ours)
    return Comparison(
        Implementation(timed_call(passes, ours, own, sources, upstream), read),
        check or close(truth, tolerance),
        {name: implementation(form) for name, form in plain.items()},
        compiled=compile_first if plain else None,
        work=work,
        moved=_moved(passes, own, sources, upstream) if floor else 0,
    )


def _moved(passes: Passes, arguments: dict[str, Any], sources: Sequence[str], output: Tensor) -> int:
    """Bytes of inputs, output and gradients. Forms are linear in a single source, so that backward does not read it."""
    given = {name: value.nbytes for name, value in arguments.items() if isinstance(value, Tensor)}
    if passes == "forward":
        return output.nbytes + sum(given.values())
    grads = sum(given[name] for name in sources)
    unread = grads if passes == "backward" and len(sources) == 1 else 0
    return output.nbytes + sum(given.values()) - unread + grads


def _both(output: Tensor, inputs: list[Tensor], upstream: Tensor) -> tuple[Tensor, ...]:
    return output.detach(), *torch.autograd.grad(output, inputs, upstream)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
