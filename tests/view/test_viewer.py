"""The viewer without a browser: levels of detail, picking, the worker, the server, the command."""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

import pointgrad
from pointgrad import data
from pointgrad.cli import main
from pointgrad.data.tiles import tree
from pointgrad.view import Viewer, network, server, words
from pointgrad.view.detail import COARSEST, Camera, shares
from pointgrad.view.levels import Part, build
from pointgrad.view.picking import pick
from pointgrad.view.stage import SIZE, Look, Picked, Stage
from pointgrad.view.worker import Worker
from tests.support.scenes import Relative, scene, trained


@pytest.fixture
def small_leaves(monkeypatch):
    monkeypatch.setattr(tree, "LEAF_POINTS", 300)
    monkeypatch.setattr(tree, "TILE_POINTS", 1200)
    monkeypatch.setattr(tree, "SAMPLE_EVERY", 4)


def uneven(count=4000, nan=0):
    points = scene(count) + torch.tensor([5e6, 5e6, 0])
    points[:nan] = torch.nan
    labels = torch.arange(count) % 5 - 1
    features = {"number": torch.arange(count), "normal": torch.rand(count, 3), "row": torch.rand(count)}
    return data.Cloud(points, features, labels, source="uneven")


def in_chunks(cloud, size=700):
    return lambda: [cloud.select(rows) for rows in torch.arange(len(cloud)).split(size)]


# -- levels ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_leaves")
def test_every_point_is_in_one_leaf_with_its_columns():
    cloud = uneven(nan=7)
    levels = build(in_chunks(cloud))
    assert (levels.total, len(levels), len(levels.counts) > 4) == (4000, 3993, True)
    parts = [levels.read(leaf, int(count)) for leaf, count in enumerate(levels.counts)]
    numbers = np.concatenate([part.number for part in parts])
    assert sorted(numbers.tolist()) == list(range(7, 4000))
    world = cloud.world()
    for leaf, part in enumerate(parts):
        rows = torch.from_numpy(part.number)
        assert torch.equal(part.cloud.world(), world[rows])
        assert torch.equal(part.cloud.labels, cloud.labels[rows])
        assert all(torch.equal(part.cloud.features[name], cloud.features[name][rows]) for name in cloud.features)
        points = part.cloud.points.double().numpy()
        assert (points.min(0) == levels.low[leaf]).all()
        assert (points.max(0) == levels.high[leaf]).all()
    levels.close()


@pytest.mark.usefixtures("small_leaves")
def test_the_first_points_of_a_leaf_cover_it():
    levels = build(in_chunks(uneven()))
    generator = torch.Generator().manual_seed(0)
    for leaf in range(len(levels.counts)):
        every = levels.read(leaf, 10**6).cloud.points.double()
        for count in (8, 64):
            first = levels.read(leaf, count).cloud.points.double()
            assert torch.equal(first, every[:count])  # more detail keeps what is there
            chosen = every[torch.randperm(len(every), generator=generator)[:count]]
            farthest, random = (cKDTree(points).query(every)[0].max() for points in (first, chosen))
            assert farthest <= random
    levels.close()


@pytest.mark.usefixtures("small_leaves")
def test_samples_scales_and_columns_of_all(monkeypatch):
    cloud = uneven()
    levels = build(in_chunks(cloud))
    sample = levels.sample(400)
    assert 400 <= len(sample.cloud) < 400 + len(levels.counts)
    assert torch.equal(sample.cloud.labels, cloud.labels[torch.from_numpy(sample.number)])
    assert levels.choices()[:3] == ["label", "height", "number"]
    monkeypatch.setattr("pointgrad.view.levels.SAMPLE", 50)
    assert levels.scale("label", {}).counts == dict.fromkeys(range(-1, 4), 800)  # of all, not of the sample
    levels.add("prediction", torch.arange(4000, dtype=torch.int16) % 3)
    assert levels.scale("prediction", {1: "one"}).counts == {0: 1334, 1: 1333, 2: 1333}
    part = levels.read(2, 100)
    assert part.cloud.features["prediction"].tolist() == (part.number % 3).tolist()
    levels.close()


@pytest.mark.parametrize(
    "points",
    [
        torch.zeros(1, 3),
        torch.ones(500, 3),
        torch.rand(500, 1) * torch.tensor([[1.0, 0, 0]]),
        torch.rand(500, 3) * 1e-42,
        torch.rand(500, 3) * 3e38,
        torch.rand(500, 3).double() * 1e300,
    ],
    ids=["one", "equal", "line", "tiny", "huge", "huge double"],
)
@pytest.mark.usefixtures("small_leaves")
def test_odd_clouds_are_drawn(points):
    levels = build(lambda: [data.Cloud(points)])
    stage = Stage(Drawn(), levels, 100)
    stage.draw(Look(levels.scale("height", {})), None)
    places = stage.place(points)
    assert np.isfinite(places).all()
    assert abs(places).max() <= SIZE
    assert stage.point_size > 0
    assert all(np.isfinite(part).all() for part in stage.view(True))
    levels.close()


def test_nothing_to_show():
    with pytest.raises(ValueError, match="x: expected at least one point with finite coordinates, got 3 with NaN"):
        build(lambda: [data.Cloud(torch.full((3, 3), torch.nan), source="x")])


# -- detail ---------------------------------------------------------------------------------------------------------


def boxes(count, seed=0):
    random = np.random.default_rng(seed)
    low = random.random((count, 3)) * 10
    return low, low + random.random((count, 3)), random.integers(1, 5000, count)


@pytest.mark.parametrize("budget", [1, 5000, 60_000, 10**9])
@pytest.mark.parametrize("inside", [True, False])
def test_the_budget_holds(budget, inside):
    low, high, counts = boxes(60)
    camera = Camera(np.full(3, 5.0) if inside else np.array([-20.0, 5, 5]), np.array([1.0, 0, 0]), 0.6)
    for given in (camera, None):
        drawn = shares(low, high, counts, given, budget)
        assert ((drawn > 0) & (drawn <= counts)).all()
        assert drawn.sum() <= max(budget, np.minimum(counts, COARSEST).sum())
        if budget >= counts.sum():
            assert (drawn == counts).all()
        else:
            assert drawn.sum() >= min(budget, counts.sum()) / 3  # powers of two leave at most half of it, and a little


def test_near_leaves_get_more_and_those_behind_least():
    low = np.array([[x, -0.5, -0.5] for x in (-6.0, 2.0, 5.0, 30.0)])
    counts = np.full(4, 10**6)
    drawn = shares(low, low + 1, counts, Camera(np.zeros(3), np.array([1.0, 0, 0]), 0.5), 100_000)
    behind, near, far, farther = drawn
    assert near > far > farther >= COARSEST
    assert behind < far


def test_a_small_step_changes_little():
    low, high, counts = boxes(200)
    camera = Camera(np.array([-10.0, 5, 5]), np.array([1.0, 0, 0]), 0.6)
    first = shares(low, high, counts, camera, 50_000)
    second = shares(low, high, counts, replace(camera, position=camera.position + 0.01), 50_000)
    assert (first != second).mean() < 0.1


# -- what is drawn --------------------------------------------------------------------------------------------------


class Drawn:
    """A scene that keeps the point clouds that it is given."""

    def __init__(self):
        self.nodes = {}
        self.sent = 0

    def add_point_cloud(self, name, points, colors, *, position, **_):
        scene = self
        self.sent += 1
        self.nodes[name] = (points + np.asarray(position), np.broadcast_to(colors, points.shape))

        class Node:
            def remove(self):
                scene.nodes.pop(name, None)

        return Node()


@pytest.fixture
def stage(small_leaves):
    levels = build(in_chunks(uneven()))
    yield Stage(Drawn(), levels, 10_000)
    levels.close()


def test_only_what_changes_is_sent(stage):
    drawn, look = stage._scene, Look(stage.levels.scale("label", {}))
    stage.draw(look, None)
    leaves = drawn.sent
    assert leaves == len(stage.levels.counts)
    stage.draw(look, None)
    assert drawn.sent == leaves
    stage.draw(replace(look, size=2.0), None)
    assert drawn.sent == 2 * leaves
    stage.refill()
    stage.draw(replace(look, size=2.0), None)
    assert drawn.sent == 3 * leaves


def test_hidden_classes_and_a_copy(stage):
    drawn, look = stage._scene, Look(stage.levels.scale("label", {}), beside=stage.levels.scale("height", {}))
    stage.draw(replace(look, hidden=frozenset({-1, 2})), None)
    assert sum(len(points) for points, _ in drawn.nodes.values()) == 2 * 2400
    main = np.concatenate([colors for name, (_, colors) in drawn.nodes.items() if name.startswith("/cloud")])
    wanted = {look.scale.color(number) for number in (0, 1, 3)}
    assert set(map(tuple, main.tolist())) == wanted
    stage.draw(replace(look, hidden=frozenset(range(-1, 4))), None)
    assert drawn.nodes == {}


def test_a_ray_to_each_point_picks_it(stage):
    look = Look(stage.levels.scale("label", {}), beside=stage.levels.scale("height", {}))
    stage.draw(look, None)
    camera = np.array([3.0, -2.0, 40.0])
    world = uneven().world()
    for number in (0, 1234, 3999):
        place = stage.place((world[number] - stage.levels.origin)[None])[0]
        for copy in (np.zeros(3), stage.shift):
            picked = stage.pick(camera, place + copy - camera)
            found = int(picked.row.number[0])
            assert torch.equal(picked.row.cloud.world()[0], world[found])
            # Another one may lie before it, but on the ray, as far as eyes can tell.
            ray = (place + copy - camera) / np.linalg.norm(place + copy - camera)
            towards = picked.position - camera
            assert np.linalg.norm(towards - (towards @ ray) * ray) < 0.012 * np.linalg.norm(towards)
    assert stage.pick(camera, -(place - camera)) is None


def test_the_nearest_of_two_on_a_ray_is_picked():
    points = np.array([[0, 0, 10.0], [0, 0, 4.0], [0.02, 0, 7.0]])
    assert pick(points, np.zeros(3), np.array([0, 0, 2.0])) == 1
    assert pick(points[:0], np.zeros(3), np.array([0, 0, 1.0])) is None


# -- words ----------------------------------------------------------------------------------------------------------


def test_legend_escapes_names_and_is_short():
    cloud = data.Cloud(torch.zeros(100, 3), labels=torch.arange(100))
    scale = pointgrad.render.scale(cloud, "label", {0: "<script>"})
    text = words.legend(scale)
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "and 60 more" in text


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "a|b", "{alert(1)}", "**b**_c_", "[l](x)", "a\nb", "&lt;"]
)
def test_names_are_not_markup(name):
    cloud = data.Cloud(torch.zeros(1, 3), {name: torch.zeros(1, dtype=torch.long)})
    text = words.values(Picked(np.zeros(3), Part(cloud, np.array([0]))), lambda by: {0: name})
    bare = text.replace("\\\\", "").split("\n")[-1]
    assert text.count("\n") == 6  # a head of two rows, then number, x, y, z and the column
    assert bare.replace("\\|", "").count("|") == 3  # the two cells of a row
    marks = [bare[place - 1] for place, letter in enumerate(bare) if letter in "<>{}*_[]&"]
    assert set(marks) <= {"\\"}


# -- the network ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_leaves")
@pytest.mark.parametrize("labelled", [True, False])
def test_columns_of_a_network_are_those_of_predict(labelled):
    asked = trained(Relative(), normalize="center")
    cloud = uneven(nan=3)
    columns = list(network.label_points(asked, lambda: [cloud], len(cloud), labelled, lambda *_: None))[-1]
    expected = pointgrad.predict.label(asked, cloud)
    assert torch.equal(columns.prediction.long(), expected.labels)
    torch.testing.assert_close(columns.confidence, expected.confidence)
    if not labelled:
        assert columns.error is None
        assert columns.accuracy() is None
        return
    known = (cloud.labels >= 0) & (cloud.labels < 2) & (expected.labels >= 0)
    right = expected.labels == cloud.labels
    assert torch.equal(columns.error == 0, known & right)
    assert torch.equal(columns.error == 1, known & ~right)
    assert columns.accuracy() == pytest.approx(float(right[known].float().mean()))


def test_an_answer_about_another_file_is_not_said():
    levels, said = build(lambda: [data.Cloud(torch.rand(100, 3))]), []

    class Whole(torch.nn.Module):
        def forward(self, points, features=None, **_):
            return torch.zeros(len(points), 2)

    for wanted in (True, False):
        asked = trained(Whole(), task="classification", classes=("a_b", "<b>"))
        network.Asking(asked, tuple, levels, lambda wanted=wanted: wanted, said.append, None, said.append)._run()
    levels.close()
    assert said == [r"the network says: **a\_b 50.0%, \<b\> 50.0%**"]


# -- the worker -----------------------------------------------------------------------------------------------------


def test_a_task_asked_for_often_runs_once_more():
    ran, go = [], threading.Event()
    worker = Worker(lambda error: ran.append(str(error)))
    worker.ask("slow", go.wait)
    for number in range(50):
        worker.ask("draw", lambda number=number: ran.append(number))
    go.set()
    worker.wait()
    assert ran == [49]

    def fails():
        raise ValueError("no")

    worker.ask("fails", fails)
    worker.ask("draw", lambda: ran.append("on"))
    worker.wait()
    assert ran == [49, "no", "on"]
    worker.stop()


# -- the server -----------------------------------------------------------------------------------------------------


@pytest.fixture
def taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_busy_port_is_refused_and_a_default_one_is_found(taken, monkeypatch):
    pytest.importorskip("viser")
    with pytest.raises(
        ValueError, match=f"port {taken} of 127.0.0.1 must be free to listen on: Address already in use"
    ):
        server.start("127.0.0.1", taken, "x")
    monkeypatch.setattr(server, "PORT", taken)
    web = server.start("127.0.0.1", None, "x")
    try:
        assert taken < web.get_port() < taken + 20
        assert server.address(web) == f"http://localhost:{web.get_port()}"
    finally:
        server.stop(web)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 0), ("127.0.0.1", 70000), ("nowhere.invalid", 8080)])
def test_impossible_places_are_refused(host, port):
    pytest.importorskip("viser")
    with pytest.raises(ValueError, match="port"):
        server.start(host, port, "x")


ORIGINS = {
    None: True,
    "http://localhost:{}": True,
    "http://localhost": False,
    "https://elsewhere.example": False,
    "null": False,
}


@pytest.mark.parametrize(("origin", "welcome"), ORIGINS.items())
def test_pages_of_other_sites_cannot_connect(origin, welcome):
    viser = pytest.importorskip("viser")
    client = pytest.importorskip("websockets.sync.client")
    from websockets.exceptions import InvalidStatus

    web = server.start("127.0.0.1", None, "x")
    port = web.get_port()
    where = {
        "origin": origin and origin.format(port),
        "subprotocols": [f"viser-v{viser.__version__}"],
        "max_size": None,
    }
    try:
        if welcome:
            with client.connect(f"ws://localhost:{port}", **where) as connection:
                assert connection.recv(timeout=30)
        else:
            with pytest.raises(InvalidStatus, match="403"):
                client.connect(f"ws://localhost:{port}", **where)
    finally:
        server.stop(web)


def test_a_place_that_is_not_here_is_looked_for_once(monkeypatch):
    pytest.importorskip("viser")
    asked, find = [], socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **how: asked.append(where) or find(*where, **how))
    for host in ("nowhere.invalid", "192.0.2.1"):
        with pytest.raises(ValueError, match=f"host must be an address of this machine, got {host}: "):
            server.start(host, None, "x")
    assert len(asked) == 2


LOCAL = {"127.0.0.1": True, "::1": True, "localhost": True, "0.0.0.0": False, "192.168.1.2": False}


@pytest.mark.parametrize(("host", "local"), LOCAL.items())
def test_which_places_are_local(host, local):
    assert server.is_local(host) == local


@pytest.fixture
def opened(tmp_path):
    """Opens clouds; without a browser."""
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
        server.stop(web)


def test_hidden_classes_stay_hidden(opened):
    cloud = data.Cloud(torch.rand(400, 3), labels=torch.arange(400) % 4)
    viewer = opened(cloud, cloud)
    boxes = viewer._classes
    boxes.hidden.update({1, 2})
    viewer._beside.value = "height"
    viewer.worker.ask("colors", viewer._placed)
    viewer.wait()
    assert boxes.hidden == {1, 2}
    boxes.fill(viewer.levels, replace(viewer._scale("label"), counts={0: 1, 2: 5, 7: 3}))  # as predictions come
    assert boxes.hidden == {2}
    assert [box.value for box in boxes._boxes] == [True, False, True]
    viewer.open(viewer.paths[1])
    viewer.wait()
    assert boxes.hidden == set()


def test_thousands_of_classes_get_few_boxes(opened):
    viewer = opened(data.Cloud(torch.rand(5000, 3), labels=torch.arange(5000)))
    assert len(viewer._classes._boxes) == 256


def test_columns_named_like_ours(opened, capfd):
    """They are shown as they are, until a network says something under their name."""
    names = ("rgb", "height", "prediction", "confidence", "error")
    cloud = data.Cloud(torch.rand(300, 3), {name: torch.arange(300) % 3 for name in names}, torch.arange(300) % 2)
    viewer = opened(cloud)
    for by in viewer._by.options:
        viewer._by.value = by
        viewer.worker.ask("colors", viewer._recolored)
        viewer.wait()
    viewer._panel.value = "interpolation"
    viewer.worker.ask("another panel", viewer._panel_changed)
    viewer.wait()
    errors = capfd.readouterr().err
    assert errors == "pointgrad view: interpolation must have a column of values, got only classes\n"
    labelling = opened(cloud, trained=trained(Relative(), normalize="center"))
    end = time.monotonic() + 60
    while not labelling._said.content.startswith("the network has labelled") and time.monotonic() < end:
        time.sleep(0.05)
    assert (labelling._by.value, labelling._beside.value) == ("prediction", "label")


def test_operators_refuse_what_they_cannot_compute(opened, capfd):
    viewer = opened(data.Cloud(torch.rand(200, 3).double() * 1e300))
    for title in viewer._panels:
        viewer._panel.value = title
        viewer.worker.ask("another panel", viewer._panel_changed)
        viewer.wait()
    said = capfd.readouterr().err.splitlines()
    assert len(said) == len(viewer._panels)
    assert {line[:57] for line in said} == {"pointgrad view: operators compute with clouds of up to 1e"}


def test_a_name_that_is_no_text(tmp_path, capfd):
    pytest.importorskip("viser")
    path = tmp_path / os.fsdecode(b"a\xff.ply")
    try:
        data.write(path, data.Cloud(torch.rand(30, 3)))
    except OSError:
        pytest.skip("a file system that has no such names")
    web = server.start("127.0.0.1", None, "x")
    viewer = Viewer(web, [path, path.with_name(os.fsdecode(b"none\xff.ply"))])
    assert viewer.wait()
    viewer.open(viewer.paths[1])
    viewer.wait()
    said = capfd.readouterr()
    assert r"a\xff.ply: 30 points" in said.out
    assert r"none\xff.ply: expected a file that can be read" in said.err
    for text in (*viewer._file.options, viewer._file.value, viewer._status.content):
        assert text.encode()
    viewer.close()
    server.stop(web)


def test_a_full_disk_is_said_with_its_place(opened, monkeypatch, capfd):
    viewer = opened(data.Cloud(torch.rand(30, 3)))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pointgrad.view.viewer.build", full)
    viewer.open(viewer.paths[0])
    assert viewer.wait()  # the one that was open
    said = capfd.readouterr().err
    assert said.startswith(f"pointgrad view: {viewer.paths[0]}: needs room ")
    assert tempfile.gettempdir() in said


# -- the command ----------------------------------------------------------------------------------------------------


def test_what_cannot_be_shown_is_said_in_a_line(tmp_path, taken, capsys):
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
        (tmp_path / "good.npy", "--port", taken): f"port {taken} of 127.0.0.1 must be free",
        (tmp_path / "good.npy", "--points", 0): "--points must be at least 1, got 0",
        (tmp_path / "good.npy", "--checkpoint", tmp_path / "none.pt"): "none.pt: no such file",
        (tmp_path / "good.npy", "--checkpoint", tmp_path / "good.npy"): "good.npy",
    }
    for arguments, expected in cases.items():
        assert main(["view", *map(str, arguments)]) == 2
        said = capsys.readouterr().err
        assert expected in said
        assert said.count("\n") == 1


def test_serves_until_it_is_interrupted(tmp_path):
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
        assert lines[0].startswith("http://")
        assert "listening on 0.0.0.0: everyone who can reach this machine" in lines[1]
        assert "good.npy: 50 points" in lines[2]
        with socket.create_connection(("127.0.0.1", int(lines[0].split(":")[2].split()[0])), timeout=10):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        errors = process.stderr.read()
    assert errors.count("\n") == 1
    assert "broken.ply" in errors


# A file that is read in compiled code, as LAZ is, in a thread that the interpreter cannot stop.
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


def test_an_interrupt_ends_it_at_once_while_a_file_is_read(tmp_path):
    pytest.importorskip("viser")
    np.save(tmp_path / "good.npy", np.zeros((4, 3)))
    command = [sys.executable, "-c", SLOW, tmp_path / "good.npy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while "reading" not in (line := process.stdout.readline()):  # two threads write: not always a line of its own
            assert line, "ended before it read"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
        assert process.stderr.read() == ""


def test_closing_does_not_wait_for_a_network(tmp_path):
    pytest.importorskip("viser")
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    class Slow(Relative):
        def forward(self, points, features=None, **where):
            begun.set()
            go.wait(60)
            done.set()
            return super().forward(points, features, **where)

    data.write(tmp_path / "a.ply", data.Cloud(torch.rand(2000, 3)))
    web = server.start("127.0.0.1", None, "x")
    viewer = Viewer(web, [tmp_path / "a.ply"], trained=trained(Slow(), normalize="center"))
    assert viewer.wait()
    assert begun.wait(60)
    viewer.close()
    server.stop(web)
    assert viewer.levels is None
    assert not done.is_set()
    go.set()
    assert done.wait(60)  # and nothing is drawn any more
