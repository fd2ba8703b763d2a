"""Predictions of a trained network for the open cloud: columns for every point as they are computed, or one class."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.data.tiles import Progress, collect
from pointgrad.predict import classify
from pointgrad.predict.labels import Settings, parts
from pointgrad.render.colors import ERROR
from pointgrad.train import Trained
from pointgrad.view.levels import Levels
from pointgrad.view.text import escape_markdown

PREDICTION, CONFIDENCE = "prediction", "confidence"
PREDICTED = "predicted_label"  # column that `pointgrad predict` adds to files with labels
UPDATE_SECONDS = 2.0  # between intermediate results, per million points: each result redraws the whole cloud
TOP = 3  # classes that are listed
OBJECT_POINTS = 100_000  # points of an object that are classified


@dataclass(frozen=True)
class Columns:
    """Predicted columns, in the order of the file.

    Attributes:
        prediction: (N,) int16, -1 where not predicted yet.
        confidence: (N,) float32.
        error: (N,) int8: 0 where the prediction equals the label, 1 where it differs, -1 where either is missing. None
            if the file has no labels.
    """

    prediction: Tensor
    confidence: Tensor
    error: Tensor | None

    def named(self) -> dict[str, Tensor]:
        """Columns by name."""
        columns = {PREDICTION: self.prediction, CONFIDENCE: self.confidence}
        return columns if self.error is None else {**columns, ERROR: self.error}

    def accuracy(self) -> float | None:
        """Accuracy over the labelled points; None if there are none."""
        if self.error is None or not bool((self.error >= 0).any()):
            return None
        return float((self.error == 0).sum() / (self.error >= 0).sum())

    def summary(self) -> str:
        """Progress and accuracy in one line."""
        known, accuracy = int((self.prediction >= 0).sum()), self.accuracy()
        text = f"predicted {known:,} of {len(self.prediction):,} points"
        return text if accuracy is None else f"{text}, accuracy {accuracy:.1%}"


def add_error(levels: Levels) -> None:
    """Add the column of errors to a cloud with labels and predictions, as `pointgrad predict` writes them."""
    choices = levels.choices()
    if not levels.has_labels or PREDICTED not in choices or ERROR in choices:
        return
    column = torch.full((levels.total,), -1, dtype=torch.int8)
    for leaf, count in enumerate(levels.counts):
        part = levels.read(leaf, int(count))
        labels, predicted = part.cloud.labels, part.cloud.features[PREDICTED]
        assert labels is not None
        known = (labels >= 0) & (predicted >= 0)
        column[torch.from_numpy(part.number)] = torch.where(known, labels != predicted, -1).to(torch.int8)
    levels.add(ERROR, column)


class _CancelledError(Exception):
    """The cloud is no longer open."""


@dataclass(frozen=True)
class BackgroundPrediction:
    """Runs a network on a cloud in its own thread until it is done or the cloud is closed.

    Attributes:
        trained: The network.
        clouds: Streams the chunks of the file from the beginning.
        levels: The open cloud.
        is_current: Whether the cloud is still open.
        set_status: Called with status texts.
        on_columns: Called with predicted columns.
        on_error: Called with an exception.
    """

    trained: Trained
    clouds: Callable[[], Iterable[Cloud]]
    levels: Levels
    is_current: Callable[[], bool]
    set_status: Callable[[str], None]
    on_columns: Callable[[Columns], None]
    on_error: Callable[[Exception], None]

    def start(self) -> None:
        self.set_status("starting the network ...")
        threading.Thread(target=self._run, name="pointgrad network", daemon=True).start()

    def _run(self) -> None:
        try:
            if self.trained.task == "classification":
                classes = describe_class(self.trained, self.levels.sample(OBJECT_POINTS).cloud)
                if self.is_current():
                    self.set_status(f"prediction: **{classes}**")
                return
            total, has_labels = self.levels.total, self.levels.has_labels
            for columns in label_points(self.trained, self.clouds, total, has_labels, self._progress):
                self.on_columns(columns)
        except _CancelledError:
            return
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            if self.is_current():
                self.set_status(f"prediction failed: {escape_markdown(str(error))}")
                self.on_error(error)

    def _progress(self, step: str, done: int) -> None:
        if not self.is_current():
            raise _CancelledError
        self.set_status(f"network: {step} {done:,} of {self.levels.total:,} points")


def label_points(
    trained: Trained, chunks: Callable[[], Iterable[Cloud]], total: int, has_labels: bool, progress: Progress
) -> Iterator[Columns]:
    """Predict the columns of a segmentation network.

    Args:
        trained: The network.
        chunks: Streams the chunks of the file from the beginning.
        total: Number of points in the file.
        has_labels: Whether the file has labels.
        progress: Called with the current step and the number of points done.

    Yields:
        The columns every few seconds, as far as they are known, and finally complete.
    """
    classes = len(trained.classes)
    columns = Columns(
        torch.full((total,), -1, dtype=torch.int16),
        torch.zeros(total),
        torch.full((total,), -1, dtype=torch.int8) if has_labels else None,
    )
    updated = time.monotonic()
    with tempfile.TemporaryFile() as file:
        scene = collect(chunks, file, trained.prepare.features, has_labels, progress)
        for part in parts(trained, scene, Settings(), progress):
            number = torch.from_numpy(part.number)
            columns.prediction[number] = torch.from_numpy(part.labels.astype(np.int16))
            columns.confidence[number] = torch.from_numpy(part.confidence)
            if columns.error is not None and part.truth is not None:
                wrong = part.truth != torch.from_numpy(part.labels)
                known = (part.truth >= 0) & (part.truth < classes)
                columns.error[number] = torch.where(known, wrong, -1).to(torch.int8)
            if time.monotonic() - updated > UPDATE_SECONDS * max(1.0, total / 1e6):
                yield columns
                updated = time.monotonic()
    yield columns


def describe_class(trained: Trained, cloud: Cloud) -> str:
    """Most probable classes of a classification network with their probabilities, as Markdown."""
    best = classify(trained, [cloud]).probabilities[0].topk(min(TOP, len(trained.classes)))
    return ", ".join(
        f"{escape_markdown(trained.classes[number])} {probability:.1%}"
        for probability, number in zip(*(x.tolist() for x in best), strict=True)
    )
