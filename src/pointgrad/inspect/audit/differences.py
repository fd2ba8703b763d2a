"""Comparison of gradients with finite differences, and a diagnosis where they disagree."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .subject import Run, Subject, upstream_like

COORDINATES = 200  # coordinates of one input that are moved one by one; of larger inputs, a random sample
DIRECTIONS = 4  # random directions in which all coordinates of a larger input are moved together
EVALUATIONS = 4000  # calls of the function for the directions of one input, at most

Value = Callable[[Tensor], float]  # <upstream, change of the outputs> as a function of one input


@dataclass
class Comparison:
    """Result of a comparison of all gradients with finite differences.

    Attributes:
        wrong: One message per wrong gradient.
        kinks: Number of coordinates on kinks, which are not compared.
        compared: Number of coordinates that were moved one by one.
        total: Number of coordinates of all inputs.
        along: Number of coordinates that were moved one by one or along random directions.
    """

    wrong: list[str] = field(default_factory=list)
    kinks: int = 0
    compared: int = 0
    total: int = 0
    along: int = 0

    def describe(self) -> str:
        """Description of the comparison, if coordinates are not compared one by one."""
        parts = []
        moved = self.compared + self.kinks
        if moved < self.total:
            parts.append(f"{moved:,} of {self.total:,} coordinates were moved one by one")
            if self.along > moved:
                how = "all" if self.along == self.total else f"{self.along:,}"
                parts[0] += f", and {how} along random directions"
        if self.kinks:
            parts.append(f"{self.kinks:,} of {moved:,} coordinates lie on kinks and were not compared")
        return "; ".join(parts)


@dataclass
class _Differences:
    """Derivatives of <upstream, outputs> with respect to some coordinates of one input."""

    coordinates: Tensor
    central: Tensor
    smooth: Tensor  # mask: the one-sided derivatives agree

    def joined(self, other: "_Differences") -> "_Differences":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return _Differences(*(torch.cat(pair) for pair in pairs))


def finite_differences(subject: Subject, leaves: Sequence[Any], base: Run) -> Comparison:
    """Compare the gradients of a run with finite differences.

    Up to `COORDINATES` coordinates of each input are moved one by one. In float64, all coordinates of a larger input
    are also moved together along random directions, in which any single wrong coordinate changes the derivative.
    """
    result = Comparison()
    given = upstream_like(base.live)
    for i, gradient in zip(subject.differentiable, base.grads, strict=True):
        if not leaves[i].numel() or leaves[i].is_complex():
            continue
        value = _weighted(subject, leaves, base, i, given)
        found = _differentiate(subject, leaves[i], value, _sample(leaves[i]))
        analytic = (torch.zeros_like(leaves[i]) if gradient is None else gradient).double().cpu()
        along = len(found.coordinates)
        if subject.precise and not _differing(subject, analytic, found).any():
            extra, along = _search(subject, leaves[i], value, analytic, found)
            found = found.joined(extra)
        result.kinks += int((~found.smooth).sum())
        result.compared += int(found.smooth.sum())
        result.total += leaves[i].numel()
        result.along += along
        if _differing(subject, analytic, found).any():
            message = _diagnose(subject, leaves, base, i, gradient, analytic, found)
            result.wrong.append(f"the gradient of {subject.name(i)} {message}")
    return result


def _sample(x: Tensor) -> Tensor:
    return torch.randperm(x.numel(), generator=torch.Generator().manual_seed(3))[:COORDINATES]


def _differing(subject: Subject, analytic: Tensor, found: _Differences) -> Tensor:
    """Mask of the smooth coordinates at which the gradient differs from finite differences."""
    true = found.central[found.smooth]
    error = (analytic.reshape(-1)[found.coordinates][found.smooth] - true).abs()
    relative, absolute = (1e-3, 1e-5) if subject.precise else (5e-2, 2e-2)
    scale = true.abs().max().item() if len(true) else 0.0
    return ~(error <= relative * true.abs() + absolute * max(scale, 1e-2))


def _step(subject: Subject, x: Tensor) -> float:
    return (1e-6 if subject.precise else 1e-2) * max(1e-3, x[x.isfinite()].abs().mean().item())


def _differentiate(subject: Subject, x: Tensor, value: Value, coordinates: Tensor) -> _Differences:
    """Move coordinates one by one, as many as there is time for, but at least 20."""
    step = _step(subject, x)
    forward: list[float] = []
    backward: list[float] = []
    stop = time.perf_counter() + 5 * subject.budget
    for coordinate in coordinates.tolist():
        if len(backward) >= 20 and time.perf_counter() > stop:
            break
        for sign, into in ((1, forward), (-1, backward)):
            changed = x.detach().clone(memory_format=torch.contiguous_format)
            changed.view(-1)[coordinate] += sign * step
            actual = (
                changed.view(-1)[coordinate].double() - x.reshape(-1)[coordinate].double()
            ).item()  # after rounding
            into.append(value(changed) / actual)
    right, left = torch.tensor(forward, dtype=torch.float64), torch.tensor(backward, dtype=torch.float64)
    central = (right + left) / 2
    bound = 1e-3 if subject.precise else 0.3
    largest = max(central[central.isfinite()].abs().tolist(), default=0.0)
    smooth = (right - left).abs() <= bound * central.abs().clamp(min=max(largest, 1e-3) * 0.1)
    return _Differences(coordinates[: len(central)], central, smooth & central.isfinite())


def _search(
    subject: Subject, x: Tensor, value: Value, analytic: Tensor, known: _Differences
) -> tuple[_Differences, int]:
    """Move all coordinates together along random directions, and look for those at which the derivative is wrong.

    A set of coordinates along which the derivative is not the expected one, or not smooth, is divided in halves, until
    single coordinates are left. These are compared like all others, so that kinks are recognized.

    Returns:
        The coordinates that were found in this way, and the number of coordinates that were compared in any way.
    """
    nothing = _Differences(known.coordinates[:0], known.central[:0], known.smooth[:0])
    count, flat = x.numel(), analytic.reshape(-1)
    if count == len(known.coordinates):
        return nothing, count
    finite = x.detach().reshape(-1).cpu().isfinite()
    compared = torch.zeros(count, dtype=torch.bool)
    compared[known.coordinates] = True
    single = torch.zeros(count, dtype=torch.bool)  # coordinates that are not moved together with others
    single[known.coordinates[~known.smooth]] = True
    generator = torch.Generator().manual_seed(7)
    left, stop, extra = EVALUATIONS, time.perf_counter() + 20 * subject.budget, nothing
    for _ in range(DIRECTIONS):
        direction = (0.5 + torch.rand(count, generator=generator, dtype=torch.float64)) * (
            torch.randint(0, 2, (count,), generator=generator) * 2 - 1
        )
        sets = [torch.randperm(count, generator=generator)]
        sets[0] = sets[0][(finite & ~single)[sets[0]]]
        while sets and left > 0 and (time.perf_counter() < stop or left > EVALUATIONS - 16):
            chosen = sets.pop()
            if len(chosen) == 1:
                if not known.coordinates.eq(chosen).any():
                    left -= 2
                    extra = extra.joined(_differentiate(subject, x, value, chosen))
                    if _differing(subject, analytic, known.joined(extra)).any():
                        return extra, count
                compared[chosen] = single[chosen] = True
                continue
            left -= 4
            if not len(chosen) or _agrees(subject, x, value, flat, direction, chosen):
                compared[chosen] = True
            else:
                sets += [chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]]
    return extra, int(compared.sum())


def _agrees(subject: Subject, x: Tensor, value: Value, flat: Tensor, direction: Tensor, chosen: Tensor) -> bool:
    """Whether the derivative along a direction in the chosen coordinates is smooth and the expected one."""
    where = chosen.to(x.device)

    def along(step: float) -> float:
        changed = x.detach().clone(memory_format=torch.contiguous_format)
        changed.view(-1)[where] += (step * direction[chosen]).to(x)
        return value(changed)

    step, terms = _step(subject, x), flat[chosen] * direction[chosen]
    near, far = ((along(size) - along(-size)) / (2 * size) for size in (step, 2 * step))
    norm = terms.norm().item()
    uncertain = abs(near - far)  # rounding errors, and kinks near the point
    error = abs(near - terms.sum().item())
    return error <= 1e-5 * norm + 2 * uncertain + 1e-7 and uncertain <= 1e-3 * max(norm, abs(near)) + 1e-7


def _weighted(subject: Subject, leaves: Sequence[Any], base: Run, position: int, upstream: Sequence[Tensor]) -> Value:
    """<upstream, change of the outputs> over the live outputs where they are finite, as a function of one input."""
    live = [i for i, value in enumerate(base.outputs) if any(value is other for other in base.live)]
    before = [base.outputs[i].detach().double() for i in live]

    def value(changed: Tensor) -> float:
        with torch.no_grad():
            outputs = subject.call([changed if j == position else leaf for j, leaf in enumerate(leaves)])
            terms = [
                (torch.where(old.isfinite(), outputs[i].double() - old, 0) * gradient.double()).sum()
                for i, old, gradient in zip(live, before, upstream, strict=True)
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
    value = _weighted(subject, leaves, base, position, [torch.ones_like(value) for value in base.live])
    unweighted = _differentiate(subject, leaves[position], value, found.coordinates[found.smooth])
    if _is_close(flat[: len(unweighted.central)], unweighted.central):
        return "equals that for an upstream gradient of ones: backward ignores the upstream gradient"
    ratio = (flat @ true / true.square().sum().clamp(min=1e-300)).item()
    if _is_close(flat, ratio * true) and abs(ratio - 1) > 1e-3:
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
