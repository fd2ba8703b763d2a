"""Checks of memory: layouts, aliases, writes into what belongs to others, and what was never written."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .gradients import is_custom
from .subject import (
    Failed,
    Run,
    Skipped,
    Subject,
    Warned,
    compare,
    difference,
    snapshot,
    told,
    upstream_like,
)


def layouts(subject: Subject) -> None:
    """Transposed, strided, offset and expanded inputs, and upstream gradients, give what contiguous ones give."""
    if subject.seeded:
        raise Skipped("random numbers are drawn in the order of memory")
    leaves, tolerance = subject.inputs(subject.dtype), subject.tolerance
    solid = [leaf.contiguous() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    expected = subject.run(solid)
    refused = []
    for i, leaf in enumerate(solid):
        if not isinstance(leaf, Tensor) or i < subject.parameters:
            continue
        for name, changed, same in _arrangements(leaf):
            try:
                right = expected if same is leaf else subject.run([same if i == j else v for j, v in enumerate(solid)])
            except Exception:  # it does not take these values in any layout
                continue
            try:
                received = subject.run([changed if i == j else v for j, v in enumerate(solid)])
            except torch.linalg.LinAlgError:  # of the values: equal rows are singular, which rounding may have hidden
                continue
            except Exception as error:
                if not _says_contiguous(error):
                    raise Failed(f"{name} {subject.name(i)}: {told(error)}") from error
                refused.append(f"{name} {subject.name(i)} ({told(error)})")
                continue
            if same is not leaf:
                received, right = (_without_ties(run, subject, i, changed) for run in (received, right))
            found = compare(received, right, tolerance, subject)
            if found:
                raise Failed(f"{name} {subject.name(i)}: {found}")
    given = upstream_like(expected.live)
    for k, gradient in enumerate(given):
        for name, changed, same in _arrangements(gradient):
            right = subject.run(solid, [same if j == k else g for j, g in enumerate(given)])
            behind = f"{name} upstream gradient, as sum() or a transpose behind it gives"
            try:
                received = subject.run(solid, [changed if j == k else g for j, g in enumerate(given)])
            except Exception as error:
                raise Failed(f"{behind}: {told(error)}") from error
            found = compare(received, right, tolerance, subject)
            if found:
                raise Failed(f"{behind}: {found}")
    if refused:
        raise Warned(f"refuses {refused[0]}")


def aliasing(subject: Subject) -> None:
    """No output shares memory with an input unless autograd knows it for a view."""
    leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in subject.inputs(subject.dtype)]
    for with_grad in (True, False):
        sources = [
            v.detach().requires_grad_() if with_grad and i in subject.differentiable else v
            for i, v in enumerate(leaves)
        ]
        # Not leaves: a leaf that needs a gradient may not be written, and a view of one neither.
        sources = [v.clone() if isinstance(v, Tensor) and v.requires_grad else v for v in sources]
        for output in subject.call(sources):
            for i, source in enumerate(sources):
                if not isinstance(output, Tensor) or not isinstance(source, Tensor) or output is source:
                    continue
                if not output.numel() or output.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():
                    continue
                name = subject.name(i)
                if output.grad_fn is not None and _made_by_custom(output):
                    raise Failed(f"the output shares memory with {name}: return a copy, or compute into new memory")
                before = source._version
                with torch.no_grad():
                    output.detach().zero_()
                if source._version == before:
                    raise Failed(
                        f"the output shares memory with {name}, and autograd does not know: a write to it goes unseen"
                    )


def inplace(subject: Subject) -> None:
    """Forward leaves its inputs alone, backward the upstream gradient; a write in between is noticed or harmless."""
    leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in subject.inputs(subject.dtype)]
    before = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    outputs = subject.call(leaves)
    changed = _changed(before, leaves)
    if changed is not None:
        if any(output is leaves[changed] for output in outputs):
            raise Warned(f"it works in place on {subject.name(changed)}, and returns it: the other rows see it changed")
        raise Failed(f"forward changes its input {subject.name(changed)}")
    if not subject.differentiable or not subject.base.live:
        return
    expected = subject.base
    given = upstream_like(expected.live)
    kept = [gradient.clone() for gradient in given]
    sources = {i: leaves[i].detach().requires_grad_() for i in subject.differentiable}
    outputs = subject.call([sources.get(i, leaf) for i, leaf in enumerate(leaves)])
    live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
    values = [value.detach().clone() for value in live]
    returned = torch.autograd.grad(live, list(sources.values()), given, allow_unused=True, retain_graph=True)
    first: list[Tensor | None] = [None if gradient is None else gradient.clone() for gradient in returned]
    if _changed(kept, given) is not None:
        raise Failed("backward changes the upstream gradient, which others may hold")
    changed = _changed(before, leaves)
    if changed is not None:
        raise Failed(f"backward changes the input {subject.name(changed)}")
    if _changed(values, [value.detach() for value in live]) is not None:
        raise Failed("backward changes the output of forward")
    try:
        second = torch.autograd.grad(live, list(sources.values()), given, allow_unused=True)
    except RuntimeError as error:
        raise Failed(f"a second backward with retain_graph fails: {told(error)}") from error
    found = compare(Run([], [], list(second)), Run([], [], first), subject.tolerance, subject)
    if found:
        raise Failed(f"in a second backward with retain_graph, {found}")
    _write_in_between(subject, leaves, expected, given)


def interleaved(subject: Subject) -> None:
    """Two calls at a time do not disturb each other: nothing is kept outside of the graph."""
    leaves = subject.inputs(subject.dtype)
    others = [leaf * 0.5 + 0.25 if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf for leaf in leaves]
    tolerance = subject.tolerance
    if not subject.differentiable or not subject.base.live:
        first = subject.call(leaves)
        kept = [value.clone() if isinstance(value, Tensor) else value for value in first]
        subject.call(others)
        if _changed(kept, first) is not None:
            raise Failed("a later call changes the result of an earlier one")
        return
    try:
        alone = snapshot(subject.run(others))
    except Exception as error:
        raise Skipped(f"it refuses the inputs halved and moved: {told(error)}") from error
    expected = [subject.base, alone]
    started = []
    for values in (leaves, others):
        sources = {i: values[i].detach().requires_grad_() for i in subject.differentiable}
        outputs = subject.call([sources.get(i, leaf) for i, leaf in enumerate(values)])
        live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
        started.append((list(sources.values()), outputs, live))
    found = compare(Run(started[0][1], [], []), Run(expected[0].outputs, [], []), tolerance, subject)
    if found:
        raise Failed(f"a second call changes the result of the first: {found}")
    done = []
    for (wanted, outputs, live), right in zip(started, expected, strict=True):
        grads = torch.autograd.grad(live, wanted, upstream_like(live), allow_unused=True)
        done.append(Run(outputs, live, list(grads)))
        found = compare(done[-1], right, tolerance, subject)
        if found:
            raise Failed(f"with another call between forward and backward, {found}: state is kept outside of the graph")
    found = compare(done[0], expected[0], tolerance, subject)
    if found:
        raise Failed(f"a later backward changes what an earlier one returned: {found}")
    _accumulates(subject, leaves, expected[0], tolerance)


def uninitialized(subject: Subject) -> None:
    """No result depends on what memory held before: with torch.empty filled with NaN nothing changes."""
    leaves, expected = subject.inputs(subject.dtype), subject.base
    mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        received = subject.run(leaves)
    finally:
        torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
    found = compare(received, expected, subject.tolerance, subject)
    if found:
        raise Failed(f"{found}, when new memory is filled with NaN: part of it is never written")


# Layouts


def _arrangements(value: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """(name, arranged, the same values in plain layout); the plain one is the given tensor where values are equal."""
    if value.dim() >= 2:
        yield "transposed", value.mT.contiguous().mT, value
    if value.dim() >= 3:
        yield "permuted", value.movedim(0, -1).contiguous().movedim(-1, 0), value
    if value.dim() and value.numel():
        wide = value.new_zeros((*value.shape[:-1], 2 * value.shape[-1] + 1))
        wide[..., 1::2] = value
        yield "strided", wide[..., 1::2], value
        room = value.new_zeros(value.numel() + 3)
        room[3:] = value.reshape(-1)
        yield "offset", room[3:].view(value.shape), value
        for dim in range(value.dim()):
            if value.shape[dim] > 1:
                flat = value.narrow(dim, 0, 1).expand_as(value)
                yield "expanded", flat, flat.contiguous()
                break
        if value.is_floating_point():
            one = value.reshape(-1)[0].expand(value.shape)
            yield "expanded", one, one.contiguous()


def _without_ties(run: Run, subject: Subject, position: int, expanded: Tensor) -> Run:
    """Equal values are in any order: indices are left out, and the gradient is summed over the copies of a value."""
    outputs = [v for v in run.outputs if isinstance(v, Tensor) and v.is_floating_point()]
    dims = [dim for dim, stride in enumerate(expanded.stride()) if stride == 0]
    grads = [
        grad.sum(dims) if i == position and grad is not None else grad
        for i, grad in zip(subject.differentiable, run.grads, strict=True)
    ]
    return Run(outputs, [], grads)


def _says_contiguous(error: Exception) -> bool:
    text = str(error).lower()
    return "contiguous" in text and "view size is not compatible" not in text


# Aliases and writes


def _made_by_custom(output: Tensor) -> bool:
    """Whether the node behind a view is a user's Function, for which torch cannot follow writes."""
    node = output.grad_fn
    return node is not None and is_custom(node)


def _changed(before: Sequence[Any], after: Sequence[Any]) -> int | None:
    """The first position whose values are no longer what they were."""
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        if isinstance(old, Tensor) and difference(new, old, 0):
            return i
    return None


def _write_in_between(subject: Subject, leaves: list[Any], expected: Run, given: list[Tensor]) -> None:
    """After forward an input or the output is written to; backward must raise, or still give the right gradient."""
    targets: list[tuple[str, int | None]] = [
        (f"the input {subject.name(i)}", i)
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor) and leaf.numel()
    ]
    for what, position in [*targets, ("the output", None)]:
        fresh = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        sources = {i: fresh[i].requires_grad_() for i in subject.differentiable}
        outputs = subject.call(fresh)
        live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
        try:
            with torch.no_grad():
                for target in live if position is None else [fresh[position]]:
                    _overwrite(target)
            grads = torch.autograd.grad(live, list(sources.values()), given, allow_unused=True)
        except (RuntimeError, ValueError, IndexError):
            continue  # noticed
        found = compare(Run([], [], list(grads)), Run([], [], expected.grads), subject.tolerance, subject)
        if found:
            raise Failed(
                f"{what} written in place between forward and backward goes unnoticed: {found}; keep tensors with "
                "ctx.save_for_backward, which notices"
            )


def _overwrite(target: Tensor) -> None:
    """Other values that are still valid: indices stay in range."""
    if target.is_floating_point() or target.is_complex():
        target.mul_(0.5).add_(0.3)
    elif target.dtype == torch.bool:
        target.logical_not_()
    else:
        target.copy_(target.flip(0) if target.dim() else target)


def _accumulates(subject: Subject, leaves: list[Any], expected: Run, tolerance: float) -> None:
    """Gradients of two backward passes add up in .grad; a buffer that is used again would not."""
    sources = {i: leaves[i].detach().clone().requires_grad_() for i in subject.differentiable}
    for _ in range(2):
        outputs = subject.call([sources.get(i, leaf) for i, leaf in enumerate(leaves)])
        live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
        torch.autograd.backward(live, upstream_like(live))
    twice = [None if gradient is None else 2 * gradient for gradient in expected.grads]
    grads = [source.grad for source in sources.values()]
    found = compare(Run([], [], grads), Run([], [], twice), tolerance, subject)
    if found:
        raise Failed(f"two backward passes do not add up in .grad: {found}; the memory of a gradient is used again")
