"""Training runs under test: started from a process that has imported everything, observed, and compared.

Each attempt is a process that runs `pointgrad train`. It writes its current activity to a small file, so that the
moment of a kill is known.
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
DONE: set[str] = set()  # activities of this process
NOTHING_LEFT = "nothing left to do"  # written instead of the state of the generator
WATCHDOG = 120.0  # seconds after which an attempt counts as hung
FLAGS = [
    "--batch-size", "4", "--ema", "0.9", "--accelerator", "cpu", "--no-tensorboard", "--options", "width=0.125",
    "dropout=0.5", "--prepare.points", "16", "--augment.jitter", "0.01",
]  # fmt: skip
EVERY_STEP = ["--checkpoint-minutes", "1e-9"]
FILES = (
    "best.safetensors", "metrics.csv", "evaluation.npz", "config.yaml", "curves.png", "confusion.png", "examples.png",
)  # fmt: skip
STAMP = r"\d{4,5}-\d\d-\d\d \d\d:\d\d:\d\d "
Injection = Callable[[], Any]


def data(folder: Path, clouds: int = 24, points: int = 16) -> Path:
    """Write a data set of balls and flattened balls."""
    rng = np.random.default_rng(0)
    label = np.arange(clouds) % 2
    cloud = rng.normal(size=(clouds, points, 3)).astype(np.float32)
    cloud[..., 2] *= (1 / (1 + label))[:, None]
    path = folder / "tiny.npz"
    np.savez(path, points=cloud, label=label, classes=np.array(["ball", "disc"]), val=np.arange(clouds) >= clouds - 8)
    return path


class Attempt:
    """A process that trains.

    Args:
        scratch: Folder for its output and its current activity.
        arguments: Arguments of `pointgrad train`.
        inject: Functions that the process calls before it begins, to prepare faults.
        variables: Environment variables of the process.
    """

    def __init__(
        self,
        scratch: Path,
        *arguments: object,
        inject: Sequence[Injection] = (),
        variables: dict[str, str] | None = None,
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._log, self._board = scratch / "output", scratch / "moment"
        self._board.write_bytes(b"")
        self.process = PROCESSES.Process(
            target=_run, args=(list(map(str, arguments)), self._log, self._board, inject, variables or {})
        )
        self.process.start()

    @property
    def moment(self) -> str:
        """Last known activity of the process."""
        return self._board.read_text().split("\n")[0] or "starting"

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def running(self) -> bool:
        return self.process.exitcode is None

    def errors(self) -> list[str]:
        """Return the lines in which the command reports why it ends."""
        lines = self.output.replace("\0", "").splitlines()  # torch appends a NUL to its crash messages
        return [line for line in lines if line.startswith("pointgrad")]

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, number)

    def wait(self, seconds: float = WATCHDOG) -> int:
        """Return the exit status. A process that does not end is killed, and reported as TimeoutError."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise TimeoutError(f"hangs at {self.moment}:\n{self.output}")
        return self.process.exitcode


def _run(arguments: list[str], log: Path, board: Path, inject: Sequence[Injection], variables: dict[str, str]) -> None:
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ |= variables
    multiprocessing.set_start_method("fork", force=True)  # for workers, as in a process started from a shell
    torch.set_num_threads(1)
    watch(board)
    for function in inject:
        function()
    status = run(arguments, board)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(status)


def run(arguments: list[str], board: Path) -> int:
    """Run the command, and write the final state of torch's generator to the board, if it trained."""
    from pointgrad.cli import main

    status = main(["train", *arguments])
    state = hashlib.sha256(bytes(torch.get_rng_state().tolist())).hexdigest()
    board.write_text(f"ended\n{state if DONE & {'training', 'validation'} else NOTHING_LEFT}\n")
    return status


def without_figures() -> None:
    """Disable figures, which take longer than everything else."""
    from pointgrad.train.report import Report

    def nothing(*_: Any, **__: Any) -> None: ...

    Report.curves = Report.results = nothing  # type: ignore[method-assign]


def watch(board: Path) -> None:
    """Make this process write its current activity to the board."""
    from pointgrad.train import checkpoint, report, run_folder, state, trainer

    file = os.open(board, os.O_WRONLY)

    def observed(name: Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            activity = name(*arguments)
            os.pwrite(file, f"{activity}\n".ljust(64).encode(), 0)
            result = function(*arguments, **options)
            os.pwrite(file, b"between\n".ljust(64), 0)
            DONE.add(activity)
            return result

        return call

    def writing(path: Path, *_: Any) -> str:
        return f"writing {path.name}"

    patched: Any
    for patched in (checkpoint, report, run_folder):
        patched.write_atomically = observed(writing, patched.write_atomically)
    state.checkpoint.read = observed(lambda *_: "reading a checkpoint", checkpoint.read)
    patched = trainer
    patched.train_step = observed(lambda *_, **__: "training", trainer.train_step)
    patched.evaluate = observed(lambda *_, **__: "validation", trainer.evaluate)


def rng_state(scratch: Path) -> str:
    """Return the final state of the generator of an attempt."""
    return (scratch / "moment").read_text().split("\n")[1]


def differences(one: Path, other: Path) -> list[str]:
    """List the differences between two finished runs, except durations.

    Weights, their average, optimizer, counters and metrics are compared bit by bit, tables and figures byte by byte,
    the log line by line.
    """
    found = []
    for name in ("last.pt", "best.pt"):
        first, second = (flat(torch.load(folder / name, weights_only=True)) for folder in (one, other))
        found += [f"{name}: {key}" for key in first.keys() | second.keys() if first.get(key) != second.get(key)]
    for name in FILES:
        if (one / name).exists() != (other / name).exists():
            found.append(f"{name}: in one run only")
        elif (one / name).exists() and _timeless(one / name) != _timeless(other / name):
            found.append(name)
    if (epochs := _epochs(one)) != _epochs(other):
        found.append(f"log.txt: {epochs ^ _epochs(other)}")
    torn = [line for line in (other / "log.txt").read_text().splitlines() if not re.match(STAMP, line)]
    left = [path.name for path in other.rglob("*.part")]
    return found + [f"log.txt: torn: {line}" for line in torn] + [f"left over: {name}" for name in left]


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested values to one dictionary, without durations; tensors become bytes."""
    if isinstance(value, dict):
        return {k: v for key, each in value.items() for k, v in flat(each, f"{name}.{key}").items()}
    if isinstance(value, list):
        return {k: v for key, each in enumerate(value) for k, v in flat(each, f"{name}.{key}").items()}
    if isinstance(value, torch.Tensor):
        return {name: (value.dtype, tuple(value.shape), value.contiguous().numpy().tobytes())}
    return {} if name.endswith(".seconds") else {name: repr(value)}


def _timeless(path: Path) -> Any:
    """Read a file without durations, and without settings that differ between runs."""
    if path.suffix != ".csv":
        text = path.read_bytes()
        return re.sub(rb"\n(out|checkpoint_minutes): .*", b"", text) if path.suffix == ".yaml" else text
    with open(path) as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def _epochs(folder: Path) -> set[str]:
    """Return the lines of the log about epochs, without times."""
    lines = re.findall(rf"(?m)^{STAMP}(epoch \d+/\d+ .*?)  [\d.]+ s(  best)?$", (folder / "log.txt").read_text())
    return {"".join(line) for line in lines}


def unreadable(folder: Path) -> list[str]:
    """List the checkpoints of a run that exist and cannot be read."""
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
    """Wait for a condition; return False if the attempt ends first, or after `seconds`."""
    limit = time.monotonic() + seconds
    while not condition():
        if not attempt.running or time.monotonic() > limit:
            return False
        time.sleep(pause)
    return True
