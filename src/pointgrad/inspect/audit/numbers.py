"""Checks of results: against a reference, in every dtype, for odd sizes, and for inputs that do not belong there."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .gradients import _precise, finite_differences
from .subject import (
    DTYPES,
    Failed,
    Passed,
    Run,
    Skipped,
    Subject,
    compare,
    difference,
    largest,
    rounding,
    told,
    upstream_like,
)

FACTOR = 8  # roundings of the result, or of the inputs, that a low-precision result may be away from the exact one


def reference(subject: Subject) -> None:
    """Results and gradients are those of the reference."""
    if subject.reference is None:
        raise Skipped("no reference was given")
    leaves, base = subject.inputs(subject.dtype), subject.base
    try:
        expected = subject.run(leaves, upstream_like(base.live) if base.live else None, subject.reference)
    except Exception as error:
        raise Skipped(f"the reference fails: {told(error)}") from error
    if len(expected.live) != len(base.live):
        found = compare(Run(base.outputs, [], expected.grads), expected, _close(subject), subject)
        raise Failed(found or f"{len(base.live)} outputs have a gradient, and {len(expected.live)} of the reference")
    found = compare(base, expected, _close(subject), subject)
    if found:
        raise Failed(found)


def dtypes(subject: Subject) -> None:
    """In low precision, results and gradients are the exact ones up to a few roundings: sums are kept in float32."""
    if not any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in subject.inputs(torch.float64)):
        raise Skipped("no input is floating")
    exact = torch.float64 if _precise(subject) else torch.float32
    notes = []
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
            notes.append(f"refuses {name} ({told(error)})")
            continue
        kinds = {
            str(v.dtype).removeprefix("torch.") for v in run.outputs if isinstance(v, Tensor) and v.is_floating_point()
        }
        if kinds - {name}:
            notes.append(f"{name} gives {', '.join(sorted(kinds))}")
        found = _overflows(subject, leaves, run, dtype, exact) or _imprecise(subject, leaves, None, dtype, exact)
        if not found and dtype.itemsize == 2:
            for probe, upstream, what in _swamped(leaves, run):
                if time.perf_counter() > stop:
                    break
                try:
                    found = _imprecise(subject, probe, upstream, dtype, exact, what)
                except Exception:  # noqa: S112: it does not take these values
                    continue
                if found:
                    found += (
                        "; a large value before many small ones shows it: they are lost, the sum is not kept in float32"
                    )
                    break
        if found:
            raise Failed(f"{name}: {found}")
    if notes:
        raise Passed("; ".join(notes))


def sizes(subject: Subject) -> None:
    """Empty and single-element inputs give a right answer or a clear error, and no garbage."""
    leaves = subject.inputs(subject.dtype)
    fixed, free = leaves[: subject.parameters], leaves[subject.parameters :]
    lengths = {n for leaf in free if isinstance(leaf, Tensor) for n in leaf.shape if n > 1}
    if not lengths:
        raise Skipped("no dimension to shorten")
    accepted, refused = [], []
    for to in (0, 1):
        for length in sorted(lengths):
            for shortened in ([*fixed, *short] for short in _shortened(free, length, to)):
                what = f"size {length} made {to}"
                subject.progress(what)
                expected = _reference_takes(subject, shortened)
                try:
                    _right_when_short(subject, shortened, expected)
                except Failed as failed:
                    raise Failed(f"{what}: {failed}") from failed
                except Exception as error:
                    if expected is not None:
                        raise Failed(f"{what}: the reference takes it, but: {told(error)}") from error
                    refused.append(f"{what} ({told(error)})")
                else:
                    accepted.append(what)
                    break
    if not accepted:
        raise Skipped(f"refused: {refused[0]}" if refused else "no variant with valid indices")
    raise Passed(f"taken: {', '.join(dict.fromkeys(accepted))}")


def wrong_device(subject: Subject) -> None:
    """A tensor on another device is refused, or taken along; it is never read as if it were here."""
    leaves = subject.inputs(subject.dtype)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    other = ["meta"] + (["cpu"] if subject.device != "cpu" else [])
    for device in other:
        for moved in [[i] for i in tensors] + ([tensors] if len(tensors) > 1 else []):
            what = f"{subject.name(moved[0])} on {device!r}"
            subject.progress(what)
            try:
                outputs = subject.call([leaf.to(device) if i in moved else leaf for i, leaf in enumerate(leaves)])
            except Exception:  # noqa: S112
                continue
            if device != "meta":
                found = compare(
                    Run(outputs, [], []), Run(subject.call(leaves), [], []), rounding(subject.dtype), subject
                )
                if found:
                    raise Failed(f"{what}: {found}")
            elif any(isinstance(v, Tensor) and v.device.type != "meta" for v in outputs) and _depends(subject, moved):
                # Many of torch's own functions do the same, so it is no more than a remark.
                raise Passed(f"{what}, where there are no values, is not refused and gives values on {subject.device}")


def wrong_dtype(subject: Subject) -> None:
    """Integers, mixed precision and complex numbers are refused, or give what the right dtype gives."""
    leaves = subject.inputs(subject.dtype)
    floats = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.is_floating_point()]
    if not floats:
        raise Skipped("no input is floating")
    # Whole numbers, and none of them zero, whose sign only some dtypes have.
    whole = [torch.where(v.abs() < 0.25, 1, v * 4).round() if i in floats else v for i, v in enumerate(leaves)]
    variants: list[tuple[str, Sequence[int], torch.dtype, list[Any]]] = [
        ("int64", floats, torch.int64, whole),
        ("complex64", floats, torch.complex64, whole),
        *[(str(dtype).removeprefix("torch."), [i], dtype, whole) for i in floats if len(floats) > 1
          for dtype in (torch.float32, torch.float64, torch.float16, torch.int64) if dtype != subject.dtype],
    ]  # fmt: skip
    for name, which, dtype, values in variants:
        subject.progress(f"{subject.name(which[0])} as {name}")
        try:
            outputs = subject.call([leaf.to(dtype) if i in which else leaf for i, leaf in enumerate(values)])
        except Exception:  # noqa: S112
            continue
        expected = subject.call(values)
        if len(outputs) != len(expected):
            raise Failed(f"{subject.name(which[0])} as {name} gives {len(outputs)} outputs, not {len(expected)}")
        kinds = [v.dtype for v in outputs if isinstance(v, Tensor) and v.is_floating_point()]
        kinds += [dtype] if dtype.is_floating_point else []
        tolerance = max([rounding(torch.float32), *map(rounding, kinds)])
        for mine, theirs in zip(outputs, expected, strict=True):
            if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor) or not theirs.is_floating_point():
                continue
            mine = mine.real if mine.is_complex() else mine
            if not mine.is_floating_point() and mine.shape == theirs.shape:
                theirs = torch.where((mine - theirs).abs() < 1, mine.to(theirs), theirs)  # cut to whole numbers
            found = difference(mine, theirs, tolerance)
            if found:
                raise Failed(
                    f"{subject.name(which[0])} as {name} is neither refused nor right: the result differs {found}"
                )


# Low precision


def _imprecise(
    subject: Subject,
    leaves: list[Any],
    upstream: list[Tensor] | None,
    dtype: torch.dtype,
    exact: torch.dtype,
    what: str = "",
) -> str:
    """How a run in low precision is worse than it must be, or nothing. what: only "outputs", or only "gradients".

    Inputs are moved by one rounding a few times, and each result compared with the exact one for the same inputs. How far
    the exact results move is what rounding may do anyway. An error counts as far as it is there every time: what jumps,
    as the choice between near equals does, is not wrong each time in the same place; a lost term is.
    """
    eps, generator = torch.finfo(dtype).eps, torch.Generator().manual_seed(5)
    fn = subject.reference or subject.fn
    upstream = upstream_like(subject.run(leaves).live) if upstream is None else upstream
    errors: list[list[Tensor]] = []
    truths: list[list[Tensor]] = []
    theirs: list[float] | None = None
    for k in range(6):
        noise = eps if k else 0.0
        given, ups = ([_noisy(v, noise, generator) for v in values] for values in (leaves, upstream))
        run = subject.run(given, ups)
        truth = [v.double() for v in _floats(subject.run(_widened(given, exact), _widened(ups, exact), fn))]
        received = [v.double() for v in _floats(run)]
        if [v.shape for v in received] != [v.shape for v in (truths[0] if truths else truth)]:
            return ""  # values decide about shapes
        errors.append([(a - b).abs() for a, b in zip(received, truth, strict=True)])
        truths.append(truth)
        if k == 0:
            theirs = _reference_error(subject, given, ups, truth)
    outputs = sum(isinstance(v, Tensor) and v.is_floating_point() for v in run.outputs)
    terms = max((v.numel() for v in leaves if isinstance(v, Tensor)), default=1)
    summed = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype).eps * terms**0.5
    for k, right in enumerate(truths[0]):
        if what and (k < outputs) != (what == "outputs"):
            continue
        limit = torch.finfo(dtype).max
        error = torch.stack([each[k] for each in errors]).amin(0)
        spread = torch.stack([(each[k] - right).abs() for each in truths]).amax(0)
        there = right.isfinite() & spread.isfinite() & (right.abs() < limit / 2) & error.isfinite()
        if not there.any():
            continue
        scale = right[there].abs().max()
        allowed = FACTOR * (spread + (eps + summed) * scale) + torch.finfo(dtype).tiny
        error, allowed, right = error[there], allowed[there], right[there]
        if (error > allowed).any() and not (
            theirs and error.norm() <= 2 * theirs[k] + eps * scale * error.numel() ** 0.5
        ):
            worst = int((error / allowed).argmax())
            return (
                f"{_named(subject, run, k)} is off by {error[worst]:.3g} where the exact value is {right[worst]:.5g}: "
                f"{FACTOR * error[worst] / allowed[worst]:.0f} roundings"
            )
    return ""


def _overflows(subject: Subject, leaves: list[Any], run: Run, dtype: torch.dtype, exact: torch.dtype) -> str:
    """Where a result is infinite or NaN though the exact one is well inside the range of the dtype, or nothing."""
    fn = subject.reference or subject.fn
    truth = _floats(subject.run(_widened(leaves, exact), _widened(upstream_like(run.live), exact), fn))
    for k, (mine, right) in enumerate(zip(_floats(run), truth, strict=True)):
        if mine.shape == right.shape:
            lost = right.isfinite() & (right.abs() < torch.finfo(dtype).max / 2) & ~mine.isfinite()
            if lost.any():
                what = _named(subject, run, k)
                return f"{what} overflows, to {mine[lost][0]:.3g} where the exact value is {right[lost][0]:.5g}"
    return ""


def _noisy(value: Any, noise: float, generator: torch.Generator) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not noise:
        return value
    drawn = 2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1
    return (value.double() * (1 + noise * drawn.to(value.device))).to(value.dtype)


def _widened(values: Sequence[Any], exact: torch.dtype) -> list[Any]:
    return [v.to(exact) if isinstance(v, Tensor) and v.is_floating_point() else v for v in values]


def _floats(run: Run) -> list[Tensor]:
    """What is compared in low precision: floating outputs, and gradients."""
    return [v.detach() for v in (*run.outputs, *run.grads) if isinstance(v, Tensor) and v.is_floating_point()]


def _named(subject: Subject, run: Run, k: int) -> str:
    outputs = sum(isinstance(v, Tensor) and v.is_floating_point() for v in run.outputs)
    if k < outputs:
        return "the result"
    with_grads = [i for i, grad in zip(subject.differentiable, run.grads, strict=True) if grad is not None]
    return f"the gradient of {subject.name(with_grads[k - outputs])}"


def _reference_error(
    subject: Subject, leaves: list[Any], upstream: list[Tensor], truth: list[Tensor]
) -> list[float] | None:
    if subject.reference is None:
        return None
    try:
        values = _floats(subject.run(leaves, upstream, subject.reference))
    except Exception:
        return None
    if [v.shape for v in values] != [v.shape for v in truth]:
        return None
    return [
        ((v.double() - right)[right.isfinite() & v.isfinite()]).norm().item()
        for v, right in zip(values, truth, strict=True)
    ]


def _swamped(leaves: list[Any], run: Run) -> Iterator[tuple[list[Any], list[Tensor], str]]:
    """Inputs, then upstream gradients, of the same shapes and range: positive, one large value before many small ones.

    A sum forward is seen in the outputs, one backward in the gradients; other gradients may hang on a choice between
    values that are equal in low precision.
    """

    def large(value: Tensor) -> float:
        return 2.0 ** math.floor(math.log2(largest(value) or 1.0))

    def even(value: Any) -> Any:
        return (
            torch.full_like(value, large(value)) if isinstance(value, Tensor) and value.is_floating_point() else value
        )

    def pattern(value: Tensor, dim: int) -> Tensor:
        # Each small value is less than half a rounding of the large one.
        steps = torch.randperm(value.numel(), generator=torch.Generator().manual_seed(6)).double() / value.numel()
        small = (large(value) * torch.finfo(value.dtype).eps * (0.3 + 0.19 * steps)).reshape(value.shape)
        small.select(dim, 0).fill_(large(value))
        return small.to(value)

    def long(value: Tensor) -> list[int]:
        return [dim for dim, size in enumerate(value.shape) if size >= 32]  # fewer lose no more than rounding may

    plain = [even(leaf) for leaf in leaves]
    ups = [even(gradient) for gradient in upstream_like(run.live)]
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            for dim in long(leaf):
                yield [pattern(leaf, dim) if i == j else v for j, v in enumerate(plain)], ups, "outputs"
    for k, gradient in enumerate(ups):
        for dim in long(gradient):
            yield leaves, [pattern(g, dim) if j == k else g for j, g in enumerate(ups)], "gradients"


# Odd sizes


def _shortened(leaves: Sequence[Any], length: int, to: int) -> Iterator[list[Any]]:
    """Every dimension of this length made shorter; then also plain ints of that value."""
    short = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            for dim, size in enumerate(leaf.shape):
                if size == length:
                    leaf = leaf.narrow(dim, 0, to)
            leaf = leaf.clone()
            if not leaf.is_floating_point() and not leaf.is_complex() and leaf.dtype != torch.bool and leaf.numel():
                if to == 0:
                    return  # its values may name what is no longer there
                leaf = leaf.clamp(max=0)
        short.append(leaf)
    yield short
    if any(type(leaf) is int and leaf == length for leaf in leaves):
        yield [to if type(leaf) is int and leaf == length else leaf for leaf in short]


def _reference_takes(subject: Subject, leaves: list[Any]) -> Run | None:
    if subject.reference is None:
        return None
    try:
        return subject.run(leaves, None, subject.reference)
    except Exception:
        return None


def _right_when_short(subject: Subject, leaves: list[Any], expected: Run | None) -> None:
    run = subject.run(leaves)
    if expected is not None:
        found = compare(run, expected, _close(subject), subject)
        if found:
            raise Failed(found)
        return
    again = subject.run(leaves)
    found = compare(again, run, rounding(subject.dtype), subject)
    if found:
        raise Failed(f"two calls disagree, {found}")
    for i, gradient in zip(subject.differentiable, run.grads, strict=True):
        if gradient is not None and gradient.shape != leaves[i].shape:
            raise Failed(f"the gradient of {subject.name(i)} has shape {tuple(gradient.shape)}")
    if (
        run.live
        and all(v.isfinite().all() for v in run.live)
        and any(leaves[i].numel() for i in subject.differentiable)
    ):
        wrong, _, _ = finite_differences(subject, leaves, run)
        if wrong:
            raise Failed("; ".join(wrong))


def _depends(subject: Subject, which: Sequence[int]) -> bool:
    """Whether a result changes with the values of these inputs; where it does not, reading none is right."""
    leaves = subject.inputs(subject.dtype)
    changed = [leaf + 1 if i in which and leaf.dtype != torch.bool else leaf for i, leaf in enumerate(leaves)]
    try:
        found = compare(Run(subject.call(changed), [], []), Run(subject.call(leaves), [], []), 1e-6, subject)
    except Exception:
        return True
    return bool(found)


def _close(subject: Subject) -> float:
    """Two right implementations of the same function, in the most precise dtype."""
    return 1e-8 if _precise(subject) else rounding(torch.float32 if subject.dtype == torch.float64 else subject.dtype)
