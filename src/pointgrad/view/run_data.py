"""A run folder as it is read while it may be written: never half of it, and never an error that ends the reader."""

import csv
import datetime
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pointgrad.train.checkpoint import BEST, LAST
from pointgrad.train.display import span
from pointgrad.train.evaluation import EVALUATION, Evaluation
from pointgrad.train.evaluation import read as read_evaluation
from pointgrad.train.run_folder import ENDED
from pointgrad.train.untrusted import read_yaml

CONFIG, METRICS, LOG, ENVIRONMENT = "config.yaml", "metrics.csv", "log.txt", "environment.txt"
TAIL = 1 << 16  # bytes of the log that are read
BEST_LINE = re.compile(r"\bepoch (\d+)/\d+ .* best$")
QUIET = 60.0  # seconds without news that are usual for any run

Row = dict[str, float]


@dataclass(frozen=True)
class Moment:
    """A run at one moment.

    history: a row of figures per epoch. total: epochs that are wanted, if known. log: its last lines. state: in words.
    best_epoch: counted from 1; None before there is one. best: the version of best.pt, None if it is not there.
    evaluation: of the best weights, if the run has kept one. problems: what cannot be read, a sentence each.
    """

    history: list[Row]
    total: int | None
    log: list[str]
    state: str
    best_epoch: int | None
    best: object
    evaluation: Evaluation | None
    problems: tuple[str, ...]


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run, also of one that has just begun."""
    config, environment, metrics, last = (version(path / name) for name in (CONFIG, ENVIRONMENT, METRICS, LAST))
    return (config is not None and environment is not None) or metrics is not None or last is not None


class Follower:
    """Reads a run folder again and again; a file that has not changed is not read again. Of a file that cannot be read,
    or a folder that is gone, what was last known stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, tuple[object, Any, str | None]] = {}  # version, content, problem
        self._best: object = None

    def look(self) -> Moment:
        """The run now. Raises nothing that a run folder could cause."""
        problems = []

        def read(name: str, reader: Callable[[Path], Any], nothing: Any) -> Any:
            content, problem = self._read(name, reader, nothing)
            if problem is not None:
                problems.append(problem)
            return content

        history: list[Row] = read(METRICS, read_metrics, [])
        config: Mapping[str, Any] = read(CONFIG, _read_config, {})
        log: list[str] = read(LOG, _read_log, [])
        evaluation: Evaluation | None = read(EVALUATION, read_evaluation, None)
        missing = self._missing()
        if missing is not None:
            problems = [missing]
        marked = [int(found[1]) for line in log if (found := BEST_LINE.search(line))]
        best_epoch = max([*marked, *([evaluation.epoch] if evaluation else [])], default=None)
        total = config.get("epochs")
        total = total if isinstance(total, int) else None
        state = "not there" if missing else self._state(history, config, log, total, best_epoch)
        if missing is None:
            self._best = version(self.path / BEST)
        return Moment(history, total, log, state, best_epoch, self._best, evaluation, tuple(problems))

    def _read(self, name: str, reader: Callable[[Path], Any], nothing: Any) -> tuple[Any, str | None]:
        path, (known, content, problem) = self.path / name, self._known.get(name, (None, nothing, None))
        now = version(path)
        if now is None:
            if self._missing() is None:  # another run, which does not have it yet
                self._known.pop(name, None)
                return nothing, None
            return content, None
        if now != known:
            try:
                if path.exists() and not path.is_file():  # a pipe would be waited for
                    raise ValueError(f"{path}: expected a file, found a folder or a device")
                content, problem = reader(path), None
            except FileNotFoundError:
                return content, None
            except (ValueError, OSError) as error:
                problem = " ".join(str(error).split())
            self._known[name] = now, content, problem
        return content, problem

    def _missing(self) -> str | None:
        if not os.path.isdir(self.path):
            return f"{self.path}: the folder is gone; what was there is still shown, and it is looked for again"
        if not is_run(self.path):
            return f"{self.path}: holds no run; one that appears here is shown"
        return None

    def _state(
        self, history: list[Row], config: Mapping[str, Any], log: list[str], total: int | None, best: int | None
    ) -> str:
        last = log[-1].partition(" ")[2].partition(" ")[2] if log else ""  # after the date and the time
        if last.startswith(ENDED):
            reason = last.removeprefix(ENDED).strip()
            return reason if reason.startswith("stopped") else f"stopped: {reason}"
        done = int(history[-1]["epoch"]) if history else 0
        if total is not None and done >= total:
            return "finished"
        patience = config.get("patience")
        if isinstance(patience, int) and patience and best is not None and done - best >= patience:
            return f"finished: no better epoch in the last {done - best}"
        names = (CONFIG, ENVIRONMENT, METRICS, LOG, BEST, LAST)
        times = [found[0] / 1e9 for name in names if (found := version(self.path / name)) is not None]
        news = max(times, default=time.time())
        silent = time.time() - news
        if silent <= _patience(history, config):
            return "running"
        since = datetime.datetime.fromtimestamp(news).strftime("%Y-%m-%d %H:%M")
        return f"no news since {since}, for {span(silent)}: it was killed, or is very slow"


def version(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written; None if it is not there. First, the time of the change in nanoseconds."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics.csv; what an epoch has no figure for is NaN. Raises ValueError if it is not one.

    >>> read_metrics(Path("nowhere.csv"))
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.csv'
    """
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"{path}: expected a table of epochs, this is no text") from None
    if not lines or "epoch" not in lines[0]:
        raise ValueError(f"{path}: expected a table of epochs, it has no column epoch")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(lines[0]):
            raise ValueError(f"{path}: line {number} must have {len(lines[0])} values, got {len(line)}")
        try:
            row = {name: float(value) if value else math.nan for name, value in zip(lines[0], line, strict=True)}
        except ValueError:
            raise ValueError(f"{path}: line {number} must be numbers, got {','.join(line)[:60]}") from None
        if not 1 <= row["epoch"] < math.inf:
            raise ValueError(f"{path}: line {number} must have an epoch from 1 on, got {row['epoch']}")
        rows.append(row)
    return rows


def _read_config(path: Path) -> Mapping[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: expected keys and values, got {type(content).__name__}")
    return content


def _read_log(path: Path) -> list[str]:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    return [line for line in lines[:-1] if line.strip()]  # a line that is being written has no end yet


def _patience(history: list[Row], config: Mapping[str, Any]) -> float:
    """Seconds without news that are usual for this run: it writes after each epoch, and every so many minutes."""
    minutes = config.get("checkpoint_minutes")
    saved = 2 * 60 * float(minutes) if isinstance(minutes, (int, float)) else math.inf
    epochs = 3 * max((row.get("seconds", math.nan) for row in history[-3:]), default=math.inf)
    return max(QUIET, min(saved, epochs))
