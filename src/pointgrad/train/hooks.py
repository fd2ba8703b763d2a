"""Hooks that extend a training run without changing the loop."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .trainer import Trainer


class Hook:
    """Base class of objects that are called around training, epochs and steps; every method does nothing.

    Hooks may read `trainer.module`, `trainer.optimizer`, `trainer.epoch`, `trainer.step` (finished steps of this
    epoch), `trainer.updates` (finished steps of all epochs) and `trainer.history` (one row of metrics per finished
    epoch). `trainer.stop()` ends the run after the current step, as Ctrl-C does. Reading a value from a GPU in a step
    waits for the device: do it rarely, or after epochs.

    Example:
        >>> class Print(Hook):
        ...     def after_epoch(self, trainer):
        ...         print(trainer.history[-1]["val_accuracy"])
    """

    def before_train(self, trainer: "Trainer") -> None:
        """Called before the first epoch, or before the epoch that is resumed."""

    def after_train(self, trainer: "Trainer") -> None:
        """Called at the end, also after an error or an interruption."""

    def before_epoch(self, trainer: "Trainer") -> None:
        """Called before the first step of an epoch."""

    def after_epoch(self, trainer: "Trainer") -> None:
        """Called after the evaluation of an epoch, whose row is the last of the history."""

    def before_step(self, trainer: "Trainer") -> None:
        """Called before the forward pass."""

    def extra_loss(self, trainer: "Trainer") -> Tensor | None:
        """Return a scalar to add to the mean loss. Called after the forward pass of each batch."""
        return None

    def after_step(self, trainer: "Trainer", loss: Tensor) -> None:
        """Called after the update. `loss`: mean loss of the batches of this process, a scalar on the device."""


def extra_loss_of(hooks: Sequence[Hook], trainer: "Trainer") -> Callable[[], Tensor | float] | None:
    """Return a function that adds up the extra losses, or None if no hook has one."""
    own = [hook for hook in hooks if type(hook).extra_loss is not Hook.extra_loss]

    def total() -> Tensor | float:
        terms = [hook.extra_loss(trainer) for hook in own]
        return sum((term for term in terms if term is not None), 0.0)

    return total if own else None


class TensorBoard(Hook):
    """Write the metrics of each epoch for TensorBoard. Raises ImportError if tensorboard is not installed."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make, self._folder = SummaryWriter, folder

    def before_train(self, trainer: "Trainer") -> None:
        # An interrupted run may have written too little: hide all earlier events and write them again.
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
