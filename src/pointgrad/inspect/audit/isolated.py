"""Running a check where it can do no harm: in a child process that may crash."""

import functools
import os
import pickle
import select
import signal
import sys
import warnings
from collections.abc import Callable

import torch

from . import subject as outcomes
from .subject import Outcome, Subject, told

TIMEOUT = 60.0


class Crashed(Exception):
    """The process did not live to tell the result."""


def forked(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """The check, run in a fork of this process where that is possible: on Linux and without a GPU."""

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        if subject.device != "cpu" or not sys.platform.startswith("linux"):
            check(subject)
            return
        subject.base  # noqa: B018: once, here, and not in every child
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads that the child will not have; it uses none of them
            child = os.fork()
        if child == 0:
            _tell(check, subject, writing)
        os.close(writing)
        try:
            answer = _listen(reading, child)
        finally:
            os.close(reading)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if answer:
            kind, message = pickle.loads(answer)
            if kind:
                raise getattr(outcomes, kind)(message)
            return
        raise Crashed(f"the process ended {describe(status)}")

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
    """In the child: runs the check, writes the outcome, and ends without anything else that the parent had in mind."""
    kind, message = "", ""
    try:
        torch.set_num_threads(1)  # the parent's threads are not here
        check(subject)
    except Outcome as outcome:
        kind, message = type(outcome).__name__, str(outcome)
    except BaseException as error:
        kind, message = "Failed", told(error)
    finally:
        os.write(writing, pickle.dumps((kind, message[:4000])))
        os._exit(0)


def _listen(reading: int, child: int) -> bytes:
    ready, _, _ = select.select([reading], [], [], TIMEOUT)
    if not ready:
        os.kill(child, signal.SIGKILL)
        return pickle.dumps(("Failed", f"no answer after {TIMEOUT:.0f} s: it hangs"))
    answer = b""
    while chunk := os.read(reading, 65536):
        answer += chunk
    return answer
