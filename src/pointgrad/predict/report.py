"""Results of labeling a file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pointgrad.data import ClassMap
from pointgrad.ops.scatter import histogram
from pointgrad.train import Metrics, Trained


@dataclass
class Report:
    """Result of `label_file`.

    Attributes:
        target: The written file.
        counts: Number of points of each class (classes,).
        unlabelled: Number of points without label, because their coordinates are not finite.
        ignored: Number of points of each label that belongs to no class of the network, if it was evaluated.
        metrics: Agreement with the labels of the source, if it was evaluated.
    """

    target: Path
    counts: Tensor
    unlabelled: int = 0
    ignored: dict[int, int] = field(default_factory=dict)
    metrics: Metrics | None = None


class Comparison:
    """Comparison of predicted labels with the labels of a file.

    Args:
        classes: Classes of the network with their labels in the file. Points with other labels are ignored.

    Attributes:
        metrics: The metrics so far.
        ignored: Number of points of each label that belongs to no class.
    """

    def __init__(self, classes: ClassMap) -> None:
        self.metrics = Metrics(len(classes.names))
        self.ignored: dict[int, int] = {}
        self._classes = classes

    def add(self, truth: Tensor, labels: Tensor) -> None:
        """Add n points with labels of the file `truth` (n,) and predicted classes `labels` (n,); -1 means no label."""
        values, counts = truth.unique(return_counts=True)
        found = dict(zip(values.tolist(), counts.tolist(), strict=True))
        for code, count in self._classes.others(found).items():
            self.ignored[code] = self.ignored.get(code, 0) + count
        classes, size = self._classes.apply(truth), self.metrics.classes
        cells = torch.where((classes >= 0) & (labels >= 0), classes * size + labels, -1)
        self.metrics.confusion += histogram(cells, size**2).view(size, size)


def map_of(trained: Trained, codes: Sequence[int] = ()) -> ClassMap:
    """Return the labels of the classes in a file.

    They are those that the network was trained with; without a map, the codes if given, the class names if all are
    integers, else the class numbers.
    """
    if trained.class_map is not None:
        return trained.class_map
    names = trained.classes
    if not codes:
        codes = [int(name) for name in names] if all(name.isdecimal() for name in names) else range(len(names))
    return ClassMap(names, tuple((code,) for code in codes))


def attributes(present: Iterable[str]) -> tuple[str, str]:
    """Return names for the columns label and confidence that are not yet used in the file."""
    taken = {"label", "labels", "confidence"} & {name.lower() for name in present}
    return ("predicted_label", "predicted_confidence") if taken else ("label", "confidence")
