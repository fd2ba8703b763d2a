"""Checks of memory access: layouts, aliasing, in-place writes, shared state and uninitialized memory."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .gradients import is_custom
from .overwriting import overwritten_values
from .subject import (
    Failed,
    Run,
    Skipped,
    Subject,
    Warned,
    compare,
    describe_error,
    difference,
    differentiate,
    snapshot,
    upstream_like,
)


def layouts(subject: Subject) -> None:
    """Transposed, strided, offset and expanded inputs and upstream gradients give the same result."""
    if subject.seeded:
        raise Skipped("random numbers are drawn in memory order")
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
            except Exception:  # the function rejects these values in any layout
                continue
            try:
                received = subject.run([changed if i == j else v for j, v in enumerate(solid)])
            except torch.linalg.LinAlgError:  # equal rows are singular; rounding may have hidden this above
                continue
            except Exception as error:
                if not _mentions_contiguity(error):
                    raise Failed(f"{name} {subject.name(i)}: {describe_error(error)}") from error
                refused.append(f"{name} {subject.name(i)} ({describe_error(error)})")
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
            what = f"{name} upstream gradient, as from a subsequent sum() or transpose"
            try:
                received = subject.run(solid, [changed if j == k else g for j, g in enumerate(given)])
            except Exception as error:
                raise Failed(f"{what}: {describe_error(error)}") from error
            found = compare(received, right, tolerance, subject)
            if found:
                raise Failed(f"{what}: {found}")
    if refused:
        raise Warned(f"rejects {refused[0]}")


def aliasing(subject: Subject) -> None:
    """No output shares memory with an input, unless autograd tracks it as a view."""
    leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in subject.inputs(subject.dtype)]
    for with_grad in (True, False):
        sources = [
            v.detach().requires_grad_() if with_grad and i in subject.differentiable else v
            for i, v in enumerate(leaves)
        ]
        # Clones are not leaves: autograd forbids writing to a leaf that requires grad, and to its views.
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
                        f"the output shares memory with {name} but is not a view of it: autograd misses in-place writes"
                    )


def inplace(subject: Subject) -> None:
    """Inputs, outputs and upstream gradients are not modified; other in-place writes are detected or harmless."""
    leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in subject.inputs(subject.dtype)]
    before = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    outputs = subject.call(leaves)
    changed = _changed(before, leaves)
    if changed is not None:
        if any(output is leaves[changed] for output in outputs):
            raise Warned(f"modifies {subject.name(changed)} in place and returns it, which affects the other checks")
        raise Failed(f"forward modifies its input {subject.name(changed)}")
    if not subject.differentiable or not subject.base.live:
        return
    expected = subject.base
    given = upstream_like(expected.live)
    kept = [gradient.clone() for gradient in given]
    sources = {i: leaves[i].detach().requires_grad_() for i in subject.differentiable}
    outputs = subject.call([sources.get(i, leaf) for i, leaf in enumerate(leaves)])
    live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
    values = [value.detach().clone() for value in live]
    returned = differentiate(live, list(sources.values()), given, retain_graph=True)
    first: list[Tensor | None] = [None if gradient is None else gradient.clone() for gradient in returned]
    if _changed(kept, given) is not None:
        raise Failed("backward modifies the upstream gradient, which may be shared")
    changed = _changed(before, leaves)
    if changed is not None:
        raise Failed(f"backward modifies the input {subject.name(changed)}")
    if _changed(values, [value.detach() for value in live]) is not None:
        raise Failed("backward modifies the output of forward")
    try:
        second = differentiate(live, list(sources.values()), given)
    except RuntimeError as error:
        raise Failed(f"a second backward with retain_graph=True fails: {describe_error(error)}") from error
    found = compare(Run([], [], second), Run([], [], first), subject.tolerance, subject)
    if found:
        raise Failed(f"in a second backward with retain_graph=True, {found}")
    _check_writes_before_backward(subject, leaves, expected, given)
    overwritten_values(subject)


def interleaved(subject: Subject) -> None:
    """Interleaved calls do not affect each other: no state is kept outside the graph."""
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
        raise Skipped(f"rejects the inputs x / 2 + 1/4: {describe_error(error)}") from error
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
        done.append(Run(outputs, live, differentiate(live, wanted, upstream_like(live))))
        found = compare(done[-1], right, tolerance, subject)
        if found:
            raise Failed(f"with another call between forward and backward, {found}: state is kept outside the graph")
    found = compare(done[0], expected[0], tolerance, subject)
    if found:
        raise Failed(f"a later backward changes the gradient returned by an earlier one: {found}")
    _check_accumulation(subject, leaves, expected[0], tolerance)


def uninitialized(subject: Subject) -> None:
    """No result depends on uninitialized memory: filling torch.empty with NaN changes nothing."""
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
        raise Failed(f"with new memory filled with NaN, {found}: part of the memory is read before it is written")


# Layouts


def _arrangements(value: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name of the layout, tensor in that layout, the same values contiguous).

    The contiguous tensor is `value` itself where the values are unchanged.
    """
    if value.dim() >= 2:
        yield "transposed", value.mT.contiguous().mT, value
    if value.dim() >= 3:
        yield "permuted", value.movedim(0, -1).contiguous().movedim(-1, 0), value
    if value.dim() and value.numel():
        wide = value.new_zeros((*value.shape[:-1], 2 * value.shape[-1] + 1))
        wide[..., 1::2] = value
        yield "strided", wide[..., 1::2], value
        longer = value.new_zeros(value.numel() + 3)
        longer[3:] = value.reshape(-1)
        yield "offset", longer[3:].view(value.shape), value
        for dim in range(value.dim()):
            if value.shape[dim] > 1:
                flat = value.narrow(dim, 0, 1).expand_as(value)
                yield "expanded", flat, flat.contiguous()
                break
        if value.is_floating_point():
            one = value.reshape(-1)[0].expand(value.shape)
            yield "expanded", one, one.contiguous()


def _without_ties(run: Run, subject: Subject, position: int, expanded: Tensor) -> Run:
    """Remove what depends on the order of equal values: drop indices, and sum the gradient over copies of a value."""
    outputs = [v for v in run.outputs if isinstance(v, Tensor) and v.is_floating_point()]
    dims = [dim for dim, stride in enumerate(expanded.stride()) if stride == 0]
    grads = [
        grad.sum(dims) if i == position and grad is not None else grad
        for i, grad in zip(subject.differentiable, run.grads, strict=True)
    ]
    return Run(outputs, [], grads)


def _mentions_contiguity(error: Exception) -> bool:
    text = str(error).lower()
    return "contiguous" in text and "view size is not compatible" not in text


# Aliasing and in-place writes


def _made_by_custom(output: Tensor) -> bool:
    """Whether a custom Function returned the output; torch cannot track writes to its views."""
    node = output.grad_fn
    return node is not None and is_custom(node)


def _changed(before: Sequence[Any], after: Sequence[Any]) -> int | None:
    """The index of the first tensor whose values changed."""
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        if isinstance(old, Tensor) and difference(new, old, 0):
            return i
    return None


def _check_writes_before_backward(subject: Subject, leaves: list[Any], expected: Run, given: list[Tensor]) -> None:
    """Write to an input or the output after forward: backward must raise or still give the correct gradient."""
    targets: list[tuple[str, int | None]] = [
        (f"the input {subject.name(i)}", i)
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor) and leaf.numel()
    ]
    note = ""
    for what, position in [*targets, ("the output", None)]:
        fresh = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        sources = {i: fresh[i].requires_grad_() for i in subject.differentiable}
        outputs = subject.call(fresh)
        live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
        try:
            with torch.no_grad():
                for target in live if position is None else [fresh[position]]:
                    _overwrite(target)
            grads = differentiate(live, list(sources.values()), given)
        except (RuntimeError, ValueError, IndexError):
            continue  # autograd detected the write
        found = compare(Run([], [], grads), Run([], [], expected.grads), subject.tolerance, subject)
        if found and subject.checkpoints and position is not None and position < subject.parameters:
            note = (
                f"an in-place write to {what} between forward and backward is not detected, because "
                "torch.utils.checkpoint recomputes with the new values"
            )
        elif found:
            raise Failed(
                f"an in-place write to {what} between forward and backward is not detected: {found}; save tensors with "
                "ctx.save_for_backward"
            )
    if note:
        raise Warned(note)


def _overwrite(target: Tensor) -> None:
    """Write other valid values: indices stay in range."""
    if target.is_floating_point() or target.is_complex():
        target.mul_(0.5).add_(0.3)
    elif target.dtype == torch.bool:
        target.logical_not_()
    else:
        target.copy_(target.flip(0) if target.dim() else target)


def _check_accumulation(subject: Subject, leaves: list[Any], expected: Run, tolerance: float) -> None:
    """Check that the gradients of two backward passes add up in .grad; they do not if a buffer is reused."""
    sources = {i: leaves[i].detach().clone().requires_grad_() for i in subject.differentiable}
    for _ in range(2):
        outputs = subject.call([sources.get(i, leaf) for i, leaf in enumerate(leaves)])
        live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
        torch.autograd.backward(live, upstream_like(live))
    twice = [None if gradient is None else 2 * gradient for gradient in expected.grads]
    grads = [source.grad for source in sources.values()]
    found = compare(Run([], [], grads), Run([], [], twice), tolerance, subject)
    if found:
        raise Failed(f"two backward passes do not add up in .grad: {found}; the memory of a gradient is reused")
