"""Evaluation of one epoch on the validation data: confusion matrix, and the worst and best clouds.

The file holds at most about a hundred clouds, whatever the size of the data set.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Batch
from pointgrad.data.files.npy import open_archive

from .metrics import Metrics, clouds_of

FORMAT = 1
EVALUATION = "evaluation.npz"
WORST, BEST = 32, 4  # numbers of the worst and best clouds that are kept
OF_KINDS, OF_EACH = 64, 4  # limits on the worst clouds of all classes or categories together, and of each
POINTS = 4096  # limit on the points of a cloud
MOST = 1000  # limit on the clouds of a file


@dataclass(frozen=True, eq=False)
class Example:
    """A cloud with its true and predicted classes: one each, or one per point.

    Attributes:
        points: (N, 3), at most 4096.
        target: () or (N,) true classes, -1 where there is no label.
        predicted: () or (N,) predicted classes.
        source: Where the cloud comes from.
        kind: Its class; its category for part segmentation; else -1.
        right: Fraction of labels that are predicted correctly.
        truth: Mean probability of the true class.
        confidence: Mean probability of the predicted class.
    """

    points: Tensor
    target: Tensor
    predicted: Tensor
    source: str
    kind: int
    right: float
    truth: float
    confidence: float

    @property
    def rank(self) -> tuple[float, float, str]:
        """Sort key, from worst to best: by correct labels, then by probability of the true class."""
        return self.right, self.truth, self.source


class Examples:
    """Collects the worst and best clouds of an evaluation: `evaluate(..., see=examples.see)`.

    Args:
        counter: Metrics that turn logits into predictions.

    Attributes:
        kept: The collected examples, from worst to best.
        clouds: Number of labelled clouds seen.
    """

    def __init__(self, counter: Metrics) -> None:
        self._counter = counter
        self._kinds = len(counter.parts) or counter.classes
        self.kept: list[Example] = []
        self.clouds = 0

    def see(self, batch: Batch, logits: Tensor) -> None:
        """Look at a batch and its logits. Waits for the device once, and again if a cloud is kept."""
        assert batch.target is not None
        target, scores = batch.target, self._counter.scores(logits, batch).float()
        per_point = len(target) == len(batch.points)
        cloud = clouds_of(batch) if per_point else torch.arange(len(batch), device=target.device)
        labelled, predicted = (target >= 0).double(), scores.argmax(1)
        probability = scores.softmax(1)

        def probability_of(classes: Tensor) -> Tensor:
            return probability.gather(1, classes[:, None]).squeeze(1).double().nan_to_num(0.0)

        right = (predicted == target) * labelled
        rows = torch.stack([labelled, right, probability_of(target.clamp(min=0)), probability_of(predicted)], 1)
        sums = rows.new_zeros(len(batch), 4).index_add_(0, cloud, rows * labelled[:, None])
        kinds = batch.category if per_point else target
        kind = sums.new_full((len(batch),), -1.0) if kinds is None else kinds.double()
        found: list[tuple[Example, int]] = []
        for number, (count, *counted, own) in enumerate(torch.cat([sums, kind[:, None]], 1).tolist()):
            if count:
                source = batch.sources[number] if batch.sources else f"cloud {self.clouds}"
                none = torch.zeros(0)  # replaced by the cloud if it is kept
                shares = [value / count for value in counted]
                found.append((Example(none, none, none, source, int(own), *shares), number))
                self.clouds += 1
        kept = choose([*self.kept, *(example for example, _ in found)], self._kinds)
        new = [(example, number) for example, number in found if any(example is one for one in kept)]
        if new:
            whole = {id(example): one for example, one in _fetch(batch, predicted, per_point, new)}
            kept = [whole.get(id(example), example) for example in kept]
        self.kept = kept

    def gather(self, fabric: Any) -> None:
        """Exchange examples, so that every process holds those of all. Collective: call on every rank."""
        if fabric.world_size > 1:
            each: list[Any] = [None] * fabric.world_size
            torch.distributed.all_gather_object(each, (self.clouds, self.kept))
            self.clouds = sum(clouds for clouds, _ in each)
            self.kept = choose([example for _, kept in each for example in kept], self._kinds)


def choose(examples: Sequence[Example], kinds: int) -> list[Example]:
    """Return the worst and the best examples, and the worst of each kind, from worst to best."""
    ordered = sorted(examples, key=lambda one: one.rank)
    of_each = min(OF_EACH, OF_KINDS // max(kinds, 1))
    seen: dict[int, int] = {}
    kept = []
    for place, example in enumerate(ordered):
        seen[example.kind] = seen.get(example.kind, 0) + 1
        among = example.kind >= 0 and seen[example.kind] <= of_each
        if among or place < WORST or place >= len(ordered) - BEST:
            kept.append(example)
    return kept


def _fetch(
    batch: Batch, predicted: Tensor, per_point: bool, wanted: Sequence[tuple[Example, int]]
) -> list[tuple[Example, Example]]:
    """Return pairs of an example without its cloud and the same example with it."""
    assert batch.target is not None
    points, target, predicted = batch.points.cpu(), batch.target.cpu(), predicted.cpu()
    starts = np.cumsum([0, *batch.sizes])
    out = []
    for example, number in wanted:
        step = -(-batch.sizes[number] // POINTS) or 1
        rows = slice(int(starts[number]), int(starts[number + 1]), step)
        labels = rows if per_point else number
        content = {"points": points[rows].clone(), "target": target[labels].clone()}
        whole = Example(**{**vars(example), **content, "predicted": predicted[labels].clone()})
        out.append((example, whole))
    return out


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        epoch: Epoch of the weights.
        task: "classification" or "segmentation".
        classes: Names of the classes.
        confusion: (classes, classes) counts; rows are true classes, columns predicted ones.
        clouds: Number of clouds evaluated.
        examples: Some of them, from worst to best; see `choose`.
    """

    epoch: int
    task: str
    classes: tuple[str, ...]
    confusion: Tensor
    clouds: int
    examples: list[Example]

    def to_bytes(self) -> bytes:
        """Return the content of an .npz file."""
        own, memory = self.examples, io.BytesIO()
        shape = (-1,) if self.task == "segmentation" else (len(own),)
        arrays: dict[str, Any] = {
            "format": FORMAT,
            "epoch": self.epoch,
            "task": self.task,
            "classes": np.array(self.classes, np.str_),
            "confusion": self.confusion.cpu().numpy(),
            "clouds": self.clouds,
            "points": torch.cat([torch.zeros(0, 3), *(one.points for one in own)]).float().numpy(),
            "target": _joined([one.target for one in own]).reshape(shape),
            "predicted": _joined([one.predicted for one in own]).reshape(shape),
            "sizes": np.array([len(one.points) for one in own], np.int64),
            "source": np.array([one.source for one in own], np.str_),
            "kind": np.array([one.kind for one in own], np.int32),
            **{name: np.array([getattr(one, name) for one in own]) for name in ("right", "truth", "confidence")},
        }
        np.savez(memory, **arrays)
        return memory.getvalue()


def read(path: Path) -> Evaluation:
    """Read an evaluation. Raises FileNotFoundError, or ValueError if the file is not an evaluation."""
    try:
        with open_archive(path) as (specs, load):
            if specs["sizes"].size > MOST or specs["confusion"].size != specs["classes"].size ** 2:
                raise ValueError("too many clouds, or classes that do not fit the confusion matrix")
            held = {name: load(name) for name in specs}
        if int(held["format"]) != FORMAT:
            raise ValueError(f"format {held['format']}")
        classes, task = tuple(map(str, held["classes"])), str(held["task"])
        sizes = held["sizes"].tolist()
        per_point = task == "segmentation"
        clouds = torch.from_numpy(held["points"]).split(sizes)
        labels = [torch.from_numpy(held[name]).long() for name in ("target", "predicted")]
        target, predicted = (column.split(sizes) if per_point else column.unbind() for column in labels)
        columns = (held[name].tolist() for name in ("source", "kind", "right", "truth", "confidence"))
        examples = [Example(*row) for row in zip(clouds, target, predicted, *columns, strict=True)]
        confusion = torch.from_numpy(held["confusion"]).reshape(len(classes), len(classes))
        return Evaluation(int(held["epoch"]), task, classes, confusion, int(held["clouds"]), examples)
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib, numpy and torch raise errors of their own
        raise ValueError(f"{path}: is not an evaluation of format {FORMAT}, or is damaged") from error


def _joined(labels: Sequence[Tensor]) -> np.ndarray:
    return torch.cat([torch.zeros(0), *(each.reshape(-1) for each in labels)]).to(torch.int32).numpy()
