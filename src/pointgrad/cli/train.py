"""`pointgrad train --data ...`: train a network on a data set."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from pointgrad import data, models
from pointgrad.data.untrusted import parse_yaml
from pointgrad.errors import one_line, printable
from pointgrad.predict.labels import VOTES
from pointgrad.train import (
    CheckpointError,
    Interrupted,
    NonFiniteLoss,
    ProcessLost,
    TrainConfig,
    Trainer,
    WriteError,
    launch,
    load,
    load_weights,
)
from pointgrad.train.processes import is_first_process
from pointgrad.train.report import replace_confusion
from pointgrad.train.run_folder import RunFolder

from .class_maps import parse_classes
from .config import ConfigError, check_numbers, read_config
from .crops import crops
from .evaluate import table
from .evaluate_scans import evaluate_scans, labels_points
from .helptext import join_lines
from .inventory import describe
from .learning import DataFlags, channels, preparation, resolve, workers
from .status import ExitStatus, fail

NOT_SAVED = ("config", "resume")


@dataclass
class Train(TrainConfig, DataFlags):
    """Train a network on point clouds, and write a run folder with checkpoints, metrics, curves and examples.

    Exit status: 0; 1 if training failed (non-finite loss, full disk, lost process); 2 for an invalid command line or
    unusable data; 130 after Ctrl-C or SIGTERM, with everything saved.
    """

    weights: Path | None = None
    """Trained weights to start with: a run folder, a checkpoint, a folder of save_pretrained, or published weights.
    The last layers may have other classes."""

    out: Path | None = None
    """Run folder. By default a new one under runs/."""

    final_evaluation: bool = True
    """Scans: after the last epoch, label every point of the validation scans with the best weights, as `pointgrad
    evaluate` does. The validation after each epoch uses prepared clouds, of scenes the same crops in every epoch."""

    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its configuration; start a new run if there is none."""

    config: Path | None = None
    """YAML file with values of these flags, such as the config.yaml of a run; the command line takes precedence."""

    def run(self) -> int:
        try:
            return self._run()
        except Interrupted as stop:
            return _fail_once(ExitStatus.INTERRUPTED, stop)
        except KeyboardInterrupt:
            return _fail_once(ExitStatus.INTERRUPTED, "interrupted")
        except (NonFiniteLoss, WriteError) as error:
            return _fail_once(ExitStatus.FAILED, error)
        except CheckpointError as error:
            return _fail_once(ExitStatus.USAGE, error)
        except ProcessLost as error:
            return ExitStatus.FAILED if error.reported else fail("train", ExitStatus.FAILED, error)
        except torch.OutOfMemoryError as error:
            reason = f"{one_line(error, first=True)} Try a smaller --batch-size, with --accumulate"
            return fail("train", ExitStatus.FAILED, reason)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            return fail("train", ExitStatus.USAGE, error, self)

    def _run(self) -> int:
        check_numbers(self)
        self.check()
        self.check_data()
        if not self.data:
            raise ValueError("--data is required: shapes, a file of arrays, or a folder of point clouds")
        if self.resume and self.out is None:
            raise ValueError("--resume requires --out, the run folder to continue")
        if self.out is None:
            self.out = free_folder(self.data, self.model)
        folder = RunFolder(self.out, resume=self.resume or not is_first_process())
        try:
            if is_first_process() and self.out.exists():
                folder.hold()  # refuses a folder that is in use before data are read and processes are started
            return self._train(folder)
        finally:
            folder.release()

    def _train(self, folder: RunFolder) -> int:
        task = None if self.task == "auto" else self.task
        classes = parse_classes(self.classes, self.other_classes)
        training: Any = data.open_dataset(self.data, "train", task, classes=classes)
        mapped = getattr(training, "class_map", None)
        if mapped is not None:  # also classes of the folder, or chosen for its codes
            mapped = training.class_map = replace(mapped, other=self.other_classes)
        validation: Any = data.open_dataset(self.data, "val", task, classes=mapped)
        if len(training.classes) < 2:
            raise ValueError(f"{self.data}: expected at least two classes, found only {', '.join(training.classes)}")
        continued = self.resume and any(path.exists() for path in (folder.last, folder.previous))
        labels = training.describe_classes() if mapped is not None and not continued else ""
        flags = resolve(self, training)
        if mapped is not None:
            flags = replace(flags, classes=mapped.texts(), other_classes=mapped.other)
        assert isinstance(flags, Train)
        if self.class_weights == "auto":
            self.class_weights = flags.class_weights = "sqrt" if flags.crop_points else "none"
        torch.manual_seed(self.seed)
        options = dict(map(option, flags.options))
        if taken := [name for name in ("name", "task", "classes", "channels") if name in options]:
            raise ValueError(f"--options must not set {taken[0]}, which follows from the other flags and the data")
        if hasattr(training, "categories") and flags.task == "segmentation":
            options.setdefault("categories", len(training.categories))
        model = build(
            self.model,
            task=flags.task,
            classes=len(training.classes),
            channels=channels(training, self.prepare.features),
            **options,
        )
        if self.freeze and self.weights is None:
            raise ValueError("--freeze requires --weights, the trained weights that are fixed")
        if self.weights is not None and not (self.resume and folder.last.exists()):
            unloaded = load_weights(model, self.weights)
            if any(unloaded) and is_first_process():
                print(f"{printable(self.weights)}: not loaded: {unloaded.text()}")
        fabric = launch(self)
        batches = flags.loader(training, fabric, training=True)
        val_batches = flags.loader(validation, fabric, training=False) if len(validation) else None
        found = [] if continued or not is_first_process() else describe(flags, training, validation, model, labels)
        trainer = Trainer(
            model,
            batches,
            val_batches,
            TrainConfig(**{field.name: getattr(self, field.name) for field in fields(TrainConfig)}),
            out=folder,
            prepare=preparation(flags),
            resume=self.resume,
            fabric=fabric,
            record={name: value for name, value in asdict(flags).items() if name not in NOT_SAVED},
        )
        for line in found:
            trainer.log(line)
        try:
            best = trainer.fit()
        finally:
            for loader in filter(None, (batches, val_batches)):
                loader.close()
        if self.final_evaluation and is_first_process() and len(validation):
            evaluate_best(trainer, validation, folder.path)
        metric = f"{trainer.monitor.replace('_', ' ')} {best[trainer.monitor]:.4f}"
        seen = " on crops" if flags.crop_points else ""
        trainer.log(f"best epoch {best['epoch']}: {metric}{seen}; see {self.out}")
        return ExitStatus.OK

    def loader(self, dataset: Any, fabric: Any, *, training: bool) -> data.Loader:
        """Return a loader of the batches of this process."""
        count = workers(self.workers, fabric.device)
        balance = self.crop_balance or 0.0 if training else 0.0  # validation uses the data unchanged
        scenes = crops(
            dataset,
            preparation(self),
            self.crop_points or 0,
            self.samples_per_cloud or 1,
            workers=count,
            balance=balance,
        )
        augment = self.augment.transforms() if training else []
        return data.Loader(
            scenes.dataset,
            batch_size=self.batch_size,
            transform=data.Compose(scenes.transform, *augment),
            features=self.prepare.features,
            shuffle=training,
            seed=self.seed,
            workers=count,
            rank=fabric.global_rank,
            world=fabric.world_size,
            skip_bad=self.skip_bad,
            # Batch norm needs more than one cloud. The dropped clouds differ from epoch to epoch.
            drop_last=training and len(scenes.dataset) >= self.batch_size * fabric.world_size,
        )


def evaluate_best(trainer: Trainer, validation: Any, out: Path) -> None:
    """Evaluate the best weights on whole validation scans, if the network labels points."""
    if not labels_points(trainer.task, trainer.parts):
        return
    trained = load(out, trainer.fabric.device)
    metrics, skipped = evaluate_scans(trained, validation, votes=VOTES, skip_bad=True)
    if not bool(metrics.confusion.any()):
        trainer.log("the validation scans cannot be evaluated as a whole: no labelled points could be read")
        return
    trainer.log(f"validation on whole scans, {VOTES} votes, epoch {trainer.best_epoch}:")
    for line in table(trained.classes, metrics).splitlines():
        trainer.log(f"  {line}")
    if skipped:
        trainer.log(f"unreadable scans skipped: {len(skipped)}; the first: {next(iter(skipped.values()))}")
    replace_confusion(out, metrics.confusion)


def command(arguments: list[str]) -> Callable[..., Train]:
    """Return the command for tyro; the defaults of its flags come from a file if the arguments name one."""
    try:
        default = _base(arguments) if arguments[:1] == ["train"] else Train()
    except ConfigError as error:
        raise SystemExit(fail("train", ExitStatus.USAGE, error)) from None

    def train(flags: Annotated[Train, tyro.conf.arg(name="")] = default) -> Train:
        return flags

    join_lines(Train)
    train.__doc__ = Train.__doc__
    return train


def _base(arguments: list[str]) -> Train:
    """Return the defaults of flags: those of --config, or of the run to resume."""
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
    """Build a network. Raises ValueError for options that it does not have, or that make it too large for torch."""
    try:
        return models.build(name, **options)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"--model {name}: {one_line(error, first=True, limit=300)}") from error


def option(text: str) -> tuple[str, Any]:
    """Parse name=value, where the value is YAML."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--options must be name=value, got {text!r}")
    try:
        return name, parse_yaml(value)
    except data.FileError as error:
        raise ValueError(f"--options {name[:60]}: {error}") from None


def free_folder(spec: str, model: str) -> Path:
    """Return a folder under runs/ that does not exist, named after data and model."""
    name = Path(spec.rpartition(":")[2] or spec).stem or "data"
    number = 1
    while (folder := Path("runs") / f"{name}-{model}-{number}").exists():
        number += 1
    return folder


def _fail_once(status: ExitStatus, reason: BaseException | str) -> ExitStatus:
    """Report an error that occurs in all processes: only the first prints it."""
    return fail("train", status, reason) if is_first_process() else status
