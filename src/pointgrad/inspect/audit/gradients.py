"""Checks of gradients: finite differences, second derivatives, upstream gradients and unneeded gradients."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.gradcheck import GradcheckError

from .differences import COORDINATES, finite_differences
from .subject import (
    Failed,
    Passed,
    Run,
    Skipped,
    Subject,
    Warned,
    compare,
    describe_error,
    difference,
    differentiate,
    needs_backward,
    upstream_like,
)


def runs(subject: Subject) -> None:
    """Forward and backward run on the given inputs, and the result is the same under torch.no_grad()."""
    leaves = subject.inputs(subject.dtype)
    run = subject.run(leaves)
    if not any(isinstance(value, Tensor) for value in run.outputs):
        kinds = ", ".join(type(value).__name__ for value in run.outputs) or "nothing"
        raise Failed(f"the function must return at least one tensor, got {kinds}")
    with torch.no_grad():
        plain = subject.call(leaves)
    found = compare(Run(plain, [], run.grads), run, subject.tolerance, subject)
    if found:
        raise Failed(f"under torch.no_grad(), {found}")
    if not subject.precise:
        raise Passed(f"computes in {subject.dtype if subject.dtype != torch.float64 else 'torch.float32'} at best")


def gradcheck(subject: Subject) -> None:
    """The gradient of every input agrees with finite differences, under a random upstream gradient."""
    if not subject.differentiable:
        raise Skipped("no floating-point inputs")
    base = subject.base
    floats = [value for value in base.outputs if isinstance(value, Tensor) and value.is_floating_point()]
    if not floats:
        raise Skipped("no floating-point outputs")
    if not base.live:
        _check_constant(subject)
    found = finite_differences(subject, subject.inputs(subject.dtype), base)
    subject.cache["kinks"] = found.kinks
    if found.wrong:
        subject.cache["wrong"] = True
        raise Failed("; ".join(found.wrong))
    if not found.compared:
        raise Skipped("no coordinates to compare: inputs are empty" + (" or lie on kinks" if found.kinks else ""))
    if subject.precise and not found.kinks:
        function, sources = as_function(subject)
        tolerance = 0.0 if subject.device == "cpu" else 1e-10
        fast = max(sum(s.numel() for s in sources), sum(v.numel() for v in base.live)) > COORDINATES
        try:
            torch.autograd.gradcheck(function, sources, fast_mode=fast, nondet_tol=tolerance)
        except GradcheckError as error:
            raise Failed(describe_error(error)) from error
        except RuntimeError as error:
            if not needs_backward(error):
                raise
    dead = _dead_outputs(subject)
    if dead:
        raise Warned(f"output {dead[0]} depends on the inputs but has no gradient; ignore this if it is intended")
    precision = "" if subject.precise else f"compared in {subject.dtype}, to within a few percent"
    if notes := [note for note in (found.describe(), precision) if note]:
        raise Passed("; ".join(notes))


def gradgradcheck(subject: Subject) -> None:
    """The second derivative is correct, or computing it raises an error."""
    subject.need_gradients()
    if subject.cache.get("wrong"):
        raise Skipped("the first derivative is wrong, see `gradcheck`")
    if not subject.precise:
        raise Skipped("needs float64")
    function, sources = as_function(subject)
    if not any(source.numel() for source in sources):
        raise Skipped("inputs are empty")
    outputs = function(*sources)
    upstream = [gradient.requires_grad_() for gradient in upstream_like(outputs)]
    fast = sum(s.numel() for s in (*sources, *outputs)) > 60
    tolerance = 0.0 if subject.device == "cpu" else 1e-10
    try:
        first = torch.autograd.grad(outputs, sources, upstream, create_graph=True, allow_unused=True)
        nonzero = [gradient for gradient in first if gradient is not None and gradient.count_nonzero()]
        if nonzero and not any(gradient.requires_grad for gradient in nonzero):
            raise Failed(
                "backward returns a gradient without a graph, so second derivatives are silently zero: mark backward "
                "with @once_differentiable, or compute the gradient with differentiable operations"
            )
        live = [gradient for gradient in nonzero if gradient.requires_grad]
        if live:  # an error of backward is raised here; gradgradcheck would report a wrong result
            torch.autograd.backward(live, upstream_like(live))
        torch.autograd.gradgradcheck(function, tuple(sources), tuple(upstream), fast_mode=fast, nondet_tol=tolerance)
    except GradcheckError as error:
        if subject.cache.get("kinks"):
            raise Skipped("the inputs lie on kinks") from error
        raise Failed(_describe_second_derivative(subject, error)) from error
    except (RuntimeError, NotImplementedError) as error:
        if _refuses_twice(error):
            raise Skipped(f"backward raises when differentiated: {describe_error(error)}") from error
        raise


def upstream(subject: Subject) -> None:
    """Backward is linear in the upstream gradient, including zero and unused outputs."""
    base = subject.need_gradients()
    leaves = subject.inputs(subject.dtype)
    one, two = upstream_like(base.live, 1), upstream_like(base.live, 2)
    tolerance = subject.tolerance

    def backward(upstream: Sequence[Tensor]) -> list[Tensor | None]:
        return subject.run(leaves, upstream).grads

    first, second = backward(one), backward(two)
    cases: dict[str, tuple[list[Tensor], list[Tensor | None]]] = {
        "twice the upstream gradient does not give twice the gradient": ([2 * g for g in one], _combine(first, first)),
        "the sum of two upstream gradients does not give the sum of the gradients": (
            [a + b for a, b in zip(one, two, strict=True)],
            _combine(first, second),
        ),
        "a zero upstream gradient does not give a zero gradient": ([g * 0 for g in one], [None] * len(first)),
    }
    scale = max([g.abs().max().item() for g in first if g is not None and g.numel()], default=0.0)
    for message, (given, expected) in cases.items():
        for i, actual, desired in zip(subject.differentiable, backward(given), expected, strict=True):
            if actual is None or not actual.numel():
                continue
            error = (actual - (torch.zeros_like(actual) if desired is None else desired)).abs()
            if not error.max().item() <= tolerance * max(scale, 1e-30) and error.isfinite().all():
                ignored = all(difference(a, b, tolerance) == "" for a, b in zip(first, second, strict=True))
                raise Failed(
                    f"{subject.name(i)}: " + ("backward ignores the upstream gradient" if ignored else message)
                )
    if len(base.live) > 1:
        _check_single_outputs(subject, leaves, one, tolerance)


def needs_input_grad(subject: Subject) -> None:
    """When only some inputs need a gradient, those gradients are unchanged and no others are computed."""
    base = subject.need_gradients()
    if len(subject.differentiable) < 2:
        raise Skipped("only one differentiable input")
    leaves = subject.inputs(subject.dtype)
    wasted = []
    for k, i in enumerate(subject.differentiable):
        try:
            outputs = subject.call([v.detach().requires_grad_() if j == i else v for j, v in enumerate(leaves)])
            live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
            if not live:
                if (gradient := base.grads[k]) is not None and gradient.count_nonzero():
                    if "reentrant checkpoint" in subject.checkpoints:
                        raise Warned(
                            f"when only {subject.name(i)} needs a gradient, no output has one: reentrant checkpoints "
                            "need an input that requires grad, use_reentrant=False does not"
                        )
                    raise Failed(f"when only {subject.name(i)} needs a gradient, no output has one")
                continue
            wasted += _nodes_with_unneeded_gradients(live)
            if len(live) != len(base.live):
                continue  # the random upstream gradients would differ from those of `base`
            received = subject.run(leaves, only=[i]).grads[0]
        except (Failed, Skipped, Warned):
            raise
        except Exception as error:
            raise Failed(f"when only {subject.name(i)} needs a gradient: {describe_error(error)}") from error
        expected = base.grads[k]
        if received is not None and expected is not None:
            found = difference(received, expected, subject.tolerance)
            if found:
                raise Failed(f"when only {subject.name(i)} needs a gradient, it differs: {found}")
        elif (received is None) != (expected is None):
            state = "missing" if received is None else "present, but missing when all inputs need one"
            raise Failed(f"when only {subject.name(i)} needs a gradient, it is {state}")
    if wasted:
        raise Failed(
            f"{wasted[0]} computes gradients that are not needed: check ctx.needs_input_grad and return None instead"
        )


def _check_constant(subject: Subject) -> None:
    """Fail if outputs without a gradient depend on the inputs."""
    if _dead_outputs(subject):
        raise Failed("the gradient is lost: outputs change with the inputs, but none of them has a gradient")
    raise Skipped("no output has a gradient, and no output changes under small changes of the inputs")


def _dead_outputs(subject: Subject) -> list[int]:
    """Indices of floating-point outputs without a gradient that change with the differentiable inputs."""
    leaves = subject.inputs(subject.dtype)
    generator = torch.Generator().manual_seed(4)
    nudged = [
        v + 1e-4 * torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v)
        if i in subject.differentiable
        else v
        for i, v in enumerate(leaves)
    ]
    with torch.no_grad():
        before, after = subject.call(leaves), subject.call(nudged)
    live = {id(value) for value in subject.base.live}
    return [
        k
        for k, (value, a, b) in enumerate(zip(subject.base.outputs, before, after, strict=True))
        if isinstance(a, Tensor) and a.is_floating_point() and id(value) not in live
        if a.shape == b.shape and difference(b, a, 1e-12)
    ]


def as_function(subject: Subject) -> tuple[Callable[..., Any], list[Tensor]]:
    """The finite values of live outputs as a function of the differentiable inputs only, for torch's gradcheck."""
    leaves = subject.inputs(subject.dtype)
    sources = [
        leaves[i].detach().clone(memory_format=torch.contiguous_format).requires_grad_() for i in subject.differentiable
    ]
    live = [i for i, value in enumerate(subject.base.outputs) if any(value is other for other in subject.base.live)]
    finite = [subject.base.outputs[i].detach().isfinite() for i in live]

    def function(*changed: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(subject.differentiable, changed, strict=True))
        outputs = subject.call([given.get(i, leaf) for i, leaf in enumerate(leaves)])
        return tuple(
            outputs[i] if mask.all() else torch.where(mask, outputs[i], 0) for i, mask in zip(live, finite, strict=True)
        )

    return function, sources


def _combine(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if x is None or y is None else x + y for x, y in zip(a, b, strict=True)]


def _check_single_outputs(subject: Subject, leaves: Sequence[Any], given: list[Tensor], tolerance: float) -> None:
    """Check losses that use one output only: a missing upstream gradient must count as zero."""
    for k in range(len(given)):
        alone = [g if j == k else torch.zeros_like(g) for j, g in enumerate(given)]
        expected = subject.run(leaves, alone).grads
        sources = {i: leaves[i].detach().requires_grad_() for i in subject.differentiable}
        outputs = subject.call([sources.get(i, leaf) for i, leaf in enumerate(leaves)])
        live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
        received = differentiate([live[k]], list(sources.values()), [given[k]])
        for i, actual, desired in zip(subject.differentiable, received, expected, strict=True):
            if actual is not None and desired is not None and difference(actual, desired, tolerance):
                raise Failed(f"with only output {k} used, the gradient of {subject.name(i)} differs")
            if actual is None and desired is not None and desired.count_nonzero():
                raise Failed(f"with only output {k} used, the gradient of {subject.name(i)} is missing")


def _describe_second_derivative(subject: Subject, error: GradcheckError) -> str:
    """Name the wrong second derivative: gradgradcheck's inputs are the inputs, then the upstream gradients."""
    found = re.search(r"mismatch for output (\d+) with respect to input (\d+)", str(error))
    if not found:
        return f"the second derivative is wrong: {describe_error(error)}"
    names = [subject.name(i) for i in subject.differentiable]
    of, by = int(found[1]), int(found[2])
    by_name = names[by] if by < len(names) else "the upstream gradient"
    return f"the gradient of {names[of]} is correct, but its derivative with respect to {by_name} is not"


def _refuses_twice(error: Exception) -> bool:
    text = str(error)
    known = ("once_differentiable", "not implemented", "is not differentiable", "does not support", "double backward")
    return isinstance(error, NotImplementedError) or needs_backward(error) or any(part in text for part in known)


def _nodes_with_unneeded_gradients(live: Sequence[Tensor]) -> list[str]:
    """Names of the custom nodes in the graph of these outputs that compute gradients which are not needed."""
    nodes: dict[Any, list[Tensor | None]] = {}
    todo = [value.grad_fn for value in live]
    while todo:
        node = todo.pop()
        if node is not None and node not in nodes:
            nodes[node] = []
            todo += [following for following, _ in node.next_functions]
    custom = [
        node for node in nodes if is_custom(node) and any(following is None for following, _ in node.next_functions)
    ]
    handles = [node.register_prehook(lambda grads, node=node: nodes[node].extend(grads)) for node in custom]
    try:
        torch.autograd.backward(live, upstream_like(live), retain_graph=True)
    finally:
        for handle in handles:
            handle.remove()
    found = []
    for node in custom:
        given = nodes[node]
        if not given or any(gradient is None for gradient in given):
            continue
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            if isinstance(node, BackwardCFunction):
                returned, needed = node.apply(*given), list(node.needs_input_grad)
            else:
                returned, needed = node(*given), [following is not None for following, _ in node.next_functions]
        returned = returned if isinstance(returned, tuple | list) else (returned,)
        known = {gradient.untyped_storage().data_ptr() for gradient in given if gradient is not None}
        for gradient, need in zip(returned, needed, strict=False):
            unneeded = not need and isinstance(gradient, Tensor) and gradient.numel()
            # Returning the upstream gradient itself costs nothing.
            if unneeded and gradient.untyped_storage().data_ptr() not in known:
                found.append(node.name())
                break
    return found


def is_custom(node: Any) -> bool:
    """Whether the node belongs to a torch.autograd.Function in Python or C++, rather than to torch itself."""
    return isinstance(node, BackwardCFunction) or "CppNode" in node.name()
