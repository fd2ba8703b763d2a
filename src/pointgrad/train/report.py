"""Result files of a run: curves, evaluation, confusion matrix and examples."""

import time
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from . import pictures
from .evaluation import BEST, EVALUATION, Evaluation, Examples, read
from .files import write_atomically
from .metrics import Metrics

if TYPE_CHECKING:
    from .trainer import Trainer

PAUSE = 60.0  # minimum seconds between two drawings of the curves


class Report:
    """Writes results into the run folder; figures need matplotlib, whose absence is logged once."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._drawn = time.monotonic()
        self._draws = trainer.folder is not None and trainer.main
        if self._draws:
            try:
                import matplotlib  # noqa: F401
            except ImportError:
                self._draws = False
                trainer.log("matplotlib is not installed: no figures (pip install 'pointgrad[train]')")

    def curves(self, *, now: bool = False) -> None:
        """Draw the curves, at most once a minute unless `now`: drawing takes longer than a small epoch."""
        if self._draws and self._trainer.history and (now or time.monotonic() - self._drawn > PAUSE):
            self._write("curves.png", pictures.curves(self._trainer.history, asdict(self._trainer.config)))
            self._drawn = time.monotonic()

    def examples(self) -> Examples:
        """Return a collector of examples for an evaluation."""
        return Examples(self._trainer.new_metrics())

    def evaluated(self, epoch: int, metrics: Metrics, examples: Examples) -> Evaluation:
        """Write the evaluation of the best weights. Collective: call on every rank."""
        trainer = self._trainer
        examples.gather(trainer.fabric)
        found = Evaluation(
            epoch, trainer.task, trainer.classes, metrics.confusion.cpu(), examples.clouds, examples.kept
        )
        if trainer.main and trainer.folder is not None:
            self._write(EVALUATION, found.to_bytes())
        return found

    def results(self) -> None:
        """Evaluate the current weights, which are the best, and draw the result. Collective: call on every rank."""
        trainer, examples = self._trainer, self.examples()
        metrics = trainer.evaluate(examples.see)
        found = self.evaluated(trainer.best_epoch, metrics, examples)
        if self._draws:
            self._write("confusion.png", pictures.confusion(found.confusion, found.classes))
            if found.examples:
                best, worst = found.examples[::-1][:BEST], found.examples[:-BEST][:BEST]
                self._write("examples.png", pictures.examples([*best, *worst[::-1]], found.classes))

    def _write(self, name: str, content: bytes) -> None:
        assert self._trainer.folder is not None
        write_atomically(self._trainer.folder.path / name, content)


def replace_confusion(folder: Path, confusion: Tensor) -> None:
    """Replace the confusion matrix in a run folder, and its figure if matplotlib is installed."""
    found = replace(read(folder / EVALUATION), confusion=confusion.cpu())
    write_atomically(folder / EVALUATION, found.to_bytes())
    if find_spec("matplotlib") is not None:
        write_atomically(folder / "confusion.png", pictures.confusion(found.confusion, found.classes))
