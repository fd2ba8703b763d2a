"""What may be added to a training run without changing the loop."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .trainer import Trainer


class Hook:
    """Called around training, epochs and steps. Override what is needed; all methods do nothing.

    `trainer.module`, `trainer.optimizer`, `trainer.epoch`, `trainer.step` (the steps that are done in this epoch),
    `trainer.updates` (in all epochs) and `trainer.history` (a row of figures per finished epoch) are there to be read.
    `trainer.stop()` ends the run after this step as Ctrl-C does. Reading a number from a GPU in a step makes it wait:
    do so once in a while, or after epochs.

    >>> class Print(Hook):
    ...     def after_epoch(self, trainer):
    ...         print(trainer.history[-1]["val_accuracy"])
    """

    def before_train(self, trainer: "Trainer") -> None:
        """Before the first epoch, or the one that is resumed."""

    def after_train(self, trainer: "Trainer") -> None:
        """At the end, also after an error or an interruption."""

    def before_epoch(self, trainer: "Trainer") -> None:
        """Before the first step of an epoch."""

    def after_epoch(self, trainer: "Trainer") -> None:
        """After the epoch's evaluation; its row is the last of the history."""

    def before_step(self, trainer: "Trainer") -> None:
        """Before the forward pass."""

    def extra_loss(self, trainer: "Trainer") -> Tensor | None:
        """After the forward pass of each batch: a scalar to be added to the mean loss."""
        return None

    def after_step(self, trainer: "Trainer", loss: Tensor) -> None:
        """After the update. loss: of this process's batches, a scalar on the device."""


class TensorBoard(Hook):
    """Writes the figures of each epoch for TensorBoard."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter  # an ImportError if tensorboard is not installed

        self._make, self._folder = SummaryWriter, folder

    def before_train(self, trainer: "Trainer") -> None:
        # All that was written before is hidden, and written again: an interrupted run may have written too little.
        self._writer = self._make(self._folder, purge_step=0)
        for row in trainer.history:
            self._add(row)

    def after_epoch(self, trainer: "Trainer") -> None:
        self._add(trainer.history[-1])

    def _add(self, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name.replace("_", "/", 1), value, int(row["epoch"]))

    def after_train(self, trainer: "Trainer") -> None:
        self._writer.close()
