"""Check of low precision: results in float32, float16 and bfloat16 against results in the most precise dtype."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .subject import DTYPES, Failed, Passed, Run, Skipped, Subject, Warned, describe_error, largest, upstream_like

FACTOR = 8  # allowed error of a low-precision result, in rounding errors of the result or of the inputs
BIAS = 3  # allowed difference of a common factor from one, in rounding errors


def dtypes(subject: Subject) -> None:
    """In low precision, results and gradients are exact up to a few rounding errors: sums are kept in float32."""
    if not any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in subject.inputs(torch.float64)):
        raise Skipped("no floating-point inputs")
    exact = torch.float64 if subject.precise else torch.float32
    notes, remarks = [], []
    stop = time.perf_counter() + 10 * subject.budget
    for dtype in DTYPES:
        if dtype == subject.dtype or torch.finfo(dtype).eps <= torch.finfo(exact).eps:
            continue
        leaves = subject.inputs(dtype)
        name = str(dtype).removeprefix("torch.")
        subject.progress(name)
        try:
            run = subject.run(leaves)
        except Exception as error:
            notes.append(f"rejects {name} ({describe_error(error)})")
            continue
        kinds = {
            str(v.dtype).removeprefix("torch.") for v in run.outputs if isinstance(v, Tensor) and v.is_floating_point()
        }
        if kinds - {name}:
            notes.append(f"{name} inputs give {', '.join(sorted(kinds))}")
        found = _missing(subject, run) or _overflows(subject, leaves, run, dtype, exact)
        found = found or _imprecise(subject, leaves, None, dtype, exact)
        if not found and dtype.itemsize == 2:
            for probe, upstream, what in _swamped(leaves, run):
                if time.perf_counter() > stop:
                    break
                try:
                    found = _imprecise(subject, probe, upstream, dtype, exact, what)
                except Exception:  # the function rejects these values
                    continue
                if found:
                    found += "; small values after a large one are lost: the sum is not kept in float32"
                    break
        if found:
            raise Failed(f"{name}: {found}")
        if dtype == torch.float16 and (found := _overflows_when_scaled(subject, leaves, exact)):
            remarks.append(found)
    if remarks:
        raise Warned("; ".join([*remarks, *notes]))
    if notes:
        raise Passed("; ".join(notes))


def _missing(subject: Subject, run: Run) -> str:
    """Describe a gradient that exists in the most precise dtype only; empty if there is none."""
    for i, grad, expected in zip(subject.differentiable, run.grads, subject.base.grads, strict=True):
        if grad is None and expected is not None and expected.count_nonzero():
            return f"the gradient of {subject.name(i)} is missing (None)"
    return ""


def _overflows_when_scaled(subject: Subject, leaves: list[Any], exact: torch.dtype) -> str:
    """Describe an intermediate overflow of float16, as of the square of a distance of 256; empty if there is none."""
    large = [v * 256 if isinstance(v, Tensor) and v.is_floating_point() else v for v in leaves]
    try:
        found = _overflows(subject, large, subject.run(large), torch.float16, exact)
    except Exception:  # the function rejects these values
        return ""
    return found and f"float16, with inputs scaled by 256: {found}; an intermediate value is out of range"


def _imprecise(
    subject: Subject,
    leaves: list[Any],
    upstream: list[Tensor] | None,
    dtype: torch.dtype,
    exact: torch.dtype,
    what: str = "",
) -> str:
    """Describe a low-precision result that is less accurate than necessary; empty if there is none.

    The inputs are perturbed by one rounding error several times, and each result is compared with the exact one for the
    same inputs. The spread of the exact results is the unavoidable error. At each element, only the smallest error over
    all perturbations counts: a choice between nearly equal values changes with the perturbation, but a lost term is
    always missing. Over all elements, rounding errors cancel, but a common factor does not.

    Args:
        subject: The function under audit.
        leaves: Inputs in low precision.
        upstream: Upstream gradients; random by default.
        dtype: The low-precision dtype.
        exact: The dtype of the exact results.
        what: "outputs" or "gradients" to compare only those; both by default.
    """
    eps, generator = torch.finfo(dtype).eps, torch.Generator().manual_seed(5)
    upstream = upstream_like(subject.run(leaves).live) if upstream is None else upstream
    mine: list[list[Tensor | None]] = []
    truths: list[list[Tensor | None]] = []
    theirs: list[float] | None = None
    for k in range(6):
        noise = eps if k else 0.0
        given, ups = ([_noisy(v, noise, generator) for v in values] for values in (leaves, upstream))
        run = subject.run(given, ups)
        truth = _exact(subject, given, ups, exact)
        mine.append(_floats(run))
        truths.append(truth)
        if _shapes(mine[-1]) != _shapes(truths[0]):
            return ""  # shapes depend on values
        if k == 0:
            theirs = _reference_error(subject, given, ups, truth)
    outputs = len(truths[0]) - len(subject.differentiable)
    terms = max((v.numel() for v in leaves if isinstance(v, Tensor)), default=1)
    summed = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype).eps * terms**0.5
    largest_gradient = max((largest(grad) for grad in truths[0][outputs:]), default=0.0)
    for k, right in enumerate(truths[0]):
        if (what and (k < outputs) != (what == "outputs")) or right is None or not right.numel():
            continue
        received, exactly = (torch.stack([_tensor(each[k]) for each in values]) for values in (mine, truths))
        limit = torch.finfo(dtype).max
        error = (received - exactly).abs().amin(0)
        spread = (exactly - right).abs().amax(0)
        valid = right.isfinite() & spread.isfinite() & (right.abs() < limit / 2) & error.isfinite()
        valid &= (received.isfinite() & exactly.isfinite()).all(0)
        if not valid.any():
            continue
        scale = right[valid].abs().max()
        cancels = k >= outputs and scale <= 1e-10 * largest_gradient  # as of a bias before a normalization
        scale = scale.clamp(min=largest_gradient) if cancels else scale
        allowed = FACTOR * (spread + (eps + summed) * scale) + torch.finfo(dtype).tiny
        error, allowed, right = error[valid], allowed[valid], right[valid]
        if (error > allowed).any() and not (
            theirs and error.norm() <= 2 * theirs[k] + eps * scale * error.numel() ** 0.5
        ):
            worst = int((error / allowed).argmax())
            return (
                f"{_named(subject, outputs, k)} is off by {error[worst]:.3g} where the exact value is "
                f"{right[worst]:.5g}: {FACTOR * error[worst] / allowed[worst]:.0f} rounding errors"
            )
        if cancels:
            continue
        found = _common_factor(received[:, valid], exactly[:, valid], spread[valid], eps + summed, dtype)
        if found and not (theirs and abs(found - 1) * right.norm() <= 2 * theirs[k]):
            return f"{_named(subject, outputs, k)} is {found:.3g} times the exact one"
    return ""


def _common_factor(received: Tensor, exact: Tensor, spread: Tensor, eps: float, dtype: torch.dtype) -> float | None:
    """A factor between results of several runs (R, N) that rounding errors do not explain; None if there is none."""
    norm = exact[0].norm()
    if not norm:
        return None
    factor = float((received * exact).sum() / exact.square().sum())
    scatter = (received - factor * exact).norm() / exact.norm() / exact.shape[1] ** 0.5
    underflow = torch.finfo(dtype).tiny * eps * exact.shape[1] ** 0.5
    limit = BIAS * eps + 2 * float((spread.norm() + underflow) / norm) + 4 * float(scatter)
    return factor if abs(factor - 1) > limit else None


def _overflows(subject: Subject, leaves: list[Any], run: Run, dtype: torch.dtype, exact: torch.dtype) -> str:
    """Describe a result that is infinite or NaN where the exact one is well within range; empty if there is none."""
    received, truth = _floats(run), _exact(subject, leaves, upstream_like(run.live), exact)
    if len(received) != len(truth):
        return ""
    outputs = len(received) - len(subject.differentiable)
    for k, (mine, right) in enumerate(zip(received, truth, strict=True)):
        if mine is not None and right is not None and mine.shape == right.shape:
            lost = right.isfinite() & (right.abs() < torch.finfo(dtype).max / 2) & ~mine.isfinite()
            if k < outputs and (right.abs() >= torch.finfo(dtype).max / 2).any():
                return ""  # the result itself is out of range
            if lost.any():
                what = _named(subject, outputs, k)
                return f"{what} overflows to {mine[lost][0]:.3g} where the exact value is {right[lost][0]:.5g}"
    return ""


def _noisy(value: Any, noise: float, generator: torch.Generator) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not noise:
        return value
    drawn = 2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1
    return (value.double() * (1 + noise * drawn.to(value.device))).to(value.dtype)


def _widened(values: Sequence[Any], exact: torch.dtype) -> list[Any]:
    return [v.to(exact) if isinstance(v, Tensor) and v.is_floating_point() else v for v in values]


def _exact(subject: Subject, leaves: list[Any], upstream: Sequence[Tensor], exact: torch.dtype) -> list[Tensor | None]:
    """The exact values for inputs in low precision: those of the reference, or of the function itself."""
    wide, ups = _widened(leaves, exact), _widened(upstream, exact)
    if subject.reference is not None:
        with contextlib.suppress(Exception):  # the `reference` check describes it
            run = subject.run(wide, ups, subject.reference)
            if [grad is None for grad in run.grads] == [grad is None for grad in subject.base.grads]:
                return _floats(run)
    return _floats(subject.run(wide, ups))


def _floats(run: Run) -> list[Tensor | None]:
    """Floating-point outputs of a run, then the gradient of each differentiable input, in float64."""
    outputs = [v.detach().double() for v in run.outputs if isinstance(v, Tensor) and v.is_floating_point()]
    return [*outputs, *(None if grad is None else grad.detach().double() for grad in run.grads)]


def _shapes(values: Sequence[Tensor | None]) -> list[torch.Size | None]:
    return [None if value is None else value.shape for value in values]


def _tensor(value: Tensor | None) -> Tensor:
    assert value is not None
    return value


def _named(subject: Subject, outputs: int, k: int) -> str:
    return "the result" if k < outputs else f"the gradient of {subject.name(subject.differentiable[k - outputs])}"


def _reference_error(
    subject: Subject, leaves: list[Any], upstream: list[Tensor], truth: list[Tensor | None]
) -> list[float] | None:
    if subject.reference is None:
        return None
    try:
        values = _floats(subject.run(leaves, upstream, subject.reference))
    except Exception:
        return None
    if _shapes(values) != _shapes(truth):
        return None
    return [
        0.0 if v is None or right is None else (v - right)[right.isfinite() & v.isfinite()].norm().item()
        for v, right in zip(values, truth, strict=True)
    ]


def _swamped(leaves: list[Any], run: Run) -> Iterator[tuple[list[Any], list[Tensor], str]]:
    """Inputs, then upstream gradients, with one large value followed by many small ones, which a 16-bit sum loses.

    Sums in forward are compared in the outputs, sums in backward in the gradients. Other gradients may depend on a
    choice between values that are equal in low precision.
    """

    def large(value: Tensor) -> float:
        return 2.0 ** math.floor(math.log2(largest(value) or 1.0))

    def even(value: Any) -> Any:
        return (
            torch.full_like(value, large(value)) if isinstance(value, Tensor) and value.is_floating_point() else value
        )

    def pattern(value: Tensor, dim: int) -> Tensor:
        # Each small value is less than half a rounding error of the large one.
        steps = torch.randperm(value.numel(), generator=torch.Generator().manual_seed(6)).double() / value.numel()
        small = (large(value) * torch.finfo(value.dtype).eps * (0.3 + 0.19 * steps)).reshape(value.shape)
        small.select(dim, 0).fill_(large(value))
        return small.to(value)

    def long(value: Tensor) -> list[int]:
        return [dim for dim, size in enumerate(value.shape) if size >= 32]  # shorter sums stay within the tolerance

    plain = [even(leaf) for leaf in leaves]
    ups = [even(gradient) for gradient in upstream_like(run.live)]
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            for dim in long(leaf):
                yield [pattern(leaf, dim) if i == j else v for j, v in enumerate(plain)], ups, "outputs"
    for k, gradient in enumerate(ups):
        for dim in long(gradient):
            yield leaves, [pattern(g, dim) if j == k else g for j, g in enumerate(ups)], "gradients"
