"""`pointgrad evaluate RUN --data ...`: metrics of a trained network on any data with its classes."""

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tyro.conf import Positional

from pointgrad import data, train
from pointgrad.data import Cloud
from pointgrad.errors import printable
from pointgrad.predict.labels import VOTES
from pointgrad.train import Metrics, Trained, WriteError
from pointgrad.train.files import write_atomically

from .evaluate_scans import evaluate_scans, sees_scenes
from .learning import Repeated, cropped, workers
from .status import ExitStatus, fail


@dataclass
class Evaluate:
    """Evaluate a trained network: accuracy, mean class accuracy, mean IoU, and a table of classes.

    Exit status: 0; 1 if the result cannot be written; 2 for an invalid command line or unusable data.
    """

    checkpoint: Positional[Path]
    """Run folder, whose best checkpoint is used, or a checkpoint."""

    data: str
    """Data, as for `pointgrad train`. Classes are matched by name: any subset of those of the network, in any order."""

    split: Literal["train", "val", "test"] = "test"
    """Part of the data."""

    votes: int | None = None
    """Predictions that are averaged. Scans: per point, as in `pointgrad predict`; by default 3.
    Objects and crops: per cloud, the first of the unchanged cloud, the others with random scales; by default 1."""

    batch_size: int = 32
    """Clouds per batch."""

    crops: int = 0
    """Scans: evaluate only this many random crops of each, which is faster and less exact.
    By default every point of every scan is labelled, as `pointgrad predict --evaluate` does it."""

    workers: int = -1
    """Processes that read clouds; -1: one per core, up to 8, with a GPU, else 0."""

    skip_bad: bool = False
    """Skip and count unreadable samples instead of stopping."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device type; auto: a GPU if one is available."""

    seed: int = 0
    """Random seed of points, crops and scales."""

    json: Path | None = None
    """JSON file for the metrics."""

    def run(self) -> int:
        try:
            trained, metrics, skipped = self._evaluate()
            if self.json is not None:
                write_atomically(self.json, json.dumps(self._report(trained, metrics), indent=1).encode())
        except WriteError as error:
            return fail("evaluate", ExitStatus.FAILED, error)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            return fail("evaluate", ExitStatus.USAGE, error)
        print(f"evaluated: {self._method(trained)}")
        print(table(trained.classes, metrics))
        if skipped:
            print(printable(f"unreadable samples skipped: {len(skipped)}; the first: {next(iter(skipped.values()))}"))
        return ExitStatus.OK

    def _evaluate(self) -> tuple[Trained, Metrics, dict[int, str]]:
        for name in ("votes", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be positive, got {value}")
        if self.crops < 0:
            raise ValueError(f"crops must not be negative, got {self.crops}")
        accelerator = self.accelerator
        if accelerator == "auto":
            accelerator = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(accelerator)
        trained = train.load(self.checkpoint, device)
        dataset: Any = data.open_dataset(
            self.data,
            self.split,
            trained.task,  # type: ignore[arg-type]
            classes=_class_map(trained, self.data),
        )
        relabel = Relabel(match(trained.classes, dataset.classes, self.data))
        parts = [relabel.numbers[list(own)].tolist() for own in getattr(dataset, "parts", ())]
        prepare = trained.prepare
        scenes = sees_scenes(trained)
        if self.crops and not scenes:
            raise ValueError(f"crops must be 0 for a network that was not trained on scenes, got {self.crops}")
        if scenes and not self.crops:
            self.votes = self.votes or VOTES
            metrics, skipped = evaluate_scans(
                trained, dataset, votes=self.votes, relabel=relabel, skip_bad=self.skip_bad
            )
            self._check(dataset, metrics)
            return trained, metrics, skipped
        piece, samples = (prepare.points, self.crops) if scenes else (0, 1)
        self.votes = self.votes or 1
        loader = data.Loader(
            Repeated(dataset, samples),
            batch_size=self.batch_size,
            transform=data.Compose(relabel, cropped(prepare, piece)),
            features=prepare.features,
            seed=self.seed,
            workers=workers(self.workers, device),
            skip_bad=self.skip_bad,
        )
        torch.manual_seed(self.seed)
        metrics = train.evaluate(
            trained.model, loader, classes=len(trained.classes), parts=parts, votes=self.votes, seed=self.seed
        )
        self._check(dataset, metrics)
        return trained, metrics, loader.skipped

    def _check(self, dataset: Any, metrics: Metrics) -> None:
        if not int(metrics.confusion.sum()):
            raise ValueError(f"{self.data}: its {self.split} part has no labels")
        if getattr(dataset, "whole", False):
            note = f"evaluating all {len(dataset)} clouds of {self.data}, which has no test part"
            print(f"{printable(note)}; if the network was trained on it, use --split val", file=sys.stderr)

    def _method(self, trained: Trained) -> str:
        """Describe how the network was evaluated."""
        votes = f"{self.votes} {'vote' if self.votes == 1 else 'votes'}"
        if not sees_scenes(trained):
            return f"whole clouds, {votes}"
        return f"{self.crops} random crops of each scan, {votes}" if self.crops else f"whole scans, {votes}"

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
            "classes": [{name: _number(value) for name, value in row.items()} for row in rows],
            "confusion": metrics.confusion.tolist(),
        }


def _class_map(trained: Trained, source: str) -> data.ClassMap | None:
    """Return the codes of the network's classes, unless the data are not a folder and have classes of their own."""
    return trained.class_map if Path(source).expanduser().is_dir() else None


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
