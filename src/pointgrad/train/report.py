"""What a run writes about its results, and when."""

import time
from typing import TYPE_CHECKING

from . import pictures
from .evaluation import BEST, EVALUATION, Evaluation, Examples
from .files import write_atomically
from .metrics import Metrics

if TYPE_CHECKING:
    from .trainer import Trainer

PAUSE = 60.0  # seconds between two drawings of the curves


class Report:
    """Writes into the run folder; draws if matplotlib is there, and says so once if it is not."""

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

    def examples(self) -> Examples:
        """To be shown to an evaluation."""
        trainer = self._trainer
        return Examples(Metrics(len(trainer.classes), trainer.parts, trainer.fabric.device))

    def evaluated(self, epoch: int, metrics: Metrics, examples: Examples) -> Evaluation:
        """Writes what an evaluation of the best weights found. All processes must ask."""
        trainer = self._trainer
        examples.gather(trainer.fabric)
        found = Evaluation(
            epoch, trainer.task, trainer.classes, metrics.confusion.cpu(), examples.clouds, examples.kept
        )
        if trainer.main and trainer.folder is not None:
            self._write(EVALUATION, found.to_bytes())
        return found

    def results(self) -> None:
        """Confusion matrix and examples of the weights as they are, the best ones. All processes must ask."""
        trainer, examples = self._trainer, self.examples()
        metrics = trainer.evaluate(examples.see)
        found = self.evaluated(trainer.best_epoch, metrics, examples)
        if self._can:
            self._write("confusion.png", pictures.confusion(found.confusion, found.classes))
            if found.examples:
                best, worst = found.examples[::-1][:BEST], found.examples[:-BEST][:BEST]
                self._write("examples.png", pictures.examples([*best, *worst[::-1]], found.classes))

    def _write(self, name: str, content: bytes) -> None:
        assert self._trainer.folder is not None
        write_atomically(self._trainer.folder.path / name, content)
