"""Running a check where it can do no harm: in a child process that may crash."""

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
from .subject import Outcome, Skipped, Subject, told

TIMEOUT = 60.0
NO_BACKWARD = "no backward"


class Crashed(Exception):
    """The process did not live to tell the result."""


def forked(check: Callable[[Subject], None], else_here: bool = False) -> Callable[[Subject], None]:
    """The check, run in a fork of this process where that is possible: on Linux, and without a GPU.

    Where there is one, backward has threads for it, even of tensors on the CPU, and a fork cannot do without them; a
    compiler that imagined one leaves them behind as well.
    Then it is run only in a process that is there for nothing else; else_here: in any, as it seldom crashes.
    """

    def without_fork(subject: Subject) -> None:
        if not (subject.isolated or else_here):
            raise Skipped("might take this process down, and it cannot be forked here: `pointgrad check` runs it")
        check(subject)

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        if torch.cuda.is_available() or not sys.platform.startswith("linux"):
            without_fork(subject)
            return
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads that the child will not have; it uses none of them
            child = os.fork()
        if child == 0:
            _tell(check, subject, writing)
        os.close(writing)
        try:
            (kind, message), ended = _listen(reading, child)
        finally:
            os.close(reading)
        if kind == "doing":  # and it did not live to tell the result
            raise Crashed(f"{ended}{message and f', at {message}'}")
        if kind == NO_BACKWARD:
            without_fork(subject)
        elif kind:
            raise getattr(outcomes, kind)(message)

    return run


def describe(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def _tell(check: Callable[[Subject], None], subject: Subject, writing: int) -> None:
    """In the child: runs the check, writes how far it is and how it ended, and does nothing else of the parent's."""

    def write(kind: str, message: str) -> None:
        os.write(writing, json.dumps([kind, message[:2000]]).encode() + b"\n")

    kind, message, backward = "", "", False
    try:
        backward = _goes_backward()  # asked first: a check may leave autograd switched off
        faulthandler.disable()  # the parent says what happened
        torch.set_num_threads(1)  # the parent's threads are not here
        subject.progress = functools.partial(write, "doing")
        check(subject)
    except Outcome as outcome:
        kind, message = type(outcome).__name__, str(outcome)
    except BaseException as error:
        kind, message = "Failed", told(error)
    finally:
        # It lived; but where autograd does not, nothing else that it found is worth telling.
        write(*((kind, message) if backward else (NO_BACKWARD, "")))
        os._exit(0)


def _goes_backward() -> bool:
    """Whether autograd works in this process: torch refuses it in forks of one that has threads for a device."""
    one = torch.ones((), requires_grad=True)
    try:
        torch.autograd.grad(one.clone(), one)
    except RuntimeError:
        return False
    return True


def messages(pipe: int, timeout: float, first: float = 0.0) -> Iterator[Any]:
    """The JSON lines from a pipe until it is closed, or until none came for so long; the first may take longer."""
    waiting, buffer = timeout + first, b""
    while select.select([pipe], [], [], waiting)[0]:
        chunk = os.read(pipe, 65536)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from map(json.loads, lines)
        waiting = timeout if lines else waiting
    raise TimeoutError(f"no answer after {timeout:g} s")


def _listen(pipe: int, child: int) -> tuple[tuple[str, str], str]:
    """The last that the child wrote, and how it ended."""
    last = ("doing", "")
    try:
        for kind, message in messages(pipe, TIMEOUT):
            last = (kind, message)
    except TimeoutError as error:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return last, str(error)
    return last, f"the process ended {describe(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))}"
