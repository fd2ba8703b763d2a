"""Fixtures of the viewer's tests."""

import shutil
import socket

import pytest
import torch

from pointgrad import data
from pointgrad.data import Cloud
from pointgrad.data.tiles import tree
from pointgrad.train.report import Report
from pointgrad.view import Viewer, server
from tests.support.runs import finished_runs
from tests.view.panel_helpers import Recorder


@pytest.fixture
def small_leaves(monkeypatch):
    """Split clouds into leaves of a few hundred points."""
    monkeypatch.setattr(tree, "LEAF_POINTS", 300)
    monkeypatch.setattr(tree, "TILE_POINTS", 1200)
    monkeypatch.setattr(tree, "SAMPLE_EVERY", 4)


@pytest.fixture
def taken():
    """A port that is in use."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.fixture(scope="module")
def panel_server():
    started = server.start("127.0.0.1", None, "test")
    yield started
    started.stop()


@pytest.fixture
def see(panel_server, tmp_path, capsys, monkeypatch):
    """Open a cloud in a viewer, without predicting its columns."""
    monkeypatch.setattr(Viewer, "_start_prediction", lambda *_: None)
    viewers = []

    def start(cloud, trained=None, category=None):
        while viewers:
            viewers.pop().close()
        path = tmp_path / "cloud.npz"
        if isinstance(cloud, torch.Tensor):
            cloud = Cloud(cloud)
        data.write(path, cloud)
        viewer = Viewer(panel_server, [path], trained=trained, category=category)
        viewers.append(viewer)
        assert viewer.wait(), capsys.readouterr().err
        viewer.overlay = Recorder()
        return viewer

    yield start
    for viewer in viewers:
        viewer.close()
    panel_server.gui.reset()
    panel_server.scene.reset()


@pytest.fixture(scope="module")
def no_pictures():
    """Drawing pictures would take longer than all tests together."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("curves", "results"):
            patch.setattr(Report, name, lambda self, **_: None)
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run of each task. Read-only."""
    return finished_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run."""
    return shutil.copytree(finished / "classification", tmp_path / "run")
