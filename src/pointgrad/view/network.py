"""What a trained network says of the open cloud: columns for every point, as they come, or the class of the whole."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.predict import classify
from pointgrad.predict.labels import Settings, parts
from pointgrad.predict.scene import Progress, collect
from pointgrad.render.colors import ERROR
from pointgrad.train import Trained

PREDICTION, CONFIDENCE = "prediction", "confidence"
EVERY = 2.0  # seconds between two looks at what is there so far
TOP = 3


@dataclass(frozen=True)
class Columns:
    """In the order of the file: prediction (N,) int16, -1 where there is none yet; confidence (N,) float32; error (N,)
    int8, 0 where the prediction is the label of the file, 1 where not, -1 where one is missing; None without labels."""

    prediction: Tensor
    confidence: Tensor
    error: Tensor | None

    def named(self) -> dict[str, Tensor]:
        columns = {PREDICTION: self.prediction, CONFIDENCE: self.confidence}
        return columns if self.error is None else {**columns, ERROR: self.error}

    def accuracy(self) -> float | None:
        """The share of right ones among the labelled points, None without any."""
        if self.error is None or not bool((self.error >= 0).any()):
            return None
        return float((self.error == 0).sum() / (self.error >= 0).sum())


def label_points(
    trained: Trained, chunks: Callable[[], Iterable[Cloud]], total: int, labelled: bool, progress: Progress
) -> Iterator[Columns]:
    """The columns of a segmentation network, every few seconds as far as they are known, and at last whole."""
    classes = len(trained.classes)
    columns = Columns(
        torch.full((total,), -1, dtype=torch.int16),
        torch.zeros(total),
        torch.full((total,), -1, dtype=torch.int8) if labelled else None,
    )
    shown = time.monotonic()
    with tempfile.TemporaryFile() as file:
        scene = collect(chunks, file, trained.prepare.features, labelled, progress)
        for part in parts(trained, scene, Settings(), progress):
            number = torch.from_numpy(part.number)
            columns.prediction[number] = torch.from_numpy(part.labels.astype(np.int16))
            columns.confidence[number] = torch.from_numpy(part.confidence)
            if columns.error is not None and part.truth is not None:
                wrong = part.truth != torch.from_numpy(part.labels)
                known = (part.truth >= 0) & (part.truth < classes)
                columns.error[number] = torch.where(known, wrong, -1).to(torch.int8)
            if time.monotonic() - shown > EVERY:
                yield columns
                shown = time.monotonic()
    yield columns


def class_of(trained: Trained, cloud: Cloud) -> str:
    """What a classification network says, in words."""
    best = classify(trained, [cloud]).probabilities[0].topk(min(TOP, len(trained.classes)))
    return ", ".join(
        f"{trained.classes[number]} {chance:.1%}" for chance, number in zip(*(x.tolist() for x in best), strict=True)
    )
