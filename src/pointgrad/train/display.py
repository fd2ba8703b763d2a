"""What is seen while training: a live line in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .metrics import Metrics

SECONDS = 0.5  # between two readings
PAUSE = 60.0  # seconds between two lines, where there is no terminal


class Reading:
    """Numbers from the device, read without waiting for it: a copy is asked for now, and read once it has arrived."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._copy: Tensor | None = None
        self._arrived: Any = None

    def ask(self, numbers: Tensor) -> None:
        """Only one copy is under way at a time."""
        if self._copy is None:
            self._copy = numbers.detach().to("cpu", non_blocking=True)
            if self._cuda:
                self._arrived = torch.cuda.Event()
                self._arrived.record()

    def get(self) -> list[float] | None:
        """The numbers, if they have arrived."""
        if self._copy is None or (self._cuda and not self._arrived.query()):
            return None
        numbers, self._copy = self._copy.tolist(), None
        return numbers


class Watch:
    """What is known about an epoch under way, on the device, and how it is read."""

    def __init__(self, metrics: Metrics, steps: int, device: torch.device) -> None:
        self.metrics, self._reading = metrics, Reading(device)
        self.losses = torch.zeros(steps, device=device)  # of each step; those to come have a loss of zero
        self._next, self.saved = 0.0, time.monotonic()

    def read(self) -> list[float] | None:
        """The mean loss and the first bad step, asked for some time before; None most of the time."""
        if time.monotonic() >= self._next:
            self._reading.ask(torch.stack([self.metrics.mean_loss(), self._first_bad().double()]))
            self._next = time.monotonic() + SECONDS
        return self._reading.get()

    def first_bad(self) -> int:
        """The first step whose loss is not finite, or the number of all. Waits for the device."""
        return int(self._first_bad())

    def _first_bad(self) -> Tensor:
        steps = torch.arange(len(self.losses), device=self.losses.device)
        return torch.where(self.losses.isfinite(), len(self.losses), steps).amin()


class Display:
    """Shows epoch, step, loss and time left. Silent if not `shown`."""

    def __init__(self, epochs: int, shown: bool) -> None:
        self._epochs, self._shown = epochs, shown
        self._live: Any = None
        if shown and sys.stdout.isatty():
            try:
                from rich import progress
            except ModuleNotFoundError:
                return
            self._live = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.TextColumn(
                    "{task.completed}/{task.total} steps  loss {task.fields[loss]}  left {task.fields[left]}"
                ),
                transient=True,
            )

    def __enter__(self) -> "Display":
        if self._live is not None:
            self._live.start()
            self._task = self._live.add_task("", loss="", left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, epoch: int, done: int, steps: int, seconds: float) -> None:
        """An epoch, of which some steps may be done. seconds: what the last one took; 0: not known."""
        self._began, self._first, self._steps, self._epoch = time.monotonic(), done, steps, epoch
        self._seconds, self._printed = seconds, self._began
        if self._live is not None:
            self._live.reset(self._task, description=f"epoch {epoch + 1}/{self._epochs}", total=steps, completed=done)

    def show(self, done: int, loss: float) -> None:
        """Where the epoch is."""
        now = time.monotonic()
        each = (now - self._began) / max(done - self._first, 1)
        epochs = self._epochs - self._epoch - 1
        left = span(each * (self._steps - done) + epochs * (self._seconds or each * self._steps))
        if self._live is not None:
            self._live.update(self._task, completed=done, loss=f"{loss:.4f}", left=left)
        elif now - self._printed > PAUSE:
            self._printed = now
            self.line(
                f"epoch {self._epoch + 1}/{self._epochs}  step {done}/{self._steps}  loss {loss:.4f}  left {left}"
            )

    def line(self, text: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        elif self._shown:
            print(text, flush=True)


def span(seconds: float) -> str:
    """A length of time in words.

    >>> span(3.2), span(75), span(7300)
    ('3 s', '1 min 15 s', '2 h 1 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def epoch_line(row: Mapping[str, float], epochs: int, best: bool) -> str:
    """The figures of an epoch in one line."""
    figures = [
        f"{name.replace('_', ' ')} {value:.4f}" for name, value in row.items() if name.startswith(("train", "val"))
    ]
    return f"epoch {int(row['epoch'])}/{epochs}  {'  '.join(figures)}  {row['seconds']:.1f} s{'  best' if best else ''}"
