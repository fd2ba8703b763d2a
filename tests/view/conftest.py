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
from tests.support.browser import Page, chromium
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


@pytest.fixture(scope="module")
def browser():
    """A headless browser."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A folder with a labelled cloud of three walls and a cloud without labels."""
    folder = tmp_path_factory.mktemp("clouds")
    generator = torch.Generator().manual_seed(0)
    walls = []
    for number in range(3):
        wall = torch.rand(3000, 3, generator=generator) * torch.tensor([4.0, 0.2, 4.0])
        walls.append(wall + torch.tensor([5.0 * number, 0, 0]))
    labels = torch.arange(3).repeat_interleave(3000)
    cloud = data.Cloud(torch.cat(walls).double() + 5e6, {"intensity": torch.rand(9000, generator=generator)}, labels)
    data.write(folder / "walls.laz", cloud)
    data.write(folder / "other.ply", data.Cloud(torch.rand(500, 3, generator=generator)))
    (folder / "classes.txt").write_text("brick\nglass\nwood\n")
    return folder


@pytest.fixture
def opened(browser, scene):
    """Open files of the scene in a viewer and its page in the browser."""
    made = []

    def opens(*names, **options):
        web = server.start("127.0.0.1", None, "pointgrad", token=True)
        viewer = Viewer(web, [scene / name for name in names], **options)
        page = Page(browser, server.address(web))
        made.append((web, viewer, page))
        page.page.wait_for_selector("text=Colour by")
        return viewer, page

    yield opens
    for web, viewer, page in made:
        page.close()
        viewer.close()
        web.stop()
