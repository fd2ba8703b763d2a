"""`pointgrad predict RUN FILES...`: label files with a trained network."""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tyro.conf import Positional

from pointgrad import data, predict, train
from pointgrad.data.classes import ignored_note
from pointgrad.data.datasets.folder import is_cloud
from pointgrad.data.files.errors import naming
from pointgrad.data.files.formats import FORMATS, choose
from pointgrad.data.files.workspace import publish_bytes
from pointgrad.data.tiles import Progress
from pointgrad.errors import one_line, printable
from pointgrad.predict.labels import Settings
from pointgrad.writing import make_folder

from .class_maps import check_declared, with_classes
from .device import device
from .inputs import cloud_files
from .status import ExitStatus, fail

TOP = 3  # classes shown per cloud
TABLE = "predictions.csv"
ERRORS = (ValueError, OSError, ModuleNotFoundError, MemoryError, RuntimeError)


@dataclass
class Predict:
    """Label files with a trained network. Segmentation writes a copy of each file with the label and confidence of
    every point; classification prints the class of each file and writes a table.

    Exit status: 0; 1 if some files could not be labelled (the others are); 2 for an invalid command line.
    """

    network: Positional[Path]
    """Run folder of `pointgrad train`, whose best checkpoint is used, or a checkpoint."""

    inputs: Positional[tuple[Path, ...]]
    """Point cloud files of any supported format, or folders, which are searched for them."""

    out: Path = Path("predictions")
    """Folder for the results; created if needed. Files of an input folder keep their relative paths."""

    device: str = "auto"
    """Device: cpu, cuda, cuda:1 ...; auto: a GPU if one is available."""

    tile: float | None = None
    """Segmentation: edge length, in units of the file, of the square columns that are predicted one at a time.
    By default the whole cloud if it is small or the network was trained on clouds scaled to a sphere;
    else columns with half as many points as the network was trained on."""

    votes: int = 3
    """Predictions per point, each in different columns or among different points. More is better and slower."""

    max_points: int = 65_536
    """Points per forward pass. Lower it if memory runs out, raise it for speed on a large GPU."""

    columns: str | None = None
    """Names of the columns, for text, NPY and BIN files that do not name them: "x y z class intensity"."""

    category: int | None = None
    """Part segmentation: number of the category of the objects in the files."""

    classes: tuple[str, ...] = ()
    """Codes of the network's classes in the files, for the results and for --evaluate: --classes ground=2 building=6,
    or a YAML file with lines name: code. By default those of the training."""

    other_classes: Literal["ignore", "refuse"] | None = None
    """With --evaluate: points whose code belongs to no class are ignored, or refused with an error. By default as in
    training."""

    classification: tuple[int, ...] | None = None
    """LAS and LAZ: write the labels to the classification field of the points as well;
    with numbers, these codes of the classes, in order."""

    evaluate: bool = False
    """Compare with the labels in the files; for classification, with the name of the folder of each file."""

    overwrite: bool = False
    """Replace existing results."""

    temp: Path | None = None
    """LAS and LAZ: folder for temporary files of 40 bytes per point; by default the output folder."""

    def run(self) -> int:
        try:
            Settings(self.tile, self.votes, self.max_points)
            files = [(file, self.out / place) for file, place in cloud_files(self.inputs, "label", self.out)]
            trained = with_classes(train.load(self.network, device(self.device)), self.classes, self.other_classes)
            if trained.task == "segmentation":
                _check_targets(files)
        except ERRORS as error:
            return fail("predict", ExitStatus.USAGE, error, self)
        try:
            if trained.task == "classification":
                return self._classify(trained, [source for source, _ in files])
            return self._label(trained, files)
        except KeyboardInterrupt:
            return fail("predict", ExitStatus.INTERRUPTED, f"interrupted; complete results are in {self.out}")

    def _label(self, trained: train.Trained, files: Sequence[tuple[Path, Path]]) -> int:
        status = ExitStatus.OK
        total = train.Metrics(len(trained.classes))
        for source, folder in files:
            with _progress_bar(source) as progress:
                try:
                    if self.evaluate and not self.classes:
                        check_declared(trained, source)
                    with naming(folder, "a folder to write to"):
                        make_folder(self.out, folder.relative_to(self.out))
                    report = predict.label_file(
                        trained, source, predict.output(source, folder),
                        tile=self.tile, votes=self.votes, max_points=self.max_points, columns=self._columns(source),
                        category=self.category, classification=self.classification or self.classification is not None,
                        evaluate=self.evaluate, overwrite=self.overwrite, temp=self.temp, progress=progress,
                    )  # fmt: skip
                except ERRORS as error:
                    report, reason = None, _reason(source, error)
            if report is None:
                status = fail("predict", ExitStatus.FAILED, reason, self)
                continue
            print(printable(f"{source} -> {report.target}: {_shares(trained.classes, report.counts)}"))
            if report.unlabelled:
                have = "has" if report.unlabelled == 1 else "have"
                print(f"  {_points(report.unlabelled)} without finite coordinates {have} no label")
            if report.metrics is not None:
                total.confusion += report.metrics.confusion
                print(f"  {_scores(report.metrics)}")
            if report.ignored:
                print(f"  {ignored_note(report.ignored)}")
        if len(files) > 1 and total.confusion.any():
            print(f"all files: {_scores(total)}")
        return status

    def _columns(self, source: Path) -> str | None:
        """Return the names of the columns, for a format that does not name them."""
        return self.columns if FORMATS[choose(source, None)].unnamed else None

    def _classify(self, trained: train.Trained, files: Sequence[Path]) -> int:
        table = self.out / TABLE
        if table.exists() and not self.overwrite:
            return fail("predict", ExitStatus.USAGE, f"{table}: exists already; use --overwrite to replace it")
        status, right, rows = ExitStatus.OK, [], []
        try:
            for source in files:
                try:
                    cloud = data.read(source, columns=self._columns(source))
                    chances = predict.classify(trained, [cloud], votes=self.votes, max_points=self.max_points)
                    truth = _truth(cloud, source, trained.classes) if self.evaluate else None
                except ERRORS as error:
                    status = fail("predict", ExitStatus.FAILED, _reason(source, error), self)
                    continue
                best = chances.probabilities[0].topk(min(TOP, len(trained.classes)))
                named = [(trained.classes[k], f"{p:.4f}") for p, k in zip(*(x.tolist() for x in best), strict=True)]
                rows.append([str(source), *(cell for pair in named for cell in pair)])
                print(printable(f"{source}: {', '.join(f'{name} {chance}' for name, chance in named)}"))
                if truth is not None:
                    right.append(truth == named[0][0])
        finally:  # also after an interruption
            if rows:
                publish_bytes(table, _csv(rows).encode(), self.overwrite)
        if right:
            print(f"accuracy {sum(right) / len(right):.4f} of {len(right)} files")
        if rows:
            print(f"written to {printable(table)}")
        return status


def _check_targets(files: Sequence[tuple[Path, Path]]) -> None:
    """Raise ValueError if two files have the same output."""
    targets: dict[Path, Path] = {}
    for source, folder in files:
        if is_cloud(source) and (other := targets.setdefault(predict.output(source, folder), source)) != source:
            raise ValueError(f"{source} and {other} would have the same result {predict.output(source, folder)}")


@contextmanager
def _progress_bar(source: Path) -> Iterator[Progress]:
    """Show a progress bar in the terminal while a file is labelled."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(escape(printable(source.name)), total=None)
        stage, total = "", 0

        def show(phase: str, done: int) -> None:
            nonlocal stage, total
            if phase == "reading":
                total = done  # the number of points is known at the end of this phase
            if phase != stage:
                stage = phase
                bar.reset(task, description=f"{source.name}: {phase}")
            bar.update(task, completed=done, total=None if phase == "reading" else total)

        yield show


def _truth(cloud: data.Cloud, source: Path, classes: Sequence[str]) -> str:
    """Return the true class of a file: its own label, or the name of its folder."""
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
    """Format the fractions of the most frequent classes."""
    order = counts.argsort(descending=True, stable=True).tolist()
    shown = [f"{classes[k]} {counts[k] / counts.sum():.1%}" for k in order if counts[k]]
    return f"{_points(int(counts.sum()))}, " + ", ".join(shown[:5]) + (", ..." if len(shown) > 5 else "")


def _scores(metrics: train.Metrics) -> str:
    if not metrics.confusion.any():
        return "no point has a label of the network's classes"
    values = metrics.compute()
    return f"accuracy {values['accuracy']:.4f}, mIoU {values['miou']:.4f} of {_points(int(metrics.confusion.sum()))}"


def _points(count: int) -> str:
    return f"{count} {'point' if count == 1 else 'points'}"


def _reason(source: Path, error: BaseException) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return f"{source}: the GPU is out of memory; use a smaller --max-points"
    text = one_line(error)
    return text if isinstance(error, data.FileError) or printable(source) in text else f"{source}: {text}"
