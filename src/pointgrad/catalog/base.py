"""The description of one operator: its calls, its plain form, and the inputs to test and measure it with.

In the spirit of PyTorch's `OpInfo`: tests, fuzzing, precision, sanitizers, timings and the demo iterate over these
descriptions instead of keeping tables of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from .errors import BadCall
from .inputs import Draw, Make
from .magnitudes import Arguments, Magnitudes, tensors

Check = Callable[[Arguments, Any], None]
Build = Callable[[Make], Arguments]
Passes = Literal["forward", "backward", "forward + backward"]
EACH_PASS: dict[str, Passes] = {" forward": "forward", " backward": "backward"}
BOTH_PASSES: dict[str, Passes] = {", and back": "forward + backward"}


@dataclass(frozen=True)
class Sample:
    """One way to call an operator.

    Attributes:
        name: The distinguishing property of the call.
        build: Keyword arguments of the call.
        large: Arguments of a call with enough work for several threads.
        smooth: False at kinks and ties, where finite differences do not hold.
        seeded: The operator draws from torch's default generator.
        waits: On a GPU the call synchronizes, because the host passes data or needs the size of the result.
        any_order: On a GPU sums have no fixed order outside deterministic mode: equal up to rounding.
    """

    name: str
    build: Build
    large: Build | None = None
    smooth: bool = True
    seeded: bool = False
    waits: bool = False
    any_order: bool = False


@dataclass(frozen=True)
class Precision:
    """Inputs for which the rounding errors of the operator and of its plain form are compared.

    Attributes:
        build: Keyword arguments of about `Make.size` rows.
        name: Distinguishes this entry from others of the same operator.
        call: Replaces the operator.
        plain: Replaces its plain form.
    """

    build: Build
    name: str = ""
    call: Callable[..., Any] | None = None
    plain: Callable[..., Tensor] | None = None


@dataclass(frozen=True)
class Benchmark:
    """Work that `pointgrad bench` measures: one row for each pass.

    Attributes:
        name: Name of the rows, with `{0}`, `{1}`, ... for the sizes. The suffix of the pass is appended.
        build: Keyword arguments, from `Make` and the sizes.
        sizes: Numbers of points or rows. A quick run divides them.
        plain: Plain forms for these arguments, by name. The first one is the ground truth, in float64 if the result is
            floating.
        passes: Measured passes, by suffix of the name; by default only the forward pass.
        sources: Arguments whose gradients are computed.
        tolerance: Largest relative error.
        floor: Compare with the time of a copy of the bytes that must pass through memory.
        work: Kind of work for peer libraries, see `pointgrad.bench.peers`, with the same arguments as the operator.
        cuda: Sizes on a GPU, if they differ. Without sizes there is no row on this device.
        only_plain: Arguments of the plain forms and peers that the operator does not have.
        check: Raises AssertionError for a wrong result, where the ground truth does not decide.
        read: The part of the operator's result that is checked.
        compiled: Builds the compiled form, if it is not `torch.compile` of the first plain form.
        fits: Whether the plain forms can be run for these arguments.
        rounds: Number of timed calls.
    """

    name: str
    build: Callable[..., Arguments]
    sizes: tuple[int, ...]
    plain: dict[str, Callable[..., Any]]
    passes: dict[str, Passes] = field(default_factory=lambda: {"": "forward"})
    sources: tuple[str, ...] = ()
    tolerance: float = 1e-5
    floor: bool = False
    work: str | None = None
    cuda: tuple[int, ...] | None = None
    only_plain: tuple[str, ...] = ()
    check: Check | None = None
    read: Callable[[Any], Any] = lambda result: result
    compiled: Callable[[], Callable[..., Any]] | None = None
    fits: Callable[[Arguments], bool] = lambda arguments: True
    rounds: int = 11


@dataclass(frozen=True)
class Scaling:
    """The same work at any size, up to counts beyond 32 bits.

    Attributes:
        build: Keyword arguments for this many points or rows; features are small integers whose sums are exact.
        check: Raises AssertionError when a result (the output, or output and gradient) is wrong.
    """

    build: Callable[[int, str], Arguments]
    check: Check


@dataclass(frozen=True)
class OpInfo:
    """One operator.

    Attributes:
        name: Name of the public function.
        call: The public function.
        samples: Calls for the contract tests, the simplest first.
        differentiable: Arguments that have a gradient where they are given and floating.
        plain: The operator in plain PyTorch, for the arguments of `precision`; returns its first floating output.
        errors: Calls that are rejected.
        draw: Random arguments that the contract allows.
        magnitudes: Sums of absolute values that bound the rounding errors of results; None where all backends return
            the same bits.
        rounds: Intermediate results are rounded to the dtype of the input.
        lowers: Under autocast, floating inputs are cast to the autocast dtype.
        finite: Arguments of which a value that is not finite may change any result.
        bad_arguments: Values that are rejected, by argument.
        index_rows: Number of rows that `index` counts; None if the call does not fix it.
        precision: Inputs for comparing rounding errors with the plain form's.
        benchmarks: Work to measure in `pointgrad bench`.
        scaling: Work at any size.
        growing: A function and arguments of which every size grows with a number, for `torch.compile(dynamic=True)`.
        composed: Calls operators that have descriptions of their own; the slow Triton interpreter skips it.
        registered: False for plain PyTorch code that calls no operator of pointgrad.
    """

    name: str
    call: Callable[..., Any]
    samples: Sequence[Sample]
    differentiable: tuple[str, ...] = ()
    plain: Callable[..., Any] | None = None
    errors: Sequence[BadCall] = ()
    draw: Callable[[Draw], Arguments] | None = None
    magnitudes: Magnitudes | None = None
    rounds: bool = False
    lowers: bool = False
    finite: tuple[str, ...] = ()
    bad_arguments: dict[str, Sequence[Any]] = field(default_factory=dict)
    index_rows: Callable[[Arguments], int | None] = lambda arguments: None
    precision: Sequence[Precision] = ()
    benchmarks: Sequence[Benchmark] = ()
    scaling: Scaling | None = None
    growing: Callable[[int], tuple[Any, ...]] | None = None
    composed: bool = False
    registered: bool = True

    def cases(self) -> Iterator["Case"]:
        for sample in self.samples:
            yield Case(self, sample, self.call)

    def sources(self, arguments: Arguments) -> dict[str, Tensor]:
        """Copies of the arguments that have a gradient, which require it."""
        return {name: arguments[name].detach().requires_grad_() for name in self._differentiable(arguments)}

    def _differentiable(self, arguments: Arguments) -> tuple[str, ...]:
        given = {name: arguments.get(name) for name in self.differentiable}
        return tuple(name for name, value in given.items() if isinstance(value, Tensor) and value.is_floating_point())


@dataclass(frozen=True)
class Case:
    """A sample of an operator, ready to be called.

    Attributes:
        call: The operator, or a compiled or exported form of it.
    """

    op: OpInfo
    sample: Sample
    call: Callable[..., Any]

    @property
    def name(self) -> str:
        return f"{self.op.name}/{self.sample.name}"

    @cached_property
    def differentiable(self) -> tuple[str, ...]:
        return self.op._differentiable(self.sample.build(Make())) if self.op.differentiable else ()

    def __call__(self, arguments: Arguments) -> tuple[Tensor, ...]:
        if self.sample.seeded:
            torch.manual_seed(1)
        return tuple(tensors(self.call(**arguments)))

    def with_gradients(self, arguments: Arguments, upstream: Tensor | None = None) -> list[Tensor]:
        """Results, then the gradients of all differentiable arguments.

        Args:
            upstream: Gradient of the first floating result; without it a fixed pattern of unequal numbers.
        """
        sources = self.op.sources(arguments)
        results = self({**arguments, **sources})
        if not sources:
            return list(results)
        output = first_float(results)
        if upstream is None:
            pattern = torch.arange(output.numel(), device=output.device).remainder(7).sub(2.5)
            upstream = pattern.reshape(output.shape).to(output.dtype)
        grads = torch.autograd.grad(output, list(sources.values()), upstream)
        return [*(result.detach() for result in results), *grads]


def first_float(results: Sequence[Tensor]) -> Tensor:
    """The first floating tensor, or the first tensor if none is."""
    return next((result for result in results if result.is_floating_point()), results[0])


def any_index(rows: int, *shape: int) -> Tensor:
    """An index of any rows, or -1."""
    return torch.randint(-1, rows, shape)


def equal_offsets(n: int, clouds: int) -> Tensor:
    """(clouds + 1,), clouds of n points each."""
    return torch.arange(clouds + 1) * n


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
