"""What a trained network says of the open cloud: columns for every point, as they come, or the class of the whole."""

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
from pointgrad.view.words import plain

PREDICTION, CONFIDENCE = "prediction", "confidence"
EVERY = 2.0  # seconds between two looks at what is there so far, for each million points: all of it is drawn again
TOP = 3
OBJECT = 100_000  # points of an object that are looked at


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

    def in_words(self) -> str:
        known, right = int((self.prediction >= 0).sum()), self.accuracy()
        said = f"the network has labelled {known:,} of {len(self.prediction):,} points"
        return said if right is None else f"{said}, {right:.1%} of the labelled ones right"


class _NotWantedError(Exception):
    """Nobody looks at what the network is asked about any more."""


@dataclass(frozen=True)
class Asking:
    """A network that is asked about a cloud, in a thread of its own, as long as somebody wants to know.

    wanted: whether somebody does. say: takes what is going on, in words. got: takes columns. failed: takes an error.
    """

    trained: Trained
    clouds: Callable[[], Iterable[Cloud]]
    levels: Levels
    wanted: Callable[[], bool]
    say: Callable[[str], None]
    got: Callable[[Columns], None]
    failed: Callable[[Exception], None]

    def start(self) -> None:
        self.say("the network is asked ...")
        threading.Thread(target=self._run, name="pointgrad network", daemon=True).start()

    def _run(self) -> None:
        try:
            if self.trained.task == "classification":
                answer = class_of(self.trained, self.levels.sample(OBJECT).cloud)
                if self.wanted():
                    self.say(f"the network says: **{answer}**")
                return
            total, labelled = self.levels.total, self.levels.labelled
            for columns in label_points(self.trained, self.clouds, total, labelled, self._progress):
                self.got(columns)
        except _NotWantedError:
            return
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            if self.wanted():
                self.say(f"the network cannot: {plain(str(error))}")
                self.failed(error)

    def _progress(self, what: str, done: int) -> None:
        if not self.wanted():
            raise _NotWantedError
        self.say(f"the network: {what} {done:,} of {self.levels.total:,} points")


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
            if time.monotonic() - shown > EVERY * max(1.0, total / 1e6):
                yield columns
                shown = time.monotonic()
    yield columns


def class_of(trained: Trained, cloud: Cloud) -> str:
    """What a classification network says, in words, as Markdown."""
    best = classify(trained, [cloud]).probabilities[0].topk(min(TOP, len(trained.classes)))
    return ", ".join(
        f"{plain(trained.classes[number])} {chance:.1%}"
        for chance, number in zip(*(x.tolist() for x in best), strict=True)
    )
