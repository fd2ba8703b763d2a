"""Checks of results: against a reference, in every dtype, for odd sizes, and for inputs that do not belong there."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .gradients import _precise, finite_differences
from .subject import DTYPES, Failed, Passed, Run, Skipped, Subject, compare, difference, rounding, told, upstream_like

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
    subject.base  # noqa: B018: the other dtypes are measured against it
    exact = torch.float64 if _precise(subject) else torch.float32
    notes = []
    for dtype in DTYPES:
        if dtype == subject.dtype or torch.finfo(dtype).eps <= torch.finfo(exact).eps:
            continue
        leaves = subject.inputs(dtype)
        name = str(dtype).removeprefix("torch.")
        try:
            run = subject.run(leaves)
        except Exception as error:
            notes.append(f"refuses {name} ({told(error)})")
            continue
        kinds = {str(v.dtype).removeprefix("torch.") for v in run.outputs if isinstance(v, Tensor) and v.is_floating_point()}
        if kinds - {name}:
            notes.append(f"{name} gives {', '.join(sorted(kinds))}")
        found = _imprecise(subject, leaves, None, dtype, exact, given=True)
        if not found and dtype.itemsize == 2:
            for probe, upstream in _swamped(subject, leaves, run):
                found = _imprecise(subject, probe, upstream, dtype, exact, given=False)
                if found:
                    found += "; one large value and many small ones show it: small terms are lost in a sum that is not kept in float32"
                    break
        if found:
            raise Failed(f"{name}: {found}")
    if notes:
        raise Passed("; ".join(notes))


def sizes(subject: Subject) -> None:
    """Empty and single-element inputs give a right answer or a clear error, and no garbage."""
    leaves = subject.inputs(subject.dtype)
    lengths = {n for leaf in leaves if isinstance(leaf, Tensor) for n in leaf.shape if n > 1}
    if not lengths:
        raise Skipped("no dimension to shorten")
    accepted, refused = [], []
    for to in (0, 1):
        for length in sorted(lengths):
            for shortened in _shortened(leaves, length, to):
                what = f"size {length} made {to}"
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
            given = [leaf.to(device) if i in moved else leaf for i, leaf in enumerate(leaves)]
            try:
                outputs = subject.call(given)
            except Exception:  # noqa: S112, PERF203
                continue
            for value in outputs:
                if isinstance(value, Tensor) and device == "meta" and value.device.type != "meta" and _depends(subject, moved):
                    raise Failed(f"{subject.name(moved[0])} on {device!r}, which has no values, gives values on {value.device}")
            if device != "meta":
                found = compare(Run(outputs, [], []), Run(subject.call(leaves), [], []), rounding(subject.dtype), subject)
                if found:
                    raise Failed(f"{subject.name(moved[0])} on {device!r}: {found}")


def wrong_dtype(subject: Subject) -> None:
    """Integers, mixed precision and complex numbers are refused, or give what the right dtype gives."""
    leaves = subject.inputs(subject.dtype)
    floats = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.is_floating_point()]
    if not floats:
        raise Skipped("no input is floating")
    whole = [leaf.mul(4).round() if i in floats else leaf for i, leaf in enumerate(leaves)]
    variants: list[tuple[str, Sequence[int], torch.dtype, list[Any]]] = [
        ("int64", floats, torch.int64, whole),
        ("complex64", floats, torch.complex64, whole),
        *[(str(dtype).removeprefix("torch."), [i], dtype, whole) for i in floats if len(floats) > 1
          for dtype in (torch.float32, torch.float64, torch.float16, torch.int64) if dtype != subject.dtype],
    ]  # fmt: skip
    for name, which, dtype, values in variants:
        try:
            outputs = subject.call([leaf.to(dtype) if i in which else leaf for i, leaf in enumerate(values)])
        except Exception:  # noqa: S112, PERF203
            continue
        expected = subject.call(values)
        if len(outputs) != len(expected):
            raise Failed(f"{subject.name(which[0])} as {name} gives {len(outputs)} outputs, not {len(expected)}")
        precision = min((v.dtype for v in outputs if isinstance(v, Tensor) and v.is_floating_point()),
                        key=lambda d: -torch.finfo(d).eps, default=torch.float32)  # fmt: skip
        for mine, theirs in zip(outputs, expected, strict=True):
            if isinstance(mine, Tensor) and isinstance(theirs, Tensor) and theirs.is_floating_point():
                mine = mine.real if mine.is_complex() else mine
                found = difference(mine, theirs, max(rounding(precision, 64), rounding(torch.float32)))
                if found:
                    raise Failed(f"{subject.name(which[0])} as {name} is neither refused nor right: the result differs {found}")


# Low precision


def _imprecise(
    subject: Subject, leaves: list[Any], upstream: list[Tensor] | None, dtype: torch.dtype, exact: torch.dtype, given: bool
) -> str:
    """How a run in low precision is worse than it must be, or nothing. given: these are the user's own inputs."""
    try:
        run = subject.run(leaves, upstream)
    except Exception as error:
        if given:
            raise
        return "" if error else ""
    ups = upstream_like(run.live) if upstream is None else upstream
    fn = subject.reference or subject.fn
    generator = torch.Generator().manual_seed(5)
    eps = torch.finfo(dtype).eps

    def widened(values: Sequence[Any], noise: float) -> list[Any]:
        return [
            v.to(exact) * (1 + noise * (2 * torch.rand(v.shape, generator=generator, dtype=torch.float64) - 1)).to(v.device, exact)
            if isinstance(v, Tensor) and v.is_floating_point()
            else v
            for v in values
        ]

    def results(noise: float) -> list[Tensor]:
        return [v.double() for v in _floats(subject.run(widened(leaves, noise), widened(ups, noise), fn))]

    try:
        truth = results(0.0)
        others = [results(eps) for _ in range(6)]
    except Exception as error:
        if given and subject.reference is None:
            raise
        return "" if error else ""
    received = _floats(run)
    if [v.shape for v in received] != [v.shape for v in truth]:
        return ""  # the values decide about the shape
    theirs = _reference_error(subject, leaves, ups, truth)
    terms = max((v.numel() for v in leaves if isinstance(v, Tensor)), default=1)
    summed = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype).eps * terms**0.5
    for k, (mine, right) in enumerate(zip(received, truth, strict=True)):
        what = _named(subject, run, k)
        mine = mine.detach().double()
        limit = torch.finfo(dtype).max
        overflow = right.isfinite() & (right.abs() < limit / 2) & ~mine.isfinite()
        if given and overflow.any():
            return f"{what} overflows or is NaN where the exact value is {right[overflow].flatten()[0]:.4g}"
        there = right.isfinite() & mine.isfinite() & (right.abs() < limit)
        if not there.any():
            continue
        spread = torch.stack([(other[k] - right).abs().nan_to_num(posinf=limit) for other in others]).amax(0)
        error = (mine - right).abs()[there]
        scale = right[there].abs().max()
        allowed = FACTOR * (eps * right.abs() + spread + 0.1 * spread[there].mean())[there]
        allowed = allowed + FACTOR * summed * scale + torch.finfo(dtype).tiny
        if (error > allowed).any() and not (theirs and error.norm() <= 2 * theirs[k] + eps * scale * error.numel() ** 0.5):
            worst = int((error / allowed).argmax())
            return (
                f"{what} is off by {error[worst]:.3g} where the exact value is {right[there][worst]:.5g}: "
                f"{error[worst] / (allowed[worst] / FACTOR):.0f} roundings"
            )
    return ""


def _floats(run: Run) -> list[Tensor]:
    """What is compared in low precision: floating outputs, and gradients."""
    return [v.detach() for v in (*run.outputs, *run.grads) if isinstance(v, Tensor) and v.is_floating_point()]


def _named(subject: Subject, run: Run, k: int) -> str:
    outputs = sum(isinstance(v, Tensor) and v.is_floating_point() for v in run.outputs)
    if k < outputs:
        return "the result"
    with_grads = [i for i, grad in zip(subject.differentiable, run.grads, strict=True) if grad is not None]
    return f"the gradient of {subject.name(with_grads[k - outputs])}"


def _reference_error(subject: Subject, leaves: list[Any], upstream: list[Tensor], truth: list[Tensor]) -> list[float] | None:
    if subject.reference is None:
        return None
    try:
        values = _floats(subject.run(leaves, upstream, subject.reference))
    except Exception:
        return None
    if [v.shape for v in values] != [v.shape for v in truth]:
        return None
    return [
        ((v.double() - right)[right.isfinite() & v.isfinite()]).norm().item() for v, right in zip(values, truth, strict=True)
    ]


def _swamped(subject: Subject, leaves: list[Any], run: Run) -> Iterator[tuple[list[Any], list[Tensor]]]:
    """Inputs of the same shapes and range, positive, one large value before many small ones along one dimension."""

    def positive(value: Any) -> Any:
        return value.abs() if isinstance(value, Tensor) and value.is_floating_point() else value

    def pattern(value: Tensor, dim: int) -> Tensor:
        large = value[value.isfinite()].abs().max().double() if value.isfinite().any() else torch.tensor(1.0)
        large = large if large > 0 else torch.ones_like(large)
        steps = torch.randperm(value.numel(), generator=torch.Generator().manual_seed(6)).double() / value.numel()
        small = (large.cpu() * torch.finfo(value.dtype).eps / 4 * (1 + steps)).reshape(value.shape)
        small.select(dim, 0).fill_(large.item())
        return small.to(value)

    def long(value: Tensor) -> list[int]:
        return [dim for dim, size in enumerate(value.shape) if size >= 8]

    plain = [positive(leaf) for leaf in leaves]
    ups = [gradient.abs() for gradient in upstream_like(run.live)]
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            for dim in long(leaf):
                yield [pattern(leaf, dim) if i == j else v for j, v in enumerate(plain)], ups
    for k, gradient in enumerate(ups):
        for dim in long(gradient):
            yield plain, [pattern(g, dim) if j == k else g for j, g in enumerate(ups)]


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
    if run.live and any(leaves[i].numel() for i in subject.differentiable):
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
    return 1e-8 if _precise(subject) else rounding(torch.promote_types(subject.dtype, torch.float32) if subject.dtype == torch.float64 else subject.dtype)
