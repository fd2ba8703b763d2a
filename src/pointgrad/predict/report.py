"""Results of labeling a file."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pointgrad.data import FileError
from pointgrad.ops.scatter import histogram
from pointgrad.train import Metrics


@dataclass
class Report:
    """Result of `label_file`.

    Attributes:
        target: The written file.
        counts: Number of points of each class (classes,).
        unlabelled: Number of points without label, because their coordinates are not finite.
        metrics: Agreement with the labels of the source, if it was evaluated.
    """

    target: Path
    counts: Tensor
    unlabelled: int = 0
    metrics: Metrics | None = None


class Comparison:
    """Comparison of predicted labels with the labels of a file.

    Args:
        source: The file, for messages.
        classes: Names of the classes.
        ids: Number of each class in the file.
        found: Numbers that occur in the file.

    Raises:
        FileError: If a number in the file is not in `ids`.
    """

    def __init__(self, source: Path, classes: Sequence[str], ids: Sequence[int], found: Collection[int]) -> None:
        self.metrics = Metrics(len(classes))
        self._ids = torch.tensor(ids)
        if unknown := set(found) - set(ids) - {-1}:
            known = ", ".join(f"{number} ({name})" for number, name in zip(ids, classes, strict=True))
            has = ", ".join(map(str, sorted(found)))
            raise FileError(
                f"{source}: expected labels of the classes {known}, found {has}: {min(unknown)} is not one of them"
            )

    def add(self, truth: Tensor, labels: Tensor) -> None:
        """Add n points with labels of the file `truth` (n,) and predicted classes `labels` (n,); -1 means no label."""
        sorted_ids, order = self._ids.sort()
        classes = order[torch.searchsorted(sorted_ids, truth.clamp(min=int(sorted_ids[0])))]
        size = self.metrics.classes
        cells = torch.where((truth >= 0) & (labels >= 0), classes * size + labels, -1)
        self.metrics.confusion += histogram(cells, size**2).view(size, size)


def ids_of(classes: Sequence[str], codes: Sequence[int]) -> Sequence[int]:
    """Return the number of each class in a file: its code if given, its name if all are integers, else its index."""
    if codes:
        return codes
    return [int(name) for name in classes] if all(name.isdecimal() for name in classes) else range(len(classes))


def attributes(present: Iterable[str]) -> tuple[str, str]:
    """Return names for the columns label and confidence that are not yet used in the file."""
    taken = {"label", "labels", "confidence"} & {name.lower() for name in present}
    return ("predicted_label", "predicted_confidence") if taken else ("label", "confidence")
