"""`pointgrad train --data ...`: a network from a data set, with one command."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from pointgrad import data, models
from pointgrad.train import (
    CheckpointError,
    Interrupted,
    NonFiniteLoss,
    ProcessLost,
    TrainConfig,
    Trainer,
    WriteError,
    launch,
)
from pointgrad.train.run_folder import RunFolder
from pointgrad.train.untrusted import parse_yaml

from .config import ConfigError, read_config
from .fail import fail
from .learning import DataFlags, Repeated, channels, cropped, preparation, resolve, workers

FAILED, WRONG, INTERRUPTED = 1, 2, 130  # exit statuses, as the help of the command says
NOT_SAVED = ("config", "resume")


@dataclass
class Train(TrainConfig, DataFlags):
    """Trains a network on point clouds, and writes a run folder: checkpoints, metrics, curves, examples.

    Exit status: 0; 1 if training failed (loss not finite, disk full, a process lost); 2 for a wrong command line or
    unusable data; 130 after Ctrl-C or SIGTERM, with everything saved.
    """

    out: Path | None = None
    """The run folder. By default a new one under runs/."""

    resume: bool = False
    """Continues the run in --out exactly where it was, with its configuration; starts it if there is none."""

    config: Path | None = None
    """A YAML file of these flags, such as the config.yaml of a run. Flags that are given win."""

    def run(self) -> int:
        try:
            return self._run()
        except Interrupted as stop:
            return _fail(INTERRUPTED, str(stop), together=True)
        except NonFiniteLoss as error:
            return _fail(FAILED, str(error), together=True)
        except KeyboardInterrupt:
            return _fail(INTERRUPTED, "interrupted", together=True)
        except (WriteError, CheckpointError) as error:
            return _fail(FAILED if isinstance(error, WriteError) else WRONG, str(error), together=True)
        except ProcessLost as error:
            return FAILED if error.spoken else fail("train", FAILED, str(error))
        except torch.OutOfMemoryError as error:
            return _fail(FAILED, f"{str(error).splitlines()[0]} A smaller --batch-size needs less (--accumulate)")
        except (ValueError, OSError, ModuleNotFoundError) as error:
            return _fail(WRONG, " ".join(str(error).split()))

    def _run(self) -> int:
        if not self.data:
            raise ValueError("--data is needed: shapes, a file of arrays, or a folder of point clouds")
        if self.resume and self.out is None:
            raise ValueError("--resume needs --out, the run folder to continue")
        if self.out is None:
            self.out = free_folder(self.data, self.model)
        if _first_process():
            folder = RunFolder(self.out, resume=self.resume)  # refuses one that is in use, before processes are started
            if self.out.exists():
                folder.hold()
                folder.release()
        task = None if self.task == "auto" else self.task
        training, validation = (data.open_dataset(self.data, split, task) for split in ("train", "val"))
        if len(training.classes) < 2:
            raise ValueError(f"{self.data}: expected at least two classes, found {', '.join(training.classes)} alone")
        flags = resolve(self, training)
        assert isinstance(flags, Train)
        torch.manual_seed(self.seed)
        options = dict(map(option, flags.options))
        if hasattr(training, "categories") and flags.task == "segmentation":
            options.setdefault("categories", len(training.categories))
        model = build(
            self.model,
            task=flags.task,
            classes=len(training.classes),
            channels=channels(training, self.prepare.features),
            **options,
        )
        fabric = launch(self)
        batches = flags.loader(training, fabric, training=True)
        val_batches = flags.loader(validation, fabric, training=False) if len(validation) else None
        trainer = Trainer(
            model,
            batches,
            val_batches,
            TrainConfig(**{field.name: getattr(self, field.name) for field in fields(TrainConfig)}),
            out=self.out,
            prepare=preparation(flags),
            resume=self.resume,
            fabric=fabric,
            record={name: value for name, value in asdict(flags).items() if name not in NOT_SAVED},
        )
        try:
            best = trainer.fit()
        finally:
            for loader in filter(None, (batches, val_batches)):
                loader.close()
        figure = f"{trainer.monitor.replace('_', ' ')} {best[trainer.monitor]:.4f}"
        trainer.say(f"best epoch {best['epoch']}: {figure}; see {self.out}")
        return 0

    def loader(self, dataset: Any, fabric: Any, *, training: bool) -> data.Loader:
        """Batches for this process."""
        if self.samples_per_cloud and self.samples_per_cloud > 1:
            dataset = Repeated(dataset, self.samples_per_cloud)
        prepare = cropped(preparation(self), self.crop_points or 0)
        augment = self.augment.transforms() if training else []
        return data.Loader(
            dataset,
            batch_size=self.batch_size,
            transform=data.Compose(prepare, *augment),
            features=self.prepare.features,
            shuffle=training,
            seed=self.seed,
            workers=workers(self.workers, fabric.device),
            rank=fabric.global_rank,
            world=fabric.world_size,
            skip_bad=self.skip_bad,
            # Batch norm needs more than one cloud; the clouds left out are others in each epoch.
            drop_last=training and len(dataset) >= self.batch_size * fabric.world_size,
        )


def command(arguments: list[str]) -> Callable[..., Train]:
    """For tyro: the flags, whose defaults are those of a file if the arguments name one."""
    try:
        default = _base(arguments) if arguments[:1] == ["train"] else Train()
    except ConfigError as error:
        raise SystemExit(_fail(WRONG, str(error))) from None

    def train(flags: Annotated[Train, tyro.conf.arg(name="")] = default) -> Train:
        return flags

    train.__doc__ = Train.__doc__
    return train


def _base(arguments: list[str]) -> Train:
    """What flags that are not given are: those of --config, or of the run that is resumed."""
    config, out = _value(arguments, "--config"), _value(arguments, "--out")
    earlier = Path(out) / "config.yaml" if out else None
    if config is None and "--resume" in arguments and earlier is not None and earlier.exists():
        config = str(earlier)
    return Train() if config is None else read_config(Train, Path(config))


def _value(arguments: list[str], flag: str) -> str | None:
    for number, argument in enumerate(arguments):
        if argument == flag and number + 1 < len(arguments):
            return arguments[number + 1]
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "=")
    return None


def build(name: str, **options: Any) -> models.Network:
    """The network. Options that it does not have are the user's mistake."""
    try:
        return models.build(name, **options)
    except TypeError as error:
        raise ValueError(str(error)) from error


def option(text: str) -> tuple[str, Any]:
    """name=value; the value is a number, a truth value or a text, as YAML reads it."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--options must be name=value, got {text!r}")
    try:
        return name, parse_yaml(value)
    except data.FileError as error:
        raise ValueError(f"--options {name[:60]}: {error}") from None


def free_folder(spec: str, model: str) -> Path:
    name = Path(spec.rpartition(":")[2] or spec).stem or "data"
    number = 1
    while (folder := Path("runs") / f"{name}-{model}-{number}").exists():
        number += 1
    return folder


def _first_process() -> bool:
    """torchrun sets RANK; fabric, for the processes that it starts, LOCAL_RANK."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def _fail(status: int, reason: str, together: bool = False) -> int:
    """together: all processes say so, the first is enough."""
    if not together or _first_process():
        fail("train", status, reason)
    return status
