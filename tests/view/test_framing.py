"""Cameras of browsers, with a program in place of a browser."""

import asyncio
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.view.framing import FOV, LINKED_MARGIN, RETRIES, Framing
from pointgrad.view.stage import HOME, MARGIN
from tests.view.clients import connected, move_camera

pytest.importorskip("viser")


def until(holds):
    end = time.monotonic() + 30
    while not (value := holds()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value


def pose(viewer, aspect, margin=MARGIN, view=HOME):
    return np.stack(viewer.stage.camera_pose(view, FOV, aspect, margin))


def is_at(web, expected):
    client = next(iter(web.get_clients().values()), None)
    camera = None if client is None else client.camera
    return camera is not None and np.allclose([camera.position, camera.look_at], expected, atol=1e-4)


def report(connection, where, width, height):
    position, look_at = (tuple(map(float, part)) for part in where)
    move_camera(connection, position=position, look_at=look_at, image_width=width, image_height=height)


def test_cameras_follow_the_window_until_they_are_moved(see, panel_server):
    viewer = see(data.Cloud(torch.rand(500, 3) * torch.tensor([3.0, 2, 1]), {"row": torch.rand(500)}))
    web = panel_server

    def confirm(where, width, height):
        """Report a pose, and wait until the server has handled it: of several reports, it handles the last one only."""
        report(connection, where, width, height)
        until(lambda: viewer.framing._arrived)

    with connected(web) as connection:
        move_camera(connection, image_width=300, image_height=200)
        until(lambda: is_at(web, pose(viewer, 1.5)))
        viewer.framing.show_all()  # the browser has not moved its camera yet: the direction is the initial one
        assert is_at(web, pose(viewer, 1.5))
        confirm(pose(viewer, 1.5), 300, 200)
        report(connection, pose(viewer, 1.5), 200, 400)  # a narrower window
        until(lambda: is_at(web, pose(viewer, 0.5)))
        confirm(pose(viewer, 0.5), 200, 400)
        viewer._compare.value = "row"
        viewer._copy_changed()
        until(lambda: is_at(web, pose(viewer, 1.0, LINKED_MARGIN)))  # one view above the other

        confirm(pose(viewer, 1.0, LINKED_MARGIN), 200, 400)
        moved = pose(viewer, 1.0, LINKED_MARGIN) + np.array([[9.0, 0, 0], [0, 0, 0]])
        report(connection, moved, 200, 400)
        report(connection, moved, 400, 200)
        until(lambda: is_at(web, moved))
        viewer.wait()
        assert is_at(web, moved)
        viewer._compare.value = "none"
        viewer._copy_changed()  # shows the whole cloud from the direction of the user
        back = moved[0] - moved[1]
        until(lambda: not is_at(web, moved))
        camera = next(iter(web.get_clients().values())).camera
        after = np.asarray(camera.position) - np.asarray(camera.look_at)
        assert after / np.linalg.norm(after) == pytest.approx(back / np.linalg.norm(back), abs=1e-3)
    until(lambda: not web.get_clients())


def test_a_pose_that_a_browser_has_lost_is_sent_again():
    tasks = []
    worker = SimpleNamespace(submit=lambda name, task, delay=0.0: tasks.append((task, delay)))
    stage = SimpleNamespace(camera_pose=lambda view, fov, aspect, margin: (np.full(3, 5.0 * aspect), np.zeros(3)))
    initial = SimpleNamespace(position=np.array([0, 6.0, 0]), look_at=np.zeros(3))
    server = SimpleNamespace(initial_camera=initial, on_client_connect=lambda call: None)
    framing = Framing(server, worker, lambda: stage, lambda: False)
    camera = SimpleNamespace(aspect=1.5)
    camera.client = client = SimpleNamespace(client_id=1, camera=camera, atomic=nullcontext)

    def report(position):
        camera.position, camera.look_at = np.asarray(position), np.zeros(3)
        asyncio.run(framing._moved(camera))

    framing.show(client, HOME)
    for number in range(RETRIES - 1):
        report([9.0, 0, 0])  # the browser does not show the pose
        assert len(tasks) == number + 1
        task, delay = tasks[-1]
        assert delay > 0
        task()
        assert camera.position.tolist() == [7.5] * 3
    report([7.5] * 3)
    report([9.0, 0, 0])  # moved by the user of a browser that works
    assert len(tasks) == RETRIES - 1
    report(initial.position)  # viser applied it after the pose
    report(initial.position)
    report([9.0, 0, 0])  # but the user was faster than the retry
    tasks[-1][0]()
    assert camera.position.tolist() == [9.0, 0, 0]
    report(initial.position)
    tasks[-1][0]()
    assert camera.position.tolist() == [7.5] * 3
    before = len(tasks)
    report(initial.position)
    assert len(tasks) == before  # not forever


@pytest.mark.parametrize(("width", "height"), [(900, 600), (400, 700)])
def test_rays_of_linked_views(see, width, height):
    """The ray through the image of a point hits the point, in both views."""
    viewer = see(data.Cloud(torch.rand(500, 3), {"row": torch.rand(500)}))
    position, target = viewer.stage.camera_pose(HOME, FOV, 1.0)
    back = (position - target) / np.linalg.norm(position - target)
    right = np.cross([0, 0, 1.0], back)
    right /= np.linalg.norm(right)
    turn = np.stack([right, -np.cross(back, right), -back], axis=1)  # camera axes right, down, forward
    w = np.sqrt(1 + np.trace(turn)) / 2
    skew = [turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]]
    camera = SimpleNamespace(aspect=width / height, fov=FOV, wxyz=np.array([w, *(np.array(skew) / (4 * w))]))
    viewer._compare.value = "row"
    point = np.array([0.7, -0.4, 0.3])
    across, down, depth = turn.T @ (point - position)
    wide = width >= height
    pane = (width / 2, height) if wide else (width, height / 2)
    focal = pane[1] / 2 / np.tan(FOV / 2)
    pixel = np.array([pane[0] / 2 + focal * across / depth, pane[1] / 2 + focal * down / depth])
    for number in range(2):
        clicked = pixel + number * np.array([pane[0] * wide, pane[1] * (not wide)])
        event = SimpleNamespace(
            client=SimpleNamespace(camera=camera),
            ray_origin=tuple(position),
            ray_direction=(0.0, 0.0, 1.0),  # for the whole canvas, which is wrong in linked views
            screen_pos=tuple(clicked / (width, height)),
        )
        origin, direction = viewer.framing.ray(event)
        towards = (point - origin) / np.linalg.norm(point - origin)
        assert direction / np.linalg.norm(direction) == pytest.approx(towards, abs=1e-6)
