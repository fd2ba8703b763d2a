"""Trainings that are to be disturbed: started from a process that has imported everything, watched, compared.

Each attempt is a process of its own that runs `pointgrad train` with workers of its own. It writes what it is doing to
a small file, so that it is known afterwards what a kill hit.
"""

import contextlib
import csv
import functools
import hashlib
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["reliability.training.attempts", "lightning_fabric", "pointgrad.cli.train", "torch._dynamo", "matplotlib.figure"]
)
KILLED = -signal.SIGKILL
DONE: set[str] = set()  # by this process
NOTHING_LEFT = "nothing left to do"  # instead of a state of the generator
WATCHDOG = 120.0  # seconds after which an attempt counts as hanging
FLAGS = [
    "--batch-size", "4", "--ema", "0.9", "--accelerator", "cpu", "--no-tensorboard", "--options", "width=0.125",
    "dropout=0.5", "--prepare.points", "16", "--augment.jitter", "0.01",
]  # fmt: skip
EVERY_STEP = ["--checkpoint-minutes", "1e-9"]
FILES = ("metrics.csv", "evaluation.npz", "config.yaml", "curves.png", "confusion.png", "examples.png")
STAMP = r"\d{4,5}-\d\d-\d\d \d\d:\d\d:\d\d "
Plant = Callable[[], Any]


def data(folder: Path, clouds: int = 24, points: int = 16) -> Path:
    """Balls and flatter ones."""
    rng = np.random.default_rng(0)
    label = np.arange(clouds) % 2
    cloud = rng.normal(size=(clouds, points, 3)).astype(np.float32)
    cloud[..., 2] *= (1 / (1 + label))[:, None]
    path = folder / "tiny.npz"
    np.savez(path, points=cloud, label=label, classes=np.array(["ball", "disc"]), val=np.arange(clouds) >= clouds - 8)
    return path


class Attempt:
    """One process that trains. plants: called in it before it begins, to prepare a fault."""

    def __init__(
        self, scratch: Path, *arguments: object, plants: Sequence[Plant] = (), variables: dict[str, str] | None = None
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._log, self._board = scratch / "output", scratch / "moment"
        self._board.write_bytes(b"")
        self.process = PROCESSES.Process(
            target=_run, args=(list(map(str, arguments)), self._log, self._board, plants, variables or {})
        )
        self.process.start()

    @property
    def moment(self) -> str:
        """What it was doing when last heard of."""
        return self._board.read_text().split("\n")[0] or "starting"

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def running(self) -> bool:
        return self.process.exitcode is None

    def said(self) -> list[str]:
        """The lines by which the command says why it ends."""
        lines = self.output.replace("\0", "").splitlines()  # torch ends what it says of a crash with a zero
        return [line for line in lines if line.startswith("pointgrad")]

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    def wait(self, seconds: float = WATCHDOG) -> int:
        """The exit status. One that does not end is a finding, and is ended."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise TimeoutError(f"hangs at {self.moment}:\n{self.output}")
        return self.process.exitcode


def _run(arguments: list[str], log: Path, board: Path, plants: Sequence[Plant], variables: dict[str, str]) -> None:
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ |= variables
    multiprocessing.set_start_method("fork", force=True)  # of workers: as in a process that was started by hand
    torch.set_num_threads(1)
    watch(board)
    for plant in plants:
        plant()
    status = run(arguments, board)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status)


def run(arguments: list[str], board: Path) -> int:
    """The command; when it is done, the state of torch's generator is on the board, unless nothing was left to do."""
    from pointgrad.cli import main

    status = main(["train", *arguments])
    state = hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest()
    board.write_text(f"ended\n{state if DONE & {'training', 'validation'} else NOTHING_LEFT}\n")
    return status


def without_pictures() -> None:
    """They would take longer than all the rest."""
    from pointgrad.train.report import Report

    def nothing(*_: Any, **__: Any) -> None: ...

    Report.curves = Report.results = nothing  # type: ignore[method-assign]


def watch(board: Path) -> None:
    """From now on this process writes to the board what it does."""
    from pointgrad.train import checkpoint, report, run_folder, state, trainer

    file = os.open(board, os.O_WRONLY)

    def noted(name: Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            what = name(*arguments)
            os.pwrite(file, f"{what}\n".ljust(64).encode(), 0)
            result = function(*arguments, **options)
            os.pwrite(file, b"between\n".ljust(64), 0)
            DONE.add(what)
            return result

        return call

    def writing(path: Path, *_: Any) -> str:
        return f"writing {path.name}"

    patched: Any
    for patched in (checkpoint, report, run_folder):
        patched.write_atomically = noted(writing, patched.write_atomically)
    state.checkpoint.read = noted(lambda *_: "reading a checkpoint", checkpoint.read)
    patched = trainer
    patched.train_step = noted(lambda *_, **__: "training", trainer.train_step)
    patched.evaluate = noted(lambda *_, **__: "validation", trainer.evaluate)


def rng_state(scratch: Path) -> str:
    return (scratch / "moment").read_text().split("\n")[1]


def differences(one: Path, other: Path) -> list[str]:
    """What of two finished runs is not equal: weights, their mean, optimizer, counters and metrics bit by bit; tables
    and pictures byte by byte; the log, line by line. Not the time it took."""
    found = []
    for name in ("last.pt", "best.pt"):
        first, second = (flat(torch.load(folder / name, weights_only=True)) for folder in (one, other))
        found += [f"{name}: {key}" for key in first.keys() | second.keys() if first.get(key) != second.get(key)]
    for name in FILES:
        if (one / name).exists() != (other / name).exists():
            found.append(f"{name}: in one only")
        elif (one / name).exists() and _timeless(one / name) != _timeless(other / name):
            found.append(name)
    if (epochs := _epochs(one)) != _epochs(other):
        found.append(f"log.txt: {epochs ^ _epochs(other)}")
    torn = [line for line in (other / "log.txt").read_text().splitlines() if not re.match(STAMP, line)]
    left = [path.name for path in other.rglob("*.part")]
    return found + [f"log.txt: torn: {line}" for line in torn] + [f"left over: {name}" for name in left]


def flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, each in value.items() for k, v in flat(each, f"{name}.{key}").items()}
    if isinstance(value, list):
        return {k: v for key, each in enumerate(value) for k, v in flat(each, f"{name}.{key}").items()}
    if isinstance(value, torch.Tensor):
        return {name: (value.dtype, tuple(value.shape), value.contiguous().numpy().tobytes())}
    return {} if name.endswith(".seconds") else {name: repr(value)}


def _timeless(path: Path) -> Any:
    if path.suffix != ".csv":
        text = path.read_bytes()
        return re.sub(rb"\n(out|checkpoint_minutes): .*", b"", text) if path.suffix == ".yaml" else text
    with open(path) as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def _epochs(folder: Path) -> set[str]:
    """What the log says of each epoch, without the time."""
    lines = re.findall(rf"(?m)^{STAMP}(epoch \d+/\d+ .*?)  [\d.]+ s(  best)?$", (folder / "log.txt").read_text())
    return {"".join(line) for line in lines}


def unreadable(folder: Path) -> list[str]:
    """Checkpoints of a run, at any moment, that are there and cannot be read."""
    from pointgrad.train import CheckpointError, checkpoint

    def problem(path: Path) -> str | None:
        try:
            checkpoint.read(path)
        except CheckpointError as error:
            return str(error)
        return None

    found = [folder / name for name in ("last.pt", "previous.pt", "best.pt") if (folder / name).exists()]
    return [text for text in map(problem, found) if text is not None]


def until(condition: Callable[[], bool], attempt: Attempt, seconds: float = WATCHDOG, pause: float = 2e-4) -> bool:
    """Waits for something about a running attempt; False if that ended before."""
    limit = time.monotonic() + seconds
    while not condition():
        if not attempt.running or time.monotonic() > limit:
            return False
        time.sleep(pause)
    return True
