"""`pointgrad.view(points)`: viewers that are started from Python."""

import os
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad.data import Cloud
from pointgrad.view import window as windows
from pointgrad.view.levels import Part

pytest.importorskip("viser")


@pytest.fixture
def view(capfd):
    """`pointgrad.view`, which waits until the points are drawn."""

    def call(*arguments, **options):
        window = pointgrad.view(*arguments, **options)
        window.viewer.wait()
        return window

    yield call
    for window in list(windows._windows):
        window.close()
    assert not capfd.readouterr().err


def labelled(count=60):
    return Cloud(torch.rand(count, 3), {"intensity": torch.arange(float(count))}, torch.arange(count) % 3)


def test_one_viewer_shows_what_was_given_last(view, capfd):
    window = view(torch.rand(50, 3))
    assert capfd.readouterr().out == f"{window.address}  (until this program ends)\n"
    assert "**points** 50 points" in window.viewer._status.content
    assert window.viewer._by.value == "height"
    assert view(labelled(), classes=["road", "tree", "water"]) is window
    assert window.viewer._by.value == "label"
    assert "tree" in window.viewer._legend.content
    assert view(labelled(), by="intensity").viewer._by.value == "intensity"
    assert "tree" not in window.viewer._legend.content
    assert view(labelled(), labels=torch.zeros(60, dtype=torch.int64)).viewer._by.value == "height"
    assert view(np.eye(40, 3), np.eye(40, 3)).viewer._by.value == "rgb"
    assert view(np.eye(40, 3), np.arange(40.0)).viewer._by.value == "value"
    assert capfd.readouterr().out == ""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    other = view(torch.rand(7, 3), port=port)
    assert other.address.endswith(f":{port}")
    assert other is not window
    assert window.viewer._status.content.startswith("**points** 40 points")
    assert view(torch.rand(8, 3), port=window.port) is window
    other.close()
    other.close()
    assert repr(window) == f"<pointgrad viewer at {window.address}>"
    assert f'<iframe src="{window.address}"' in window._repr_html_()


def test_points_that_are_not_finite_are_counted(view):
    points = torch.rand(50, 3)
    points[::10] = torch.nan
    viewer = view(points, labels=torch.arange(50) % 2).viewer
    assert viewer._status.content == "**points** 45 points, 5 not shown (non-finite coordinates)"
    assert viewer.levels.scale("label", {}).counts == {0: 20, 1: 25}


def test_named_clouds_are_updated(view):
    target = torch.rand(30, 3)
    window = view({"target": target, "moving": labelled().points}, classes=["a", "b"])
    viewer = window.viewer
    assert viewer.names("cloud") == {0: "target", 1: "moving"}
    assert viewer._by.value == "cloud"
    viewer._by.value, viewer._size.value = "height", 2.0
    viewer._classes.hidden.add(1)
    middle, factor = viewer.stage.middle, viewer.stage.factor
    moving = labelled().points + 0.1
    view(moving, name="moving")
    assert viewer._by.value == "height"  # the user's choice
    assert viewer.stage.kept
    assert np.array_equal(viewer.stage.middle, middle)
    assert viewer.stage.factor == factor
    shown = viewer.levels.sample(1000)
    order = np.argsort(shown.number)
    assert torch.equal(shown.cloud.points[order].float(), torch.cat([target, moving]))
    assert shown.cloud.features["cloud"][order].tolist() == [0] * 30 + [1] * 60
    view(moving[:5], labels=[0, 1, 1, 0, 0], name="new")
    assert viewer.names("cloud") == {0: "target", 1: "moving", 2: "new"}
    assert viewer.names("label") == {0: "a", 1: "b"}  # of the first call
    assert viewer._by.value == "label"  # a new column
    view(100 * moving, name="moving")
    assert not viewer.stage.kept
    view(moving)
    assert viewer.levels.choices() == ["height"]


def test_frequent_updates_draw_the_last_one(view):
    points = torch.zeros(2000, 3)
    window = view(torch.rand(2000, 3))
    for step in range(300):
        points += 1  # in place, while the points are drawn
        pointgrad.view(points + torch.rand(2000, 3), float(step) * torch.ones(2000), name="points")
    window.viewer.wait()
    assert set(window.viewer.levels.sample(5000).cloud.features["value"].tolist()) == {299.0}
    assert float(window.viewer.levels.low.min()) >= 300


def test_columns_of_several_clouds(view):
    window = view(
        {
            "a": Cloud(torch.rand(4, 3), {"time": torch.arange(4), "weight": torch.ones(4), "wide": torch.ones(4, 2)}),
            "b": Cloud(torch.rand(2, 3), {"weight": torch.zeros(2, dtype=torch.float64)}, torch.tensor([3, 4])),
            "c": torch.rand(3, 3),
        },
        colors={"c": torch.tensor([[1.0, 0, 0]]).expand(3, 3)},
    )
    row = window.viewer.levels.sample(9)
    order = np.argsort(row.number)
    found = {name: column[order].tolist() for name, column in row.cloud.features.items()}
    assert found["time"] == [0, 1, 2, 3, -1, -1, -1, -1, -1]
    assert found["weight"][:6] == [1, 1, 1, 1, 0, 0]
    assert np.isnan(found["weight"][6:]).all()
    assert np.isnan(found["wide"][4:]).all()
    assert row.cloud.labels[order].tolist() == [-1] * 4 + [3, 4] + [-1] * 3
    assert [found[name] for name in ("red", "green", "blue")] == [[150] * 6 + [own] * 3 for own in (255, 0, 0)]
    stored = {name: torch.full((2,), 65535, dtype=torch.int32) for name in ("red", "green", "blue")}
    view({"a": Cloud(torch.rand(2, 3), stored), "b": torch.rand(2, 3)}, colors={"b": np.zeros((2, 3))})
    row = window.viewer.levels.sample(9)
    assert row.cloud.features["red"][np.argsort(row.number)].tolist() == [255, 255, 0, 0]  # one range for both


def test_origins_and_places_side_by_side(view):
    """Large coordinates are joined exactly, and a click shows a point's own coordinates and number."""
    origin = torch.tensor([500_000.0, 5_000_000.0, 100.0]).double()
    one = Cloud(torch.rand(20, 3), origin=origin)
    two = Cloud(torch.rand(30, 3), origin=origin + torch.tensor([30_000.0, -500_000, 0]).double())
    for apart in (False, True):
        window = view({"one": one, "two": two}, side_by_side=apart)
        viewer = window.viewer
        assert viewer._apart.visible
        assert viewer._apart.value == apart
        assert bool((viewer.levels.high.max(0) - viewer.levels.low.min(0) < 3).all()) == apart
        shown = viewer.levels.sample(100)
        for row in range(50):
            picked = Part(shown.cloud.select(torch.tensor([row])), shown.number[row : row + 1])
            part = viewer._input.original(picked)
            number = int(shown.number[row])
            cloud, own = (one, number) if number < 20 else (two, number - 20)
            assert int(part.number[0]) == own
            torch.testing.assert_close(part.cloud.world()[0], cloud.world()[own], rtol=0, atol=1e-8)
    viewer._apart.value = False
    viewer.worker.submit("open", viewer._move_apart)
    viewer.wait()
    shown = viewer.levels.sample(100)
    torch.testing.assert_close(
        shown.cloud.world()[np.argsort(shown.number)], torch.cat([one.world(), two.world()]), rtol=0, atol=1e-8
    )


def test_batches_do_not_overlap(view):
    batch = torch.rand(7, 50, 3) * torch.tensor([3.0, 1, 1])
    batch[3] += 100
    viewer = view(batch).viewer
    assert viewer._apart.value
    row = viewer.levels.sample(1000)
    points, cloud = row.cloud.points, row.cloud.features["cloud"]
    boxes = [(points[cloud == number].amin(0), points[cloud == number].amax(0)) for number in range(7)]
    for number, (low, high) in enumerate(boxes):
        assert torch.allclose(high - low, (batch[number].amax(0) - batch[number].amin(0)).double(), atol=1e-4)
        for other_low, other_high in boxes[:number]:
            assert bool((low > other_high)[:2].any() or (high < other_low)[:2].any())
    extent = points.amax(0) - points.amin(0)
    assert float(extent[:2].max()) < 3 * 3 * 1.2


def test_errors_leave_the_viewer_unchanged(view):
    window = view({"a": torch.rand(5, 3), "b": labelled(5)})
    before = window.viewer.levels
    for arguments, options, message in (
        ((torch.rand(3, 100),), {}, "they look transposed"),
        ((torch.rand(5, 3),), {"by": "intensity"}, "by must be one of height, got intensity"),
        (([torch.rand(5, 3)] * 2,), {"by": "x"}, "by must be one of height, cloud, got x"),
        (
            (Cloud(torch.rand(5, 3), {"intensity": torch.rand(5, 2)}),),
            {"name": "a"},
            "intensity must have",
        ),
        ((Cloud(torch.rand(5, 3), {"cloud": torch.rand(5)}),), {"name": "a"}, "a feature must not be named cloud"),
    ):
        with pytest.raises(ValueError, match=message):
            pointgrad.view(*arguments, **options)
    window.viewer.wait()
    assert window.viewer.levels is before


def test_port_and_threads(view, taken):
    with pytest.raises(ValueError, match=f"cannot listen on port {taken}"):
        pointgrad.view(torch.rand(5, 3), port=taken)
    for port in ("8080", 8080.0, True):
        with pytest.raises(TypeError, match=f"port must be an integer, got {type(port).__name__}"):
            pointgrad.view(torch.rand(5, 3), port=port)
    assert not windows._windows
    threads = [threading.Thread(target=view, args=(torch.rand(9, 3),), kwargs={"name": str(i)}) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (window,) = windows._windows
    window.viewer.wait()
    assert sorted(window._shown.clouds) == ["0", "1", "2", "3"]


PROGRAM = """
import sys
if len(sys.argv) > 1:
    sys.modules["viser"] = None
import numpy, pointgrad
try:
    window = pointgrad.view(numpy.random.rand(20_000, 3))
except ValueError as error:
    print(error)
"""


def test_programs_end():
    """A program that shows points ends by itself, also while they are drawn; without viser it gets one line."""
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    for arguments, expected in (((), "(until this program ends)"), (("x",), "the viewer needs viser: pip install")):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60, env=environment
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        assert expected in done.stdout
        assert done.stdout.count("\n") == 1
