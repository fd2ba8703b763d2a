"""`pointgrad evaluate RUN --data ...`: metrics of a trained network on any data with its classes."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tyro.conf import Positional

from pointgrad import data, train
from pointgrad.data import ClassMap, Cloud
from pointgrad.data.classes import ignored_note
from pointgrad.data.names import declared_classes
from pointgrad.data.open import default_split, has_codes
from pointgrad.data.untrusted import read_yaml
from pointgrad.errors import printable
from pointgrad.predict.labels import VOTES
from pointgrad.train import Metrics, Trained, WriteError
from pointgrad.train.files import write_atomically

from .class_maps import parse_classes
from .crops import crops
from .evaluate_scans import evaluate_scans, labels_points, sees_scenes
from .learning import workers
from .status import ExitStatus, fail


@dataclass
class Evaluate:
    """Evaluate a trained network: accuracy, mean class accuracy, mean IoU, and a table of classes.

    Exit status: 0; 1 if the result cannot be written; 2 for an invalid command line or unusable data.
    """

    checkpoint: Positional[Path]
    """Run folder, whose best checkpoint is used, or a checkpoint."""

    data: str
    """Data, as for `pointgrad train`. Classes are matched by name; the data may have only some of them."""

    split: Literal["train", "val", "test"] | None = None
    """Part of the data. By default test if there is one, else val. A folder, array file or scan that is not divided is
    used as a whole, unless the network was trained on it."""

    classes: tuple[str, ...] = ()
    """Classes of the points in a folder or file: --classes ground=2 building=6, or a YAML file with lines name: code.
    By default those of the training; for other data, those of a classes.yaml or classes.txt next to them, if any."""

    other_classes: Literal["ignore", "refuse"] | None = None
    """Points whose code belongs to no class are ignored, or refused with an error. By default as in training."""

    votes: int | None = None
    """Number of predictions to average. Scans: for each point, as in `pointgrad predict`; by default 3.
    Classification, parts and crops: for each cloud, first unchanged, then with random scales; by default 1."""

    batch_size: int = 32
    """Clouds per batch."""

    crops: int = 0
    """Scans: evaluate only this many random crops of each, which is faster and less exact.
    By default every point of every scan is labelled, as by `pointgrad predict --evaluate`."""

    workers: int = -1
    """Processes that read clouds; -1: with a GPU one per core, at most 8; else 0."""

    skip_bad: bool = False
    """Skip and count unreadable samples instead of stopping."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device type; auto: a GPU if one is available."""

    seed: int = 0
    """Random seed of points, crops and scales."""

    json: Path | None = None
    """JSON file for the metrics."""

    def run(self) -> int:
        self.ignored: dict[int, int] = {}
        self._part = ""
        try:
            if self.json is not None and not self.json.absolute().parent.is_dir():
                raise ValueError(f"--json must be in a folder that exists, got {self.json}")
            trained, metrics, skipped = self._evaluate()
        except (ValueError, OSError, ModuleNotFoundError) as error:
            return fail("evaluate", ExitStatus.USAGE, error, self)
        print(printable(f"evaluated: {self._part} of {self.data}, {self._method(trained)}"))
        print(table(trained.classes, metrics))
        if self.ignored:
            print(ignored_note(self.ignored))
        if skipped:
            print(printable(f"unreadable samples skipped: {len(skipped)}; the first: {next(iter(skipped.values()))}"))
        if self.json is not None:
            try:
                write_atomically(self.json, json.dumps(self._report(trained, metrics), indent=1).encode())
            except WriteError as error:
                return fail("evaluate", ExitStatus.FAILED, error)
        return ExitStatus.OK

    def _evaluate(self) -> tuple[Trained, Metrics, dict[int, str]]:
        for flag, value, least in (
            ("--votes", self.votes, 1),
            ("--batch-size", self.batch_size, 1),
            ("--crops", self.crops, 0),
        ):
            if value is not None and value < least:
                raise ValueError(f"{flag} must be at least {least}, got {value}")
        accelerator = self.accelerator
        if accelerator == "auto":
            accelerator = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(accelerator)
        trained = train.load(self.checkpoint, device)
        self.split = self.split or default_split(self.data, trained_on=self._trained_on())  # type: ignore[assignment]
        dataset: Any = data.open_dataset(
            self.data,
            self.split,  # type: ignore[arg-type]
            trained.task,  # type: ignore[arg-type]
            classes=self._class_map(trained),
        )
        self._part = str(self.split)
        if not len(dataset):
            raise ValueError(f"{self.data}: its {self.split} part has no clouds")
        relabel = Relabel(match(trained.classes, dataset.classes, self.data))
        parts = [relabel.numbers[list(own)].tolist() for own in getattr(dataset, "parts", ())]
        prepare = trained.prepare
        if self.crops and not sees_scenes(trained):
            raise ValueError(f"--crops must be 0 for a network that was not trained on scenes, got {self.crops}")
        if labels_points(trained.task, parts) and not self.crops:
            self.votes = self.votes or VOTES
            metrics, skipped = evaluate_scans(
                trained, dataset, votes=self.votes, relabel=relabel, skip_bad=self.skip_bad
            )
            self._check(dataset, metrics)
            return trained, metrics, skipped
        self.votes = self.votes or 1
        count = workers(self.workers, device)
        scenes = crops(dataset, prepare, prepare.points if self.crops else 0, self.crops or 1, workers=count)
        loader = data.Loader(
            scenes.dataset,
            batch_size=self.batch_size,
            transform=data.Compose(relabel, scenes.transform),
            features=prepare.features,
            seed=self.seed,
            workers=count,
            skip_bad=self.skip_bad,
        )
        torch.manual_seed(self.seed)
        metrics = train.evaluate(
            trained.model, loader, classes=len(trained.classes), parts=parts, votes=self.votes, seed=self.seed
        )
        self._check(dataset, metrics)
        return trained, metrics, loader.skipped

    def _check(self, dataset: Any, metrics: Metrics) -> None:
        self.ignored = getattr(dataset, "ignored", {})
        if not int(metrics.confusion.sum()):
            note = f"; {ignored_note(self.ignored)}" if self.ignored else ""
            raise ValueError(f"{self.data}: its {self.split} part has no labels of the network's classes{note}")
        if getattr(dataset, "whole", False):
            self._part = f"all {len(dataset)} clouds" if len(dataset) > 1 else "all"
            note = f"evaluating {self._part} of {self.data}, which has no test part"
            print(f"{printable(note)}; if the network was trained on it, use --split val", file=sys.stderr)

    def _method(self, trained: Trained) -> str:
        """Describe how the network was evaluated."""
        votes = f"{self.votes} {'vote' if self.votes == 1 else 'votes'}"
        if self.crops:
            return f"{self.crops} random crops of each scan, {votes}"
        return f"whole {'scans' if sees_scenes(trained) else 'clouds'}, {votes}"

    def _trained_on(self) -> bool:
        """Whether the configuration of the run names the same data."""
        folder = self.checkpoint if self.checkpoint.is_dir() else self.checkpoint.parent
        try:
            known = read_yaml(folder / "config.yaml")
        except (ValueError, OSError, ModuleNotFoundError):
            return False
        used = known.get("data") if isinstance(known, Mapping) else None
        return isinstance(used, str) and _resolved(used) == _resolved(self.data)

    def _class_map(self, trained: Trained) -> ClassMap | None:
        """Return the codes of the network's classes in the data; None if the data have names for their classes."""
        given = parse_classes(self.classes, self.other_classes or "ignore")
        if given is not None:
            return given
        known = trained.class_map
        if known is None or not has_codes(self.data):
            return None
        path = Path(self.data).expanduser()
        own = None if self._trained_on() else declared_classes(path if path.is_dir() else path.parent)
        chosen = own if own is not None and set(own.names) <= set(trained.classes) else known
        return replace(chosen, other=self.other_classes or known.other)

    def _report(self, trained: Trained, metrics: Metrics) -> dict[str, Any]:
        rows = [{"class": name, **row} for name, row in zip(trained.classes, metrics.per_class(), strict=True)]
        return {
            "checkpoint": str(self.checkpoint),
            "data": self.data,
            "split": self.split,
            "method": self._method(trained),
            "crops": self.crops,
            "votes": self.votes,
            **metrics.compute(),
            "ignored": {str(code): count for code, count in self.ignored.items()},
            "classes": [{name: _number(value) for name, value in row.items()} for row in rows],
            "confusion": metrics.confusion.tolist(),
        }


def _resolved(source: str) -> Path:
    return Path(source).expanduser().resolve()


@dataclass(frozen=True)
class Relabel:
    """Transform that replaces labels of the data by those of the network.

    Attributes:
        numbers: (classes of the data,) label of each class in the network.
    """

    numbers: Tensor

    def __call__(self, cloud: Cloud, generator: torch.Generator) -> Cloud:
        label = cloud.label
        if label is not None and label >= 0:
            label = int(self.numbers[label])
        labels = cloud.labels
        if labels is not None:
            labels = torch.where(labels < 0, -1, self.numbers[labels.clamp(min=0)])
        return replace(cloud, label=label, labels=labels)


def match(trained: tuple[str, ...], own: tuple[str, ...], source: str) -> Tensor:
    """Return the label in the network of each class of the data, by name."""
    unknown = [name for name in own if name not in trained]
    if unknown:
        raise ValueError(
            f"{source}: classes must be among those of the network, {', '.join(trained)}, got {', '.join(unknown)}"
            + ("; --classes maps codes to classes" if has_codes(source) else "")
        )
    return torch.tensor([trained.index(name) for name in own])


def table(classes: tuple[str, ...], metrics: Metrics) -> str:
    """Format the metrics as a table."""
    classes = tuple(map(printable, classes))
    width = max(map(len, classes))
    lines = [f"{'class':{width}}  {'count':>10}  accuracy     iou"]
    for name, row in zip(classes, metrics.per_class(), strict=True):
        accuracy, iou = (f"{row[key]:8.4f}" if math.isfinite(row[key]) else "       -" for key in ("accuracy", "iou"))
        lines.append(f"{name:{width}}  {row['count']:>10}  {accuracy}{iou}")
    lines += [f"{name.replace('_', ' ')}: {value:.4f}" for name, value in metrics.compute().items()]
    return "\n".join(lines)


def _number(value: Any) -> Any:
    """Replace NaN, which JSON does not have, by None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
