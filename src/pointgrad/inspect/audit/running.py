"""Checks of execution: determinism, threads, operator registration, torch.compile and timing."""

import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .subject import Failed, Passed, Skipped, Subject, Warned, compare, describe_error, snapshot, upstream_like

TORCH_NAMESPACES = {"aten", "prim", "prims", "profiler", "inductor", "higher_order", "_c10d_functional", "c10d"}


def determinism(subject: Subject) -> None:
    """Repeated calls with the same input give bitwise equal results."""
    leaves, start, calls = subject.inputs(subject.dtype), time.perf_counter(), 0
    state = torch.get_rng_state()
    expected = snapshot(subject.run(leaves))
    draws = not torch.equal(state, torch.get_rng_state()) and not subject.seeded
    while calls < 10 or (time.perf_counter() - start < subject.budget and calls < 300):
        received = subject.run(leaves)
        calls += 1
        found = compare(received, expected, 0, subject)
        if found and draws:
            raise Failed(
                f"{found} between calls: the function draws random numbers; if this is intended, use seeded=True"
            )
        if found and subject.device != "cpu" and not compare(received, expected, subject.tolerance, subject):
            raise Warned(f"{found} between calls, within rounding error, as with atomic additions")
        if found:
            raise Failed(f"{found} between call 0 and call {calls} with the same input; there may be a race condition")
    raise Passed(f"{calls} calls")


def threads(subject: Subject) -> None:
    """Concurrent calls from several threads, and torch.set_num_threads(1), do not change the result."""
    if subject.seeded:
        raise Skipped("all threads share one random generator")
    if subject.parameters:
        raise Skipped("torch.func.functional_call on one module is not thread-safe")
    leaves, tolerance = subject.inputs(subject.dtype), subject.tolerance
    work = [(leaves, snapshot(subject.run(leaves)))]
    others = [leaf * 0.5 + 0.25 if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf for leaf in leaves]
    try:
        work.append((others, snapshot(subject.run(others))))
    except Exception:  # the function rejects these values: all threads use the same inputs
        work.append(work[0])
    problems: list[str] = []
    barrier = threading.Barrier(4)
    stop = time.perf_counter() + min(subject.budget, 0.5)

    def caller(k: int) -> None:
        values, expected = work[k % 2]
        barrier.wait()
        done = 0
        while not problems and (done < 5 or (time.perf_counter() < stop and done < 200)):
            try:
                found = compare(subject.run(values), expected, tolerance, subject)
            except Exception as error:
                found = describe_error(error)
            if found:
                problems.append(found)
            done += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # makes races more likely
    try:
        workers = [threading.Thread(target=caller, args=(k,)) for k in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    if problems:
        raise Failed(f"with calls from 4 threads: {problems[0]}; memory is shared between calls")
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = compare(subject.run(leaves), work[0][1], tolerance, subject)
    finally:
        torch.set_num_threads(count)
    if found:
        raise Failed(f"with torch.set_num_threads(1): {found}")


def opcheck(subject: Subject) -> None:
    """Custom operators pass torch.library.opcheck: schema, autograd registration, fake tensors and tracing."""
    leaves = subject.inputs(subject.dtype)
    with _Operators() as seen:
        subject.run(leaves)
    if not seen.calls:
        raise Skipped("the function calls no custom operators")
    try:
        import expecttest  # noqa: F401, required by torch.library.opcheck
    except ModuleNotFoundError:
        raise Skipped("torch.library.opcheck requires the package expecttest") from None
    for operator, (args, kwargs) in seen.calls.items():
        outcomes = torch.library.opcheck(operator, args, kwargs, raise_exception=False)
        wrong = [
            f"{name}: {' '.join(str(result).split())[:300]}" for name, result in outcomes.items() if result != "SUCCESS"
        ]
        if wrong:
            raise Failed(f"{operator}: {wrong[0]}")
    raise Passed(", ".join(map(str, seen.calls)))


def compiled(subject: Subject) -> None:
    """torch.compile gives the same results and gradients; a graph break is only a warning."""
    leaves, expected = subject.inputs(subject.dtype), subject.base
    fn, tolerance = subject.fn, subject.tolerance
    import torch._dynamo

    # torch 2.6 does not compile its own functions unless another function calls them.
    if (getattr(fn, "__module__", None) or "").startswith("torch."):

        def target(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)
    else:
        target = fn

    def under(fullgraph: bool) -> str:
        torch._dynamo.reset()
        fast = torch.compile(target, fullgraph=fullgraph, backend="aot_eager")
        try:
            return compare(subject.run(leaves, fn=fast), expected, tolerance, subject)
        finally:
            torch._dynamo.reset()

    try:
        found = under(fullgraph=True)
    except Exception as error:
        reason = describe_error(error)
        try:
            found = under(fullgraph=False)
        except Exception as other:
            if type(other).__module__.startswith("torch._dynamo"):
                raise Warned(f"torch.compile cannot trace the function: {describe_error(other)}") from other
            raise Failed(f"fails under torch.compile: {describe_error(other)}") from other
        if not found:
            raise Warned(f"correct, but with a graph break: {reason}") from error
    if found:
        raise Failed(f"under torch.compile, {found}")


def timing(subject: Subject) -> None:
    """Median times of forward and backward, compared with the reference."""
    leaves = subject.inputs(subject.dtype)
    mine = _times(subject, leaves, subject.fn)
    message = f"forward {_format_time(mine[0])}" + (f", backward {_format_time(mine[1])}" if mine[1] else "")
    if subject.reference is not None:
        theirs = _times(subject, leaves, subject.reference)
        message += f"; reference {_format_time(theirs[0])}" + (f", {_format_time(theirs[1])}" if theirs[1] else "")
    raise Passed(message)


class _Operators(TorchDispatchMode):
    """Records the first call of each custom operator in forward and backward, with copies of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in TORCH_NAMESPACES and func not in self.calls:
            from torch.utils._pytree import tree_map_only

            def copy(value: Tensor) -> Tensor:
                return value.detach().clone().requires_grad_(value.requires_grad and torch.is_grad_enabled())

            self.calls[func] = tree_map_only(Tensor, copy, (tuple(args), dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _times(subject: Subject, leaves: list[Any], fn: Callable[..., Any]) -> tuple[float, float]:
    """Median seconds of forward and backward; zero if there is no backward."""
    forward: list[float] = []
    backward: list[float] = []
    begin = time.perf_counter()
    while len(forward) < 5 or (time.perf_counter() - begin < subject.budget / 4 and len(forward) < 200):
        sources = [v.detach().requires_grad_() if i in subject.differentiable else v for i, v in enumerate(leaves)]
        start = _now(subject)
        outputs = subject.call(sources, fn)
        forward.append(_now(subject) - start)
        live = [value for value in outputs if isinstance(value, Tensor) and value.requires_grad]
        if live:
            given = upstream_like(live)
            start = _now(subject)
            torch.autograd.backward(live, given)
            backward.append(_now(subject) - start)
    return statistics.median(forward), statistics.median(backward) if backward else 0.0


def _now(subject: Subject) -> float:
    if subject.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def _format_time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
