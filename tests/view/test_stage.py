"""Drawing of a cloud and picking of points."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.view.levels import build
from pointgrad.view.picking import pick
from pointgrad.view.stage import SIZE, Stage, Style
from tests.view.clouds import in_chunks, uneven


class RecordingScene:
    """Scene that records the point clouds that are added."""

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
    yield Stage(RecordingScene(), levels, 10_000)
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
def test_degenerate_clouds_are_drawn(points):
    levels = build(lambda: [data.Cloud(points)])
    stage = Stage(RecordingScene(), levels, 100)
    stage.draw(Style(levels.scale("height", {})), None)
    places = stage.place(points)
    assert np.isfinite(places).all()
    assert abs(places).max() <= SIZE
    assert stage.point_size > 0
    assert all(np.isfinite(part).all() for part in stage.camera_pose(True))
    levels.close()


def test_only_changes_are_sent(stage):
    drawn, style = stage._scene, Style(stage.levels.scale("label", {}))
    stage.draw(style, None)
    leaves = drawn.sent
    assert leaves == len(stage.levels.counts)
    stage.draw(style, None)
    assert drawn.sent == leaves
    stage.draw(replace(style, size=2.0), None)
    assert drawn.sent == 2 * leaves
    stage.invalidate()
    stage.draw(replace(style, size=2.0), None)
    assert drawn.sent == 3 * leaves


def test_hidden_classes_and_a_copy(stage):
    drawn, style = stage._scene, Style(stage.levels.scale("label", {}), second=stage.levels.scale("height", {}))
    stage.draw(replace(style, hidden=frozenset({-1, 2})), None)
    assert sum(len(points) for points, _ in drawn.nodes.values()) == 2 * 2400
    main = np.concatenate([colors for name, (_, colors) in drawn.nodes.items() if name.startswith("/cloud")])
    wanted = {style.scale.color(number) for number in (0, 1, 3)}
    assert set(map(tuple, main.tolist())) == wanted
    stage.draw(replace(style, hidden=frozenset(range(-1, 4))), None)
    assert drawn.nodes == {}


def test_picking_in_cloud_and_copy(stage):
    style = Style(stage.levels.scale("label", {}), second=stage.levels.scale("height", {}))
    stage.draw(style, None)
    camera = np.array([3.0, -2.0, 40.0])
    world = uneven().world()
    for number in (0, 1234, 3999):
        place = stage.place((world[number] - stage.levels.origin)[None])[0]
        for copy in (np.zeros(3), stage.copy_offset):
            picked = stage.pick(camera, place + copy - camera)
            found = int(picked.row.number[0])
            assert torch.equal(picked.row.cloud.world()[0], world[found])
            # Another point in front may be picked if it is within a few pixels of the ray.
            ray = (place + copy - camera) / np.linalg.norm(place + copy - camera)
            towards = picked.position - camera
            assert np.linalg.norm(towards - (towards @ ray) * ray) < 0.012 * np.linalg.norm(towards)
    assert stage.pick(camera, -(place - camera)) is None


def test_nearest_point_on_a_ray_is_picked():
    points = np.array([[0, 0, 10.0], [0, 0, 4.0], [0.02, 0, 7.0]])
    assert pick(points, np.zeros(3), np.array([0, 0, 2.0])) == 1
    assert pick(points[:0], np.zeros(3), np.array([0, 0, 1.0])) is None
