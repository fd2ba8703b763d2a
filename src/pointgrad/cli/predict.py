"""`pointgrad predict RUN FILES...`: labels for files, from a trained network."""

import csv
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tyro.conf import Positional

from pointgrad import data, predict, train
from pointgrad.data.files.formats import FORMATS
from pointgrad.predict.files import publish_text
from pointgrad.predict.scene import Progress

FAILED, WRONG, INTERRUPTED = 1, 2, 130  # exit statuses, as the help of the command says
TOP = 3  # classes that are shown of each cloud
TABLE = "predictions.csv"
ERRORS = (ValueError, OSError, ModuleNotFoundError, MemoryError, RuntimeError)


@dataclass
class Predict:
    """Labels files with a trained network. Segmentation writes each file again, into a folder, with the label and the
    confidence of every point; classification prints the class of each file, and writes a table.

    Exit status: 0; 1 if some of the files could not be labelled, the others are; 2 for a wrong command line.
    """

    network: Positional[Path]
    """A run folder of `pointgrad train`, of which the best checkpoint is taken, or a checkpoint."""

    inputs: Positional[tuple[Path, ...]]
    """Files of any format that pointgrad reads, or folders, which are searched for such files."""

    out: Path = Path("predictions")
    """Folder for the results; made if it is not there. What is found in an input folder keeps its place in it."""

    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto: a GPU if there is one."""

    tile: float | None = None
    """Segmentation: edge length, in the units of the file, of the square columns that the network sees one at a time;
    about that of the clouds or crops it was trained on. Without it: the whole cloud, if the network was trained on
    clouds scaled into a sphere or sampled to a number of points, or if all points fit; else as large as fits."""

    votes: int = 3
    """How often each point is seen, each time in other columns or with other points. More: better and slower."""

    max_points: int = 65_536
    """How many points go through the network at once. Less if memory runs out, more for speed on a large GPU."""

    columns: str | None = None
    """Names of the columns of text, NPY and BIN files that have none: "x y z class intensity"."""

    category: int | None = None
    """Part segmentation: the number of the kind of object that the files show."""

    classification: tuple[int, ...] = ()
    """LAS and LAZ: a code per class, in their order, which is also written to the classification of the points."""

    evaluate: bool = False
    """Compares with the labels in the files (classification: with the name of the folder that each file is in)."""

    overwrite: bool = False
    """Replaces results that are already there."""

    temp: Path | None = None
    """LAS and LAZ: folder on a disk with room for 40 bytes per point while it runs; without it, the output folder."""

    def run(self) -> int:
        try:
            files = _files(self.inputs, self.out)
            trained = train.load(self.network, _device(self.device))
        except ERRORS as error:
            return _fail(WRONG, str(error))
        try:
            if trained.task == "classification":
                return self._classify(trained, [source for source, _ in files])
            return self._label(trained, files)
        except KeyboardInterrupt:
            return _fail(INTERRUPTED, f"interrupted; complete results are in {self.out}")

    def _label(self, trained: train.Trained, files: Sequence[tuple[Path, Path]]) -> int:
        status = 0
        total = train.Metrics(len(trained.classes))
        for source, folder in files:
            with _shown(source) as progress:
                try:
                    report = predict.label_file(
                        trained, source, predict.output(source, folder),
                        tile=self.tile, votes=self.votes, max_points=self.max_points, columns=self.columns,
                        category=self.category, classification=self.classification, evaluate=self.evaluate,
                        overwrite=self.overwrite, temp=self.temp, progress=progress,
                    )  # fmt: skip
                except ERRORS as error:
                    report, reason = None, _reason(source, error)
            if report is None:
                status = _fail(FAILED, reason)
                continue
            print(f"{source} -> {report.target}: {_shares(trained.classes, report.counts)}")
            if report.unlabelled:
                print(f"  {report.unlabelled} points without finite coordinates got no label")
            if report.metrics is not None:
                total.confusion += report.metrics.confusion
                print(f"  {_scores(report.metrics)}")
        if self.evaluate and len(files) > 1:
            print(f"all files: {_scores(total)}")
        return status

    def _classify(self, trained: train.Trained, files: Sequence[Path]) -> int:
        table = self.out / TABLE
        if table.exists() and not self.overwrite:
            return _fail(WRONG, f"{table}: exists already; --overwrite replaces it")
        status, right, rows = 0, [], []
        try:
            for source in files:
                try:
                    cloud = data.read(source, columns=self.columns if FORMATS[_format(source)].unnamed else None)
                    chances = predict.classify(trained, [cloud], votes=self.votes, max_points=self.max_points)
                    truth = _truth(cloud, source, trained.classes) if self.evaluate else None
                except ERRORS as error:
                    status = _fail(FAILED, _reason(source, error))
                    continue
                best = chances.probabilities[0].topk(min(TOP, len(trained.classes)))
                named = [(trained.classes[k], f"{p:.4f}") for p, k in zip(*(x.tolist() for x in best), strict=True)]
                rows.append([str(source), *(cell for pair in named for cell in pair)])
                print(f"{source}: {', '.join(f'{name} {chance}' for name, chance in named)}")
                if truth is not None:
                    right.append(truth == named[0][0])
        finally:  # also what there is when it is interrupted
            if rows:
                publish_text(table, _csv(rows), self.overwrite)
        if self.evaluate:
            print(f"accuracy {sum(right) / len(right):.4f} of {len(right)} files")
        if rows:
            print(f"written to {table}")
        return status
