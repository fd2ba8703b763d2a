"""Rows of a user's function: forward and backward, beside its plain form."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_unflatten

from pointgrad.inspect.audit.subject import Subject, describe_error, upstream_like

from .comparison import Comparison, Implementation, Row, short

PASSES = ("forward", "backward")
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}  # relative errors; 16 bits: 1e-2
Function = Callable[..., Any]
Results = list[Any]


class FunctionError(ValueError):
    """The function cannot be compared with its plain form. The message is one line."""


def rows(name: str, subject: Subject, dtype: torch.dtype) -> list[Row]:
    """The rows of a function, whose `subject` has a reference: forward, and backward if an output has a gradient.

    Raises:
        FunctionError: The reference raises an error.
        InputsError: The inputs cannot be made.
    """
    assert subject.reference is not None
    leaves = subject.inputs(dtype)
    try:
        has_gradient = bool(subject.run(leaves, fn=subject.reference).live)
    except Exception as error:
        raise FunctionError(f"the reference raises {describe_error(error)}") from error
    work = f"{name} {', '.join(_shapes(leaves))} {str(dtype).removeprefix('torch.')}"
    passes = PASSES if has_gradient else PASSES[:1]
    return [Row(f"{each} {work}", functools.partial(_compare, subject, dtype, each)) for each in passes]


def _shapes(leaves: Sequence[Any]) -> Iterator[str]:
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            yield " x ".join(map(short, leaf.shape)) or "scalar"


def _compare(subject: Subject, dtype: torch.dtype, passes: str) -> Comparison:
    assert subject.reference is not None
    leaves = subject.inputs(dtype)
    plain = subject.run(leaves, fn=subject.reference)
    upstream = upstream_like(plain.live)

    def implementation(fn: Function) -> Implementation:
        return Implementation(_Call(subject, fn, leaves, upstream, passes), _leaves)

    def compiled() -> Implementation:
        return implementation(torch.compile(subject.reference))

    given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    outputs = [value for value in plain.outputs if isinstance(value, Tensor)]
    moved = [*given, *outputs]
    if passes == "backward":
        moved = [*given, *upstream, *(leaves[i] for i in subject.differentiable)]
    return Comparison(
        implementation(subject.fn),
        _Check(subject, dtype, leaves, upstream, passes),
        {"plain": implementation(subject.reference)},
        compiled=compiled,
        moved=sum(tensor.nbytes for tensor in moved),
    )


class _Call:
    """A call of the forward pass, or of the backward pass of one forward pass, which the first call runs."""

    def __init__(
        self, subject: Subject, fn: Function, leaves: Sequence[Any], upstream: Sequence[Tensor], passes: str
    ) -> None:
        self._fn, self._upstream, self._passes = fn, upstream, passes
        tracked = {i: leaves[i].detach().requires_grad_() for i in subject.differentiable}
        given = [tracked.get(i, leaf) for i, leaf in enumerate(leaves)] if passes == "backward" else list(leaves)
        self._sources = list(tracked.values())
        self._arguments: Any = tree_unflatten(given, subject.cache["spec"])
        self._live: list[Tensor] | None = None

    def __call__(self) -> Any:
        if self._passes == "forward":
            return self._fn(*self._arguments)
        if self._live is None:
            from torch._functorch import config  # not imported with torch

            # Backward runs repeatedly on the tensors that one forward pass saved, so it must not reuse them.
            with config.patch(donated_buffer=False):
                outputs = tree_leaves(self._fn(*self._arguments))
            self._live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
            received, expected = len(self._live), len(self._upstream)
            assert received == expected, f"{received} outputs have a gradient, but {expected} of the reference"
        return torch.autograd.grad(self._live, self._sources, self._upstream, retain_graph=True, allow_unused=True)


class _Check:
    """Compares results with those of the reference in float64.

    An error may be as large as `TOLERANCE`, or twice that of the reference in the dtype of the inputs.
    """

    def __init__(
        self, subject: Subject, dtype: torch.dtype, leaves: Sequence[Any], upstream: Sequence[Tensor], passes: str
    ) -> None:
        self._subject, self._passes = subject, passes
        self._tolerance = TOLERANCE.get(dtype, 1e-2)
        # Before the function is called, which may write to its inputs.
        self._plain = self._exact = self._reference(leaves, upstream)
        with contextlib.suppress(Exception):  # the reference does not accept float64
            self._exact = self._reference(_double(leaves), _double(upstream))

    def _reference(self, leaves: Sequence[Any], upstream: Sequence[Tensor]) -> Results:
        assert self._subject.reference is not None
        call = _Call(self._subject, self._subject.reference, leaves, upstream, self._passes)
        return _leaves(call())

    def __call__(self, received: Results) -> None:
        plain, exact = self._plain, self._exact
        assert len(received) == len(plain), f"{len(received)} outputs instead of {len(plain)}"
        for number, results in enumerate(zip(received, plain, exact, strict=True)):
            what = "the output" if len(plain) == 1 else f"output {number}"
            if self._passes == "backward":
                what = f"the gradient of {self._subject.name(self._subject.differentiable[number])}"
            self._compare(what, *results)

    def _compare(self, what: str, received: Any, plain: Any, exact: Any) -> None:
        if not isinstance(plain, Tensor) and self._passes == "forward":
            assert received is plain or received == plain, f"{what} is {received!r} instead of {plain!r}"
            return
        if received is None and exact is not None:
            assert not exact.count_nonzero(), f"{what} is missing (None)"
            return
        if exact is None:
            assert received is None or not received.count_nonzero(), f"{what} must be zero, as that of the reference"
            return
        assert isinstance(received, Tensor), f"{what} must be a tensor, got {type(received).__name__}"
        assert received.shape == plain.shape, f"{what} must be {tuple(plain.shape)}, got {tuple(received.shape)}"
        assert received.dtype == plain.dtype, f"{what} must be {plain.dtype}, got {received.dtype}"
        if not plain.is_floating_point():
            assert torch.equal(received, plain), f"{what} differs: integers are not equal"
            return
        allowed = max(self._tolerance, 2 * _error(plain, exact))
        error = _error(received, exact)
        assert error <= allowed, f"{what} is wrong: relative error must be at most {allowed:.0e}, got {error:.1e}"


def _error(received: Tensor, exact: Tensor) -> float:
    """Norm of the difference relative to the norm of the exact values, of those that are finite in both."""
    received, exact = received.detach().double(), exact.detach().double()
    same = (received == exact) | (received.isnan() & exact.isnan())  # also infinities
    difference = torch.where(same, 0, received - exact).norm()
    return float(difference / torch.where(exact.isfinite(), exact, 0).norm().clamp(min=1e-30))


def _leaves(results: Any) -> Results:
    return tree_leaves(results, is_leaf=lambda value: value is None)


def _double(values: Sequence[Any]) -> list[Any]:
    return [v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values]
