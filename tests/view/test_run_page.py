"""The page of a training: every stage of a run folder, the worst examples, and following it."""

import csv
import math
import os
import shutil
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from pointgrad.cli import main
from pointgrad.render import Scale, colors
from pointgrad.train import Hook, Interrupted, evaluation
from pointgrad.train.evaluation import Evaluation
from pointgrad.train.report import Report
from pointgrad.train.run_folder import RunFolder
from tests.support.browser import Page, chromium
from tests.support.runs import TASKS, finished_runs, trainer
from tests.support.tiny import arrays

pytest.importorskip("lightning_fabric")
pytest.importorskip("yaml")
pytest.importorskip("viser")

from pointgrad.cli.evaluate_run import evaluate_run
from pointgrad.view import RunViewer, run_words, server
from pointgrad.view.run_data import Follower, is_run, read_metrics


@pytest.fixture(scope="module", autouse=True)
def _no_pictures():
    """They take longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("curves", "results"):
            patch.setattr(Report, name, lambda self, **_: None)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return finished_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(finished, tmp_path):
    """A copy to play with."""
    return shutil.copytree(finished / "classification", tmp_path / "run")


@pytest.fixture
def web():
    started = server.start("127.0.0.1", None, "test")
    yield started
    server.stop(started)


@pytest.fixture
def open_run(web, monkeypatch):
    """A viewer that looks only when told to."""
    monkeypatch.setattr("pointgrad.view.run.SECONDS", 1e6)
    opened = []

    def start(path, **options):
        viewer = RunViewer(web, path, **options)
        opened.append(viewer)
        viewer.wait()
        return viewer

    yield start
    for viewer in opened:
        viewer.close()


# -- every stage of a run folder ----------------------------------------------------------------------------------


def test_what_a_run_folder_is(run, tmp_path):
    assert is_run(run)
    assert not is_run(run / "metrics.csv")
    assert not is_run(tmp_path / "nowhere")
    (tmp_path / "begun").mkdir()
    assert not is_run(tmp_path / "begun")
    RunFolder(tmp_path / "begun").start({"epochs": 3}, 0, torch.device("cpu"))
    assert is_run(tmp_path / "begun")


def test_from_nothing_to_the_end(tmp_path, finished):
    path, done = tmp_path / "run", finished / "classification"
    follower = Follower(path)
    assert "the folder is gone" in follower.look().problems[0]
    path.mkdir()
    assert "holds no run" in follower.look().problems[0]
    shutil.copy(done / "config.yaml", path)
    shutil.copy(done / "environment.txt", path)
    moment = follower.look()
    assert (moment.state, moment.total, moment.history, moment.problems) == ("running", 2, [], ())
    assert moment.best is moment.evaluation is moment.best_epoch is None
    rows = (done / "metrics.csv").read_text().splitlines(keepends=True)
    (path / "metrics.csv").write_text("".join(rows[:2]))
    moment = follower.look()
    assert (moment.state, [row["epoch"] for row in moment.history]) == ("running", [1.0])
    assert moment.best_epoch is None
    for name in ("metrics.csv", "log.txt", "evaluation.npz", "best.pt"):
        shutil.copy(done / name, path)
    moment = follower.look()
    assert (moment.state, len(moment.history), moment.problems) == ("finished", 2, ())
    figures = [row["val_accuracy"] for row in moment.history]
    assert moment.best_epoch == moment.evaluation.epoch == figures.index(max(figures)) + 1
    with open(done / "metrics.csv") as file:
        assert moment.history == [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


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
    moment = follower.look()
    assert moment.state.startswith("stopped in epoch 2, after step 1 of 2, and saved")
    assert len(moment.history) == 1
    resumed = trainer("classification", path, epochs=3, resume=True)
    assert follower.look().state == "running"
    assert "continued in epoch 2, after step 1 of 2" in (path / "log.txt").read_text()
    resumed.fit()
    moment = follower.look()
    assert (moment.state, [row["epoch"] for row in moment.history]) == ("finished", [1, 2, 3])
    assert moment.best_epoch == resumed.best_epoch


def test_failed(run):
    RunFolder(run, resume=True).log("ended early: the loss is not finite in epoch 3")
    assert Follower(run).look().state == "stopped: the loss is not finite in epoch 3"


def test_killed(run):
    """Nothing says so; it is only silent."""
    (run / "config.yaml").write_text("epochs: 9\ncheckpoint_minutes: 1\n")
    follower = Follower(run)
    assert follower.look().state == "running"
    for file in run.iterdir():
        os.utime(file, (time.time() - 7200,) * 2)
    assert "for 2 h 0 min" in follower.look().state
    assert follower.look().state.startswith("no news since ")
    (run / "last.pt").touch()  # a checkpoint in the middle of an epoch is news
    assert follower.look().state == "running"


def test_out_of_patience(run):
    best = Follower(run).look().best_epoch
    rows = [{"epoch": number, "lr": 1.0} for number in range(1, best + 3)]
    RunFolder(run, resume=True).write_metrics(rows)
    (run / "config.yaml").write_text("epochs: 50\npatience: 2\n")
    assert Follower(run).look().state == "finished: no better epoch in the last 2"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no column epoch"),
        (b"step,loss\n1,2\n", "has no column epoch"),
        (b"epoch,loss\n1,2\n2\n", "line 3 must have 2 values, got 1"),
        (b"epoch,loss\n1,fast\n", "line 2 must be numbers, got 1,fast"),
        (b"epoch,loss\nnan,1\n", "must have an epoch from 1 on"),
        (b"epoch,loss\ninf,1\n", "must have an epoch from 1 on"),
        (b"\xff\xfe\x00epoch", "no text"),
    ],
)
def test_corrupt_metrics(run, content, message):
    follower, path = Follower(run), run / "metrics.csv"
    before, good = follower.look().history, path.read_bytes()
    path.write_bytes(content)
    moment = follower.look()
    assert message in moment.problems[0]
    assert moment.problems[0].startswith(str(path))
    assert moment.history == before  # what was known stays
    assert follower.look().problems == moment.problems
    path.write_bytes(good)
    assert follower.look().problems == ()


def test_rows_of_different_columns_and_numbers_that_are_not_finite(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,train_loss,val_loss\n1,inf,\n2,nan,0.5\n")
    first, second = read_metrics(tmp_path / "metrics.csv")
    assert (first["train_loss"], second["val_loss"]) == (math.inf, 0.5)
    assert math.isnan(first["val_loss"])
    assert math.isnan(second["train_loss"])


def test_other_files_that_cannot_be_read(run):
    (run / "config.yaml").write_text("- a\n- b\n")
    (run / "log.txt").write_bytes(b"\xff\xfe half a line")
    moment = Follower(run).look()
    assert moment.problems == (f"{run / 'config.yaml'}: expected keys and values, got list",)
    assert moment.total is None
    assert moment.log == []  # its only line has no end yet


@pytest.mark.parametrize("damage", ["empty", "text", "half", "other"])
def test_a_damaged_evaluation_is_one_sentence(run, damage):
    path = run / "evaluation.npz"
    content = path.read_bytes()
    if damage == "other":
        np.savez(path, points=np.zeros(3))
    else:
        path.write_bytes({"empty": b"", "text": b"no archive", "half": content[: len(content) // 2]}[damage])
    with pytest.raises(ValueError, match="is not an evaluation of format 1, or is damaged"):
        evaluation.read(path)
    moment = Follower(run).look()
    assert moment.evaluation is None
    assert moment.problems == (f"{path}: is not an evaluation of format 1, or is damaged",)


# -- the page -----------------------------------------------------------------------------------------------------


def test_following(run, open_run):
    viewer = open_run(run)
    assert "finished" in viewer._head.content
    rows = read_metrics(run / "metrics.csv")
    RunFolder(run, resume=True).write_metrics([*rows, {**rows[-1], "epoch": 3, "val_loss": 0.125}])
    viewer.look()
    epochs, *losses = viewer.curves.plots["loss"].data
    assert epochs.tolist() == [1, 2, 3]
    assert losses[1][-1] == 0.125
    assert len(viewer.curves.plots["accuracy and mIoU"].data) == 5
    RunFolder(run, resume=True).log("epoch 3/3  said now")
    viewer.look()
    assert "said now" in viewer._log.content


def test_following_by_itself(run, web, monkeypatch):
    monkeypatch.setattr("pointgrad.view.run.SECONDS", 0.01)
    viewer = RunViewer(web, run)
    try:
        rows = read_metrics(run / "metrics.csv")
        RunFolder(run, resume=True).write_metrics([*rows, {**rows[-1], "epoch": 3}])
        for _ in range(500):
            if viewer.moment is not None and len(viewer.moment.history) == 3:
                break
            time.sleep(0.01)
        viewer.wait()
        assert len(viewer.curves.plots["loss"].data[0]) == 3
    finally:
        viewer.close()


def test_a_new_best_is_shown_and_the_chosen_cloud_stays(run, open_run):
    viewer = open_run(run)
    viewer._example.value = list(viewer._titles)[2]
    viewer._choose(viewer._titles[viewer._example.value])
    chosen = viewer.chosen.source
    old = viewer.evaluation
    better = replace(old, epoch=7, examples=old.examples[1:], confusion=old.confusion + 1)
    (run / "evaluation.npz").write_bytes(better.to_bytes())
    viewer.look()
    assert viewer.evaluation.epoch == 7
    assert "Epoch 7" in viewer._confused.content
    assert viewer.chosen.source == chosen
    assert viewer.chosen is not old.examples[2]


def test_a_folder_that_vanishes_and_comes_back(run, open_run, capsys):
    viewer = open_run(run)
    moved = run.rename(run.with_name("moved"))
    viewer.look()
    viewer.look()
    assert "the folder is gone" in viewer._head.content
    assert len(viewer.curves.plots["loss"].data[0]) == 2
    assert viewer.chosen is not None
    run.mkdir()
    viewer.look()
    assert "holds no run" in viewer._head.content
    run.rmdir()
    moved.rename(run)
    viewer.look()
    assert "finished" in viewer._head.content
    out, error = capsys.readouterr()
    assert error.count("the folder is gone") == 1
    assert error.count("holds no run") == 1
    assert out.count("can be read again") == 1


def test_another_run_in_the_same_folder(run, open_run):
    """Nothing of the one before is left once it has begun."""
    viewer = open_run(run)
    for file in run.iterdir():
        file.unlink()
    viewer.look()
    assert viewer.evaluation is not None
    RunFolder(run).start({"epochs": 5}, 0, torch.device("cpu"))
    viewer.look()
    assert (viewer.moment.state, viewer.moment.total, viewer.moment.history) == ("running", 5, [])
    assert viewer.curves.plots == {}
    assert viewer.evaluation is viewer.chosen is viewer.stage is None
    assert viewer._table.content == viewer._confused.content == ""
    assert viewer._waiting.visible


def test_curves_with_gaps_and_infinities(open_run, run):
    """The range is that of the rest; none of it is sent as a range."""
    rows = [{"epoch": 1, "lr": 0, "val_loss": math.nan}, {"epoch": 2, "lr": 0, "val_loss": 3.0, "train_loss": math.inf}]
    RunFolder(run, resume=True).write_metrics(rows)
    viewer = open_run(run)
    low, high = viewer.curves.plots["loss"].scales["y"]["range"]
    assert low < 3.0 < high
    assert viewer.curves.plots["learning rate"].title == "learning rate in 1e0"
    RunFolder(run, resume=True).write_metrics([{"epoch": 1, "lr": 3e-4, "val_loss": math.nan}])
    viewer.look()
    assert viewer.curves.plots["loss"].scales["y"]["range"] == (0.0, 1.0)
    assert viewer.curves.plots["learning rate"].title == "learning rate in 1e-4"
    assert viewer.curves.plots["learning rate"].data[1] == pytest.approx([3.0])


def test_before_the_first_epoch(tmp_path, finished, open_run):
    path = tmp_path / "run"
    path.mkdir()
    for name in ("config.yaml", "environment.txt"):
        shutil.copy(finished / "segmentation" / name, path)
    viewer = open_run(path)
    assert "no best.pt yet" in viewer._missing.content
    assert viewer._waiting.visible
    assert viewer.stage is None
    for file in (finished / "segmentation").iterdir():
        shutil.copy(file, path)
    viewer.look()
    assert viewer._missing.content == ""
    assert not viewer._waiting.visible
    assert viewer.stage is not None


@pytest.mark.parametrize("task", TASKS)
def test_filters_and_steps(finished, open_run, task):
    viewer = open_run(finished / task)
    examples, classes = viewer.evaluation.examples, viewer.evaluation.classes
    assert list(viewer._titles.values()) == examples
    assert viewer.chosen is examples[0]
    for _ in range(5):
        viewer._go("Next")
    viewer.wait()
    assert viewer.chosen is examples[5]
    for _ in range(6):
        viewer._go("Previous")
    viewer.wait()
    assert viewer.chosen is examples[-1]
    viewer._wrong.value = True
    viewer._list()
    wrong = [one for one in examples if not torch.equal(one.predicted[one.target >= 0], one.target[one.target >= 0])]
    assert list(viewer._titles.values()) == wrong
    viewer._wrong.value = False
    for number in (0, len(classes) - 1):
        viewer._class.value = classes[number]
        viewer._list()
        assert list(viewer._titles.values()) == [one for one in examples if number in np.atleast_1d(one.target)]
        for title in viewer._titles:
            assert task == "segmentation" or classes[number] in title
    viewer._class.value, viewer._wrong.value = classes[0], True
    viewer.evaluation = replace(viewer.evaluation, examples=[])
    viewer._list()
    assert viewer.chosen is viewer.stage is None
    assert "None of the kept clouds" in viewer._details.content


def test_prediction_and_truth_are_drawn_side_by_side(finished, open_run):
    viewer = open_run(finished / "segmentation")
    example = viewer.chosen
    nodes = viewer.stage._nodes
    assert len(nodes) == 2
    colors = {name.split("/")[1]: node.colors for name, node in nodes.items()}
    same = (colors["cloud"] == colors["beside"]).all(1)
    labelled = example.target >= 0
    agree = (example.predicted == example.target)[labelled]
    assert same.sum() == int(agree.sum())  # Shapes has fewer parts of a kind than there are colours
    viewer._by.value = "error"
    viewer._draw()
    colors = next(node.colors for name, node in nodes.items() if "cloud" in name)
    wrong = (np.asarray(colors) == (210, 40, 40)).all(1)
    assert wrong.sum() == int((~agree).sum())
    names = viewer._legend.content
    for number in example.target.unique().tolist():
        assert (viewer.evaluation.classes[number] if number >= 0 else "no label") in names


def test_the_scene_says_what_was_predicted(finished, open_run):
    viewer = open_run(finished / "classification")
    one, classes = viewer.chosen, viewer.evaluation.classes
    text = viewer.overlay._nodes["prediction"].text
    assert classes[int(one.predicted)] in text
    assert f"true: {classes[int(one.target)]}" in text
    assert len(viewer.stage._nodes) == 1


@pytest.mark.parametrize("classes", [2, 14, 15, 40, 41, 200])
def test_confusion_matrices_of_any_size(classes):
    generator = torch.Generator().manual_seed(classes)
    counts = torch.randint(0, 3, (classes, classes), generator=generator) ** 5
    names = tuple(f"<kind {number}>" for number in range(classes))
    found = Evaluation(1, "segmentation", names, counts, 9, [])
    page = run_words.confusion(found)
    assert "<kind" not in page
    assert len(page) < 500_000
    if classes <= 40:
        assert page.count("<td") == classes**2
    pairs = run_words.most_confused(counts)
    wrong = sorted((int(counts[i, j]) for i in range(classes) for j in range(classes) if i != j), reverse=True)
    assert [count for _, _, count in pairs] == [count for count in wrong[:6] if count]
    assert all(counts[true, said] == count for true, said, count in pairs)
    assert "is called" in run_words.confused(found) or not pairs


def test_in_a_browser(finished, web, tmp_path):
    """Two pages follow a run; one of them is closed."""
    run = shutil.copytree(finished / "segmentation", tmp_path / "run")
    viewer = RunViewer(web, run)
    try:
        with chromium() as browser:
            page, other = (Page(browser, server.address(web), width=1280) for _ in range(2))
            assert page.until(lambda: "Epoch 2 of 2" in page.text())
            predicted = int(viewer.chosen.predicted.mode().values)
            color = Scale("label", "class").color(predicted)
            assert page.until(lambda: page.count(color) > 100)
            page.page.get_by_role("tab", name="Confusion").click()
            assert page.until(lambda: "Most often confused" in page.text())
            page.page.get_by_role("tab", name="Examples").click()
            page.choose("Colour by", "error")
            assert page.until(lambda: page.count(colors.WRONG) > 100)
            page.page.get_by_role("button", name="Next", exact=True).click()
            second = viewer.evaluation.examples[1].source
            assert page.until(lambda: second in page.text())
            page.choose("True class", viewer.evaluation.classes[-1])
            assert page.until(lambda: viewer.evaluation.classes[-1] in viewer._legend.content)
            other.close()
            rows = read_metrics(run / "metrics.csv")
            RunFolder(run, resume=True).write_metrics([*rows, {**rows[-1], "epoch": 3}])
            assert page.until(lambda: "Epoch 3 of 2" in page.text())
            assert page.complaints == other.complaints == []
    finally:
        viewer.close()


# -- runs that have kept nothing ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def commanded(tmp_path_factory):
    """A run of the command, which knows its data."""
    path = tmp_path_factory.mktemp("command")
    np.savez(path / "data.npz", **arrays(16, 16), val=np.arange(16) >= 10)
    status = main([
        "train", "--data", str(path / "data.npz"), "--epochs", "1", "--batch-size", "5", "--options", "width=0.125",
        "--accelerator", "cpu", "--no-tensorboard", "--prepare.points", "8", "--out", str(path / "run"),
    ])  # fmt: skip
    assert status == 0
    return path / "run"


def test_evaluate_now_is_what_the_run_would_have_kept(commanded, tmp_path, open_run):
    run = shutil.copytree(commanded, tmp_path / "run")
    kept = evaluation.read(run / "evaluation.npz")
    (run / "evaluation.npz").unlink()
    steps = []

    def evaluate(path, progress):
        return evaluate_run(
            path, lambda done, total: (steps.append((done, total)), progress(done, total)), device="cpu"
        )

    viewer = open_run(run, evaluate=evaluate)
    assert viewer.evaluation is None
    assert viewer._now.visible
    assert "has kept no evaluation" in viewer._missing.content
    viewer._evaluator.ask("evaluate", viewer._evaluate_now)
    viewer.wait()
    assert steps == [(0, 2), (1, 2)]
    made = viewer.evaluation
    assert torch.equal(made.confusion, kept.confusion)
    assert (made.epoch, made.clouds, made.classes) == (kept.epoch, kept.clouds, kept.classes)
    assert [one.source for one in made.examples] == [one.source for one in kept.examples]
    assert all(torch.equal(a.points, b.points) for a, b in zip(made.examples, kept.examples, strict=True))
    assert not viewer._now.visible
    assert not (run / "evaluation.npz").exists()  # looking at a run changes nothing in it
    (run / "best.pt").touch()
    viewer.look()
    assert viewer._now.visible
    assert "newer than this evaluation" in viewer._missing.content
    moved = run.rename(run.with_name("moved"))
    viewer.look()
    assert viewer.evaluation is made  # gone for a moment
    moved.rename(run)
    (run / "best.pt").unlink()
    viewer.look()
    assert viewer.evaluation is None  # another run


def test_evaluate_now_where_it_cannot(run, tmp_path, open_run, capsys):
    (run / "evaluation.npz").unlink()
    viewer = open_run(run, evaluate=partial(evaluate_run, device="cpu"))
    viewer._evaluator.ask("evaluate", viewer._evaluate_now)
    viewer.wait()
    assert "names no data to evaluate on" in capsys.readouterr().err  # trained from Python
    assert not viewer._progress.visible
    assert not viewer._now.disabled
    (run / "best.pt").unlink()
    viewer.look()
    assert not viewer._now.visible


@pytest.mark.parametrize("more", ["another", "checkpoint"])
def test_a_run_folder_is_shown_alone(run, tmp_path, capsys, more):
    rest = [str(tmp_path)] if more == "another" else ["--checkpoint", str(run)]
    capsys.readouterr()
    assert main(["view", str(run), *rest]) == 2
    out, error = capsys.readouterr()
    assert not out
    assert error == f"pointgrad view: {run}: a run folder must be the only input, without --checkpoint\n"
