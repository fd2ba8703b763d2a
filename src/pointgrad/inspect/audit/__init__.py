"""Audit of a differentiable function: a list of checks, each for a property that every correct function has."""

import contextlib
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from . import gradients, isolated, leaks, memory, numbers, precision, running
from .report import CRASHED, FAILED, PASSED, SKIPPED, WARNED
from .report import Report as Report
from .report import Row as Row
from .subject import Failed, InputsError, Outcome, Passed, Skipped, Subject, Warned, describe_error

Check = Callable[[Subject], None]

# In this order: later checks use results of earlier ones, and checks that may crash the process come last.
CHECKS: dict[str, Check] = {
    "runs": gradients.runs,
    "gradcheck": gradients.gradcheck,
    "gradgradcheck": gradients.gradgradcheck,
    "upstream": gradients.upstream,
    "needs_input_grad": gradients.needs_input_grad,
    "reference": numbers.reference,
    "dtypes": isolated.forked(precision.dtypes, run_without_fork=True),
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
    only: Sequence[str] = (),
) -> Report:
    """Audit a differentiable function.

    Checks that may crash the process (unusual dtypes, sizes and devices) run in a child process. With a GPU this is a
    new process, which imports the functions: checks of a lambda, or of a function in a script or notebook, are skipped
    there. If other checks may crash the process too, use the command `pointgrad check`. Random state and torch's
    settings are restored afterwards.

    Args:
        fn: A function, the `apply` of an `autograd.Function`, an operator of `torch.ops`, or an `nn.Module`. The
            parameters of a module are treated as additional inputs.
        make_inputs: `make_inputs(dtype, device)` returns the tuple of inputs: tensors, lists of tensors, indices,
            numbers. It is called with the same seed each time. Gradients are checked for the tensors with
            `requires_grad=True`, or for all floating-point tensors if there are none. Choose realistic sizes that are
            small enough for finite differences.
        reference: The same function in plain PyTorch. Results, precision and time are compared with it.
        device: The device passed to `make_inputs`.
        seeded: Seed torch's generator before each call. Set this for functions that draw random numbers intentionally.
        only: Names of the checks to run; by default all.

    Returns:
        A report with one row per check. `report.ok` is True if no check failed or crashed.

    Raises:
        TypeError: If `fn`, `make_inputs` or `reference` is not callable.
        ValueError: If `only` names an unknown check.
        InputsError: If `make_inputs` raises or returns no tensors.

    Example:
        >>> def make_inputs(dtype, device):
        ...     return (torch.randn(3, 4, dtype=dtype, device=device),)
        >>> report = audit(torch.nn.functional.silu, make_inputs)
        >>> report.ok, report["gradcheck"].status
        (True, 'passed')
    """
    for name, value in (("fn", fn), ("make_inputs", make_inputs), ("reference", reference)):
        if not callable(value) and not (name == "reference" and value is None):
            raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    unknown = [name for name in only if name not in CHECKS]
    if isinstance(only, str) or unknown:
        given = only if isinstance(only, str) else unknown[0]
        raise ValueError(f"only must be a list of some of {', '.join(map(repr, CHECKS))}, got {given!r}")
    names = [name for name in CHECKS if name in only or not only]
    report = Report(subject_name(fn), versions={"torch": torch.__version__})
    for row in rows(Subject(fn, make_inputs, reference, device, seeded), names):
        report.rows.append(row)
    return report


def rows(subject: Subject, names: list[str]) -> Iterator[Row]:
    """Run the named checks and yield one row for each."""
    subject.inputs(torch.float64)  # raises InputsError here, rather than as the result of a check
    for name in names:
        start = time.perf_counter()
        with _preserved_state():
            status, message = _result(name, subject)
        yield Row(name, (CHECKS[name].__doc__ or "").strip(), status, message, time.perf_counter() - start)


def subject_name(fn: Callable[..., Any]) -> str:
    """The name of a function in a report."""
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        return owner.__qualname__
    return getattr(fn, "__qualname__", None) or type(fn).__name__


def _result(name: str, subject: Subject) -> tuple[str, str]:
    try:
        if name != "runs":
            _ = subject.base  # raises Skipped if the function does not run
        CHECKS[name](subject)
    except isolated.Crashed as crash:
        return CRASHED, str(crash)
    except Outcome as outcome:
        return STATUS[type(outcome)], str(outcome)
    except InputsError:
        raise
    except Exception as error:
        return FAILED, describe_error(error)
    return PASSED, ""


@contextlib.contextmanager
def _preserved_state() -> Iterator[None]:
    """Restore random state, torch's settings and warning filters on exit."""
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
