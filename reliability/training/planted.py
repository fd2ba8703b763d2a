"""Faults that are planted into an attempt, in its own process, before it begins."""

import datetime
import itertools
import os
import resource
import signal
import time
from typing import Any

from pointgrad import data
from pointgrad.train import run_folder, trainer

YEARS = 10 * 365 * 86400.0


def signal_at(step: int, number: int) -> None:
    """The process gets a signal when it begins its n-th step."""
    steps, train_step = itertools.count(1), trainer.train_step

    def disturbed(*arguments: Any, **options: Any) -> Any:
        if next(steps) == step:
            os.kill(os.getpid(), number)
        return train_step(*arguments, **options)

    trainer.train_step = disturbed


def worker_fault(how: str, sample: int) -> None:
    """A worker meets its end when it comes to a sample: killed, raises, exits with a status, takes all memory it may
    have, or is busy for so long that it outlives the training."""
    read = data.Arrays.__getitem__

    def disturbed(self: data.Arrays, index: int) -> data.Cloud:
        if index == sample and next(times) == 1:  # in the second epoch
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            elif how == "raises":
                raise ZeroDivisionError("planted")
            elif how.startswith("exits"):
                os._exit(int(how.split()[-1]))
            elif how == "memory":
                resource.setrlimit(resource.RLIMIT_AS, (2**32, resource.RLIM_INFINITY))
                bytearray(2**40)
            elif how == "busy":
                time.sleep(60)
        return read(self, index)

    times = itertools.count()
    data.Arrays.__getitem__ = disturbed  # type: ignore[method-assign]


def jumping_clock() -> None:
    """Every look at the time of day is years before or after the last one."""
    jumps, real, now = itertools.cycle((YEARS, 0.0, -YEARS)), time.time, datetime.datetime.now

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:  # type: ignore[override]
            return now(tz) + datetime.timedelta(seconds=next(jumps))

    time.time = lambda: real() + next(jumps)
    run_folder.datetime = type("datetime", (), {**vars(datetime), "datetime": Jumping})  # type: ignore[assignment]
