"""Training with all that a real run needs around the loop, and exact continuation after any interruption."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pointgrad.data import Batch, Prepare

from . import checkpoint
from .config import TrainConfig
from .display import Display, Watch, epoch_line
from .distributed import agreed, from_first, launch, summed, synchronised
from .files import WriteError
from .hooks import Hook, TensorBoard
from .loops import CrossEntropy, chunks, evaluate, gather, mode, seed_generators, to_device, train_step, unlabelled
from .metrics import Metrics
from .optimize import EMA, class_weights, learning_rate, make_optimizer
from .processes import losses_named
from .report import Report
from .run_folder import ENDED, RunFolder
from .signals import signals
from .state import pack, resume_run
from .weights import finite, using

CONTROL = 16  # steps between two agreements of several processes


class Interrupted(RuntimeError):
    """Stopped on request; everything is saved."""


class NonFiniteLoss(RuntimeError):
    """The loss became NaN or infinite; the last checkpoint is from before."""


class Trainer:
    """Trains a network: `Trainer(model, train_loader, val_loader, TrainConfig(epochs=20), out="runs/x").fit()`.

    model: of `pointgrad.models`, or any module called as `model(**batch.inputs())`.
    train_loader, val_loader: `pointgrad.data.Loader`s; the data set of the first gives `classes` and `task`. Without a
        val_loader the figures of training decide which epoch is the best.
    out: the run folder; None: nothing is written.
    hooks: see `Hook`; called in their order.
    prepare: how the loaders prepare clouds, kept in checkpoints so that prediction does the same.
    resume: continues the run in `out`, if there is one, to exactly what it would have become without interruption.
    fabric: of `launch(config)`, needed before to give loaders their rank; by default made here.
    record: what config.yaml holds; by default the config.

    `module` is the network itself, `model` the same with precision and processes around it.

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
        out: str | Path | None = None,
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
        self.parts = parts_of(train_loader.dataset)
        self.train_loader, self.val_loader = train_loader, val_loader
        self.prepare = prepare or Prepare()
        self.monitor = _monitor(self.config, self.task, bool(self.parts), val_loader is not None)
        # Only the first process looks whether it exists: it may already be there when others come.
        self.folder = None if out is None else RunFolder(out, resume=resume or not self.main)

        self.module = synchronised(model, self.fabric)  # the network itself
        ready: Any = torch.compile(self.module) if self.config.compile else self.module
        self.model = self.fabric.setup_module(ready)  # with precision and processes around it
        self.optimizer = self.fabric.setup_optimizers(make_optimizer(self.module, self.config))
        self.ema = EMA(self.module, self.config.ema) if self.config.ema else None
        weights = class_weights(self.config, train_loader.dataset, len(self.classes))
        self.objective = CrossEntropy(weights, self.config.smoothing)

        self.epoch = self.step = 0
        self.history: list[dict[str, float]] = []
        self.best = math.nan
        self.since_best = 0
        self.partial: Metrics | None = None  # of an epoch that was interrupted
        self._stop = False
        self._spare: Batch | None = None
        self._skipped = 0
        self.steps = -(-len(train_loader) // self.config.accumulate)
        if not self.steps:
            raise ValueError("train_loader must have at least one batch, got none")
        self.hooks = list(hooks)
        notes: list[str] = []
        if self.folder is not None:
            from_first(self.fabric, self.folder.hold)
            try:
                notes = resume_run(self) if resume else []
            except BaseException:
                self.folder.release()
                raise
            if self.main and self.epoch < self.config.epochs:  # or there is nothing that another one could change
                self.folder.start(record or asdict(self.config), self.config.seed, self.fabric.device)
                if self.updates:
                    self.folder.log(f"continued {self._where()}")
        self._display = Display(self.config.epochs, self.main)
        for note in notes:
            self.say(note)
        self._report = Report(self)
        if self.folder is not None and self.config.tensorboard and self.main:
            try:
                self.hooks.append(TensorBoard(str(self.folder.make("tensorboard"))))
            except ImportError:
                self.say("tensorboard is not installed: no TensorBoard files (pip install 'pointgrad[train]')")

    @property
    def main(self) -> bool:
        """Whether this process writes and prints."""
        return self.fabric.global_rank == 0

    @property
    def updates(self) -> int:
        """Updates so far, in all epochs."""
        return self.epoch * self.steps + self.step

    def stop(self) -> None:
        """Ends the run after this step, saved, as Ctrl-C does."""
        self._stop = True

    def say(self, line: str) -> None:
        """Prints a line, and adds it to the log."""
        if self.main:
            self._display.line(line)
            if self.folder is not None:
                self.folder.log(line)

    def fit(self) -> dict[str, float]:
        """Trains to the end, and returns the row of the best epoch.

        Raises `Interrupted` after Ctrl-C, SIGTERM or `stop()`, `NonFiniteLoss`, `WriteError` if the disk is full, and
        `ProcessLost` if another process of the run, or one that reads its data, dies or does not answer.
        """
        with self._display, signals(self.stop):
            try:
                with losses_named(self.fabric.world_size, self._again()):
                    self._call("before_train")
                    while self.epoch < self.config.epochs and not self._out_of_patience():
                        self._run_epoch()
                        if agreed(self.fabric, int(self._stop))[0] and self.epoch < self.config.epochs:
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
        """The log says why a run ended early, for those who look at it later."""
        if self.main and self.folder is not None:
            with contextlib.suppress(WriteError):  # the disk may be why
                self.folder.log(f"{ENDED} {' '.join(str(end).split()) or type(end).__name__}")

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
        self.history.append(row)
        self.epoch, self.step, self.partial = self.epoch + 1, 0, None
        better = self._better(row[self.monitor])
        self.since_best = 0 if better else self.since_best + 1
        if better:
            self.best = row[self.monitor]
            self._save(checkpoint.BEST)  # before the last: that one says that this is there
            if self.val_loader is not None and examples is not None:
                self._report.evaluated(self.epoch, evaluated, examples)
        if self.folder is not None and self.main:
            self.folder.write_metrics(self.history)
            self._report.curves()
        self.say(epoch_line(row, self.config.epochs, better))
        self._save(checkpoint.LAST)  # after all else: what it says is done is not done again
        self._report_skipped()
        self._call("after_epoch")

    def _train(self) -> Metrics:
        """The steps of an epoch that are not done yet."""
        device, config = self.fabric.device, self.config
        metrics = self.partial or Metrics(len(self.classes), self.parts, device)
        watch = Watch(metrics, self.steps, device)
        self._display.begin(self.epoch, self.step, self.steps, self.history[-1]["seconds"] if self.history else 0.0)
        self.train_loader.set_epoch(self.epoch)
        if self.step and self.fabric.world_size > 1:  # what is left may be too little for all processes
            self._usable([next(iter(self.train_loader))])
        self.train_loader.skip(self.step * config.accumulate)
        with mode(self.model, training=True):
            for batches in chunks(self.train_loader, config.accumulate):
                # All that a step draws depends on these numbers, so it draws the same after an interruption.
                seed_generators(device, config.seed, self.epoch, self.step, self.fabric.global_rank)
                for group in self.optimizer.param_groups:
                    group["lr"] = self._lr(self.updates)
                self._call("before_step")
                loss = watch.losses[self.step]
                if there := self._usable(batches):
                    loss = train_step(
                        self.model, there, self.optimizer, self.objective, metrics,
                        fabric=self.fabric, clip=config.clip, extra_loss=self._extra_loss(),
                    )  # fmt: skip
                    watch.losses[self.step] = loss
                    if self.ema is not None:
                        self.ema.update(self.updates)
                self.step += 1
                self._call("after_step", loss)
                self._look(watch)
        self._check_finite(watch.first_bad())
        return metrics

    def _look(self, watch: Watch) -> None:
        """After a step: shows the loss now and then, looks whether it is finite, saves if it is time or asked for."""
        alone = self.fabric.world_size == 1
        numbers = watch.read()
        if numbers is not None:
            self._display.show(self.step, numbers[0])
            if alone:
                self._check_finite(int(numbers[1]))
        if not alone and self.step % CONTROL:
            return  # to agree, and to ask the device, costs time
        late = self.main and time.monotonic() - watch.saved > self.config.checkpoint_minutes * 60
        stop, save = agreed(self.fabric, int(self._stop), int(late))
        if stop or save or not alone:
            self._check_finite(watch.first_bad())
        if stop or save:
            self.partial = watch.metrics
            self._save(checkpoint.LAST)
            self.partial, watch.saved = None, time.monotonic()
        if stop:
            raise Interrupted(self._stopped())

    def evaluate(self, see: Callable[[Batch, Tensor], None] | None = None) -> Metrics:
        """Metrics of the weights as they are over the validation data. see: as for `pointgrad.train.evaluate`."""
        seed_generators(self.fabric.device, self.config.seed, self.epoch, -1)
        return evaluate(
            self.model, self.val_loader, classes=len(self.classes), parts=self.parts, fabric=self.fabric, see=see
        )

    def _usable(self, batches: Sequence[Batch]) -> list[Batch]:
        """On the device. Empty ones are left out; with several processes, which must take the same number of steps, one
        that counts nothing takes their place."""
        there = []
        for batch in batches:
            if len(batch):
                self._spare = to_device(batch, self.fabric.device, len(self.classes))
                there.append(self._spare)
            elif self.fabric.world_size > 1:
                there.append(unlabelled(self._spare))
        return there

    def _extra_loss(self) -> Any:
        own = [hook for hook in self.hooks if type(hook).extra_loss is not Hook.extra_loss]
        if not own:
            return None

        def total() -> Tensor | float:
            terms = [hook.extra_loss(self) for hook in own]
            return sum((term for term in terms if term is not None), 0.0)

        return total

    def _report_skipped(self) -> None:
        own = [*self.train_loader.skipped.values(), *getattr(self.val_loader, "skipped", {}).values()]
        count = summed(self.fabric, len(own))
        if count > self._skipped:
            self._skipped = count
            first = f"; the first: {own[0]}" if own else ""
            self.say(f"left out so far: {count} that cannot be read{first}")

    def _call(self, name: str, *arguments: Any) -> None:
        for hook in self.hooks:
            getattr(hook, name)(self, *arguments)

    def _lr(self, update: int) -> float:
        return learning_rate(self.config, update, self.steps)

    def _better(self, value: float) -> bool:
        if math.isnan(self.best):
            return True
        return value < self.best if self.monitor.endswith("loss") else value > self.best

    def _out_of_patience(self) -> bool:
        return bool(self.config.patience) and self.since_best >= self.config.patience

    @property
    def best_epoch(self) -> int:
        """Counted from 1."""
        return int(self._best_row()["epoch"])

    def _best_row(self) -> dict[str, float]:
        return next((row for row in self.history if row[self.monitor] == self.best), self.history[-1])

    def _check_finite(self, bad: int) -> None:
        """bad: the first step whose loss is not finite, or the number of all steps. All processes must ask."""
        bad = -agreed(self.fabric, -bad)[0]
        if bad < self.steps:
            size = self.config.accumulate
            batches = f"batch {bad + 1}" if size == 1 else f"batches {bad * size + 1} to {(bad + 1) * size}"
            raise NonFiniteLoss(
                f"the loss is not finite in epoch {self.epoch + 1}, step {bad + 1} of {self.steps} ({batches})"
                f"{self._before()}"
            )

    def _where(self) -> str:
        if self.step == 0:
            return f"after epoch {self.epoch}"
        return f"in epoch {self.epoch + 1}, after step {self.step} of {self.steps}"

    def _before(self) -> str:
        kept = f"; {self.folder.last} is from before" if self.folder and self.folder.last.exists() else ""
        return f"{kept}. Look at the data, lower --lr, or clip gradients (--clip)"

    def _stopped(self) -> str:
        if self.folder is None:
            return f"stopped {self._where()}; nothing is saved, because there is no run folder"
        return f"stopped {self._where()}, and saved{self._again()}"

    def _again(self) -> str:
        return "" if self.folder is None else f"; continue with: pointgrad train --out {self.folder.path} --resume"

    def _save(self, name: str) -> None:
        if self.folder is not None:
            content = pack(self, training=name == checkpoint.LAST)  # all processes: each may hold a part
            if agreed(self.fabric, int(not finite(content["state"])))[0]:
                raise NonFiniteLoss(f"the weights are not finite {self._where()}{self._before()}")
            path, previous = self.folder.path / name, self.folder.previous if name == checkpoint.LAST else None
            # All wait: one that has nothing to write would leave, and take the others along.
            from_first(self.fabric, lambda: checkpoint.save(path, content, previous))

    def _finish(self) -> None:
        """Pictures, and what the best weights do."""
        self._report.curves(now=True)
        if self.folder is None or self.val_loader is None:
            return
        path = self.folder.path / checkpoint.BEST
        best = from_first(self.fabric, lambda: checkpoint.read(path))
        with using(self.module, best["state"]):
            self._report.results()


def parts_of(dataset: Any) -> tuple[tuple[int, ...], ...]:
    """For part segmentation, the classes of each category; else nothing."""
    return tuple(tuple(own) for own in getattr(dataset, "parts", ()))


def _monitor(config: TrainConfig, task: str, has_parts: bool, has_val: bool) -> str:
    name: str = config.monitor
    if name == "auto":
        name = "accuracy" if task == "classification" else "instance_miou" if has_parts else "miou"
    if name == "instance_miou" and not has_parts:
        raise ValueError("monitor must not be instance_miou where the data have no categories")
    return f"{'val' if has_val else 'train'}_{name}"
