"""Drawing of a cloud and picking of points."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.view import network
from pointgrad.view.levels import build
from pointgrad.view.picking import pick
from pointgrad.view.stage import FRONT, HOME, SIDE, SIZE, TOP, Stage, Style
from tests.view.clouds import in_chunks, uneven


class RecordingScene:
    """Scene that records the point clouds that are added."""

    def __init__(self):
        self.nodes, self.sizes = {}, {}
        self.sent = 0

    def add_point_cloud(self, name, points, colors, *, point_size, **_):
        scene = self
        self.sent += 1
        self.sizes[name] = point_size
        self.nodes[name] = (points, np.broadcast_to(colors, points.shape))

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
    # Diameters in a window 1000 pixels high, seen from the initial camera, before display.js limits them.
    position, target = stage.camera_pose(HOME, 0.8, 1.5)
    pixels = [1000 * size / np.linalg.norm(position - target) for size in stage._scene.sizes.values()]
    assert 1 < max(pixels) < 32
    for view in (HOME, TOP, FRONT, SIDE):
        position, target = stage.camera_pose(view, 0.8, 1.5)
        assert np.isfinite([position, target]).all()
        assert not np.allclose(position, target)
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


def test_picking(stage):
    stage.draw(Style(stage.levels.scale("label", {})), None)
    camera = np.array([3.0, -2.0, 40.0])
    world = uneven().world()
    for number in (0, 1234, 3999):
        place = stage.place((world[number] - stage.levels.origin)[None])[0]
        picked = stage.pick(camera, place - camera)
        found = int(picked.row.number[0])
        assert torch.equal(picked.row.cloud.world()[0], world[found])
        # Another point in front may be picked if it is within a few pixels of the ray.
        ray = (place - camera) / np.linalg.norm(place - camera)
        towards = picked.position - camera
        assert np.linalg.norm(towards - (towards @ ray) * ray) < 0.012 * np.linalg.norm(towards)
    assert stage.pick(camera, -(place - camera)) is None


def test_only_points_in_the_clipping_box_are_picked(stage):
    style = Style(stage.levels.scale("label", {}))
    stage.draw(style, None)
    sent, places = stage._scene.sent, stage.place(uneven().points - stage.levels.origin)
    place = places[np.argmax(places[:, 2])].astype(float)
    above = place + np.array([0, 0, 30])
    assert stage.pick(above, place - above).position == pytest.approx(place, abs=1e-5)
    low, high = (-1e5, -1e5, -1e5), (1e5, 1e5, float(place[2]) - 0.5)
    stage.draw(replace(style, clip=(low, high)), None)
    assert stage._scene.sent == sent  # browsers clip
    below = stage.pick(above, place - above)
    assert below is None or below.position[2] <= place[2] - 0.5
    stage.draw(replace(style, clip=((50.0,) * 3, (60.0,) * 3)), None)
    assert stage.drawn == 0  # no points are spent on leaves outside of the box
    assert stage._scene.nodes == {}
    assert stage.pick(above, place - above) is None
    corners = np.array([[-1.0, 2, 3], [4, 5, 6]])
    assert stage.from_world(stage.world(stage.middle + corners / stage.factor)) == pytest.approx(corners, abs=1e-6)


@pytest.mark.parametrize("aspect", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("view", [HOME, TOP, FRONT, SIDE], ids=["home", "top", "front", "side"])
def test_cameras_show_the_whole_cloud_closely(view, aspect):
    generator = np.random.default_rng(3)
    tree = generator.random((3000, 3)) * [2, 2, 30]
    levels = build(lambda: [data.Cloud(torch.from_numpy(np.concatenate([tree, tree[:50] - np.array([0, 0, 2000])])))])
    stage = Stage(RecordingScene(), levels, 10_000)
    fov = 0.8
    position, target = stage.camera_pose(view, fov, aspect)
    back = (position - target) / np.linalg.norm(position - target)
    right = np.cross([0, 0, 1.0], back)
    right /= np.linalg.norm(right)
    relative = stage.place(torch.from_numpy(tree)) - position
    depth = -relative @ back
    half = np.tan(fov / 2)
    across, up = (relative @ right) / depth / half / aspect, (relative @ np.cross(back, right)) / depth / half
    assert (depth > 0).all()
    most = max(abs(across).max(), abs(up).max())
    assert most < 1
    if view is not TOP:  # from above, the camera keeps a distance from the top of the tree
        assert most > 0.85  # near the edge of the picture, in spite of the outliers
    levels.close()


def test_errors_only():
    predicted = torch.tensor([0, 1, 1, -1, 0])
    cloud = data.Cloud(torch.eye(5, 3), {"predicted_label": predicted}, torch.tensor([0, 1, 0, 1, -1]))
    levels = build(lambda: [cloud])
    network.add_error(levels)
    error = levels.sample(5)
    assert error.cloud.features["error"][np.argsort(error.number)].tolist() == [0, 0, 1, -1, -1]
    stage = Stage(RecordingScene(), levels, 100)
    style = Style(levels.scale("label", {}), levels.scale("predicted_label", {}), only_wrong=True)
    stage.draw(style, None)
    expected = stage.place(cloud.points[2:3])
    for name in ("/cloud/0", "/copy/0"):
        assert stage._scene.nodes[name][0] == pytest.approx(expected)
    levels.close()


@pytest.mark.usefixtures("small_leaves")
def test_sizes_follow_the_density_of_each_part():
    generator = torch.Generator().manual_seed(0)
    dense = torch.rand(4000, 3, generator=generator) * torch.tensor([5.0, 5, 0])
    sparse = torch.rand(4000, 3, generator=generator) * torch.tensor([50.0, 50, 0]) + torch.tensor([100.0, 0, 0])
    levels = build(lambda: [data.Cloud(torch.cat([dense, sparse]))])
    stage = Stage(RecordingScene(), levels, 100_000)
    stage.draw(Style(levels.scale("height", {})), None)
    border = stage.place(torch.tensor([[50.0, 0, 0]]))[0, 0]
    sizes = {False: [], True: []}
    for name, (points, _) in stage._scene.nodes.items():
        sizes[bool(points[:, 0].mean() < border)].append(stage._scene.sizes[name])
    assert 7 < np.median(sizes[False]) / np.median(sizes[True]) < 14  # the spacing differs by a factor of ten
    levels.close()


@pytest.mark.parametrize("count", [60, 300, 1065, 3000])
def test_size_is_the_distance_of_the_points_for_any_number_of_them(count):
    """Not that of the closest pairs of a small cloud."""
    points = torch.rand(count, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([10.0, 10, 0])
    levels = build(lambda: [data.Cloud(points)])
    stage = Stage(RecordingScene(), levels, 100_000)
    stage.draw(Style(levels.scale("height", {})), None)
    (size,) = stage._scene.sizes.values()
    assert size == pytest.approx(min(0.8 * SIZE / count**0.5, SIZE / 50), rel=0.2)
    levels.close()


def test_nearest_point_on_a_ray_is_picked():
    points = np.array([[0, 0, 10.0], [0, 0, 4.0], [0.02, 0, 7.0]])
    assert pick(points, np.zeros(3), np.array([0, 0, 2.0])) == 1
    assert pick(points[:0], np.zeros(3), np.array([0, 0, 1.0])) is None
