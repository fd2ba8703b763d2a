"""The cloud page without a browser: texts, prediction, the worker, files and the command."""

import dataclasses
import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import data
from pointgrad.cli import main
from pointgrad.view import Viewer, network, server, text
from pointgrad.view.levels import Part, build
from pointgrad.view.worker import Worker
from tests.support.scenes import Relative, trained
from tests.view.clouds import uneven

# -- text ----------------------------------------------------------------------------------------------------------


def test_legend_is_escaped_and_truncated():
    cloud = data.Cloud(torch.zeros(100, 3), labels=torch.arange(100))
    scale = pointgrad.render.scale(cloud, "label", {0: "<script>"})
    shown = text.legend(scale)
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "and 60 more" in shown


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "a|b", "{alert(1)}", "**b**_c_", "[l](x)", "a\nb", "&lt;"]
)
def test_names_are_escaped(name):
    cloud = data.Cloud(torch.zeros(1, 3), {name: torch.zeros(1, dtype=torch.long)})
    table = text.point_table(Part(cloud, np.array([0])), lambda by: {0: name})
    bare = table.replace("\\\\", "").split("\n")[-1]
    assert table.count("\n") == 6  # two header rows, then number, x, y, z and the column
    assert bare.replace("\\|", "").count("|") == 3  # a row has two cells
    marks = [bare[place - 1] for place, letter in enumerate(bare) if letter in "<>{}*_[]&"]
    assert set(marks) <= {"\\"}


# -- the network ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_leaves")
@pytest.mark.parametrize("has_labels", [True, False])
def test_predicted_columns_match_predict(has_labels):
    model = trained(Relative(), normalize="center")
    cloud = uneven(nan=3)
    columns = list(network.label_points(model, lambda: [cloud], len(cloud), has_labels, lambda *_: None))[-1]
    expected = pointgrad.predict.label(model, cloud)
    assert torch.equal(columns.prediction.long(), expected.labels)
    torch.testing.assert_close(columns.confidence, expected.confidence)
    if not has_labels:
        assert columns.error is None
        assert columns.accuracy() is None
        return
    known = (cloud.labels >= 0) & (cloud.labels < 2) & (expected.labels >= 0)
    right = expected.labels == cloud.labels
    assert torch.equal(columns.error == 0, known & right)
    assert torch.equal(columns.error == 1, known & ~right)
    assert columns.accuracy() == pytest.approx(float(right[known].float().mean()))


def test_prediction_for_a_closed_file_is_dropped():
    levels, shown = build(lambda: [data.Cloud(torch.rand(100, 3))]), []

    class Whole(torch.nn.Module):
        def forward(self, points, features=None, **_):
            return torch.zeros(len(points), 2)

    model = trained(Whole(), task="classification", classes=("a_b", "<b>"))
    for current in (True, False):
        network.BackgroundPrediction(
            model,
            tuple,
            levels,
            is_current=lambda current=current: current,
            set_status=shown.append,
            on_columns=None,
            on_error=shown.append,
        )._run()
    levels.close()
    assert shown == [r"prediction: **a\_b 50.0%, \<b\> 50.0%**"]


# -- the worker -----------------------------------------------------------------------------------------------------


def test_worker_runs_the_last_task_of_a_name():
    ran, go = [], threading.Event()
    worker = Worker(lambda error: ran.append(str(error)))
    worker.submit("slow", go.wait)
    for number in range(50):
        worker.submit("draw", lambda number=number: ran.append(number))
    go.set()
    worker.wait()
    assert ran == [49]

    def fails():
        raise ValueError("no")

    worker.submit("fails", fails)
    worker.submit("draw", lambda: ran.append("on"))
    worker.wait()
    assert ran == [49, "no", "on"]
    worker.stop()


@pytest.fixture
def opened(tmp_path):
    """Open clouds in a viewer, without a browser."""
    pytest.importorskip("viser")
    made = []

    def opens(*clouds, **options):
        paths = [tmp_path / f"{number}.ply" for number in range(len(clouds))]
        for path, cloud in zip(paths, clouds, strict=True):
            data.write(path, cloud)
        web = server.start("127.0.0.1", None, "x")
        made.append((web, Viewer(web, paths, **options)))
        assert made[-1][1].wait()
        return made[-1][1]

    yield opens
    for web, viewer in made:
        viewer.close()
        web.stop()


def test_short_names_of_files():
    paths = [Path(path) for path in ("/a/1/s.ply", "/a/2/s.ply", "/b/2/s.ply", "/a/t.ply", "t.ply", "u.ply", "u.ply")]
    found = text.short_names(paths)
    assert list(found) == ["1/s.ply", "a/2/s.ply", "b/2/s.ply", "a/t.ply", "t.ply", "u.ply"]
    assert list(found.values()) == paths[:6]


def test_hidden_classes_stay_hidden(opened):
    cloud = data.Cloud(torch.rand(400, 3), labels=torch.arange(400) % 4)
    viewer = opened(cloud, cloud)
    boxes = viewer._classes
    boxes.hidden.update({1, 2})
    viewer._compare.value = "height"
    viewer.worker.submit("colors", viewer._copy_changed)
    viewer.wait()
    assert boxes.hidden == {1, 2}
    counted = replace(viewer._scale("label"), counts={0: 1, 2: 5, 7: 3})  # as during a prediction
    boxes.fill(viewer._input.label, counted)
    assert boxes.hidden == {2}
    assert [box.value for box in boxes._boxes] == [True, False, True]
    viewer.open(viewer.paths[1])
    viewer.wait()
    assert boxes.hidden == set()


def test_number_of_class_boxes_is_limited(opened):
    viewer = opened(data.Cloud(torch.rand(5000, 3), labels=torch.arange(5000)))
    assert len(viewer._classes._boxes) == 256


def test_columns_with_reserved_names(opened, capfd):
    """Columns with reserved names are shown unchanged until a network adds columns of the same names."""
    names = ("rgb", "height", "prediction", "confidence", "error")
    cloud = data.Cloud(torch.rand(300, 3), {name: torch.arange(300) % 3 for name in names}, torch.arange(300) % 2)
    viewer = opened(cloud)
    for by in viewer._by.options:
        viewer._by.value = by
        viewer.worker.submit("colors", viewer._recolored)
        viewer.wait()
    viewer.operators.choice.value = "interpolation"
    viewer.worker.submit("choose panel", viewer.operators.update)
    viewer.wait()
    errors = capfd.readouterr().err
    assert errors == "pointgrad view: interpolation needs a column of values, but all columns are classes\n"
    labelling = opened(cloud, trained=trained(Relative(), normalize="center"))
    end = time.monotonic() + 60
    while not labelling._prediction_status.content.startswith("predicted ") and time.monotonic() < end:
        time.sleep(0.05)
    assert (labelling._by.value, labelling._compare.value) == ("prediction", "label")


def test_labels_are_mapped_to_the_classes_of_the_network(opened):
    """Errors compare the classes of labels and predictions, not a class with a code."""
    classes = data.ClassMap(("low", "high"), ((2,), (5, 6)))
    network = dataclasses.replace(trained(Relative(), normalize="center"), class_map=classes)
    codes = torch.tensor([2, 5, 6, 7]).repeat(50)
    cloud = data.Cloud(torch.rand(200, 3), labels=codes)
    viewer = opened(cloud, trained=network)
    assert viewer.names("label") == {0: "low", 1: "high"}
    expected = classes.apply(codes)
    labels = viewer.sample.cloud.labels
    assert sorted(labels.tolist()) == sorted(expected.tolist())
    plain = opened(cloud, classes=classes)
    assert plain.names("label") == {0: "low", 1: "high"}


def test_panels_reject_huge_extents(opened, capfd):
    viewer = opened(data.Cloud(torch.rand(200, 3).double() * 1e300))
    for title in viewer.operators.panels:
        viewer.operators.choice.value = title
        viewer.worker.submit("choose panel", viewer.operators.update)
        viewer.wait()
    errors = capfd.readouterr().err.splitlines()
    assert len(errors) == len(viewer.operators.panels)
    assert all(line.startswith("pointgrad view: the extent of the cloud must be at most 1e+18") for line in errors)


def test_undecodable_file_name(tmp_path, capfd):
    pytest.importorskip("viser")
    path = tmp_path / os.fsdecode(b"a\xff.ply")
    try:
        data.write(path, data.Cloud(torch.rand(30, 3)))
    except OSError:
        pytest.skip("the file system does not support such names")
    web = server.start("127.0.0.1", None, "x")
    viewer = Viewer(web, [path, path.with_name(os.fsdecode(b"none\xff.ply"))])
    assert viewer.wait()
    viewer.open(viewer.paths[1])
    viewer.wait()
    output = capfd.readouterr()
    assert r"a\xff.ply: 30 points" in output.out
    assert r"none\xff.ply: expected a file that can be read" in output.err
    for shown in (*viewer._file.options, viewer._file.value, viewer._status.content):
        assert shown.encode()
    viewer.close()
    web.stop()


def test_full_disk(opened, monkeypatch, capfd):
    viewer = opened(data.Cloud(torch.rand(30, 3)))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pointgrad.view.viewer.build", full)
    viewer.open(viewer.paths[0])
    assert viewer.wait()  # the first file is still open
    errors = capfd.readouterr().err
    assert errors.startswith(f"pointgrad view: {viewer.paths[0]}: no space left in {tempfile.gettempdir()}")


# -- the command ----------------------------------------------------------------------------------------------------


def test_errors_are_one_line(tmp_path, taken, capsys):
    pytest.importorskip("viser")
    (tmp_path / "empty.ply").touch()
    (tmp_path / "other").mkdir()
    np.save(tmp_path / "nan.npy", np.full((4, 3), np.nan))
    np.save(tmp_path / "good.npy", np.zeros((4, 3)))
    cases = {
        (tmp_path / "none.ply",): "none.ply",
        (tmp_path / "empty.ply",): "empty.ply: expected a file with points, found an empty one",
        (tmp_path / "nan.npy",): "nan.npy: expected at least one point with finite coordinates, got 4 with NaN",
        (tmp_path / "other",): "other: expected a folder with files that end in",
        (tmp_path / "good.npy", "--port", taken): f"cannot listen on port {taken} of 127.0.0.1",
        (tmp_path / "good.npy", "--allow-host", "a:80"): "an allowed host must be a name without a port, got 'a:80'",
        (tmp_path / "good.npy", "--points", 0): "--points must be at least 1, got 0",
        (tmp_path / "good.npy", "--checkpoint", tmp_path / "none.pt"): "none.pt: no such file",
        (tmp_path / "good.npy", "--checkpoint", tmp_path / "good.npy"): "good.npy",
    }
    for arguments, expected in cases.items():
        assert main(["view", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("\n") == 1


def test_serves_until_interrupted(tmp_path):
    pytest.importorskip("viser")
    (tmp_path / "broken.ply").write_bytes(b"ply\n")
    np.save(tmp_path / "good.npy", np.random.default_rng(0).random((50, 3)))
    command = [
        sys.executable,
        "-m",
        "pointgrad",
        "view",
        tmp_path / "broken.ply",
        tmp_path / "good.npy",
        "--host",
        "0.0.0.0",
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        found = re.fullmatch(r"http://\S+:(\d+)/([\w-]{20,})/  \(Ctrl-C quits\)\n", lines[0])
        assert found, lines[0]
        assert lines[1] == "listening on 0.0.0.0: everyone who knows this address can see and control the viewer\n"
        assert "good.npy: 50 points" in lines[2]
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/{found[2]}/", timeout=10) as page:
            assert page.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        errors = process.stderr.read()
    assert errors.count("\n") == 1
    assert "broken.ply" in errors


# Reads a file in compiled code, like LAZ, on a thread that the interpreter cannot stop.
SLOW = """
import sys
from unittest import mock
import torch
from pointgrad.cli import main

def slow(*_):
    print("reading", flush=True)
    while True:
        torch.rand(2000, 2000).sort()

with mock.patch("pointgrad.view.viewer.build", slow):
    sys.exit(main(["view", sys.argv[1]]))
"""


def test_interrupt_while_reading(tmp_path):
    pytest.importorskip("viser")
    np.save(tmp_path / "good.npy", np.zeros((4, 3)))
    command = [sys.executable, "-c", SLOW, tmp_path / "good.npy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while "reading" not in (line := process.stdout.readline()):  # two threads write to stdout: lines may be mixed
            assert line, "the process ended before reading"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
        assert process.stderr.read() == ""


def test_closing_does_not_wait_for_a_network(tmp_path):
    pytest.importorskip("viser")
    started, go, done = threading.Event(), threading.Event(), threading.Event()

    class Slow(Relative):
        def forward(self, points, features=None, **where):
            started.set()
            go.wait(60)
            done.set()
            return super().forward(points, features, **where)

    data.write(tmp_path / "a.ply", data.Cloud(torch.rand(2000, 3)))
    web = server.start("127.0.0.1", None, "x")
    viewer = Viewer(web, [tmp_path / "a.ply"], trained=trained(Slow(), normalize="center"))
    assert viewer.wait()
    assert started.wait(60)
    viewer.close()
    web.stop()
    assert viewer.levels is None
    assert not done.is_set()
    go.set()
    assert done.wait(60)
