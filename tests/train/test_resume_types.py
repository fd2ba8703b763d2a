"""Checkpoints to resume from whose entries have wrong types: one clear line, whatever the value."""

import functools
import gc
import math
import os

import pytest
import torch

from pointgrad.data import Arrays, Loader
from pointgrad.train import CheckpointError, Hook, TrainConfig, Trainer, checkpoint
from pointgrad.train.run_folder import RunFolder
from tests.support.tiny import PROCESSES, Tiny, arrays

pytest.importorskip("lightning_fabric")
WRONG = [
    None, True, -1, 10**400, 0.5, math.inf, "text", [], [1, 2], ["a"], (1,), {}, {"a": 1}, {1: []}, [[{}]],
    torch.zeros(2), torch.zeros((), dtype=torch.bool), torch.full((), -1.0), torch.zeros(8, 3), {"a": torch.zeros(3)},
]  # fmt: skip
TOP = ("format", "model", "state", "task", "classes", "prepare", "training")
RUN = ("epoch", "step", "history", "best", "since_best", "batches", "metrics", "weights", "optimizer", "scaler")
INSIDE = (
    ("model", "width"), ("model", "name"), ("state", "first.0.weight"), ("classes", 0),
    ("training", "history", 0), ("training", "history", 0, "epoch"), ("training", "history", 0, "seconds"),
    ("training", "history", 0, "val_accuracy"), ("training", "batches", 0), ("training", "weights", "first.0.weight"),
    ("training", "metrics", "confusion"), ("training", "metrics", "loss"),
    ("training", "optimizer", "state"), ("training", "optimizer", "param_groups"),
    ("training", "optimizer", "state", 0), ("training", "optimizer", "state", 0, "step"),
    ("training", "optimizer", "state", 0, "exp_avg"), ("training", "optimizer", "state", 3, "exp_avg_sq"),
    ("training", "optimizer", "param_groups", 0), ("training", "optimizer", "param_groups", 0, "params"),
    ("training", "optimizer", "param_groups", 0, "params", 0), ("training", "optimizer", "param_groups", 1, "lr"),
    ("training", "optimizer", "param_groups", 0, "betas"), ("training", "optimizer", "param_groups", 1, "weight_decay"),
    ("training", "optimizer", "param_groups", 0, "eps"), ("training", "optimizer", "param_groups", 0, "capturable"),
    ("training", "optimizer", "param_groups", 0, "foreach"), ("training", "optimizer", "param_groups", 0, "fused"),
    ("training", "optimizer", "param_groups", 0, "differentiable"),
)  # fmt: skip
PLACES = [*((name,) for name in TOP), *(("training", name) for name in RUN), *INSIDE]


def trainer(folder, **changes):
    settings = {"epochs": 2, "ema": 0.9, "accelerator": "cpu", "tensorboard": False, "lr": 0.01}
    training, validation = (Loader(Arrays(arrays(12, 6), split), batch_size=4) for split in ("train", "val"))
    return Trainer(Tiny(), training, validation, TrainConfig(**{**settings, **changes}), out=folder, resume=True)


class StopInSecondEpoch(Hook):
    def after_step(self, trainer, loss):
        if trainer.epoch == 1:
            trainer.stop()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Content of a checkpoint from the middle of the second epoch."""
    folder = tmp_path_factory.mktemp("run")
    run = trainer(folder)
    run.hooks.append(StopInSecondEpoch())
    with pytest.raises(RuntimeError, match="stopped in epoch 2"):
        run.fit()
    content = checkpoint.read(folder / "last.pt")
    assert (content["training"]["epoch"], content["training"]["step"]) == (1, 1)
    return content


def changed(content, place, value):
    """Return a copy of nested lists and dictionaries with another value at a place; missing keys are added."""
    if not place:
        return value
    first, *rest = place
    copy = list(content) if isinstance(content, list) else dict(content)
    inner = copy[first] if isinstance(copy, list) or first in copy else None
    copy[first] = changed(inner, rest, value)
    return copy


def lines(folder, content, **changes):
    """Resume from a checkpoint and train to the end; return the message of the error, or None."""
    for path in folder.glob("*"):
        if path.is_file() and path.name != ".lock":
            path.unlink()
    checkpoint.save(folder / "last.pt", content)
    try:
        trainer(folder, **changes).fit()
    except CheckpointError as error:
        return str(error)
    return None


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_wrong_types(saved, tmp_path, place, monkeypatch, capsys):
    from pointgrad.train import report

    monkeypatch.setattr(report.Report, "curves", lambda self, **_: None)
    monkeypatch.setattr(report.Report, "results", lambda self, **_: None)
    functools.reduce(lambda inner, key: inner[key], place[:-1], saved)  # the place exists
    refused = 0
    harmless = place[-1] in ("capturable", "foreach", "fused", "differentiable", "task")  # taken from the new run
    for value in WRONG[PLACES.index(place) % 4 :: 4]:  # all of them take a minute
        message = lines(tmp_path, changed(saved, place, value))
        if message is not None:
            refused += 1
            assert message.startswith(f"{tmp_path / 'last.pt'}: "), value
            assert "\n" not in message
            assert len(message) < 400 + len(str(tmp_path))
    assert refused >= (0 if harmless else 2)


def test_another_optimizer(saved, tmp_path):
    message = lines(tmp_path, saved, optimizer="sgd")
    assert "last.pt: optimizer state 0 must be momentum_buffer of sgd, got a dict of 3" in message


def test_settings_of_the_device_are_not_resumed(saved, tmp_path):
    """A checkpoint of a fused optimizer, as a GPU has, continues on a CPU."""
    place = ("training", "optimizer", "param_groups", 0)
    assert lines(tmp_path, changed(changed(saved, (*place, "fused"), True), (*place, "capturable"), True)) is None


def test_previous_checkpoint_is_used(saved, tmp_path):
    checkpoint.save(tmp_path / "last.pt", changed(saved, ("training", "epoch"), "many"))
    checkpoint.save(tmp_path / "previous.pt", saved)
    run = trainer(tmp_path)
    assert (run.epoch, run.step) == (1, 1)
    run.folder.release()
    log = (tmp_path / "log.txt").read_text()
    assert "last.pt: epoch must be a number of at least 0, got 'many'; continuing from previous.pt" in log


def test_two_trainers_in_one_process(tmp_path):
    """The lock of a process does not exclude its own trainers, and closing the file again would release it."""
    first = trainer(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for name in ("run", "link", "run"):
        with pytest.raises(ValueError, match=r": is being trained by another trainer of this process"):
            trainer(tmp_path / name)
    other = trainer(tmp_path / "other")
    with PROCESSES.Pool(1) as pool:
        message = pool.apply(hold, (tmp_path / "run",))
        assert message == f"{tmp_path / 'run'}: is being trained by process {os.getpid()}"
        first.folder.release()
        assert pool.apply(hold, (tmp_path / "run",)) is None
    unused = trainer(tmp_path / "run")
    del unused
    gc.collect()
    trainer(tmp_path / "run").folder.release()
    other.folder.release()


def hold(path):
    try:
        folder = RunFolder(path, resume=True)
        folder.hold()
        folder.release()
    except ValueError as error:
        return str(error)
    return None
