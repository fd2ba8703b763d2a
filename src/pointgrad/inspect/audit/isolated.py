"""Running a check where it can do no harm: in a child process that may crash."""

import faulthandler
import functools
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import BinaryIO

import torch

from . import subject as outcomes
from .subject import Outcome, Subject, told

TIMEOUT = 60.0


class Crashed(Exception):
    """The process did not live to tell the result."""


def forked(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
    """The check, run in a fork of this process where that is possible: on Linux, and without a GPU.

    Where there is one, backward has threads for it, even of tensors on the CPU, and a fork cannot do without them.
    """

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        if torch.cuda.is_available() or not sys.platform.startswith("linux"):
            check(subject)
            return
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads that the child will not have; it uses none of them
            child = os.fork()
        if child == 0:
            _tell(check, subject, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            lines, ended = _listen(pipe, child)
        kind, message = json.loads(lines[-1]) if lines else ("doing", "")
        if kind == "doing":  # and it did not live to tell the result
            raise Crashed(f"{ended}{message and f', at {message}'}")
        if kind:
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

    kind, message = "", ""
    try:
        faulthandler.disable()  # the parent says what happened
        torch.set_num_threads(1)  # the parent's threads are not here
        subject.progress = functools.partial(write, "doing")
        check(subject)
    except Outcome as outcome:
        kind, message = type(outcome).__name__, str(outcome)
    except BaseException as error:
        kind, message = "Failed", told(error)
    finally:
        write(kind, message)
        os._exit(0)


def _listen(pipe: BinaryIO, child: int) -> tuple[list[bytes], str]:
    """What the child wrote, and how it ended."""
    lines: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        line = pipe.readline()
        if not line:
            return lines, f"the process ended {describe(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))}"
        lines.append(line)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return lines, f"no answer after {TIMEOUT:.0f} s"
