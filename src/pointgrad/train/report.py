"""Which pictures a run writes, and when."""

import time
from typing import TYPE_CHECKING

from torch import Tensor

from pointgrad.data import Batch

from . import pictures
from .files import write_atomically
from .metrics import Metrics

if TYPE_CHECKING:
    from .trainer import Trainer

PAUSE = 60.0  # seconds between two drawings of the curves
SEEN = 512  # clouds among which examples are chosen


class Report:
    """Draws into the run folder, if matplotlib is there; says so once if it is not."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._drawn = time.monotonic()
        self._can = trainer.folder is not None and trainer.main
        if self._can:
            try:
                import matplotlib  # noqa: F401
            except ImportError:
                self._can = False
                trainer.say("matplotlib is not installed: no pictures (pip install 'pointgrad[train]')")

    def curves(self, *, now: bool = False) -> None:
        """After an epoch, but seldom: drawing takes longer than a small epoch."""
        if self._can and self._trainer.history and (now or time.monotonic() - self._drawn > PAUSE):
            self._write("curves.png", pictures.curves(self._trainer.history))
            self._drawn = time.monotonic()

    def results(self) -> None:
        """Confusion matrix and examples of the weights as they are. All processes must ask."""
        seen: list[pictures.Example] = []

        def see(batch: Batch, logits: Tensor) -> None:
            if self._can and len(seen) < SEEN:
                seen.extend(pictures.split(batch, counter.predict(logits, batch)))

        trainer = self._trainer
        counter = Metrics(len(trainer.classes), trainer.parts, trainer.fabric.device)
        metrics = trainer.evaluate(see)
        if self._can:
            self._write("confusion.png", pictures.confusion(metrics.confusion.cpu(), trainer.classes))
            chosen = pictures.choose(seen)
            if chosen:
                self._write("examples.png", pictures.examples(chosen, trainer.classes))

    def _write(self, name: str, picture: bytes) -> None:
        assert self._trainer.folder is not None
        write_atomically(self._trainer.folder.path / name, picture)
