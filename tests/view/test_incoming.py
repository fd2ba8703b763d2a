"""Values that programs send to a viewer: only those that its own pages can send are used."""

import math
import threading
import time

import pytest
import torch

from pointgrad import data
from pointgrad.view import Viewer, server
from pointgrad.view.worker import Worker
from tests.view.clients import CAMERA, connected, move_camera, send

viser = pytest.importorskip("viser")
from pointgrad.view import incoming  # noqa: E402 - needs viser


@pytest.fixture(scope="module")
def web():
    started = server.start("127.0.0.1", None, "x")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def viewer(web, tmp_path_factory):
    path = tmp_path_factory.mktemp("incoming") / "cloud.ply"
    data.write(path, data.Cloud(torch.rand(3000, 3), labels=torch.arange(3000) % 3))
    opened = Viewer(web, [path])
    assert opened.wait()
    yield opened
    opened.close()


@pytest.fixture
def client(web, viewer):
    """A connection that has reported its camera, as a browser does."""
    with connected(web) as connection:
        move_camera(connection)
        until(lambda: web.get_clients())
        yield connection
    until(lambda: not web.get_clients())


def until(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def synchronize(client, viewer):
    """Wait until all messages sent so far have been handled."""
    before = viewer._size.value
    viewer._size.value = 1.0
    send(client, "GuiUpdateMessage", uuid=viewer._size._impl.uuid, updates={"value": 2.0})
    until(lambda: viewer._size.value == 2.0)
    viewer._size.value = before
    viewer.wait()


def change(client, control, **updates):
    send(client, "GuiUpdateMessage", uuid=control._impl.uuid, updates=updates)


def controls(viewer):
    """All controls of a page with the names of their attributes."""
    owners = [viewer, viewer._clipping, viewer._measure, viewer.operators, *viewer.operators.panels.values()]
    sliders = {f"clipping {slider.label}": slider for slider in viewer._clipping._sliders}
    return sliders | {
        f"{type(owner).__name__}.{name}": value
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, viser.GuiInputHandle | viser.GuiButtonHandle | viser.GuiButtonGroupHandle)
    }


SLIDERS = {10**9: "max", 2**62: "max", 1e300: "max", -(10**9): "min", -0.5: "min"}
JUNK = (None, "7", "", [], [1], {}, {"a": 1}, b"x", math.nan, math.inf, -math.inf, True, "nothing", 10**9, -1)


def test_values_of_all_controls(client, viewer, web):
    found = controls(viewer)
    sliders = [each for each in found.values() if isinstance(each, viser.GuiSliderHandle)]
    assert len(sliders) >= 11
    hidden = [control for control in found.values() if not control.visible]
    for control in hidden:
        control.visible = True
    for name, control in found.items():
        before = control.value
        for value in JUNK:
            change(client, control, value=value)
        synchronize(client, viewer)
        if isinstance(control, viser.GuiSliderHandle):
            assert control.min <= control.value <= control.max, name
        elif isinstance(control, viser.GuiDropdownHandle | viser.GuiMultiSliderHandle):
            assert control.value == before, name
        assert type(control.value) is type(before), name
        control.value = before
    for control in hidden:
        control.visible = False


@pytest.mark.parametrize(("value", "bound"), SLIDERS.items())
def test_sliders_are_limited_to_their_range(client, viewer, value, bound):
    for title, name in (("neighbours", "_k"), ("groups", "_count"), ("groups", "_k"), ("interpolation", "_count")):
        slider = getattr(viewer.operators.panels[title], name)
        slider.value = slider.min + 1
        change(client, slider, value=value)
        limit = getattr(slider, bound)
        until(lambda slider=slider, limit=limit: slider.value == limit)
        assert type(slider.value) is int


def test_slider_without_a_client(viewer):
    slider = viewer.operators.panels["neighbours"]._radius
    slider.visible, slider.min, slider.max = True, 0.25, 0.75
    cases = [(0, 0.25), (0.5, 0.5), (1, 0.75), (math.nan, None), (math.inf, None), ("0.5", None), (True, None)]
    for value, expected in cases:
        assert incoming.control_value(slider, {"value": value}) == expected
    slider.disabled = True
    assert incoming.control_value(slider, {"value": 0.5}) is None
    slider.disabled, slider.visible = False, False
    assert incoming.control_value(slider, {"value": 0.5}) is None


def test_range_without_a_client(viewer):
    slider = viewer._clipping._sliders[0]
    slider.visible, slider.min, slider.max, slider.value = True, 0.25, 0.75, (0.25, 0.75)
    cases = [((0.5, 0.6), (0.5, 0.6)), ([0, 1], (0.25, 0.75)), ((0.6, 0.5), (0.5, 0.6))]
    cases += [(value, None) for value in ((0.5,), (0.5, 0.6, 0.7), 0.5, "ab", None, (0.5, math.nan), ("a", "b"))]
    for value, expected in cases:
        assert incoming.control_value(slider, {"value": value}) == expected
    slider.visible = False
    assert incoming.control_value(slider, {"value": (0.5, 0.6)}) is None


def test_other_properties_and_messages_are_ignored(client, viewer, web, monkeypatch, capfd):
    """A control's limits and options, files, and the address that viser offers to share on the internet."""
    shared = []
    monkeypatch.setattr(viser.ViserServer, "request_share_url", lambda *_, **__: shared.append(1))
    slider, choice = viewer.operators.panels["neighbours"]._k, viewer._by
    before = slider.max, slider.value, choice.options, choice.value
    for updates in ({"max": 10**9}, {"value": 3, "max": 10**9}, {"update_cb": []}, {"props": None}, {}, {"removed": 1}):
        change(client, slider, **updates)
    change(client, choice, options=("a",))
    start = {"filename": "a", "mime_type": "b", "part_count": 0, "size_bytes": 0, "transfer_uuid": "t"}
    send(client, "FileTransferStartUpload", source_component_uuid=slider._impl.uuid, **start)
    send(client, "ShareUrlRequest")
    send(client, "GuiFormDirtyMessage", uuid="none")
    send(client, "GuiUpdateMessage", uuid="none", updates={"value": 1})
    synchronize(client, viewer)
    assert (slider.max, slider.value, choice.options, choice.value) == before
    assert not shared
    assert web.request_share_url() is None
    assert capfd.readouterr().err == ""


CAMERAS = [
    {"position": (math.nan, 0.0, 0.0)},
    {"position": (math.inf, 0.0, 0.0)},
    {"position": (1e300, 0.0, 0.0)},
    {"fov": 0.0},
    {"fov": 4.0},
    {"fov": math.nan},
    {"image_height": 0},
    {"image_height": 10**9},
    {"image_width": -1},
]
MALFORMED = [  # at these, viser closes the connection, or it converts the value
    {"fov": "1"},
    {"image_width": 1.5},
    {"position": (0.0, 0.0)},
    {"position": "abc"},
    {"position": None},
    {"look_at": ("a", "b", "c")},
    {"wxyz": (1.0, 0.0, 0.0)},
]


def test_cameras(client, viewer, capfd):
    move_camera(client, position=(5.0, 6.0, 7.0))
    until(lambda: viewer._camera is not None and viewer._camera.position.tolist() == [5, 6, 7])
    for camera in CAMERAS:
        move_camera(client, **camera)
    synchronize(client, viewer)
    assert viewer._camera.position.tolist() == [5, 6, 7]
    assert capfd.readouterr().err == ""


def test_many_camera_messages_start_no_threads(client, viewer, monkeypatch):
    drawn, threads = [], []
    monkeypatch.setattr(viewer, "_draw", lambda: drawn.append(threading.active_count()))
    before = threading.active_count()
    for number in range(300):
        move_camera(client, position=(float(number), 1.0, 2.0))
    until(lambda: viewer._camera.position[0] == 299)
    threads.append(threading.active_count())
    until(lambda: drawn)
    viewer.wait()
    assert max(threads + drawn) <= before
    assert len(drawn) <= 30


CLICK = {
    "event_type": "click",
    "ray_origin": (0.0, -9.0, 0.0),
    "ray_direction": (0.0, 1.0, 0.0),
    "screen_pos": ((0.5, 0.5),),
}
CLICKS = [
    {"event_type": "rect-select"},
    {"event_type": "other"},
    {"ray_direction": (0.0, 0.0, 0.0)},
    {"ray_direction": None},
    {"ray_origin": (math.nan, 0.0, 0.0)},
    {"screen_pos": ((1.5, 0.5),)},
    {"screen_pos": ((0.5, math.nan),)},
    {"screen_pos": ((0.5, 0.5), (0.6, 0.6))},
]


def test_clicks(client, viewer, monkeypatch, capfd):
    chosen = []
    monkeypatch.setattr(viewer, "_choose", lambda *ray: chosen.append(ray))
    for click in (*CLICKS, {}):
        send(client, "ScenePointerMessage", modifier=None, **{**CLICK, **click})
    until(lambda: chosen)
    synchronize(client, viewer)
    assert len(chosen) == 1
    assert capfd.readouterr().err == ""


def test_camera_values():
    class Message:
        def __init__(self, **fields):
            vars(self).update({**CAMERA, **fields})

    assert incoming.is_valid_camera(Message())
    assert incoming.is_valid_camera(Message(position=(0, -9, 3)))  # JavaScript sends 3.0 as 3
    for camera in CAMERAS + MALFORMED:
        assert not incoming.is_valid_camera(Message(**camera))


def test_worker_delays_and_replaces_a_task():
    ran = []
    worker = Worker(ran.append)
    worker.submit("rest", lambda: ran.append("replaced"), 60.0)
    worker.submit("rest", lambda: ran.append("late"), 0.05)
    worker.submit("now", lambda: ran.append("now"))
    worker.wait()
    assert ran == ["now", "late"]
    worker.submit("never", lambda: ran.append("never"), 60.0)
    worker.stop()
    assert ran == ["now", "late"]
