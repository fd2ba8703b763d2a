"""Read a run folder while the run may still be writing to it."""

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

from pointgrad.data.untrusted import read_yaml
from pointgrad.errors import one_line
from pointgrad.train.checkpoint import BEST, LAST
from pointgrad.train.display import span
from pointgrad.train.evaluation import EVALUATION, Evaluation
from pointgrad.train.evaluation import read as read_evaluation
from pointgrad.train.run_folder import ENDED

CONFIG, METRICS, LOG, ENVIRONMENT = "config.yaml", "metrics.csv", "log.txt", "environment.txt"
TAIL = 1 << 16  # bytes at the end of the log that are read
BEST_LINE = re.compile(r"\bepoch (\d+)/\d+ .* best$")
MIN_PATIENCE = 60.0  # seconds without an update that are normal for any run

Row = dict[str, float]


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        history: Metrics of each epoch.
        config: Contents of config.yaml; empty if there is none.
        total: Configured number of epochs, if known.
        log: Last lines of the log.
        status: Description such as "running" or "finished".
        best_epoch: Best epoch so far, counted from 1; None before the first.
        best: Version of best.pt; None if the file does not exist.
        evaluation: Saved evaluation of the best weights, if any.
        problems: One message per file that cannot be read.
    """

    history: list[Row]
    config: Mapping[str, Any]
    total: int | None
    log: list[str]
    status: str
    best_epoch: int | None
    best: object
    evaluation: Evaluation | None
    problems: tuple[str, ...]


def is_run(path: Path) -> bool:
    """Whether a path is a run folder, including one whose run has just started."""
    config, environment, metrics, last = (version(path / name) for name in (CONFIG, ENVIRONMENT, METRICS, LAST))
    return (config is not None and environment is not None) or metrics is not None or last is not None


class Follower:
    """Reads a run folder repeatedly, and each file only if it has changed.

    If a file cannot be read or the folder is missing, the last known contents are kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, tuple[object, Any, str | None]] = {}  # version, content, problem
        self._best: object = None

    def read(self) -> RunState:
        """Read the current state. Unreadable files are reported in `problems`, not raised."""
        problems = []

        def read(name: str, reader: Callable[[Path], Any], nothing: Any) -> Any:
            content, problem = self._read_file(name, reader, nothing)
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
        status = "missing" if missing else self._status(history, config, log, total, best_epoch)
        if missing is None:
            self._best = version(self.path / BEST)
        return RunState(history, config, total, log, status, best_epoch, self._best, evaluation, tuple(problems))

    def _read_file(self, name: str, reader: Callable[[Path], Any], nothing: Any) -> tuple[Any, str | None]:
        path, (known, content, problem) = self.path / name, self._known.get(name, (None, nothing, None))
        now = version(path)
        if now is None:
            if self._missing() is None:  # a new run that has not written this file yet
                self._known.pop(name, None)
                return nothing, None
            return content, None
        if now != known:
            try:
                if path.exists() and not path.is_file():  # reading a pipe would block
                    raise ValueError(f"{path}: expected a file, found a folder or a device")
                content, problem = reader(path), None
            except FileNotFoundError:
                return content, None
            except (ValueError, OSError) as error:
                problem = one_line(error)
            self._known[name] = now, content, problem
        return content, problem

    def _missing(self) -> str | None:
        if not os.path.isdir(self.path):
            return f"{self.path}: folder not found; showing its last known contents until it reappears"
        if not is_run(self.path):
            return f"{self.path}: contains no run; waiting for one to start"
        return None

    def _status(
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
            return f"finished: no improvement in the last {done - best} epochs"
        names = (CONFIG, ENVIRONMENT, METRICS, LOG, BEST, LAST)
        times = [found[0] / 1e9 for name in names if (found := version(self.path / name)) is not None]
        updated = max(times, default=time.time())
        silence = time.time() - updated
        if silence <= _patience(history, config):
            return "running"
        since = datetime.datetime.fromtimestamp(updated).strftime("%Y-%m-%d %H:%M")
        return f"no update since {since} ({span(silence)}): killed or very slow"


def version(path: Path) -> tuple[int, int, int] | None:
    """Modification time in nanoseconds, size and inode of a file, which change when it is written; None if missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a metrics.csv file.

    Args:
        path: The file.

    Returns:
        One row per epoch; missing values are NaN.

    Raises:
        ValueError: If the file is not a table of epochs.

    Example:
        >>> read_metrics(Path("nowhere.csv"))
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.csv'
    """
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (UnicodeDecodeError, csv.Error):
        raise ValueError(f"{path}: expected a CSV table of epochs, got data that is not text") from None
    if not lines or "epoch" not in lines[0]:
        raise ValueError(f"{path}: expected a CSV table of epochs, got no column named epoch")
    rows = []
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(lines[0]):
            raise ValueError(f"{path}: line {number} must have {len(lines[0])} values, got {len(line)}")
        try:
            row = {name: float(value) if value else math.nan for name, value in zip(lines[0], line, strict=True)}
        except ValueError:
            raise ValueError(f"{path}: line {number} must contain numbers, got {','.join(line)[:60]}") from None
        if not 1 <= row["epoch"] < math.inf:
            raise ValueError(f"{path}: line {number} must have an epoch of at least 1, got {row['epoch']}")
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
    return [line for line in lines[:-1] if line.strip()]  # the last line may be incomplete


def _patience(history: list[Row], config: Mapping[str, Any]) -> float:
    """Seconds without an update that are normal for this run: it writes after each epoch and at every checkpoint."""
    minutes = config.get("checkpoint_minutes")
    saved = 2 * 60 * float(minutes) if isinstance(minutes, (int, float)) else math.inf
    epochs = 3 * max((row.get("seconds", math.nan) for row in history[-3:]), default=math.inf)
    return max(MIN_PATIENCE, min(saved, epochs))
