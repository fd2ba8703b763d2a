"""Run a check in a child process, so that a crash does not end this one."""

import contextlib
import faulthandler
import functools
import io
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import subject as outcomes
from .subject import Outcome, Skipped, Subject, describe_error

TIMEOUT = 60.0
STARTING = 120.0  # additional seconds until the first message of a spawned process, to import torch
NO_BACKWARD = "no backward"

Check = Callable[[Subject], None]


class Crashed(Exception):
    """The child process ended without reporting a result."""


def forked(check: Check, run_without_fork: bool = False) -> Check:
    """Wrap a check to run in a fork of this process where possible: on Linux, without a GPU.

    With a GPU, autograd starts a thread for it, even for CPU tensors, and fails in a fork, which lacks that thread.
    `torch.compile` with fake CUDA tensors starts the thread as well. Without a fork, the check runs in this process if
    it exists for the audit alone (`subject.isolated`), or if `run_without_fork` is set, for checks that seldom crash.
    Otherwise it runs in a spawned process.
    """

    def without_fork(subject: Subject) -> None:
        (check if subject.isolated or run_without_fork else functools.partial(spawn, check))(subject)

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        if torch.cuda.is_available() or not sys.platform.startswith("linux"):
            without_fork(subject)
            return
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about forking a process with threads; the child uses none of them
            child = os.fork()
        if child == 0:
            os.close(reading)
            _run_child(check, subject, writing)
        os.close(writing)
        try:
            _raise_result(reading, child, lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        except _NoBackward:
            without_fork(subject)

    return run


def spawn(check: Check, subject: Subject) -> None:
    """Run a check in a new process, which imports the functions of the audit from their modules.

    Raises:
        Skipped: If a function cannot be found by its name, such as a lambda, or a function of a script or a notebook.
        Crashed: If the new process ends without reporting a result.
    """
    options = {"device": subject.device, "seeded": subject.seeded, "budget": subject.budget}
    try:
        work = _pickled((check, *subject.given, options))
    except Exception as error:
        raise _not_spawned(describe_error(error)) from error
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import run_spawned; run_spawned({writing})"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[writing],
    )  # fmt: skip
    os.close(writing)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin as stdin:  # it ended; its status is reported below
        stdin.write(pickle.dumps((sys.path, work)))
    _raise_result(reading, child.pid, child.wait, STARTING)


class _NoBackward(Exception):
    """Autograd does not work in the child process."""


class _Pickler(pickle.Pickler):
    """Refuses functions and classes of `__main__`, which another process cannot import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type | types.FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in __main__")
        return NotImplemented


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _not_spawned(reason: str) -> Skipped:
    return Skipped(
        f"may crash this process, and cannot run in another one ({reason}): define the functions at the top level of a "
        "module, or use `pointgrad check`"
    )


def run_spawned(writing: int) -> None:
    """Main function of a spawned process: read the check and its subject from standard input, run it, and exit."""
    sys.path[:], work = pickle.load(sys.stdin.buffer)
    warnings.simplefilter("ignore")
    try:
        check, fn, make_inputs, reference, options = pickle.loads(work)
        subject = Subject(fn, make_inputs, reference, isolated=True, **options)
    except Exception as error:
        outcome = _not_spawned(describe_error(error))
        _write(writing, type(outcome).__name__, str(outcome))
        os._exit(0)
    with torch.enable_grad():
        _run_child(check, subject, writing)


def describe_exit(status: int) -> str:
    """Describe how a process ended, given its return code (negative: a signal)."""
    if status >= 0:
        return f"the process exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the process was killed by {name}"


def _write(pipe: int, kind: str, message: str) -> None:
    os.write(pipe, json.dumps([kind, message[:2000]]).encode() + b"\n")


def _run_child(check: Check, subject: Subject, writing: int) -> None:
    """Run the check in the child process, write its progress and result to the pipe, and exit."""
    kind, message, backward = "", "", False
    try:
        backward = _autograd_works()  # before the check, which may leave autograd disabled
        faulthandler.disable()  # the parent reports the crash
        torch.set_num_threads(1)  # a fork does not have the parent's threads
        subject.progress = functools.partial(_write, writing, "doing")
        check(subject)
    except Outcome as outcome:
        kind, message = type(outcome).__name__, str(outcome)
    except BaseException as error:
        kind, message = "Failed", describe_error(error)
    finally:
        # Without autograd the result of the check is meaningless.
        _write(writing, *((kind, message) if backward else (NO_BACKWARD, "")))
        os._exit(0)


def _autograd_works() -> bool:
    """Whether autograd works in this process; torch disables it in forks of a process with device threads."""
    one = torch.ones((), requires_grad=True)
    try:
        torch.autograd.grad(one.clone(), one)
    except RuntimeError:
        return False
    return True


def messages(pipe: int, timeout: float, first: float = 0.0) -> Iterator[Any]:
    """Yield the JSON lines from a pipe until it is closed.

    Raises TimeoutError if no line arrives for `timeout` seconds; the first line may take `first` seconds longer.
    """
    waiting, buffer = timeout + first, b""
    while select.select([pipe], [], [], waiting)[0]:
        chunk = os.read(pipe, 65536)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from map(json.loads, lines)
        waiting = timeout if lines else waiting
    raise TimeoutError(f"no response for {timeout:g} s")


def _raise_result(pipe: int, child: int, wait: Callable[[], int], first: float = 0.0) -> None:
    """Read the messages of a child process until it ends, and raise the outcome of its check; close the pipe.

    Args:
        pipe: File descriptor of the messages.
        child: Process id, for ending a process that hangs.
        wait: Waits for the process, and returns its return code (negative: a signal).
        first: Additional seconds until the first message.
    """
    last, ended = ("doing", ""), ""
    try:
        for message in messages(pipe, TIMEOUT, first):
            last = message
    except TimeoutError as error:
        os.kill(child, signal.SIGKILL)
        ended = str(error)
    finally:
        os.close(pipe)
    status, (kind, message) = wait(), last
    if kind == "doing":  # the child ended before it wrote a result
        raise Crashed(f"{ended or describe_exit(status)}{message and f', at {message}'}")
    if kind == NO_BACKWARD:
        raise _NoBackward
    if kind:
        raise getattr(outcomes, kind)(message)
