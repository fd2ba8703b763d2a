"""Faults that an attempt injects into its own process before it begins."""

import datetime
import itertools
import os
import resource
import signal
import time
from typing import Any

from torch.utils.data import get_worker_info

from pointgrad import data
from pointgrad.train import run_folder, trainer

YEARS = 10 * 365 * 86400.0


def signal_at(step: int, number: int) -> None:
    """Send a signal to this process when it begins its n-th step."""
    steps, train_step = itertools.count(1), trainer.train_step

    def disturbed(*arguments: Any, **options: Any) -> Any:
        if next(steps) == step:
            os.kill(os.getpid(), number)
        return train_step(*arguments, **options)

    trainer.train_step = disturbed


def worker_fault(kind: str, sample: int) -> None:
    """Let a worker fail at a sample in the second epoch.

    Args:
        kind: "killed", "crashes", "raises", "exits STATUS", "memory" (allocates too much), or "busy"
            (outlives the run).
        sample: Index of the sample.
    """
    read = data.Arrays.__getitem__

    def disturbed(self: data.Arrays, index: int) -> data.Cloud:
        if index == sample and get_worker_info() is not None and next(times) == 1:  # the second epoch
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif kind == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            elif kind == "raises":
                raise ZeroDivisionError("injected")
            elif kind.startswith("exits"):
                os._exit(int(kind.split()[-1]))
            elif kind == "memory":
                resource.setrlimit(resource.RLIMIT_AS, (2**32, resource.RLIM_INFINITY))
                bytearray(2**40)
            elif kind == "busy":
                time.sleep(60)
        return read(self, index)

    times = itertools.count()
    data.Arrays.__getitem__ = disturbed  # type: ignore[method-assign]


def jumping_clock() -> None:
    """Let every call of the clock return a time years before or after the last one."""
    jumps, real, now = itertools.cycle((YEARS, 0.0, -YEARS)), time.time, datetime.datetime.now

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:  # type: ignore[override]
            return now(tz) + datetime.timedelta(seconds=next(jumps))

    time.time = lambda: real() + next(jumps)
    run_folder.datetime = type("datetime", (), {**vars(datetime), "datetime": Jumping})  # type: ignore[assignment]
