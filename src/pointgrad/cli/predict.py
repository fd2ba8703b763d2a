"""`pointgrad predict RUN FILES...`: labels for files, from a trained network."""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from tyro.conf import Positional

from pointgrad import data, predict, train
from pointgrad.data.datasets.folder import is_cloud
from pointgrad.data.files.errors import naming
from pointgrad.data.files.formats import FORMATS, choose
from pointgrad.data.files.workspace import publish_bytes
from pointgrad.data.tiles import Progress
from pointgrad.predict.labels import Settings
from pointgrad.writing import make_folder

from .device import device
from .fail import fail, line
from .inputs import cloud_files

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
    """Segmentation: edge length, in the units of the file, of the square columns that the network is asked about one at
    a time. Without it: the whole cloud, if the network was trained on clouds scaled into a sphere or if there are few
    points; else columns that hold half as many points as the network was trained on."""

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
            Settings(self.tile, self.votes, self.max_points)
            files = [(file, self.out / place) for file, place in cloud_files(self.inputs, "label", self.out)]
            trained = train.load(self.network, device(self.device))
            if trained.task == "segmentation":
                _check_targets(files)
        except ERRORS as error:
            return fail("predict", WRONG, str(error))
        try:
            if trained.task == "classification":
                return self._classify(trained, [source for source, _ in files])
            return self._label(trained, files)
        except KeyboardInterrupt:
            return fail("predict", INTERRUPTED, f"interrupted; complete results are in {self.out}")

    def _label(self, trained: train.Trained, files: Sequence[tuple[Path, Path]]) -> int:
        status = 0
        total = train.Metrics(len(trained.classes))
        for source, folder in files:
            with _shown(source) as progress:
                try:
                    with naming(folder, "a folder to write to"):
                        make_folder(self.out, folder.relative_to(self.out))
                    report = predict.label_file(
                        trained, source, predict.output(source, folder),
                        tile=self.tile, votes=self.votes, max_points=self.max_points, columns=self._columns(source),
                        category=self.category, classification=self.classification, evaluate=self.evaluate,
                        overwrite=self.overwrite, temp=self.temp, progress=progress,
                    )  # fmt: skip
                except ERRORS as error:
                    report, reason = None, _reason(source, error)
            if report is None:
                status = fail("predict", FAILED, reason)
                continue
            print(f"{source} -> {report.target}: {_shares(trained.classes, report.counts)}")
            if report.unlabelled:
                print(f"  {report.unlabelled} points without finite coordinates got no label")
            if report.metrics is not None:
                total.confusion += report.metrics.confusion
                print(f"  {_scores(report.metrics)}")
        if len(files) > 1 and total.confusion.any():
            print(f"all files: {_scores(total)}")
        return status

    def _columns(self, source: Path) -> str | None:
        """Their names, for a file that does not name them itself."""
        return self.columns if FORMATS[choose(source, None)].unnamed else None

    def _classify(self, trained: train.Trained, files: Sequence[Path]) -> int:
        table = self.out / TABLE
        if table.exists() and not self.overwrite:
            return fail("predict", WRONG, f"{table}: exists already; --overwrite replaces it")
        status, right, rows = 0, [], []
        try:
            for source in files:
                try:
                    cloud = data.read(source, columns=self._columns(source))
                    chances = predict.classify(trained, [cloud], votes=self.votes, max_points=self.max_points)
                    truth = _truth(cloud, source, trained.classes) if self.evaluate else None
                except ERRORS as error:
                    status = fail("predict", FAILED, _reason(source, error))
                    continue
                best = chances.probabilities[0].topk(min(TOP, len(trained.classes)))
                named = [(trained.classes[k], f"{p:.4f}") for p, k in zip(*(x.tolist() for x in best), strict=True)]
                rows.append([str(source), *(cell for pair in named for cell in pair)])
                print(f"{source}: {', '.join(f'{name} {chance}' for name, chance in named)}")
                if truth is not None:
                    right.append(truth == named[0][0])
        finally:  # also what there is when it is interrupted
            if rows:
                publish_bytes(table, _csv(rows).encode(), self.overwrite)
        if right:
            print(f"accuracy {sum(right) / len(right):.4f} of {len(right)} files")
        if rows:
            print(f"written to {table}")
        return status


def _check_targets(files: Sequence[tuple[Path, Path]]) -> None:
    """Refuses two files with one result."""
    targets: dict[Path, Path] = {}
    for source, folder in files:
        if is_cloud(source) and (other := targets.setdefault(predict.output(source, folder), source)) != source:
            raise ValueError(f"{source} and {other} would have the same result {predict.output(source, folder)}")


@contextmanager
def _shown(source: Path) -> Iterator[Progress]:
    """A bar on the terminal while a file is labelled."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(source.name, total=None)
        stage, total = "", 0

        def show(what: str, done: int) -> None:
            nonlocal stage, total
            if what == "reading":
                total = done  # how many there are is known at the end
            if what != stage:
                stage = what
                bar.reset(task, description=f"{source.name}: {what}")
            bar.update(task, completed=done, total=None if what == "reading" else total)

        yield show


def _truth(cloud: data.Cloud, source: Path, classes: Sequence[str]) -> str:
    """The name of the class that a file has by itself, or by its folder."""
    if cloud.label is not None and 0 <= cloud.label < len(classes):
        return classes[cloud.label]
    name = source.resolve().parent.name
    if name not in classes:
        raise ValueError(f"{source}: expected a folder named after one of the classes {', '.join(classes)}, got {name}")
    return name


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", *(head for rank in ("", "_2", "_3") for head in (f"class{rank}", f"confidence{rank}"))])
    writer.writerows(rows)
    return text.getvalue()


def _shares(classes: Sequence[str], counts: torch.Tensor) -> str:
    """How the points are distributed, the most frequent classes first."""
    order = counts.argsort(descending=True, stable=True).tolist()
    shown = [f"{classes[k]} {counts[k] / counts.sum():.1%}" for k in order if counts[k]]
    return f"{int(counts.sum())} points, " + ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "")


def _scores(metrics: train.Metrics) -> str:
    figures = metrics.compute()
    return f"accuracy {figures['accuracy']:.4f}, mIoU {figures['miou']:.4f} of {int(metrics.confusion.sum())} points"


def _reason(source: Path, error: BaseException) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return f"{source}: the GPU has too little memory; --max-points makes less do"
    text = line(error)
    return text if isinstance(error, data.FileError) or str(source) in text else f"{source}: {text}"
