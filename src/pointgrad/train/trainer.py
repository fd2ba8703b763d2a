"""Training runs with checkpoints, logs and hooks, and exact continuation after any interruption."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pointgrad.data import Batch, Prepare
from pointgrad.errors import one_line, printable

from . import checkpoint
from .checkpoint import RunState
from .config import TrainConfig
from .display import Display, Watch, epoch_line
from .distributed import all_max, all_sum, broadcast_result, launch, synchronize_batch_norm
from .errors import Interrupted, NonFiniteLoss
from .files import WriteError
from .hooks import Hook, TensorBoard, extra_loss_of
from .initial import freeze
from .loops import CrossEntropy, chunks, evaluate, gather, mode, seed_generators, to_device, train_step, unlabelled
from .metrics import Metrics, monitored_metric, parts_of
from .optimize import EMA, class_weights, learning_rate, make_optimizer
from .processes import explain_lost_process
from .report import Report
from .run_folder import ENDED, RunFolder
from .running_statistics import RunningStatistics
from .signals import stop_on_signals
from .state import resume, save_best, save_last
from .weights import temporary_weights

CONTROL = 16  # steps between two synchronizations of several processes


class Trainer:
    """Train a network: `Trainer(model, train_loader, val_loader, TrainConfig(epochs=20), out="runs/x").fit()`.

    Args:
        model: A network of `pointgrad.models`, or any module that is called as `model(**batch.inputs())`.
        train_loader: A `pointgrad.data.Loader`; its data set provides `classes` and `task`.
        val_loader: A `pointgrad.data.Loader`. Without one, the training metrics select the best epoch.
        config: Settings of the run.
        out: Run folder; None writes nothing.
        hooks: Called in this order; see `Hook`.
        prepare: Preparation of clouds in the loaders, saved in checkpoints for prediction.
        resume: Continue the run in `out`, if there is one. The result equals that of an uninterrupted run.
        fabric: Result of `launch(config)`, if loaders need the rank before; by default created here.
        record: Content of config.yaml; by default the config.

    Attributes:
        module: The network itself.
        model: The network wrapped for precision and processes.
        state: Counters and history of the run.

    Raises:
        ValueError: Settings or data that cannot be used, or a run folder that is in use or not empty.
        CheckpointError: The run in `out` cannot be continued.
        WriteError: The run folder cannot be written.

    Example:
        >>> shapes = pointgrad.data.Shapes("train", size=8, points=64)
        >>> loader = pointgrad.data.Loader(shapes, batch_size=4, shuffle=True)
        >>> network = pointgrad.models.pointnet2(classes=12, width=0.125)
        >>> best = Trainer(network, loader, config=TrainConfig(epochs=1, accelerator="cpu")).fit()  # doctest: +ELLIPSIS
        epoch 1/1  train accuracy ...
    """

    def __init__(
        self,
        model: nn.Module,
        train_loader: Any,
        val_loader: Any = None,
        config: TrainConfig | None = None,
        *,
        out: str | Path | RunFolder | None = None,
        hooks: Sequence[Hook] = (),
        prepare: Prepare | None = None,
        resume: bool = False,
        fabric: Any = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config or TrainConfig()
        self.config.check()
        self.fabric = fabric or launch(self.config)
        self.task, self.classes = train_loader.dataset.task, tuple(train_loader.dataset.classes)
        self.class_map = getattr(train_loader.dataset, "class_map", None)
        self.parts = parts_of(train_loader.dataset)
        self.train_loader, self.val_loader = train_loader, val_loader
        self.prepare = prepare or Prepare()
        self.monitor = monitored_metric(self.config.monitor, self.task, bool(self.parts), val_loader is not None)
        if out is None or isinstance(out, RunFolder):
            self.folder = out
        else:  # only rank 0 refuses an existing folder: it may have created it before the others look
            self.folder = RunFolder(out, resume=resume or not self.main)

        self._trained = freeze(model) if self.config.freeze else model
        self.module = synchronize_batch_norm(model, self.fabric)
        compiled: Any = torch.compile(self.module) if self.config.compile else self.module
        self.model = self.fabric.setup_module(compiled)
        self.optimizer = self.fabric.setup_optimizers(make_optimizer(self.module, self.config))
        self.ema = EMA(self.module, self.config.ema) if self.config.ema else None
        weights = class_weights(self.config, train_loader.dataset, len(self.classes))
        self.objective = CrossEntropy(weights, self.config.smoothing)

        self._statistics = RunningStatistics(self._trained, self.config.accumulate)
        self.state = RunState()
        self._stop = False
        self._spare: Batch | None = None
        self._skipped = 0
        self.steps = -(-len(train_loader) // self.config.accumulate)
        if not self.steps:
            raise ValueError("train_loader must have at least one batch, got none")
        self.hooks = list(hooks)
        notes = [] if self.folder is None else self._open_folder(self.folder, resume, record)
        self._display = Display(self.config.epochs, self.main)
        for note in notes:
            self.log(note)
        self._report = Report(self)
        if self.folder is not None and self.main:
            self._add_optional_files(self.folder)

    def _open_folder(self, folder: RunFolder, resumed: bool, record: Mapping[str, Any] | None) -> list[str]:
        """Lock the run folder and resume the run in it; return messages about unusable checkpoints."""
        broadcast_result(self.fabric, folder.hold)
        try:
            notes = resume(self) if resumed else []
        except BaseException:
            folder.release()
            raise
        if self.main and self.epoch < self.config.epochs:  # the record of a finished run is not changed
            folder.start(record or asdict(self.config), self.config.seed, self.fabric.device)
            if self.updates:
                folder.log(f"continued {self.position()}")
        return notes

    def _add_optional_files(self, folder: RunFolder) -> None:
        if self.config.tensorboard:
            try:
                self.hooks.append(TensorBoard(str(folder.make("tensorboard"))))
            except ImportError:
                self.log("tensorboard is not installed: no TensorBoard files (pip install 'pointgrad[train]')")
        if find_spec("safetensors") is None:
            self.log(f"safetensors is not installed: no {checkpoint.SAFETENSORS} (pip install 'pointgrad[train]')")

    @property
    def main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.fabric.global_rank == 0

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return self.state.epoch

    @property
    def step(self) -> int:
        """Number of finished steps of the current epoch."""
        return self.state.step

    @property
    def updates(self) -> int:
        """Number of finished steps of all epochs."""
        return self.epoch * self.steps + self.step

    @property
    def history(self) -> list[dict[str, float]]:
        """One row of metrics per finished epoch."""
        return self.state.history

    @property
    def best_epoch(self) -> int:
        """Number of the best epoch, from 1."""
        return int(self._best_row()["epoch"])

    def stop(self) -> None:
        """Save and end the run after the current step, as Ctrl-C does."""
        self._stop = True

    def log(self, line: str) -> None:
        """Print a line and append it to the log, on rank 0. Line breaks and control characters are escaped."""
        if self.main:
            line = printable(line)
            self._display.line(line)
            if self.folder is not None:
                self.folder.log(line)

    def new_metrics(self) -> Metrics:
        """Return empty metrics for the classes of this run."""
        return Metrics(len(self.classes), self.parts, self.fabric.device)

    def fit(self) -> dict[str, float]:
        """Train to the end.

        Returns:
            The metrics of the best epoch.

        Raises:
            Interrupted: After Ctrl-C, SIGTERM or `stop()`.
            NonFiniteLoss: The loss or the weights became NaN or infinite.
            WriteError: A file cannot be written, for example because the disk is full.
            ProcessLost: Another process of the run, or a worker that reads data, died or does not respond.
        """
        with self._display, stop_on_signals(self.stop):
            try:
                with explain_lost_process(self.fabric.world_size, self._continue_hint()):
                    self._call("before_train")
                    while self.epoch < self.config.epochs and not self._out_of_patience():
                        self._run_epoch()
                        if all_max(self.fabric, int(self._stop))[0] and self.epoch < self.config.epochs:
                            raise Interrupted(self._stopped())
                    self._finish()
            except BaseException as end:
                self._log_end(end)
                raise
            finally:
                self._call("after_train")
                if self.folder is not None:
                    self.folder.release()
        return self._best_row()

    def _log_end(self, end: BaseException) -> None:
        if self.main and self.folder is not None:
            with contextlib.suppress(WriteError):  # a full disk may be the reason
                self.folder.log(f"{ENDED} {one_line(end)}")

    def _run_epoch(self) -> None:
        began = time.monotonic()
        self._call("before_epoch")
        metrics = self._train()
        gather(metrics, self.fabric)
        row: dict[str, float] = {"epoch": self.epoch + 1, "lr": self._lr(self.updates - 1)}
        shown = ("loss", "accuracy") if self.val_loader is not None else tuple(metrics.compute())
        row |= {f"train_{name}": value for name, value in metrics.compute().items() if name in shown}
        if self.val_loader is not None:
            with self.ema.applied() if self.ema else contextlib.nullcontext():
                examples = None if self.folder is None else self._report.examples()
                evaluated = self.evaluate(None if examples is None else examples.see)
            row |= {f"val_{name}": value for name, value in evaluated.compute().items()}
        row["seconds"] = round(time.monotonic() - began, 3)
        state = self.state
        state.history.append(row)
        state.epoch, state.step = state.epoch + 1, 0
        better = self._is_better(row[self.monitor])
        state.since_best = 0 if better else state.since_best + 1
        if better:
            state.best = row[self.monitor]
            save_best(self)  # before the last checkpoint, which relies on it
            if self.val_loader is not None and examples is not None:
                self._report.evaluated(self.epoch, evaluated, examples)
        if self.folder is not None and self.main:
            self.folder.write_metrics(self.history)
            self._report.curves()
        self.log(epoch_line(row, self.config.epochs, better))
        save_last(self)  # after everything else: a resumed run does not repeat what it records as done
        self._log_skipped()
        self._call("after_epoch")

    def _train(self) -> Metrics:
        """Run the remaining steps of the current epoch."""
        device, config, state = self.fabric.device, self.config, self.state
        metrics = self.new_metrics()
        if state.metrics is not None and self.main:  # metrics of the resumed epoch, summed over all processes
            metrics.load_state_dict(state.metrics)
        state.metrics = None
        watch = Watch(metrics, self.steps, device)
        self._display.begin(self.epoch, self.step, self.steps, self.history[-1]["seconds"] if self.history else 0.0)
        self.train_loader.set_epoch(self.epoch)
        if self.step and self.fabric.world_size > 1:  # the remaining batches may be too few for all processes
            self._usable([next(iter(self.train_loader))])
        self.train_loader.skip(self.step * config.accumulate)
        with mode(self.model, training=True):
            if self.config.freeze:
                self.module.eval()
                self._trained.train()
            for batches in chunks(self.train_loader, config.accumulate):
                # Random numbers of a step depend on these values only, so a resumed run draws the same ones.
                seed_generators(device, config.seed, self.epoch, self.step, self.fabric.global_rank)
                for group in self.optimizer.param_groups:
                    group["lr"] = self._lr(self.updates)
                self._call("before_step")
                loss = watch.losses[self.step]
                if usable := self._usable(batches):
                    self._statistics.before_step(self.updates)
                    loss = train_step(
                        self.model, usable, self.optimizer, self.objective, metrics,
                        fabric=self.fabric, clip=config.clip, extra_loss=extra_loss_of(self.hooks, self),
                    )  # fmt: skip
                    self._statistics.after_step(self.updates)
                    watch.losses[self.step] = loss
                    if self.ema is not None:
                        self.ema.update(self.updates)
                state.step += 1
                self._call("after_step", loss)
                self._after_step(watch)
        self._check_finite(watch.first_nonfinite())
        return metrics

    def _after_step(self, watch: Watch) -> None:
        """Show the loss from time to time, check that it is finite, and save if it is time or requested."""
        alone = self.fabric.world_size == 1
        numbers = watch.read()
        if numbers is not None:
            self._display.show(self.step, numbers[0])
            if alone:
                self._check_finite(int(numbers[1]))
        if not alone and self.step % CONTROL:
            return  # synchronizing the processes and reading the device take time
        late = self.main and time.monotonic() - watch.saved > self.config.checkpoint_minutes * 60
        stop, save = all_max(self.fabric, int(self._stop), int(late))
        if stop or save or not alone:
            self._check_finite(watch.first_nonfinite())
        if stop or save:
            save_last(self, watch.metrics)
            watch.saved = time.monotonic()
        if stop:
            raise Interrupted(self._stopped())

    def evaluate(self, see: Callable[[Batch, Tensor], None] | None = None) -> Metrics:
        """Evaluate the current weights on the validation data.

        Args:
            see: Called with each batch and its logits, as in `pointgrad.train.evaluate`.

        Returns:
            Metrics over all processes.
        """
        seed_generators(self.fabric.device, self.config.seed, self.epoch, -1)
        return evaluate(
            self.model, self.val_loader, classes=len(self.classes), parts=self.parts, fabric=self.fabric, see=see
        )

    def _usable(self, batches: Sequence[Batch]) -> list[Batch]:
        """Move batches to the device and drop empty ones. With several processes, which must take the same number of
        steps, an unlabelled batch replaces an empty one."""
        usable = []
        for batch in batches:
            if len(batch):
                self._spare = to_device(batch, self.fabric.device, len(self.classes))
                usable.append(self._spare)
            elif self.fabric.world_size > 1:
                usable.append(unlabelled(self._spare))
        return usable

    def _log_skipped(self) -> None:
        own = [*self.train_loader.skipped.values(), *getattr(self.val_loader, "skipped", {}).values()]
        count = all_sum(self.fabric, len(own))
        if count > self._skipped:
            self._skipped = count
            first = f"; the first: {own[0]}" if own else ""
            self.log(f"unreadable samples skipped so far: {count}{first}")

    def _call(self, name: str, *arguments: Any) -> None:
        for hook in self.hooks:
            getattr(hook, name)(self, *arguments)

    def _lr(self, update: int) -> float:
        return learning_rate(self.config, update, self.steps)

    def _is_better(self, value: float) -> bool:
        best = self.state.best
        if math.isnan(best):
            return True
        return value < best if self.monitor.endswith("loss") else value > best

    def _out_of_patience(self) -> bool:
        return bool(self.config.patience) and self.state.since_best >= self.config.patience

    def _best_row(self) -> dict[str, float]:
        return next((row for row in self.history if row[self.monitor] == self.state.best), self.history[-1])

    def _check_finite(self, first: int) -> None:
        """Raise `NonFiniteLoss` if `first`, the first non-finite step, is before the end. Collective."""
        first = -all_max(self.fabric, -first)[0]
        if first < self.steps:
            size = self.config.accumulate
            batches = f"batch {first + 1}" if size == 1 else f"batches {first * size + 1} to {(first + 1) * size}"
            raise NonFiniteLoss(
                f"the loss is not finite in epoch {self.epoch + 1}, step {first + 1} of {self.steps} ({batches})"
                f"{self.nonfinite_hint()}"
            )

    def position(self) -> str:
        """Describe the progress of the run."""
        if self.step == 0:
            return f"after epoch {self.epoch}"
        return f"in epoch {self.epoch + 1}, after step {self.step} of {self.steps}"

    def nonfinite_hint(self) -> str:
        """Suggest remedies for non-finite values."""
        kept = f"; {self.folder.last} is from before" if self.folder and self.folder.last.exists() else ""
        return f"{kept}. Check the data, lower --lr, or clip gradients (--clip)"

    def _stopped(self) -> str:
        if self.folder is None:
            return f"stopped {self.position()}; nothing is saved, because there is no run folder"
        return f"stopped {self.position()}, and saved{self._continue_hint()}"

    def _continue_hint(self) -> str:
        return "" if self.folder is None else f"; continue with: pointgrad train --out {self.folder.path} --resume"

    def _finish(self) -> None:
        """Draw the curves and evaluate the best weights."""
        self._report.curves(now=True)
        if self.folder is None or self.val_loader is None:
            return
        path = self.folder.path / checkpoint.BEST
        best = broadcast_result(self.fabric, lambda: checkpoint.read_weights(path, self.module))
        with temporary_weights(self.module, best):
            self._report.results()
