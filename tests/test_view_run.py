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
from browser import Page, chromium
from tiny import arrays

from pointgrad import data, models, train
from pointgrad.cli import main
from pointgrad.render import Scale, colors
from pointgrad.train import Hook, Interrupted, TrainConfig, Trainer, evaluation
from pointgrad.train.evaluation import Evaluation, Example, Examples, choose
from pointgrad.train.report import Report
from pointgrad.train.run_folder import RunFolder

pytest.importorskip("lightning_fabric")
pytest.importorskip("yaml")
pytest.importorskip("viser")

from pointgrad.cli.evaluate_run import evaluate_run
from pointgrad.view import RunViewer, run_words, server
from pointgrad.view.run_data import Follower, is_run, read_metrics

TASKS = ("classification", "segmentation")
CPU = torch.device("cpu")


def loaders(task):
    made = {split: data.Shapes(split, task, size=size, points=64) for split, size in (("train", 16), ("val", 24))}
    return [
        data.Loader(dataset, batch_size=8, transform=data.Prepare(), shuffle=split == "train")
        for split, dataset in made.items()
    ]


def trainer(task, out, hooks=(), epochs=2, **options):
    training, validation = loaders(task)
    torch.manual_seed(1)
    categories = {"categories": 12} if task == "segmentation" else {}
    network = models.build("pointnet2", task=task, classes=len(training.dataset.classes), width=0.125, **categories)
    config = TrainConfig(epochs=epochs, accelerator="cpu", tensorboard=False)
    return Trainer(network, training, validation, config, out=out, hooks=hooks, **options)


@pytest.fixture(scope="module", autouse=True)
def _no_pictures():
    """They take longer than all the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "curves", lambda self, **_: None)
        patch.setattr(Report, "results", lambda self: None)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of each task."""
    path = tmp_path_factory.mktemp("runs")
    for task in TASKS:
        trainer(task, path / task).fit()
    return path


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


# -- what a run keeps ---------------------------------------------------------------------------------------------


def brute_force(run, task):
    """(source, kind, right, truth, confidence) of each validation cloud, one after another, and the confusion."""
    trained, (_, validation) = train.load(run), loaders(task)
    dataset = validation.dataset
    confusion = np.zeros((len(dataset.classes),) * 2, int)
    rows = []
    for index in range(len(dataset)):
        cloud = data.Prepare()(dataset[index], torch.Generator())
        inputs = {} if cloud.category is None else {"category": torch.tensor([cloud.category])}
        with torch.no_grad():
            logits = (
                trained.model(cloud.points[None].float(), None, **inputs).reshape(-1, len(dataset.classes)).double()
            )
        if cloud.category is not None:
            others = [number for number in range(len(dataset.classes)) if number not in dataset.parts[cloud.category]]
            logits[:, others] = -math.inf
        probability = logits.exp() / logits.exp().sum(1, keepdim=True)
        labels = [cloud.label] if cloud.labels is None else cloud.labels.tolist()
        shares = []
        for row, label in zip(probability.tolist(), labels, strict=True):
            if label >= 0:
                said = row.index(max(row))
                confusion[label, said] += 1
                shares.append((said == label, row[label], row[said]))
        kind = cloud.label if cloud.labels is None else cloud.category
        rows.append((cloud.source, kind, *np.mean(shares, axis=0).tolist()))
    return sorted(rows, key=lambda row: (round(row[2], 9), row[3])), confusion


@pytest.mark.parametrize("task", TASKS)
def test_a_run_keeps_its_confusion_and_its_worst_clouds(finished, task):
    kept = evaluation.read(finished / task / "evaluation.npz")
    rows, confusion = brute_force(finished / task, task)
    assert kept.confusion.tolist() == confusion.tolist()
    assert kept.clouds == 24
    assert kept.task == task
    metrics = train.evaluate(
        train.load(finished / task).model,
        loaders(task)[1],
        classes=len(kept.classes),
        parts=getattr(loaders(task)[1].dataset, "parts", ()),
    )
    assert torch.equal(metrics.confusion, kept.confusion)
    assert [one.source for one in kept.examples] == [row[0] for row in rows]  # 24 are less than what is kept
    for one, (_, kind, *shares) in zip(kept.examples, rows, strict=True):
        assert one.kind == kind
        assert (one.right, one.truth, one.confidence) == pytest.approx(shares, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_the_clouds_are_those_of_the_data(finished, task):
    validation = loaders(task)[1].dataset
    kept = evaluation.read(finished / task / "evaluation.npz")
    for one in kept.examples[:5]:
        cloud = data.Prepare()(validation[int(one.source.split()[-1])], torch.Generator())
        assert torch.equal(one.points, cloud.points.float())
        assert one.target.tolist() == (cloud.label if task == "classification" else cloud.labels.tolist())
        assert one.predicted.shape == one.target.shape


def made_up(count, kinds, seed):
    generator = np.random.default_rng(seed)
    none = torch.zeros(0)
    return [
        # Few different shares, so that there are ties.
        Example(none, none, none, f"{number:04}", int(generator.integers(kinds)), *generator.integers(4, size=3) / 4)
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "kinds"), [(0, 3), (3, 3), (60, 3), (300, 12), (300, 40), (300, 100)])
def test_what_is_kept_is_bounded_and_does_not_depend_on_the_order_it_is_seen_in(count, kinds):
    seen = made_up(count, kinds, seed=count + kinds)
    kept = choose(seen, kinds)
    ordered = sorted(seen, key=lambda one: (one.right, one.truth, one.source))
    assert kept[:32] == ordered[:32]
    assert kept[-4:] == ordered[-4:]
    assert len(kept) <= 100
    for kind in range(kinds):
        own = [one for one in ordered if one.kind == kind][: 4 if kinds <= 16 else 64 // kinds]
        assert set(own) <= set(kept)
    several: list[Example] = []
    for first in range(0, count, 7):
        several = choose([*several, *seen[::-1][first : first + 7]], kinds)
    assert several == kept


def test_only_the_clouds_that_are_kept_are_fetched(finished, monkeypatch):
    monkeypatch.setattr(evaluation, "WORST", 3)
    monkeypatch.setattr(evaluation, "OF_EACH", 0)
    monkeypatch.setattr(evaluation, "BEST", 1)
    run = finished / "classification"
    examples = Examples(train.Metrics(12))
    train.evaluate(train.load(run).model, loaders("classification")[1], classes=12, see=examples.see)
    rows, _ = brute_force(run, "classification")
    assert [one.source for one in examples.kept] == [row[0] for row in [*rows[:3], rows[-1]]]
    assert all(one.points.shape == (64, 3) for one in examples.kept)


def test_large_clouds_are_thinned_and_unlabelled_ones_left_out():
    clouds = [
        data.Cloud(torch.rand(9000, 3), labels=torch.randint(2, (9000,)), source="large"),
        data.Cloud(torch.rand(5, 3), labels=torch.full((5,), -1), source="unlabelled"),
        data.Cloud(torch.rand(1, 3), labels=torch.tensor([1]), source="one point"),
    ]
    batch = data.collate(clouds)
    logits = torch.randn(9006, 2)
    logits[7] = math.nan
    examples = Examples(train.Metrics(2))
    examples.see(batch, logits)
    assert examples.clouds == 2
    assert {one.source for one in examples.kept} == {"large", "one point"}
    large = next(one for one in examples.kept if one.source == "large")
    assert len(large.points) == len(large.target) == 3000
    assert torch.equal(large.points, clouds[0].points[::3])
    right = (logits[:9000].argmax(1) == clouds[0].labels).double().mean()
    assert large.right == pytest.approx(float(right))  # of all its points


def test_a_file_holds_what_was_written(tmp_path, finished):
    path = tmp_path / "evaluation.npz"
    kept = evaluation.read(finished / "segmentation" / "evaluation.npz")
    for examples in (kept.examples[:3], []):
        path.write_bytes(replace(kept, examples=examples).to_bytes())
        again = evaluation.read(path)
        assert (again.epoch, again.task, again.classes, again.clouds) == (kept.epoch, kept.task, kept.classes, 24)
        assert [vars(one).keys() for one in again.examples] == [vars(one).keys() for one in examples]
        for one, other in zip(again.examples, examples, strict=True):
            assert torch.equal(one.predicted, other.predicted)
            assert one.rank == other.rank


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
    assert moment.state.startswith("stopped: stopped in epoch 2, after step 1 of 2, and saved")
    assert len(moment.history) == 1
    resumed = trainer("classification", path, epochs=3, resume=True)
    assert follower.look().state == "running"
    assert "continued in epoch 2, after step 1 of 2" in (path / "log.txt").read_text()
    resumed.fit()
    moment = follower.look()
    assert (moment.state, [row["epoch"] for row in moment.history]) == ("finished", [1, 2, 3])
    assert moment.best_epoch == resumed.best_epoch


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
        return evaluate_run(path, lambda done, total: (steps.append((done, total)), progress(done, total)), device=CPU)

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
    viewer = open_run(run, evaluate=partial(evaluate_run, device=CPU))
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
    assert error == f"pointgrad view: {run}: a run folder must be the only thing to show, without --checkpoint\n"
