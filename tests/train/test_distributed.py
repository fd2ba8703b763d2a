"""Several processes: the same losses, weights and metrics as one with the larger batch, and one of them writes."""

import csv
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.train import Hook, Interrupted, TrainConfig, Trainer, evaluation, launch
from pointgrad.train.weights import get_weights
from tests.support.tiny import PROCESSES, Tiny, arrays

pytest.importorskip("lightning_fabric")
pytest.importorskip("yaml")

# FSDP of torch 2.6 fails on a CPU: its streams there have no events.
STRATEGIES = ("ddp", "fsdp") if hasattr(torch.cpu.Stream, "record_event") else ("ddp",)


def made(task, count, seed):
    """Clouds of different sizes; per point, some without a label, so that processes have different numbers of them."""
    content = arrays(count, 12, seed=seed, task=task)
    rng = np.random.default_rng(seed)
    keep = np.arange(12) < rng.integers(3, 12, size=(count, 1))
    label = content["label"]
    if task == "segmentation":
        label = np.where(rng.random(label.shape) < np.linspace(0, 0.9, count)[:, None], -1, label)[keep]
    offsets = np.concatenate([[0], keep.sum(1).cumsum()])
    return data.Arrays({**content, "points": content["points"][keep], "offsets": offsets, "label": label})


class StopAt(Hook):
    """One process alone is asked to stop."""

    def after_step(self, trainer, loss):
        if trainer.fabric.global_rank == trainer.fabric.world_size - 1 and trainer.updates == 11:
            os.kill(os.getpid(), signal.SIGTERM)


def history(task, batch_size, out, hooks=(), resume=False, **options):
    """9 clouds for training and 7 for validation, with batches of 4: the last ones are uneven."""
    torch.manual_seed(0)
    config = TrainConfig(
        epochs=6, accelerator="cpu", lr=0.02, tensorboard=False, ema=0.9, clip=0.5, smoothing=0.1,
        weight_decay=0.01, class_weights="sqrt", monitor="loss", **options,
    )  # fmt: skip
    fabric = launch(config)
    place = {"rank": fabric.global_rank, "world": fabric.world_size}
    loaders = [
        data.Loader(made(task, 9, 0), batch_size=batch_size, transform=data.Prepare(), shuffle=True, **place),
        data.Loader(made(task, 7, 1), batch_size=batch_size, transform=data.Prepare(), **place),
    ]
    trainer = Trainer(Tiny(task=task), *loaders, config, out=out, hooks=hooks, resume=resume, fabric=fabric)
    try:
        trainer.fit()
    except Interrupted as stop:
        return str(stop), trainer.updates
    return trainer.history, get_weights(trainer.module)


def work(rank, port, folder):
    """What torchrun starts."""
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


def assert_same_course(received, expected):
    assert len(received) == len(expected)
    for one, other in zip(received, expected, strict=True):
        for name in one.keys() - {"seconds"}:
            assert one[name] == pytest.approx(other[name], rel=2e-4), name


@pytest.mark.parametrize("case", ["classification", "segmentation", "accumulated"])
def test_two_processes_are_one_with_the_double_batch(results, case):
    task = "segmentation" if case == "accumulated" else case
    expected, weights = history(task, 4, None)
    ranks, _ = results
    for rank in ranks:
        received, state = rank[case]
        assert_same_course(received, expected)
        torch.testing.assert_close(state, weights, rtol=2e-3, atol=2e-4)
    assert ranks[0][case][0][0]["train_accuracy"] == ranks[1][case][0][0]["train_accuracy"]


def test_only_one_writes(results):
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
def test_the_worst_clouds_are_those_of_all_processes(results, tmp_path, monkeypatch, task):
    _, folder = results
    for name in ("curves", "results"):  # they would take longer than the rest
        monkeypatch.setattr(f"pointgrad.train.report.Report.{name}", lambda self, **_: None)
    history(task, 4, tmp_path / "alone")
    alone, together = (evaluation.read(path / "evaluation.npz") for path in (tmp_path / "alone", folder / task))
    assert torch.equal(together.confusion, alone.confusion)
    assert (together.epoch, together.clouds) == (alone.epoch, alone.clouds)
    assert [one.source for one in together.examples] == [one.source for one in alone.examples]
    assert len({one.source for one in together.examples}) == together.clouds > 4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_stop_where_one_is_asked_and_go_on_together(results, strategy):
    """In the middle of an epoch. What they become is what one process becomes that never stopped."""
    ranks, _ = results
    stopped = [rank[f"{strategy} stopped"] for rank in ranks]
    assert all("and saved; continue with" in message for message, _ in stopped)
    assert [updates for _, updates in stopped] == [11, 11]
    expected, weights = history("segmentation", 4, None)
    for rank in ranks:
        assert_same_course(rank[f"{strategy} resumed"][0], expected)
    torch.testing.assert_close(ranks[0][f"{strategy} resumed"][1], weights, rtol=2e-3, atol=2e-4)


def test_fsdp_is_refused_where_torch_cannot(monkeypatch):
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
