"""Run one random call and compare it with the reference."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog import Draw, OpInfo
from pointgrad.catalog.magnitudes import run

from .spoil import MESSAGE, Arguments, spoil


class Mismatch(AssertionError):
    """A kernel disagrees with the reference or with the contract."""


@dataclass
class Tally:
    """Counts of the calls by their properties."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, what: str, which: Any, number: int = 1) -> None:
        self.counts.setdefault(what, Counter())[str(which)] += number


def draw_and_check(draw: Draw, operators: list[OpInfo], backend: str, tally: Tally, about_to: Any) -> None:
    """Draw a call, run it and compare it.

    Args:
        about_to: Called with the choices and arguments before anything of the call runs.
    """
    op = draw.pick("operator", operators)
    draw.choices["operator name"] = op.name
    arguments = op.draw(draw)
    wrong, sure = draw.flag("wrong", 6), False
    if wrong:
        arguments, sure = spoil(draw, op, arguments)
    threads = draw.pick("threads", (1, 2, (1, 2)))
    scale = draw.pick("upstream", ("normal", "normal", "lattice", "one"))
    about_to(draw.choices, arguments)
    before = {name: value.clone() for name, value in arguments.items() if is_plain(value)}

    def upstream(output: Tensor) -> Tensor:
        if scale == "one":
            return torch.ones((), dtype=output.dtype, device=output.device).expand_as(output)
        noise = torch.randn(output.shape, generator=draw.generator, dtype=torch.float64)
        return (noise.round() if scale == "lattice" else noise).to(output)

    def attempt(count: int) -> Any:
        torch.set_num_threads(count)
        with pointgrad.backend(backend):
            return run(op.call, op.differentiable, arguments, upstream if into is None else into)

    into: list[Tensor] | None = None
    first, *others = threads if isinstance(threads, tuple) else (threads,)
    try:
        outputs, into, grads = attempt(first)
    except (TypeError, ValueError) as error:
        if not wrong:
            raise Mismatch(f"a valid call is refused: {type(error).__name__}: {error}") from error
        if not re.match(MESSAGE, str(error), re.DOTALL):
            raise Mismatch(f"a message must be 'name must be contract, got received', got {error!r}") from error
        tally.add("outcome", "refused")
        _count(tally, op, arguments)
        return
    if sure:
        raise Mismatch("an invalid call is not refused")
    for name, value in before.items():
        if not _same(arguments[name], value):
            raise Mismatch(f"{name} was changed by the call")
    for count in others:
        again, _, grads_again = attempt(count)
        for actual, desired in zip([*outputs, *grads.values()], [*again, *grads_again.values()], strict=True):
            if not _same(actual, desired) and draw.device == "cpu":
                raise Mismatch(f"the result differs with {count} threads")
    if wrong and draw.device != "cpu" and any(name.endswith(("offsets", "lengths")) for name in arguments):
        # On a GPU sizes are not read on the host and may be wrong here: any result is allowed without invalid accesses.
        torch.cuda.synchronize()
        tally.add("outcome", "unread sizes")
        _count(tally, op, arguments)
        return
    compare(op, arguments, outputs, into, grads, tally, flushes=draw.device != "cpu")
    tally.add("outcome", "agrees")
    _count(tally, op, arguments)


def compare(
    op: OpInfo,
    arguments: Arguments,
    outputs: list[Tensor],
    upstream: list[Tensor],
    grads: dict[str, Tensor],
    tally: Tally,
    flushes: bool = False,
) -> None:
    with pointgrad.backend("reference"):
        expected, _, expected_grads = run(op.call, op.differentiable, arguments, upstream)
    if len(outputs) != len(expected) or list(grads) != list(expected_grads):
        raise Mismatch("outputs or gradients are not those of the reference")
    inputs = [value for value in [*arguments.values(), *upstream] if isinstance(value, Tensor)]
    floats = [output for output in outputs if output.is_floating_point()]
    sums: list[Tensor | None] = []
    grad_sums: dict[str, Tensor] = {}
    if op.magnitudes is not None and (floats or grads):
        sums, grad_sums = op.magnitudes(arguments, [grad.double() for grad in upstream], expected)
    bound = Bound(inputs + outputs, op.rounds, tally, flushes)
    remaining = iter(sums)
    for number, (actual, desired) in enumerate(zip(outputs, expected, strict=True)):
        magnitude = next(remaining, None) if actual.is_floating_point() else None
        bound.check(f"output {number}", actual, desired, magnitude)
    for name, actual in grads.items():
        bound.check(f"the gradient of {name}", actual, expected_grads[name], grad_sums.get(name))
    if grads:
        tally.add("compared", "with gradients")


class Bound:
    """Bounds the difference of two results that add the same numbers in different orders.

    Each of n additions and of the few other steps of a term errs by at most half a unit in the last place of the
    accumulation dtype, relative to the sum of the absolute values (the magnitude); both results do. Then each is
    rounded to its dtype. Where a sum of absolute values comes near the largest number, the order decides whether it
    overflows.

    Args:
        tensors: Inputs and outputs of the call.
        rounds: Intermediate results are rounded to the dtype of the input.
        flushes: float32 denormals may count as zero, as in the atomic additions of a GPU, including those of the
            reference. float16 denormals do not: they are not that small.
    """

    def __init__(self, tensors: list[Tensor], rounds: bool, tally: Tally, flushes: bool) -> None:
        self.terms = 16 + max((value.numel() for value in tensors), default=0)
        floats = [value.double() for value in tensors if value.is_floating_point() and value.numel()]
        self.strange = not all(bool(value.isfinite().all()) for value in floats)
        highest = max((float(value.abs().nan_to_num(0, 0, 0).max()) for value in floats), default=0.0)
        self.highest, self.rounds, self.tally, self.flushes = max(highest, 1.0), rounds, tally, flushes

    def smallest(self, info: torch.finfo) -> float:
        """The smallest positive number that is not flushed to zero."""
        return info.tiny * (1.0 if self.flushes and info.tiny < 1e-30 else info.eps)

    def check(self, what: str, actual: Tensor, desired: Tensor, magnitude: Tensor | None) -> None:
        if actual.dtype != desired.dtype or actual.shape != desired.shape:
            raise Mismatch(f"{what} is {_describe(actual)}, the reference has {_describe(desired)}")
        if magnitude is None:
            if not _same(actual, desired):
                raise Mismatch(f"{what} must have the same bits: {_first(actual, desired, ~_equal(actual, desired))}")
            self.tally.add("numbers", "same bits", actual.numel())
            return
        limits = torch.finfo(actual.dtype)
        wide = torch.finfo(torch.promote_types(actual.dtype, torch.float32))
        relative = self.terms * wide.eps + (4 * limits.eps if self.rounds else 0)
        least = self.smallest(wide) + (self.smallest(limits) if self.rounds else 0)
        center = desired.double()
        slack = relative * magnitude + self.terms * least * self.highest
        if limits.eps > wide.eps:  # a last rounding
            slack = slack + limits.eps * center.abs() + self.smallest(limits)
        low, high = (center - slack).to(actual.dtype), (center + slack).to(actual.dtype)
        fine = _equal(actual, desired) | ((actual >= low) & (actual <= high))
        largest = limits.max if self.rounds else wide.max
        open_end = magnitude > largest / 4  # infinity included
        if self.strange and self.highest < largest**0.25:  # infinity comes from the input: nothing overflows
            open_end = open_end & actual.isfinite() & desired.isfinite()
        fine = fine | (open_end & ~magnitude.isnan())
        if self.highest >= largest**0.25:
            fine = fine | magnitude.isnan()
        self.tally.add("numbers", "within the bound", int((~open_end).sum()))
        self.tally.add("numbers", "left open by overflow", int(open_end.sum()))
        if not bool(fine.all()):
            raise Mismatch(f"{what} differs by more than {relative:.2g} of its terms: {_first(actual, desired, ~fine)}")


def _equal(actual: Tensor, desired: Tensor) -> Tensor:
    equal = actual == desired
    if actual.is_floating_point():
        equal = (equal & (actual.signbit() == desired.signbit())) | (actual.isnan() & desired.isnan())
    return equal


def _same(actual: Tensor, desired: Tensor) -> bool:
    return actual.shape == desired.shape and bool(_equal(actual, desired).all())


def _first(actual: Tensor, desired: Tensor, wrong: Tensor) -> str:
    place = wrong.nonzero()[0].tolist()
    at = tuple(place)
    return (
        f"{actual[at].item()!r} at {place} where the reference has {desired[at].item()!r} ({int(wrong.sum())} in all)"
    )


def _describe(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type != "meta"


def _count(tally: Tally, op: OpInfo, arguments: Arguments) -> None:
    tally.add("operators", op.name)
    held = [value for value in arguments.values() if is_plain(value)]
    for dtype in {value.dtype for value in held}:
        tally.add("dtypes", str(dtype).removeprefix("torch."))
    rows = max((value.shape[-2] if value.dim() > 1 else value.numel() for value in held), default=0)
    ends = (0, 1, 7, 31, 127, 511)
    label = next((f"up to {end}" for end in ends if rows <= end), f"more than {ends[-1]}")
    tally.add("rows", label)
    if any(not value.is_contiguous() for value in held):
        tally.add("memory", "with gaps, transposed or expanded")
    else:
        tally.add("memory", "contiguous")
