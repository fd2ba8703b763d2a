"""Contests of functions that have the same arguments: forward, backward, or both, against float64."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .contest import Attempt, Call, Check, Contest

Form = Callable[..., Tensor]
Mode = Literal["forward", "backward", "forward + backward"]


def close(truth: Callable[[], Any], tolerance: float) -> Check:
    """The error of each tensor is at most so many times its norm."""
    exact = functools.cache(truth)

    def check(received: Any) -> None:
        expected = exact()
        both = [(each,) if isinstance(each, Tensor) else each for each in (received, expected)]
        for mine, theirs in zip(*both, strict=True):
            assert mine.shape == theirs.shape, f"shape {tuple(mine.shape)}, expected {tuple(theirs.shape)}"
            error = float((mine - theirs).norm() / theirs.norm().clamp(min=1e-30))
            assert error <= tolerance, f"relative error {error:.1e}, at most {tolerance:.0e} expected"

    return check


def timed(mode: Mode, form: Form, arguments: Sequence[Any], sources: Sequence[Tensor], upstream: Tensor) -> Call:
    """A call without arguments: the result of a form, its gradients by the sources, or both (and gradients then)."""
    if mode == "forward":
        fixed = [value.detach() if isinstance(value, Tensor) else value for value in arguments]
        return lambda: form(*fixed)
    if mode == "backward":
        kept = [value if any(value is source for source in sources) else _fixed(value) for value in arguments]
        output = form(*kept)
        return lambda: torch.autograd.grad(output, sources, upstream, retain_graph=True)
    return lambda: torch.autograd.grad(form(*arguments), sources, upstream)


def contest(
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
) -> Contest:
    """plain: the first of them, in float64, is the truth. sources: of the gradients, which require them.
    compile: the plain form that is compiled, the first if not named. work, moved: as of `Contest`; the backward of
    work is work of its own, `<name>_backward`, with the incoming gradient as `grad`."""
    exact_form = next(iter(plain.values()))
    with torch.no_grad():
        upstream = torch.randn_like(ours(*arguments))

    def truth() -> Any:
        exact = [_double(value) for value in arguments]
        if mode == "forward":
            return exact_form(*exact)
        places = [next(n for n, value in enumerate(arguments) if value is source) for source in sources]
        wanted = [exact[place].requires_grad_() for place in places]
        return torch.autograd.grad(exact_form(*exact), wanted, upstream.double())

    def attempt(form: Form) -> Attempt:
        return Attempt(timed(mode, form, arguments, sources, upstream))

    if work is not None and mode != "forward":
        work = (f"{work[0]}_backward", work[1] | {"grad": upstream}) if mode == "backward" else None
    chosen = plain[compile] if compile else exact_form

    def compiled() -> Attempt:
        # Backward runs again and again on what one forward pass saved: it must not reuse that memory.
        with torch._functorch.config.patch(donated_buffer=False):
            return attempt(torch.compile(chosen))

    return Contest(
        attempt(ours),
        close(truth, tolerance),
        {name: attempt(form) for name, form in plain.items()},
        compiled=compiled,
        work=work,
        moved=moved,
    )


def _fixed(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _double(value: Any) -> Any:
    return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else _fixed(value)
