"""The page of a training run: curves, examples, evaluation and automatic updates."""

import math
import shutil
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from pointgrad.cli import main
from pointgrad.render import Scale, colors
from pointgrad.train import evaluation
from pointgrad.train.evaluation import Evaluation
from pointgrad.train.run_folder import RunFolder
from tests.support.browser import Page, chromium
from tests.support.runs import TASKS
from tests.support.tiny import arrays

pytest.importorskip("lightning_fabric")
pytest.importorskip("yaml")
pytest.importorskip("viser")

from pointgrad.cli.evaluate_run import evaluate_run
from pointgrad.view import RunViewer, run_text, server
from pointgrad.view.run_data import read_metrics

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def web():
    started = server.start("127.0.0.1", None, "test")
    yield started
    started.stop()


@pytest.fixture
def open_run(web, monkeypatch):
    """Open a run in a viewer that does not refresh by itself."""
    monkeypatch.setattr("pointgrad.view.run.REFRESH_SECONDS", 1e6)
    opened = []

    def start(path, **options):
        viewer = RunViewer(web, path, **options)
        opened.append(viewer)
        viewer.wait()
        return viewer

    yield start
    for viewer in opened:
        viewer.close()


def test_refresh_shows_new_epochs(run, open_run):
    viewer = open_run(run)
    assert "finished" in viewer._header.content
    rows = read_metrics(run / "metrics.csv")
    RunFolder(run, resume=True).write_metrics([*rows, {**rows[-1], "epoch": 3, "val_loss": 0.125}])
    viewer.refresh()
    epochs, *losses = viewer.curves.plots["loss"].data
    assert epochs.tolist() == [1, 2, 3]
    assert losses[1][-1] == 0.125
    assert len(viewer.curves.plots["accuracy and mIoU"].data) == 5
    RunFolder(run, resume=True).log("epoch 3/3  a new line")
    viewer.refresh()
    assert "a new line" in viewer._log.content


def test_curves_have_the_colors_and_the_note_of_the_figure(run, open_run, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    from pointgrad.train import pictures

    viewer = open_run(run)
    assert "only the train loss has smoothed labels (0.2)" in viewer._loss_note.content
    monkeypatch.setattr(pictures, "_png", lambda figure: figure)
    for smoothing in (0.2, 0.0):
        config = {"smoothing": smoothing, "class_weights": "none"}
        losses, metrics, rate = pictures.curves(viewer.state.history, config).axes
        assert ("smoothed labels (0.2)" in " ".join(losses.get_xlabel().split())) == bool(smoothing)
        assert "comparable" not in metrics.get_xlabel() + rate.get_xlabel()
        for axes, title in ((losses, "loss"), (metrics, "accuracy and mIoU"), (rate, "learning rate")):
            shown = {series["label"]: series["stroke"] for series in viewer.curves.plots[title].series[1:]}
            names = {line.get_label().replace("miou", "mIoU"): to_hex(line.get_color()) for line in axes.get_lines()}
            assert shown == names
            assert len(set(names.values())) == len(names)
    figure = pictures.curves(viewer.state.history, {"smoothing": 0.2, "class_weights": "sqrt"})
    losses = figure.axes[0]
    assert " ".join(losses.get_xlabel().split()).endswith("smoothed labels (0.2) and class weights")
    figure.draw_without_rendering()
    box = losses.xaxis.label.get_window_extent()
    assert 0 < box.x0 < box.x1 < figure.axes[1].bbox.x0  # not cut off
    assert box.y0 > 0
    assert all(float(tick).is_integer() for tick in losses.get_xticks())
    only_train = [{"epoch": 1.0, "train_loss": 2.0, "train_accuracy": 0.1, "train_miou": 0.2, "lr": 0.1}]
    losses, metrics, _ = pictures.curves(only_train, {"smoothing": 0.2}).axes
    assert "comparable" not in losses.get_xlabel()
    assert len({line.get_color() for line in metrics.get_lines()}) == 2


def test_automatic_refresh(run, web, monkeypatch):
    monkeypatch.setattr("pointgrad.view.run.REFRESH_SECONDS", 0.01)
    viewer = RunViewer(web, run)
    try:
        rows = read_metrics(run / "metrics.csv")
        RunFolder(run, resume=True).write_metrics([*rows, {**rows[-1], "epoch": 3}])
        for _ in range(500):
            if viewer.state is not None and len(viewer.state.history) == 3:
                break
            time.sleep(0.01)
        viewer.wait()
        assert len(viewer.curves.plots["loss"].data[0]) == 3
    finally:
        viewer.close()


def test_new_evaluation_keeps_the_chosen_example(run, open_run):
    viewer = open_run(run)
    viewer._example.value = list(viewer._titles)[2]
    viewer._choose(viewer._titles[viewer._example.value])
    chosen = viewer.chosen.source
    old = viewer.evaluation
    better = replace(old, epoch=7, examples=old.examples[1:], confusion=old.confusion + 1)
    (run / "evaluation.npz").write_bytes(better.to_bytes())
    viewer.refresh()
    assert viewer.evaluation.epoch == 7
    assert "Epoch 7" in viewer._summary.content
    assert viewer.chosen.source == chosen
    assert viewer.chosen is not old.examples[2]


def test_missing_folder_reappears(run, open_run, capsys):
    viewer = open_run(run)
    moved = run.rename(run.with_name("moved"))
    viewer.refresh()
    viewer.refresh()
    assert "folder not found" in viewer._header.content
    assert len(viewer.curves.plots["loss"].data[0]) == 2
    assert viewer.chosen is not None
    run.mkdir()
    viewer.refresh()
    assert "contains no run" in viewer._header.content
    run.rmdir()
    moved.rename(run)
    viewer.refresh()
    assert "finished" in viewer._header.content
    out, error = capsys.readouterr()
    assert error.count("folder not found") == 1
    assert error.count("contains no run") == 1
    assert out.count("readable again") == 1


def test_new_run_in_the_same_folder(run, open_run):
    """Everything of the previous run disappears when the new run starts."""
    viewer = open_run(run)
    for file in run.iterdir():
        file.unlink()
    viewer.refresh()
    assert viewer.evaluation is not None
    RunFolder(run).start({"epochs": 5}, 0, torch.device("cpu"))
    viewer.refresh()
    assert (viewer.state.status, viewer.state.total, viewer.state.history) == ("running", 5, [])
    assert viewer.curves.plots == {}
    assert viewer.evaluation is viewer.chosen is viewer.stage is None
    assert viewer._table.content == viewer._summary.content == ""
    assert viewer._curves_note.visible


def test_curves_with_gaps_and_infinities(open_run, run):
    """The range of the axis ignores NaN and infinity."""
    rows = [{"epoch": 1, "lr": 0, "val_loss": math.nan}, {"epoch": 2, "lr": 0, "val_loss": 3.0, "train_loss": math.inf}]
    RunFolder(run, resume=True).write_metrics(rows)
    viewer = open_run(run)
    low, high = viewer.curves.plots["loss"].scales["y"]["range"]
    assert low < 3.0 < high
    assert viewer.curves.plots["learning rate"].title == "learning rate in 1e0"
    RunFolder(run, resume=True).write_metrics([{"epoch": 1, "lr": 3e-4, "val_loss": math.nan}])
    viewer.refresh()
    assert viewer.curves.plots["loss"].scales["y"]["range"] == (0.0, 1.0)
    assert viewer.curves.plots["learning rate"].title == "learning rate in 1e-4"
    assert viewer.curves.plots["learning rate"].data[1] == pytest.approx([3.0])


def test_before_the_first_epoch(tmp_path, finished, open_run):
    path = tmp_path / "run"
    path.mkdir()
    for name in ("config.yaml", "environment.txt"):
        shutil.copy(finished / "segmentation" / name, path)
    viewer = open_run(path)
    assert "No best.pt yet" in viewer._evaluation_note.content
    assert viewer._curves_note.visible
    assert viewer.stage is None
    for file in (finished / "segmentation").iterdir():
        shutil.copy(file, path)
    viewer.refresh()
    assert viewer._evaluation_note.content == ""
    assert not viewer._curves_note.visible
    assert viewer.stage is not None


@pytest.mark.parametrize("task", TASKS)
def test_example_filters_and_buttons(finished, open_run, task):
    viewer = open_run(finished / task)
    examples, classes = viewer.evaluation.examples, viewer.evaluation.classes
    assert list(viewer._titles.values()) == examples
    assert viewer.chosen is examples[0]
    for _ in range(5):
        viewer._step_to("Next")
    viewer.wait()
    assert viewer.chosen is examples[5]
    for _ in range(6):
        viewer._step_to("Previous")
    viewer.wait()
    assert viewer.chosen is examples[-1]
    viewer._wrong.value = True
    viewer._filter_examples()
    wrong = [one for one in examples if not torch.equal(one.predicted[one.target >= 0], one.target[one.target >= 0])]
    assert list(viewer._titles.values()) == wrong
    viewer._wrong.value = False
    for number in (0, len(classes) - 1):
        viewer._class.value = classes[number]
        viewer._filter_examples()
        assert list(viewer._titles.values()) == [one for one in examples if number in np.atleast_1d(one.target)]
        for title in viewer._titles:
            assert task == "segmentation" or classes[number] in title
    viewer._class.value, viewer._wrong.value = classes[0], True
    viewer.evaluation = replace(viewer.evaluation, examples=[])
    viewer._filter_examples()
    assert viewer.chosen is viewer.stage is None
    assert "No saved example" in viewer._details.content


def test_prediction_and_truth_are_drawn_side_by_side(finished, open_run):
    viewer = open_run(finished / "segmentation")
    example = viewer.chosen
    nodes = viewer.stage._nodes
    assert len(nodes) == 2
    colors = {name.split("/")[1]: node.colors for name, node in nodes.items()}
    same = (colors["cloud"] == colors["copy"]).all(1)
    labeled = example.target >= 0
    agree = (example.predicted == example.target)[labeled]
    assert same.sum() == int(agree.sum())  # all parts of a shape have different colors
    viewer._by.value = "error"
    viewer._draw()
    colors = next(node.colors for name, node in nodes.items() if "cloud" in name)
    wrong = (np.asarray(colors) == (210, 40, 40)).all(1)
    assert wrong.sum() == int((~agree).sum())
    names = viewer._legend.content
    for number in example.target.unique().tolist():
        assert (viewer.evaluation.classes[number] if number >= 0 else "no label") in names


def test_prediction_label_in_the_scene(finished, open_run):
    viewer = open_run(finished / "classification")
    one, classes = viewer.chosen, viewer.evaluation.classes
    text = viewer.overlay._nodes["prediction"].text
    assert classes[int(one.predicted)] in text
    assert f"true: {classes[int(one.target)]}" in text
    assert len(viewer.stage._nodes) == 1


@pytest.mark.parametrize("classes", [2, 14, 15, 40, 41, 200])
def test_confusion_matrix_sizes(classes):
    generator = torch.Generator().manual_seed(classes)
    counts = torch.randint(0, 3, (classes, classes), generator=generator) ** 5
    names = tuple(f"<kind {number}>" for number in range(classes))
    found = Evaluation(1, "segmentation", names, counts, 9, [])
    page = run_text.confusion_table(found)
    assert "<kind" not in page
    assert len(page) < 500_000
    if classes <= 40:
        assert page.count("<td") == classes**2
    pairs = run_text.most_confused(counts)
    wrong = sorted((int(counts[i, j]) for i in range(classes) for j in range(classes) if i != j), reverse=True)
    assert [count for _, _, count in pairs] == [count for count in wrong[:6] if count]
    assert all(counts[true, predicted] == count for true, predicted, count in pairs)
    assert "predicted as" in run_text.confusion_summary(found) or not pairs


@pytest.mark.long
def test_run_page_in_a_browser(finished, web, tmp_path):
    """Two pages follow a run, and one of them is closed."""
    run = shutil.copytree(finished / "segmentation", tmp_path / "run")
    viewer = RunViewer(web, run)
    try:
        with chromium() as browser:
            page, other = (Page(browser, server.address(web), width=1280) for _ in range(2))
            assert page.until(lambda: "Epoch 2 of 2" in page.text())
            predicted = int(viewer.chosen.predicted.mode().values)
            color = Scale("label", "class", names=dict(enumerate(viewer.evaluation.classes))).color(predicted)
            assert page.until(lambda: page.count(color) > 100)
            page.page.get_by_role("tab", name="Confusion").click()
            assert page.until(lambda: "Most frequent confusions" in page.text())
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
            assert page.messages == other.messages == []
    finally:
        viewer.close()


# -- runs without a saved evaluation ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def commanded(tmp_path_factory, no_pictures):
    """A run of `pointgrad train`, whose configuration names the data."""
    path = tmp_path_factory.mktemp("command")
    np.savez(path / "data.npz", **arrays(16, 16), val=np.arange(16) >= 10)
    status = main([
        "train", "--data", str(path / "data.npz"), "--epochs", "1", "--batch-size", "5", "--options", "width=0.125",
        "--accelerator", "cpu", "--no-tensorboard", "--prepare.points", "8", "--out", str(path / "run"),
    ])  # fmt: skip
    assert status == 0
    return path / "run"


def test_evaluate_now_equals_the_saved_evaluation(commanded, tmp_path, open_run):
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
    assert viewer._evaluate_button.visible
    assert "has no saved evaluation" in viewer._evaluation_note.content
    viewer._evaluator.submit("evaluate", viewer._evaluate_now)
    viewer.wait()
    assert steps == [(0, 2), (1, 2)]
    made = viewer.evaluation
    assert torch.equal(made.confusion, kept.confusion)
    assert (made.epoch, made.clouds, made.classes) == (kept.epoch, kept.clouds, kept.classes)
    assert [one.source for one in made.examples] == [one.source for one in kept.examples]
    assert all(torch.equal(a.points, b.points) for a, b in zip(made.examples, kept.examples, strict=True))
    assert not viewer._evaluate_button.visible
    assert not (run / "evaluation.npz").exists()  # viewing a run does not change its folder
    (run / "best.pt").touch()
    viewer.refresh()
    assert viewer._evaluate_button.visible
    assert "newer than this evaluation" in viewer._evaluation_note.content
    moved = run.rename(run.with_name("moved"))
    viewer.refresh()
    assert viewer.evaluation is made  # the folder is missing for a moment
    moved.rename(run)
    (run / "best.pt").unlink()
    viewer.refresh()
    assert viewer.evaluation is None  # a new run


def test_evaluate_now_without_data(run, tmp_path, open_run, capsys):
    (run / "evaluation.npz").unlink()
    viewer = open_run(run, evaluate=partial(evaluate_run, device="cpu"))
    viewer._evaluator.submit("evaluate", viewer._evaluate_now)
    viewer.wait()
    assert "names no data to evaluate on" in capsys.readouterr().err  # the run was started from Python
    assert not viewer._progress.visible
    assert not viewer._evaluate_button.disabled
    (run / "best.pt").unlink()
    viewer.refresh()
    assert not viewer._evaluate_button.visible


@pytest.mark.parametrize("more", ["another", "checkpoint"])
def test_run_folder_must_be_the_only_input(run, tmp_path, capsys, more):
    rest = [str(tmp_path)] if more == "another" else ["--checkpoint", str(run)]
    capsys.readouterr()
    assert main(["view", str(run), *rest]) == 2
    out, error = capsys.readouterr()
    assert not out
    assert error == f"pointgrad view: {run}: a run folder must be the only input, without --checkpoint\n"
