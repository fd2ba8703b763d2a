"""Training with several processes matches one process with the larger batch; lost processes are explained."""

import csv
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.train import Hook, Interrupted, ProcessLost, TrainConfig, Trainer, evaluation, launch, processes
from pointgrad.train.weights import get_weights
from tests.support.tiny import PROCESSES, Tiny, arrays

pytest.importorskip("lightning_fabric")
pytest.importorskip("yaml")

# FSDP of torch 2.6 fails on the CPU, where streams have no events.
STRATEGIES = ("ddp", "fsdp") if hasattr(torch.cpu.Stream, "record_event") else ("ddp",)


def make_dataset(task, count, seed):
    """Create clouds of different sizes; for segmentation, with different numbers of labels per process."""
    content = arrays(count, 12, seed=seed, task=task)
    rng = np.random.default_rng(seed)
    keep = np.arange(12) < rng.integers(3, 12, size=(count, 1))
    label = content["label"]
    if task == "segmentation":
        label = np.where(rng.random(label.shape) < np.linspace(0, 0.9, count)[:, None], -1, label)[keep]
    offsets = np.concatenate([[0], keep.sum(1).cumsum()])
    return data.Arrays({**content, "points": content["points"][keep], "offsets": offsets, "label": label})


class StopAt(Hook):
    """Sends SIGTERM to the last process only."""

    def after_step(self, trainer, loss):
        if trainer.fabric.global_rank == trainer.fabric.world_size - 1 and trainer.updates == 11:
            os.kill(os.getpid(), signal.SIGTERM)


def history(task, batch_size, out, hooks=(), resume=False, **options):
    """Train on 9 clouds and validate on 7, so that the last batches are incomplete."""
    torch.manual_seed(0)
    config = TrainConfig(
        epochs=6, accelerator="cpu", lr=0.02, tensorboard=False, ema=0.9, clip=0.5, smoothing=0.1,
        weight_decay=0.01, class_weights="sqrt", monitor="loss", **options,
    )  # fmt: skip
    fabric = launch(config)
    place = {"rank": fabric.global_rank, "world": fabric.world_size}
    loaders = [
        data.Loader(make_dataset(task, 9, 0), batch_size=batch_size, transform=data.Prepare(), shuffle=True, **place),
        data.Loader(make_dataset(task, 7, 1), batch_size=batch_size, transform=data.Prepare(), **place),
    ]
    trainer = Trainer(Tiny(task=task), *loaders, config, out=out, hooks=hooks, resume=resume, fabric=fabric)
    try:
        trainer.fit()
    except Interrupted as stop:
        return str(stop), trainer.updates
    return trainer.history, get_weights(trainer.module)


def work(rank, port, folder):
    """Run in a process with the environment of torchrun."""
    from pointgrad.train import report, trainer

    trainer.CONTROL = 1
    torch.set_num_threads(1)
    report.Report.curves = report.Report.results = lambda self, **_: None
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test",
    }  # fmt: skip
    results = {}
    for task in ("classification", "segmentation"):
        results[task] = history(task, 2, folder / task)
    results["accumulated"] = history("segmentation", 1, None, accumulate=2)
    for strategy in STRATEGIES:
        for name, hooks in (("stopped", [StopAt()]), ("resumed", [])):
            out, resume = folder / strategy, name == "resumed"
            results[f"{strategy} {name}"] = history("segmentation", 2, out, hooks, resume, strategy=strategy)
    torch.save(results, folder / f"rank{rank}.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [PROCESSES.Process(target=work, args=(rank, port, folder)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(100)
        assert child.exitcode == 0
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)], folder


def assert_same_history(received, expected):
    assert len(received) == len(expected)
    for one, other in zip(received, expected, strict=True):
        for name in one.keys() - {"seconds"}:
            assert one[name] == pytest.approx(other[name], rel=2e-4), name


@pytest.mark.parametrize("case", ["classification", "segmentation", "accumulated"])
def test_two_processes_match_one_with_twice_the_batch(results, case):
    task = "segmentation" if case == "accumulated" else case
    expected, weights = history(task, 4, None)
    ranks, _ = results
    for rank in ranks:
        received, state = rank[case]
        assert_same_history(received, expected)
        torch.testing.assert_close(state, weights, rtol=2e-3, atol=2e-4)
    assert ranks[0][case][0][0]["train_accuracy"] == ranks[1][case][0][0]["train_accuracy"]


def test_only_the_first_process_writes(results):
    pytest.importorskip("safetensors")
    _, folder = results
    names = {path.name for path in (folder / "classification").iterdir()}
    assert names == {
        "config.yaml", "environment.txt", "metrics.csv", "evaluation.npz", "best.pt", "best.safetensors", "last.pt",
        "previous.pt", "log.txt", ".lock",
    }  # fmt: skip
    with open(folder / "classification" / "metrics.csv") as file:
        assert len(list(csv.DictReader(file))) == 6
    assert (folder / "classification" / "log.txt").read_text().count("epoch 1/6") == 1


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_worst_clouds_of_all_processes_are_collected(results, tmp_path, monkeypatch, task):
    _, folder = results
    for name in ("curves", "results"):  # figures take longer than everything else
        monkeypatch.setattr(f"pointgrad.train.report.Report.{name}", lambda self, **_: None)
    history(task, 4, tmp_path / "alone")
    alone, together = (evaluation.read(path / "evaluation.npz") for path in (tmp_path / "alone", folder / task))
    assert torch.equal(together.confusion, alone.confusion)
    assert (together.epoch, together.clouds) == (alone.epoch, alone.clouds)
    assert [one.source for one in together.examples] == [one.source for one in alone.examples]
    assert len({one.source for one in together.examples}) == together.clouds > 4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_processes_stop_and_resume_together(results, strategy):
    """In the middle of an epoch; the result equals that of one process that never stopped."""
    ranks, _ = results
    stopped = [rank[f"{strategy} stopped"] for rank in ranks]
    assert all("and saved; continue with" in message for message, _ in stopped)
    assert [updates for _, updates in stopped] == [11, 11]
    expected, weights = history("segmentation", 4, None)
    for rank in ranks:
        assert_same_history(rank[f"{strategy} resumed"][0], expected)
    torch.testing.assert_close(ranks[0][f"{strategy} resumed"][1], weights, rtol=2e-3, atol=2e-4)


def test_fsdp_is_refused_where_torch_does_not_support_it(monkeypatch):
    monkeypatch.delattr(torch.cpu.Stream, "record_event", raising=False)
    with pytest.raises(ValueError, match=r"strategy must be ddp on the CPU with torch .*, got fsdp"):
        launch(TrainConfig(accelerator="cpu", strategy="fsdp"))


def test_the_command_starts_its_processes(tmp_path):
    pytest.importorskip("tyro")
    np.savez(tmp_path / "tiny.npz", **arrays(16, 16), val=np.arange(16) >= 10)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "pointgrad", "train", "--data", str(tmp_path / "tiny.npz"), "--out",
        str(tmp_path / "run"), "--devices", "2", "--epochs", "1", "--batch-size", "2", "--accelerator", "cpu",
        "--options", "width=0.125", "norm=group", "dropout=0", "--no-tensorboard",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 1/1") == 1
    with open(tmp_path / "run" / "metrics.csv") as file:
        (row,) = csv.DictReader(file)
    assert float(row["val_accuracy"]) in [number / 6 for number in range(7)]


@pytest.fixture
def launcher(monkeypatch):
    """Fabric's launcher for two processes, without its environment variables left behind."""
    from lightning_fabric.plugins.environments import LightningEnvironment
    from lightning_fabric.strategies.launchers import subprocess_script

    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE", processes.LAUNCHER):
        monkeypatch.setenv(name, "")  # restored at the end
        monkeypatch.delenv(name)
    monkeypatch.setattr(processes, "_children", None)
    yield subprocess_script._SubprocessScriptLauncher(LightningEnvironment(), 2, 1)
    if processes._children is not None:
        processes._children._end()


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("import sys; sys.exit(3)", "ended with status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    ],
)
def test_a_lost_process_is_named(launcher, monkeypatch, code, end):
    """Fabric starts the process, but does not watch it: its observer would kill this process without a message."""
    module = "lightning_fabric.strategies.launchers.subprocess_script"
    monkeypatch.setattr(f"{module}._basic_subprocess_cmd", lambda: [sys.executable, "-c", code])
    processes.start_processes(SimpleNamespace(strategy=SimpleNamespace(launcher=launcher)))
    assert launcher.cluster_environment.creates_processes_externally  # fabric.launch() starts no others
    assert "child-process-observer" not in [thread.name for thread in threading.enumerate()]
    launcher.procs[0].wait(60)
    with (
        pytest.raises(ProcessLost, match=f"^process 1 of 2 {end}; try again$") as lost,
        processes.explain_lost_process(2, "; try again"),
    ):
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    assert not lost.value.reported


def test_a_child_leaves_the_explanation_to_the_first_process(monkeypatch):
    monkeypatch.setattr(processes, "EXIT_DELAY", 0.1)
    connection_lost = RuntimeError("gloo: Connection closed by peer")

    def explained():
        with pytest.raises(ProcessLost) as lost, processes.explain_lost_process(3):
            raise connection_lost
        return str(lost.value), lost.value.reported

    monkeypatch.setenv(processes.LAUNCHER, str(os.getppid()))
    assert explained() == ("another process of the run has ended", True)
    monkeypatch.setenv(processes.LAUNCHER, "1" if os.getppid() != 1 else "2")  # not the parent any more
    assert explained() == ("process 0 of 3 has ended", False)


def test_other_errors_are_not_explained():
    with pytest.raises(RuntimeError, match="shapes do not match"), processes.explain_lost_process(2):
        raise RuntimeError("shapes do not match")


@pytest.mark.parametrize(
    ("variables", "first"),
    [({}, True), ({"RANK": "0", "LOCAL_RANK": "0"}, True), ({"RANK": "4", "LOCAL_RANK": "0"}, False),
     ({"LOCAL_RANK": "1", "SLURM_PROCID": "0"}, False), ({"SLURM_PROCID": "3"}, False)],
)  # fmt: skip
def test_the_first_process_is_known_before_processes_are_connected(monkeypatch, variables, first):
    for name in processes.RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert processes.is_first_process() == first
