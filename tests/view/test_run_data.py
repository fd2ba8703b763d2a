"""Reading of run folders in every state."""

import csv
import math
import os
import shutil
import time

import numpy as np
import pytest
import torch

from pointgrad.train import Hook, Interrupted, evaluation
from pointgrad.train.run_folder import ENDED, RunFolder
from tests.support.runs import trainer

pytest.importorskip("lightning_fabric")
pytest.importorskip("yaml")
pytest.importorskip("viser")

from pointgrad.view.run_data import Follower, is_run, read_metrics

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_is_run(run, tmp_path):
    assert is_run(run)
    assert not is_run(run / "metrics.csv")
    assert not is_run(tmp_path / "nowhere")
    (tmp_path / "begun").mkdir()
    assert not is_run(tmp_path / "begun")
    RunFolder(tmp_path / "begun").start({"epochs": 3}, 0, torch.device("cpu"))
    assert is_run(tmp_path / "begun")


def test_states_from_empty_to_finished(tmp_path, finished):
    path, done = tmp_path / "run", finished / "classification"
    follower = Follower(path)
    assert "folder not found" in follower.read().problems[0]
    path.mkdir()
    assert "contains no run" in follower.read().problems[0]
    shutil.copy(done / "config.yaml", path)
    shutil.copy(done / "environment.txt", path)
    state = follower.read()
    assert (state.status, state.total, state.history, state.problems) == ("running", 2, [], ())
    assert state.best is state.evaluation is state.best_epoch is None
    rows = (done / "metrics.csv").read_text().splitlines(keepends=True)
    (path / "metrics.csv").write_text("".join(rows[:2]))
    state = follower.read()
    assert (state.status, [row["epoch"] for row in state.history]) == ("running", [1.0])
    assert state.best_epoch is None
    for name in ("metrics.csv", "log.txt", "evaluation.npz", "best.pt"):
        shutil.copy(done / name, path)
    state = follower.read()
    assert (state.status, len(state.history), state.problems) == ("finished", 2, ())
    accuracy = [row["val_accuracy"] for row in state.history]
    assert state.best_epoch == state.evaluation.epoch == accuracy.index(max(accuracy)) + 1
    with open(done / "metrics.csv") as file:
        assert state.history == [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


class StopIn(Hook):
    def __init__(self, epoch):
        self.epoch = epoch

    def after_step(self, trainer, loss):
        if trainer.epoch == self.epoch:
            trainer.stop()


def test_stopped_and_resumed(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        trainer("classification", path, [StopIn(1)], epochs=3).fit()
    follower = Follower(path)
    state = follower.read()
    assert state.status.startswith("stopped in epoch 2, after step 1 of 2, and saved")
    assert len(state.history) == 1
    resumed = trainer("classification", path, epochs=3, resume=True)
    assert follower.read().status == "running"
    assert "continued in epoch 2, after step 1 of 2" in (path / "log.txt").read_text()
    resumed.fit()
    state = follower.read()
    assert (state.status, [row["epoch"] for row in state.history]) == ("finished", [1, 2, 3])
    assert state.best_epoch == resumed.best_epoch


def test_failed_run(run):
    RunFolder(run, resume=True).log(f"{ENDED} the loss is not finite in epoch 3")
    assert Follower(run).read().status == "stopped: the loss is not finite in epoch 3"


def test_killed_run(run):
    """A killed run leaves no message; its files are just no longer updated."""
    (run / "config.yaml").write_text("epochs: 9\ncheckpoint_minutes: 1\n")
    follower = Follower(run)
    assert follower.read().status == "running"
    for file in run.iterdir():
        os.utime(file, (time.time() - 7200,) * 2)
    assert "(2 h 0 min)" in follower.read().status
    assert follower.read().status.startswith("no update since ")
    (run / "last.pt").touch()  # a checkpoint within an epoch is an update
    assert follower.read().status == "running"


def test_early_stopping(run):
    best = Follower(run).read().best_epoch
    rows = [{"epoch": number, "lr": 1.0} for number in range(1, best + 3)]
    RunFolder(run, resume=True).write_metrics(rows)
    (run / "config.yaml").write_text("epochs: 50\npatience: 2\n")
    assert Follower(run).read().status == "finished: no improvement in the last 2 epochs"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got no column named epoch"),
        (b"step,loss\n1,2\n", "got no column named epoch"),
        (b"epoch,loss\n1,2\n2\n", "line 3 must have 2 values, got 1"),
        (b"epoch,loss\n1,fast\n", "line 2 must contain numbers, got 1,fast"),
        (b"epoch,loss\nnan,1\n", "must have an epoch of at least 1"),
        (b"epoch,loss\ninf,1\n", "must have an epoch of at least 1"),
        (b"\xff\xfe\x00epoch", "not text"),
    ],
)
def test_corrupt_metrics(run, content, message):
    follower, path = Follower(run), run / "metrics.csv"
    before, good = follower.read().history, path.read_bytes()
    path.write_bytes(content)
    state = follower.read()
    assert message in state.problems[0]
    assert state.problems[0].startswith(str(path))
    assert state.history == before  # the last known history stays
    assert follower.read().problems == state.problems
    path.write_bytes(good)
    assert follower.read().problems == ()


def test_missing_and_non_finite_metrics(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,train_loss,val_loss\n1,inf,\n2,nan,0.5\n")
    first, second = read_metrics(tmp_path / "metrics.csv")
    assert (first["train_loss"], second["val_loss"]) == (math.inf, 0.5)
    assert math.isnan(first["val_loss"])
    assert math.isnan(second["train_loss"])


def test_unreadable_config_and_log(run):
    (run / "config.yaml").write_text("- a\n- b\n")
    (run / "log.txt").write_bytes(b"\xff\xfe half a line")
    state = Follower(run).read()
    assert state.problems == (f"{run / 'config.yaml'}: expected keys and values, got list",)
    assert state.total is None
    assert state.log == []  # its only line is incomplete


@pytest.mark.parametrize("damage", ["empty", "text", "half", "other"])
def test_damaged_evaluation(run, damage):
    path = run / "evaluation.npz"
    content = path.read_bytes()
    if damage == "other":
        np.savez(path, points=np.zeros(3))
    else:
        path.write_bytes({"empty": b"", "text": b"no archive", "half": content[: len(content) // 2]}[damage])
    with pytest.raises(ValueError, match="is not an evaluation of format 1, or is damaged"):
        evaluation.read(path)
    state = Follower(run).read()
    assert state.evaluation is None
    assert state.problems == (f"{path}: is not an evaluation of format 1, or is damaged",)
