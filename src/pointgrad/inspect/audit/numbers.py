"""Checks of results: against a reference, for small sizes, and for unexpected dtypes and devices."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .differences import finite_differences
from .subject import (
    Failed,
    Passed,
    Run,
    Skipped,
    Subject,
    compare,
    describe_error,
    difference,
    rounding,
    upstream_like,
)


def reference(subject: Subject) -> None:
    """Results and gradients agree with the reference."""
    if subject.reference is None:
        raise Skipped("no reference was given")
    leaves, base = subject.inputs(subject.dtype), subject.base
    try:
        expected = subject.run(leaves, upstream_like(base.live) if base.live else None, subject.reference)
    except Exception as error:
        raise Skipped(f"the reference fails: {describe_error(error)}") from error
    if len(expected.live) != len(base.live):
        found = compare(Run(base.outputs, [], expected.grads), expected, _close(subject), subject)
        raise Failed(found or f"{len(base.live)} outputs have a gradient, but {len(expected.live)} in the reference")
    found = compare(base, expected, _close(subject), subject)
    if found:
        raise Failed(found)


def sizes(subject: Subject) -> None:
    """Empty and single-element inputs give a correct result or an error."""
    leaves = subject.inputs(subject.dtype)
    fixed, free = leaves[: subject.parameters], leaves[subject.parameters :]
    lengths = {n for leaf in free if isinstance(leaf, Tensor) for n in leaf.shape if n > 1}
    if not lengths:
        raise Skipped("no dimension to shorten")
    accepted, refused = [], []
    for to in (0, 1):
        for length in sorted(lengths):
            for shortened in ([*fixed, *short] for short in _shortened(free, length, to)):
                what = f"size {length} reduced to {to}"
                subject.progress(what)
                expected = _reference_run(subject, shortened)
                try:
                    _check_shortened(subject, shortened, expected)
                except Failed as failed:
                    raise Failed(f"{what}: {failed}") from failed
                except Exception as error:
                    if expected is not None:
                        message = f"{what}: the reference accepts it, but the function raises {describe_error(error)}"
                        raise Failed(message) from error
                    refused.append(f"{what} ({describe_error(error)})")
                else:
                    accepted.append(what)
                    break
    if not accepted:
        raise Skipped(f"rejects {refused[0]}" if refused else "no variant with valid indices")
    raise Passed(f"accepts {', '.join(dict.fromkeys(accepted))}")


def wrong_device(subject: Subject) -> None:
    """A tensor on a different device is rejected or gives the correct result."""
    leaves = subject.inputs(subject.dtype)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    other = ["meta"] + (["cpu"] if subject.device != "cpu" else [])
    for device in other:
        for moved in [[i] for i in tensors] + ([tensors] if len(tensors) > 1 else []):
            what = f"{subject.name(moved[0])} on {device!r}"
            subject.progress(what)
            try:
                outputs = subject.call([leaf.to(device) if i in moved else leaf for i, leaf in enumerate(leaves)])
            except Exception:
                continue
            if device != "meta":
                found = compare(Run(outputs, [], []), Run(subject.call(leaves), [], []), subject.tolerance, subject)
                if found:
                    raise Failed(f"{what}: {found}")
            elif any(isinstance(v, Tensor) and v.device.type != "meta" for v in outputs) and _depends(subject, moved):
                # Many of torch's own functions do the same, so this is not a failure.
                raise Passed(f"{what} is accepted and gives values on {subject.device!r}, although it holds no values")


def wrong_dtype(subject: Subject) -> None:
    """Integers, mixed precision and complex numbers are rejected or give the correct result."""
    leaves = subject.inputs(subject.dtype)
    floats = [i for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.is_floating_point()]
    if not floats:
        raise Skipped("no floating-point inputs")
    # Integers other than zero, whose sign is lost in some dtypes.
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
            expected = subject.call(values)
            outputs = subject.call([leaf.to(dtype) if i in which else leaf for i, leaf in enumerate(values)])
        except Exception:
            continue
        if len(outputs) != len(expected):
            raise Failed(f"{subject.name(which[0])} as {name} gives {len(outputs)} outputs instead of {len(expected)}")
        kinds = [v.dtype for v in outputs if isinstance(v, Tensor) and v.is_floating_point()]
        kinds += [dtype] if dtype.is_floating_point else []
        tolerance = max([rounding(torch.float32), *map(rounding, kinds)])
        for actual, desired in zip(outputs, expected, strict=True):
            if not isinstance(actual, Tensor) or not isinstance(desired, Tensor) or not desired.is_floating_point():
                continue
            actual = actual.real if actual.is_complex() else actual
            if not actual.is_floating_point() and actual.shape == desired.shape:
                # Rounding to integers is allowed.
                desired = torch.where((actual - desired).abs() < 1, actual.to(desired), desired)
            found = difference(actual, desired, tolerance)
            if found:
                raise Failed(f"{subject.name(which[0])} as {name} is accepted, but the result differs: {found}")


def _shortened(leaves: Sequence[Any], length: int, to: int) -> Iterator[list[Any]]:
    """Shorten every dimension of this length; then also replace plain ints of that value."""
    short = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            for dim, size in enumerate(leaf.shape):
                if size == length:
                    leaf = leaf.narrow(dim, 0, to)
            leaf = leaf.clone()
            if not leaf.is_floating_point() and not leaf.is_complex() and leaf.dtype != torch.bool and leaf.numel():
                if to == 0:
                    return  # its values may be indices into a dimension that is now empty
                leaf = leaf.clamp(max=0)
        short.append(leaf)
    yield short
    if any(type(leaf) is int and leaf == length for leaf in leaves):
        yield [to if type(leaf) is int and leaf == length else leaf for leaf in short]


def _reference_run(subject: Subject, leaves: list[Any]) -> Run | None:
    """A run of the reference; None if there is no reference or it rejects the inputs."""
    if subject.reference is None:
        return None
    try:
        return subject.run(leaves, None, subject.reference)
    except Exception:
        return None


def _check_shortened(subject: Subject, leaves: list[Any], expected: Run | None) -> None:
    """Compare a run on shortened inputs with the reference, or with itself and finite differences."""
    run = subject.run(leaves)
    if expected is not None:
        found = compare(run, expected, _close(subject), subject)
        if found:
            raise Failed(found)
        return
    again = subject.run(leaves)
    found = compare(again, run, subject.tolerance, subject)
    if found:
        raise Failed(f"two calls disagree: {found}")
    for i, gradient in zip(subject.differentiable, run.grads, strict=True):
        if gradient is not None and gradient.shape != leaves[i].shape:
            raise Failed(f"the gradient of {subject.name(i)} has shape {tuple(gradient.shape)}")
    if (
        run.live
        and all(v.isfinite().all() for v in run.live)
        and any(leaves[i].numel() for i in subject.differentiable)
    ):
        compared = finite_differences(subject, leaves, run)
        if compared.wrong:
            raise Failed("; ".join(compared.wrong))


def _depends(subject: Subject, which: Sequence[int]) -> bool:
    """Whether a result depends on the values of these inputs."""
    leaves = subject.inputs(subject.dtype)
    changed = [leaf + 1 if i in which and leaf.dtype != torch.bool else leaf for i, leaf in enumerate(leaves)]
    try:
        found = compare(Run(subject.call(changed), [], []), Run(subject.call(leaves), [], []), 1e-6, subject)
    except Exception:
        return True
    return bool(found)


def _close(subject: Subject) -> float:
    """Relative tolerance between two correct implementations of the same function."""
    return 1e-8 if subject.precise else subject.tolerance
