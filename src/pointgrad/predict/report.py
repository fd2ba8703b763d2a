"""What came of labelling a file."""

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
    """target: the file that was written. counts: (classes,) points that got each class. unlabelled: points that got
    none, because their coordinates are not finite. metrics: how the result agrees with the file's own labels."""

    target: Path
    counts: Tensor
    unlabelled: int = 0
    metrics: Metrics | None = None


class Comparison:
    """Counts how labels agree with those of a file.

    classes: names. ids: what each class is called in the file, one number per class. found: the numbers that occur.
    """

    def __init__(self, source: Path, classes: Sequence[str], ids: Sequence[int], found: Collection[int]) -> None:
        self.metrics = Metrics(len(classes))
        self._ids = torch.tensor(ids)
        if unknown := set(found) - set(ids) - {-1}:
            known = ", ".join(f"{number} ({name})" for number, name in zip(ids, classes, strict=True))
            has = ", ".join(map(str, sorted(found)))
            raise FileError(
                f"{source}: expected labels of the classes {known}, found {has}: {min(unknown)} is none of them"
            )

    def add(self, truth: Tensor, labels: Tensor) -> None:
        """truth: (n,) as in the file, -1 for none; labels: (n,) classes, -1 for none."""
        sorted_ids, order = self._ids.sort()
        classes = order[torch.searchsorted(sorted_ids, truth.clamp(min=int(sorted_ids[0])))]
        size = self.metrics.classes
        cells = torch.where((truth >= 0) & (labels >= 0), classes * size + labels, -1)
        self.metrics.confusion += histogram(cells, size**2).view(size, size)


def ids_of(classes: Sequence[str], codes: Sequence[int]) -> Sequence[int]:
    """The numbers that stand for classes in a file: the codes, if there are; else the names, if all of them are whole
    numbers; else 0, 1, 2 ..."""
    if codes:
        return codes
    return [int(name) for name in classes] if all(name.isdecimal() for name in classes) else range(len(classes))


def attributes(present: Iterable[str]) -> tuple[str, str]:
    """Names for label and confidence in a file that has columns of its own, which are kept."""
    taken = {"label", "labels", "confidence"} & {name.lower() for name in present}
    return ("predicted_label", "predicted_confidence") if taken else ("label", "confidence")
