"""Prediction for clouds in memory: labels of points, and classes of whole clouds."""

import doctest
import importlib

import numpy as np
import pytest
import torch

import pointgrad
from pointgrad import predict
from pointgrad.data import Cloud, Prepare
from pointgrad.data.tiles import tree
from tests.support.scenes import Height, Relative, Spread, scene, sticks, trained

# Labels of points


@pytest.mark.parametrize(
    ("prepare", "tile"),
    [
        ({}, None),
        ({}, 1.5),
        ({}, 0.01),
        ({"points": 64}, 3.0),
        ({"points": 64}, None),
        ({"points": 64, "normalize": "center", "features": ("height",)}, None),
        ({"points": 100, "normalize": "sphere", "features": ("height",)}, None),
        ({"points": 100, "normalize": "sphere", "features": ("height",)}, 5.0),
        ({"points": 10_000, "normalize": "center", "features": ("height",)}, None),
    ],
)
def test_every_point_gets_the_prediction_of_the_network(small_tiles, prepare, tile):
    points = scene(1200)
    # In random order, because labels must not depend on the order of the points.
    cloud = Cloud(points[torch.randperm(1200)], {})
    cloud.features["height"] = cloud.points[:, 2].float()
    result = predict.label(trained(**prepare), cloud, tile=tile, max_points=300, votes=2)
    assert torch.equal(result.labels, (cloud.points[:, 2].float() > 0).long())
    expected = torch.sigmoid(2 * cloud.points[:, 2].float().abs())  # softmax of (-h, h)
    torch.testing.assert_close(result.confidence, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", ["one tile", "small tiles"])
def test_points_removed_by_voxels_get_the_label_of_the_nearest_kept_point(size, request):
    if size == "small tiles":
        request.getfixturevalue("small_tiles")
    points = scene()
    result = predict.label(trained(voxel=0.4), Cloud(points), tile=1.7)
    left = points[pointgrad.voxel_sampling(points, 0.4).index]
    spatial = pytest.importorskip("scipy.spatial")
    distance, nearest = spatial.cKDTree(left.numpy()).query(points.numpy(), 2)
    is_clear = distance[:, 1] > distance[:, 0] * (1 + 1e-9)
    assert is_clear.mean() > 0.95
    expected = left[torch.from_numpy(nearest[:, 0]), 2] > 0
    assert torch.equal(result.labels[is_clear], expected[is_clear].long())


@pytest.mark.parametrize(
    ("prepare", "window"),
    [
        ({"normalize": "center"}, 2.5),
        ({"normalize": "center", "points": 128, "voxel": 0.2}, 2.5),
        ({"normalize": "center", "points": 16, "voxel": 1.0}, 0.4),  # voxels larger than windows
        ({"normalize": "sphere", "points": 64}, 2.5),
    ],
)
def test_result_does_not_depend_on_tiles(monkeypatch, prepare, window):
    network = trained(Relative(), **prepare)
    results = []
    for leaf, tile, every in ((10**6, 10**6, 256), (100, 300, 4)):
        monkeypatch.setattr(tree, "LEAF_POINTS", leaf)
        monkeypatch.setattr(tree, "TILE_POINTS", tile)
        monkeypatch.setattr(tree, "SAMPLE_EVERY", every)
        results.append(predict.label(network, Cloud(scene(1500)), tile=window, max_points=512))
    assert 0.2 < results[0].labels.float().mean() < 0.8
    for other in results[1:]:
        assert torch.equal(other.labels, results[0].labels)
        torch.testing.assert_close(other.confidence, results[0].confidence, rtol=0, atol=1e-5)


def test_inputs_are_compact_and_as_large_as_in_training():
    """Each input has as many points as in training, without duplicates and without holes."""
    network = trained(points=200)
    points = scene(4000)
    predict.label(network, Cloud(points), votes=1, max_points=200)
    seen = [given.reshape(-1, 200, 3) for given, _, _ in network.model.seen]
    pieces = torch.cat(seen)
    assert 4000 / 200 < len(pieces) < 4000 / 200 * 5
    spatial = pytest.importorskip("scipy.spatial")
    numbers = spatial.cKDTree(points.float().numpy())
    for piece in pieces[::5]:
        center = piece.mean(0)
        radius = (piece - center).norm(dim=1).max()
        inside = numbers.query_ball_point(center.numpy(), float(radius) * 0.5)
        held = spatial.cKDTree(piece.numpy()).query(points[inside].float().numpy())[0]
        assert (held == 0).all()


def test_network_trained_on_objects_sees_samples_of_the_whole_cloud():
    network = trained(points=300, normalize="sphere")
    predict.label(network, Cloud(scene(1000)), votes=2)
    shown = torch.cat([given.reshape(-1, 300, 3) for given, _, _ in network.model.seen])
    assert len(shown) == 2 * 4  # votes times parts of 1000 points
    assert torch.allclose(shown.norm(dim=2).amax(1), torch.ones(8))
    extent = shown.amax(1) - shown.amin(1)
    assert (extent > 0.8 * extent.amax(0)).all()  # all parts cover the cloud


def test_large_coordinates_lose_no_precision():
    """A scene far from the origin gets the same labels as near the origin."""
    points = (scene(1500) * 1024).round() / 1024
    network = trained(Relative(), normalize="center", points=100, voxel=0.25)
    near = predict.label(network, Cloud(points), tile=2.0)
    far = predict.label(network, Cloud(points, origin=torch.tensor([2.0**23, -(2.0**22), 0.0]).double()), tile=2.0)
    assert torch.equal(near.labels, far.labels)
    assert torch.equal(near.confidence, far.confidence)


def test_votes_are_averaged():
    """Averaging over shifted windows reduces errors at their borders."""
    points = scene(3000)
    once, often = (
        predict.label(trained(Relative(), normalize="center"), Cloud(points), tile=3.0, votes=v) for v in (1, 8)
    )
    assert not torch.equal(once.labels, often.labels)
    assert often.confidence.mean() < once.confidence.mean()  # votes differ for some points


def test_votes_near_a_border_have_less_weight():
    """The result is right for a network that is right only in the central quarter of its input."""

    class Middle(torch.nn.Module):
        def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
            out = 10 * (points[..., :2].abs().amax(-1) - 0.5)
            return torch.stack([-out, out], dim=-1)

    points = torch.rand(20_000, 3) * torch.tensor([10.0, 10.0, 1.0])
    result = predict.label(trained(Middle(), normalize="center"), Cloud(points), tile=2.0, votes=16)
    inside = (points[:, :2] - 5).abs().amax(1) < 3  # where windows are full
    assert (result.labels[inside] == 0).float().mean() > 0.9


def test_on_every_device(default_place):
    network = trained(Relative(), normalize="center", points=128, voxel=0.2)
    on_cpu = predict.label(network, Cloud(scene(2000)), tile=3.0)
    network.model.to(default_place.device)
    result = predict.label(network, Cloud(scene(2000)), tile=3.0)
    assert result.labels.device.type == "cpu"
    is_clear = on_cpu.confidence > 0.51
    assert is_clear.float().mean() > 0.9
    assert torch.equal(result.labels[is_clear], on_cpu.labels[is_clear])


def test_gradients_are_not_kept():
    weight = torch.nn.Parameter(torch.ones(1))

    class Network(Height):
        def forward(self, points, features=None, **where):
            out = super().forward(points, features) * weight
            assert not out.requires_grad
            return out

    result = predict.label(trained(Network()), Cloud(scene(10)))
    assert not result.confidence.requires_grad
    assert not result.confidence.is_inference()  # an ordinary tensor, not an inference tensor


def test_evaluation_mode_is_set_and_restored():
    class Network(Height):
        def forward(self, points, features=None, **where):
            assert not self.training
            return super().forward(points, features)

    network = trained(Network())
    network.model.train()
    predict.label(network, Cloud(scene(10)))
    assert network.model.training
    network.model.eval()
    predict.label(network, Cloud(scene(10)))
    assert not network.model.training


@pytest.mark.parametrize("shape", ["wall", "pole", "one place", "far from zero"])
def test_elongated_scenes(shape):
    """Network inputs are as full as for other scenes, and all points get a label."""
    points = scene(3000)
    if shape != "far from zero":
        points[:, 1 if shape == "wall" else slice(0, 2)] = 0.25
    if shape == "one place":
        points[:] = 0.25
    points -= 5000 if shape == "far from zero" else 0
    network = trained(Height(-5000.0 if shape == "far from zero" else 0.0), points=200)
    result = predict.label(network, Cloud(points), votes=1, max_points=400)
    assert torch.equal(result.labels, (points[:, 2].float() - network.model.threshold > 0).long())
    assert 3000 / 200 <= sum(given.reshape(-1, 3).shape[0] for given, _, _ in network.model.seen) / 200 < 100
    tiny = predict.label(trained(points=4), Cloud(points[:50]), tile=1e-9, votes=1)
    assert torch.equal(tiny.labels, (points[:50, 2].float() > 0).long())


# The tree


@pytest.mark.parametrize("kind", ["uniform", "one outlier", "all equal", "a line", "one point"])
def test_tiles_cover_the_plane_with_similar_numbers_of_points(monkeypatch, kind):
    monkeypatch.setattr(tree, "LEAF_POINTS", 50)
    monkeypatch.setattr(tree, "TILE_POINTS", 400)
    xy = np.random.default_rng(0).random((5000, 2))
    if kind == "one outlier":
        xy[7] = 1e9
    elif kind == "all equal":
        xy[:] = 0.5
    elif kind == "a line":
        xy[:, 1] = 3
    elif kind == "one point":
        xy = xy[:1]
    made = tree.Tree(xy[::5], 5)
    inside = np.stack([tile.contains(xy) for tile in made.tiles()])
    assert (inside.sum(0) == 1).all()
    leaf = made.leaf(xy)
    for tile, members in zip(made.tiles(), inside, strict=True):
        assert set(leaf[members]) <= set(tile.leaves)
        near = made.around(tile, 0.05)
        close = ((xy >= tile.low - 0.05) & (xy <= tile.high + 0.05)).all(1)
        assert set(leaf[close]) <= set(near)
        assert kind == "all equal" or members.sum() < 600
    assert kind == "all equal" or np.bincount(leaf).max() < 120
    everywhere = np.array([[np.finfo(float).max, -np.finfo(float).max]])
    assert sum(int(tile.contains(everywhere)[0]) for tile in made.tiles()) == 1


def test_sample_does_not_depend_on_chunks_and_is_bounded(monkeypatch):
    monkeypatch.setattr(tree, "SAMPLE_POINTS", 100)
    monkeypatch.setattr(tree, "SAMPLE_EVERY", 4)
    xy = np.random.default_rng(0).random((5000, 2))
    kept = []
    for size in (1, 7, 1000, 5000):
        sample = tree.Sample()
        for first in range(0, 5000, size):
            sample.add(xy[first : first + size])
        assert len(sample.points()) <= 100
        assert np.array_equal(sample.points(), xy[:: sample.every])
        kept.append(sample.every)
    assert set(kept) == {64}


# Classification


@pytest.mark.parametrize("points", [0, 64, 1000])
def test_classify(points):
    network = trained(Spread(), "classification", ("x", "y", "z"), normalize="sphere", points=points)
    result = predict.classify(network, sticks(), max_points=200)
    assert result.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert result.probabilities.shape == (6, 3)
    torch.testing.assert_close(result.probabilities.sum(1), torch.ones(6))
    for number, cloud in enumerate(sticks()):  # independent of the other clouds
        alone = predict.classify(network, [cloud])
        torch.testing.assert_close(alone.probabilities[0], result.probabilities[number], rtol=0, atol=1e-5)
    if not points:
        finite = sticks()[4].select(torch.arange(170) != 3)
        given = Prepare()(finite, torch.Generator()).points[None]
        torch.testing.assert_close(result.probabilities[4:5], Spread()(given).softmax(1))
    assert predict.classify(network, []).probabilities.shape == (0, 3)


def test_classify_errors():
    with pytest.raises(ValueError, match="task of the network must be classification, got segmentation"):
        predict.classify(trained(), sticks())
    network = trained(Spread(), "classification", ("x", "y", "z"), features=("glow",))
    with pytest.raises(ValueError, match=r"^a\.ply: features must contain glow, got no features$"):
        predict.classify(network, [Cloud(torch.rand(5, 3), source="a.ply")])
    with pytest.raises(ValueError, match=r"^a\.ply: .*at least one point"):
        predict.classify(trained(Spread(), "classification"), [Cloud(torch.zeros(0, 3), source="a.ply")])


@pytest.mark.parametrize("name", ["classes", "files", "labels"])
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"pointgrad.predict.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
