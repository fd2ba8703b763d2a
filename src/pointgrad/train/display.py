"""Progress of a run: a live line in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .metrics import Metrics

SECONDS = 0.5  # between two readings of the device
PAUSE = 60.0  # seconds between two lines without a terminal


class AsyncReading:
    """Reads numbers from the device without waiting: a copy is started, and read once it is complete."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._copy: Tensor | None = None
        self._complete: Any = None

    def start(self, numbers: Tensor) -> None:
        """Start a copy, unless one is in progress."""
        if self._copy is None:
            self._copy = numbers.detach().to("cpu", non_blocking=True)
            if self._cuda:
                self._complete = torch.cuda.Event()
                self._complete.record()

    def get(self) -> list[float] | None:
        """Return the numbers if the copy is complete."""
        if self._copy is None or (self._cuda and not self._complete.query()):
            return None
        numbers, self._copy = self._copy.tolist(), None
        return numbers


class Watch:
    """Losses of the current epoch, kept on the device.

    Attributes:
        losses: (steps,) loss of each step; zero for steps to come.
        saved: Time of the last checkpoint.
    """

    def __init__(self, metrics: Metrics, steps: int, device: torch.device) -> None:
        self.metrics, self._reading = metrics, AsyncReading(device)
        self.losses = torch.zeros(steps, device=device)
        self._next, self.saved = 0.0, time.monotonic()

    def read(self) -> list[float] | None:
        """Return a recent mean loss and first non-finite step, or None, which is the usual case."""
        if time.monotonic() >= self._next:
            self._reading.start(torch.stack([self.metrics.mean_loss(), self._first_nonfinite().double()]))
            self._next = time.monotonic() + SECONDS
        return self._reading.get()

    def first_nonfinite(self) -> int:
        """Return the first step whose loss is not finite, or the number of steps. Waits for the device."""
        return int(self._first_nonfinite())

    def _first_nonfinite(self) -> Tensor:
        steps = torch.arange(len(self.losses), device=self.losses.device)
        return torch.where(self.losses.isfinite(), len(self.losses), steps).amin()


class Display:
    """Shows epoch, step, loss and remaining time; prints nothing unless `shown`."""

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
        """Begin an epoch.

        Args:
            epoch: Number of the epoch, from 0.
            done: Steps that are already finished.
            steps: Steps of an epoch.
            seconds: Duration of the previous epoch; 0 if unknown.
        """
        self._began, self._first, self._steps, self._epoch = time.monotonic(), done, steps, epoch
        self._seconds, self._printed = seconds, self._began
        if self._live is not None:
            self._live.reset(self._task, description=f"epoch {epoch + 1}/{self._epochs}", total=steps, completed=done)

    def show(self, done: int, loss: float) -> None:
        """Show the number of finished steps and the mean loss."""
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
        """Print a permanent line."""
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        elif self._shown:
            print(text, flush=True)


def span(seconds: float) -> str:
    """Format a duration.

    Example:
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
    """Format the metrics of an epoch as one line."""
    metrics = [
        f"{name.replace('_', ' ')} {value:.4f}" for name, value in row.items() if name.startswith(("train", "val"))
    ]
    return f"epoch {int(row['epoch'])}/{epochs}  {'  '.join(metrics)}  {row['seconds']:.1f} s{'  best' if best else ''}"
