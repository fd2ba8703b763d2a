"""Run a check in a child process, so that a crash does not end this one."""

import faulthandler
import functools
import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import subject as outcomes
from .subject import Outcome, Skipped, Subject, describe_error

TIMEOUT = 60.0
NO_BACKWARD = "no backward"


class Crashed(Exception):
    """The child process ended without reporting a result."""


def forked(check: Callable[[Subject], None], run_without_fork: bool = False) -> Callable[[Subject], None]:
    """Wrap a check to run in a fork of this process where possible: on Linux, without a GPU.

    With a GPU, autograd starts a thread for it, even for CPU tensors, and fails in a fork, which lacks that thread.
    `torch.compile` with fake CUDA tensors starts the thread as well. Without a fork, the check runs only if this
    process exists for the audit alone (`subject.isolated`), or if `run_without_fork` is set, for checks that seldom
    crash.
    """

    def without_fork(subject: Subject) -> None:
        if not (subject.isolated or run_without_fork):
            raise Skipped("may crash this process, which cannot be forked: use `pointgrad check`")
        check(subject)

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
            _run_child(check, subject, writing)
        os.close(writing)
        try:
            (kind, message), ended = _read_result(reading, child)
        finally:
            os.close(reading)
        if kind == "doing":  # the child ended before it wrote a result
            raise Crashed(f"{ended}{message and f', at {message}'}")
        if kind == NO_BACKWARD:
            without_fork(subject)
        elif kind:
            raise getattr(outcomes, kind)(message)

    return run


def describe_exit(status: int) -> str:
    """Describe how a process ended, given its return code (negative: a signal)."""
    if status >= 0:
        return f"the process exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the process was killed by {name}"


def _run_child(check: Callable[[Subject], None], subject: Subject, writing: int) -> None:
    """Run the check in the child process, write its progress and result to the pipe, and exit."""

    def write(kind: str, message: str) -> None:
        os.write(writing, json.dumps([kind, message[:2000]]).encode() + b"\n")

    kind, message, backward = "", "", False
    try:
        backward = _autograd_works()  # before the check, which may leave autograd disabled
        faulthandler.disable()  # the parent reports the crash
        torch.set_num_threads(1)  # a fork does not have the parent's threads
        subject.progress = functools.partial(write, "doing")
        check(subject)
    except Outcome as outcome:
        kind, message = type(outcome).__name__, str(outcome)
    except BaseException as error:
        kind, message = "Failed", describe_error(error)
    finally:
        # Without autograd the result of the check is meaningless.
        write(*((kind, message) if backward else (NO_BACKWARD, "")))
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


def _read_result(pipe: int, child: int) -> tuple[tuple[str, str], str]:
    """The last message from the child process, and a description of how it ended."""
    last = ("doing", "")
    try:
        for kind, message in messages(pipe, TIMEOUT):
            last = (kind, message)
    except TimeoutError as error:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return last, str(error)
    return last, describe_exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
