"""Comparison of gradients with finite differences, and a diagnosis where they disagree."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .subject import Run, Subject, upstream_like

COORDINATES = 200  # maximum number of coordinates of one input that are compared; larger inputs are sampled at random


@dataclass
class _Differences:
    """Derivatives of <upstream, outputs> with respect to some coordinates of one input."""

    coordinates: Tensor
    central: Tensor
    smooth: Tensor  # mask: the one-sided derivatives agree


def finite_differences(subject: Subject, leaves: Sequence[Any], base: Run) -> tuple[list[str], int, int]:
    """Compare the gradients of a run with finite differences.

    Returns one message per wrong gradient, the number of coordinates on kinks, and the number of coordinates compared.
    """
    wrong, kinks, compared = [], 0, 0
    given = upstream_like(base.live)
    for i, gradient in zip(subject.differentiable, base.grads, strict=True):
        if not leaves[i].numel() or leaves[i].is_complex():
            continue
        found = _differentiate(subject, leaves, base, i, given)
        analytic = (torch.zeros_like(leaves[i]) if gradient is None else gradient).double().cpu()
        flat = analytic.reshape(-1)[found.coordinates]
        kinks += int((~found.smooth).sum())
        compared += int(found.smooth.sum())
        error = (flat - found.central)[found.smooth].abs()
        relative, absolute = (1e-3, 1e-5) if subject.precise else (5e-2, 2e-2)
        scale = found.central[found.smooth].abs().max().item() if found.smooth.any() else 0.0
        allowed = relative * found.central[found.smooth].abs() + absolute * max(scale, 1e-2)
        if not (error <= allowed).all():
            message = _diagnose(subject, leaves, base, i, gradient, analytic, found)
            wrong.append(f"the gradient of {subject.name(i)} {message}")
    return wrong, kinks, compared


def _differentiate(
    subject: Subject, leaves: Sequence[Any], base: Run, position: int, upstream: Sequence[Tensor]
) -> _Differences:
    x = leaves[position]
    step = (1e-6 if subject.precise else 1e-2) * max(1e-3, x[x.isfinite()].abs().mean().item())
    generator = torch.Generator().manual_seed(3)
    everything = torch.randperm(x.numel(), generator=generator)[:COORDINATES]
    value = _weighted(subject, base, upstream)
    middle = value(leaves)
    forward: list[float] = []
    backward: list[float] = []
    stop = time.perf_counter() + 5 * subject.budget
    for coordinate in everything.tolist():
        if len(backward) >= 20 and time.perf_counter() > stop:
            break
        for sign, into in ((1, forward), (-1, backward)):
            changed = x.detach().clone(memory_format=torch.contiguous_format)
            changed.view(-1)[coordinate] += sign * step
            actual = (
                changed.view(-1)[coordinate].double() - x.reshape(-1)[coordinate].double()
            ).item()  # after rounding
            into.append((value([changed if j == position else v for j, v in enumerate(leaves)]) - middle) / actual)
    right, left = torch.tensor(forward, dtype=torch.float64), torch.tensor(backward, dtype=torch.float64)
    central = (right + left) / 2
    bound = 1e-3 if subject.precise else 0.3
    smooth = (right - left).abs() <= bound * central.abs().clamp(min=max(central.abs().max().item(), 1e-3) * 0.1)
    return _Differences(everything[: len(central)], central, smooth & central.isfinite())


def _weighted(subject: Subject, base: Run, upstream: Sequence[Tensor]) -> Callable[[Sequence[Any]], float]:
    """<upstream, outputs> over the live outputs where they are finite, as a function of the inputs."""
    live = [i for i, value in enumerate(base.outputs) if any(value is other for other in base.live)]
    finite = [base.outputs[i].detach().isfinite() for i in live]

    def value(changed: Sequence[Any]) -> float:
        with torch.no_grad():
            outputs = subject.call(changed)
            terms = [
                (torch.where(mask, outputs[i], 0).double() * gradient.double()).sum()
                for i, mask, gradient in zip(live, finite, upstream, strict=True)
            ]
            return float(sum(terms))

    return value


def _diagnose(
    subject: Subject,
    leaves: Sequence[Any],
    base: Run,
    position: int,
    gradient: Tensor | None,
    analytic: Tensor,
    found: _Differences,
) -> str:
    """Describe how a gradient is wrong: "the gradient of x ..."."""
    flat, true = analytic.reshape(-1)[found.coordinates][found.smooth], found.central[found.smooth]
    if gradient is None:
        return "is missing (None), but finite differences are not zero"
    if not flat.isfinite().all():
        return f"is not finite at {int((~flat.isfinite()).sum())} coordinates"
    if not flat.count_nonzero():
        return "is zero, but finite differences are not"
    ones = [torch.ones_like(value) for value in base.live]
    unweighted = _differentiate(subject, leaves, base, position, ones).central[found.smooth]
    if _is_close(flat, unweighted):
        return "equals that for an upstream gradient of ones: backward ignores the upstream gradient"
    ratio = (flat @ true / true.square().sum().clamp(min=1e-300)).item()
    if _is_close(flat, ratio * true):
        return "has the opposite sign" if abs(ratio + 1) < 1e-2 else f"is {ratio:.4g} times the correct one"
    shape = leaves[position].shape
    square = len(shape) >= 2 and shape[-1] == shape[-2]
    if square and _is_close(analytic.mT.reshape(-1)[found.coordinates][found.smooth], true):
        return "is transposed"
    error = (flat - true).abs()
    worst = int(error.argmax())
    where = [int(k) for k in torch.unravel_index(found.coordinates[found.smooth][worst], shape)]
    return (
        f"is wrong by up to {error[worst]:.3g}: at {where} it is {flat[worst]:.5g}, "
        f"but finite differences give {true[worst]:.5g} "
        f"({int((error > 1e-3 * true.abs() + 1e-6).sum())} of {len(error)} coordinates differ)"
    )


def _is_close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= 1e-2 * b.norm()) and bool(b.norm() > 0)
