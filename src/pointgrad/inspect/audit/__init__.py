"""The audit of a differentiable function: one check after another, each a property that a right function has."""

import contextlib
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import gradients, isolated, leaks, memory, numbers, precision, running
from .report import CRASHED, FAILED, PASSED, SKIPPED, WARNED
from .report import Report as Report
from .report import Row as Row
from .subject import Failed, InputsError, Outcome, Passed, Skipped, Subject, Warned, told

Check = Callable[[Subject], None]

# In order: what others build on first, what may take the process down last.
CHECKS: dict[str, Check] = {
    "runs": gradients.runs,
    "gradcheck": gradients.gradcheck,
    "gradgradcheck": gradients.gradgradcheck,
    "upstream": gradients.upstream,
    "needs_input_grad": gradients.needs_input_grad,
    "reference": numbers.reference,
    "dtypes": isolated.forked(precision.dtypes, else_here=True),
    "layouts": memory.layouts,
    "aliasing": memory.aliasing,
    "in-place": memory.inplace,
    "interleaved": memory.interleaved,
    "uninitialized": memory.uninitialized,
    "determinism": running.determinism,
    "threads": running.threads,
    "saved": leaks.saved,
    "leaks": leaks.leaks,
    "opcheck": running.opcheck,
    "compile": running.compiled,
    "timing": running.timing,
    "sizes": isolated.forked(numbers.sizes),
    "wrong dtype": isolated.forked(numbers.wrong_dtype),
    "wrong device": isolated.forked(numbers.wrong_device),
}
STATUS: dict[type[Outcome], str] = {Passed: PASSED, Failed: FAILED, Warned: WARNED, Skipped: SKIPPED}


def audit(
    fn: Callable[..., Any],
    make_inputs: Callable[[torch.dtype, str], Any],
    reference: Callable[..., Any] | None = None,
    *,
    device: str = "cpu",
    seeded: bool = False,
) -> Report:
    """Examines a differentiable function, and returns a report with one row per check; `report.ok` if none failed.

    fn: a function, an `autograd.Function`'s `apply`, an operator of `torch.ops`, or an `nn.Module`, whose parameters
        are then inputs like the others.
    make_inputs: `make_inputs(dtype, device)` returns the tuple of inputs: tensors, lists of them, indices, numbers.
        Called with the same seed each time. Gradients are checked for all floating tensors, or for those that have
        `requires_grad` if some have. Give realistic sizes, small enough for finite differences.
    reference: the same function in plain PyTorch: results, precision and time are compared with it.
    seeded: True for a function that draws random numbers on purpose: torch's generator is set before each call.

    Random state and torch's settings are left as they were. What might take the process down, wrong devices and dtypes
    and odd sizes, is tried in a child process; for everything else use `pointgrad check`.

    >>> report = audit(torch.nn.functional.silu, lambda dtype, device: (torch.randn(3, 4, dtype=dtype, device=device),))
    >>> report.ok, report["gradcheck"].status
    (True, 'passed')
    """
    for name, value in (("fn", fn), ("make_inputs", make_inputs), ("reference", reference)):
        if not callable(value) and not (name == "reference" and value is None):
            raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    report = Report(subject_name(fn), versions={"torch": torch.__version__})
    for row in rows(Subject(fn, make_inputs, reference, device, seeded), list(CHECKS)):
        report.rows.append(row)
    return report


def rows(subject: Subject, names: list[str]) -> Iterator[Row]:
    """Runs the checks of these names, one row each."""
    subject.inputs(torch.float64)  # an error of make_inputs is no finding
    for name in names:
        start = time.perf_counter()
        with _undisturbed():
            status, message = _result(name, subject)
        yield Row(name, (CHECKS[name].__doc__ or "").strip(), status, message, time.perf_counter() - start)


def subject_name(fn: Callable[..., Any]) -> str:
    """What a report calls a function."""
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        return owner.__qualname__
    return getattr(fn, "__qualname__", None) or type(fn).__name__


def _result(name: str, subject: Subject) -> tuple[str, str]:
    try:
        if name != "runs":
            _ = subject.base  # without one there is nothing to compare with, and the check is skipped
        CHECKS[name](subject)
    except isolated.Crashed as crash:
        return CRASHED, str(crash)
    except Outcome as outcome:
        return STATUS[type(outcome)], str(outcome)
    except InputsError:
        raise
    except Exception as error:
        return FAILED, told(error)
    return PASSED, ""


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Random state, settings and warnings are as before."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    state, dtype, threads = random.getstate(), torch.get_default_dtype(), torch.get_num_threads()
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            random.setstate(state)
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)
