"""A run that is killed at any moment and resumed has exactly the result of an uninterrupted run."""

import csv
import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from pointgrad.cli import main
from tests.support.tiny import PROCESSES, arrays

pytest.importorskip("lightning_fabric")
pytest.importorskip("tyro")
pytest.importorskip("yaml")

KILLED = -signal.SIGKILL
FLAGS = [
    "--epochs", "3", "--batch-size", "4", "--ema", "0.9", "--accelerator", "cpu", "--no-tensorboard",
    "--options", "width=0.125", "dropout=0.5", "--prepare.points", "16", "--augment.jitter", "0.01",
]  # fmt: skip


def hooked(before, function):
    @functools.wraps(function)
    def call(*arguments, **options):
        before(*arguments)
        return function(*arguments, **options)

    return call


def run(arguments, kill_at=None, file_limit=None, send=None):
    """Run the command in a child process, and kill it at the n-th moment.

    Moments are: a training step or an evaluation begins, half of a file is written, a file is about to be moved into
    place, and has been moved.
    """
    from pointgrad import writing
    from pointgrad.train import report, trainer

    torch.set_num_threads(1)
    report.Report.curves = report.Report.results = lambda self, **_: None  # figures take longer than everything else
    moments = 0

    def moment(*_):
        nonlocal moments
        moments += 1
        if moments == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if send is not None and moments == send[0]:
            os.kill(os.getpid(), send[1])

    class Halves:
        """A file that is written in two halves, with a moment between them."""

        def __init__(self, *arguments):
            self.file = open(*arguments)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, content):
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            moment()
            self.file.write(content[len(content) // 2 :])

    def replace(*arguments):
        moment()
        os.rename(*arguments)
        moment()

    writing.open = Halves
    writing.os = type("os", (), {**vars(os), "replace": staticmethod(replace)})
    trainer.train_step = hooked(moment, trainer.train_step)
    trainer.evaluate = hooked(moment, trainer.evaluate)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    status = main(["train", *map(str, arguments)])
    print(f"moments {moments}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def start(arguments, log, **options):
    child = PROCESSES.Process(target=logged, args=(str(log), arguments), kwargs=options)
    child.start()
    return child


def logged(log, arguments, **options):
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    run(arguments, **options)


def finish(arguments, log, **options):
    child = start(arguments, log, **options)
    child.join(60)
    assert child.exitcode is not None
    return child.exitcode


def assert_same(one: Path, other: Path) -> None:
    """Compare weights, their average, optimizer, counters and metrics, but not durations."""

    def flat(value, name=""):
        if isinstance(value, dict):
            return {k: v for key, each in value.items() for k, v in flat(each, f"{name}.{key}").items()}
        if isinstance(value, list):
            return {k: v for key, each in enumerate(value) for k, v in flat(each, f"{name}.{key}").items()}
        return {} if name.endswith(".seconds") else {name: value}

    for file in ("last.pt", "best.pt"):
        first, second = (flat(torch.load(folder / file, weights_only=True)) for folder in (one, other))
        assert first.keys() == second.keys()
        for name, value in first.items():
            equal = torch.equal(value, second[name]) if torch.is_tensor(value) else value == second[name]
            assert equal, f"{file}: {name}"
    tables = []
    for folder in (one, other):
        with open(folder / "metrics.csv") as file:
            tables.append([{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)])
    assert tables[0] == tables[1]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Folder, data and number of moments of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("reference")
    data = folder / "tiny.npz"
    np.savez(data, **arrays(24, 16), val=np.arange(24) >= 16)
    log = folder / "log"
    assert finish(["--data", data, "--out", folder / "run", *FLAGS], log) == 0, log.read_text()
    moments = int(log.read_text().split()[-1])
    assert len((folder / "run" / "metrics.csv").read_text().splitlines()) == 4
    return folder / "run", data, moments


def test_repeated_kills(reference, tmp_path):
    """Each kill is at a later moment than the one before."""
    run_folder, data, moments = reference
    out, log, kills = tmp_path / "run", tmp_path / "log", 0
    for kill_at in (2, 11, 13, 19, 23, 31, None):
        status = finish(["--data", data, "--out", out, "--resume", *FLAGS], log, kill_at=kill_at)
        if status == 0:
            break
        assert status == KILLED, log.read_text()
        kills += 1
        for name in ("last.pt", "best.pt"):  # never incomplete
            if (out / name).exists():
                torch.load(out / name, weights_only=True)
    assert kills >= 4
    assert moments > 40
    assert_same(run_folder, out)


def test_kill_in_the_middle_of_an_epoch(reference, tmp_path):
    """With a checkpoint after every step, the counts of the epoch and the order of the data continue."""
    run_folder, data, _ = reference
    out, log = tmp_path / "run", tmp_path / "log"
    flags = ["--data", data, "--out", out, "--resume", *FLAGS, "--checkpoint-minutes", "1e-9"]
    steps = []
    for kill_at in (23, 27, None):
        status = finish(flags, log, kill_at=kill_at)
        if status == 0:
            break
        assert status == KILLED, log.read_text()
        steps.append(torch.load(out / "last.pt", weights_only=True)["training"]["step"])
    assert any(steps), "no kill hit the middle of an epoch"
    assert_same(run_folder, out)


def test_interrupted(reference, tmp_path):
    run_folder, data, _ = reference
    out, log = tmp_path / "run", tmp_path / "log"
    flags = ["--data", data, "--out", out, *FLAGS]
    assert finish(flags, log, send=(8, signal.SIGINT)) == 130
    (line,) = [line for line in log.read_text().splitlines() if "stopped" in line]
    assert line.endswith(f"and saved; continue with: pointgrad train --out {out} --resume")
    assert torch.load(out / "last.pt", weights_only=True)["training"]["step"] > 0
    assert finish(["--out", out, "--resume"], log) == 0, log.read_text()
    assert_same(run_folder, out)


def test_kill_from_outside(reference, tmp_path):
    """The command as users start it, killed at an arbitrary moment."""
    run_folder, data, _ = reference
    out = tmp_path / "run"
    command = [sys.executable, "-m", "pointgrad", "train", "--data", data, "--out", out, "--resume", *FLAGS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([str(part) for part in command], env=environment, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not (out / "last.pt").exists() and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert finish(["--data", data, "--out", out, "--resume", *FLAGS], tmp_path / "log") == 0
    assert_same(run_folder, out)


def test_full_disk(reference, tmp_path):
    """Simulated by a limit on file sizes: the error names the file, and the last checkpoint is unchanged."""
    run_folder, data, _ = reference
    out, log = tmp_path / "run", tmp_path / "log"
    flags = ["--data", data, "--out", out, *FLAGS]
    assert finish(flags, log, kill_at=28) == KILLED
    before = (out / "last.pt").read_bytes()
    assert finish([*flags, "--resume"], log, file_limit=len(before) // 2) == 1
    lines = [line for line in log.read_text().splitlines() if line.startswith("pointgrad train:")]
    assert len(lines) == 1
    assert "cannot be written: File too large; its previous content is intact" in lines[0]
    assert (out / "last.pt").read_bytes() == before
    assert finish([*flags, "--resume"], log) == 0
    assert_same(run_folder, out)


def test_resuming_a_finished_run_changes_nothing(reference, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(reference[0], out)
    assert finish(["--out", out, "--resume"], tmp_path / "log") == 0
    assert_same(reference[0], out)
