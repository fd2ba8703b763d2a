"""Prediction: every point gets what the network says about it, wherever it lies, in any format, and nothing is lost."""

import doctest
import importlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import DATA
from scipy.spatial import cKDTree

import pointgrad
from pointgrad import data, predict
from pointgrad.data import Cloud, FileError, Prepare
from pointgrad.predict import labels, tree, voting, workspace
from pointgrad.train import Trained

SCANS = sorted((DATA / "scans").glob("*")) if (DATA / "scans").is_dir() else []
CLOUDS = [path for path in SCANS if not path.name.endswith((".calib.txt", ".label_2.txt"))]


class Height(torch.nn.Module):
    """Says "high" of points whose height, or first feature, is above a threshold; keeps what it was given."""

    def __init__(self, threshold=0.0):
        super().__init__()
        self.threshold, self.seen = threshold, []

    def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
        self.seen.append((points, features, offsets))
        height = (points[..., 2] if features is None else features[..., 0]) - self.threshold
        return torch.stack([-height, height], dim=-1)


class Relative(torch.nn.Module):
    """Compares each point with the mean of the points it is shown with: what it says depends on the company."""

    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor([3.0, 2.0, 10.0]))

    def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
        if offsets is None:
            mean = points.mean(1, keepdim=True).expand_as(points)
        else:
            sizes = offsets.diff()
            mean = pointgrad.segment(points, offsets, "mean").repeat_interleave(sizes, 0)
        height = ((points - mean) * self.slope).sum(-1)
        return torch.stack([-height, height], dim=-1)


def trained(model=None, task="segmentation", classes=("low", "high"), **prepare):
    return Trained((model or Height()).eval(), task, classes, Prepare(**{"normalize": "none", **prepare}))


def scene(count=4000, seed=0, size=(20.0, 12.0, 4.0)):
    """Uneven: half of the points lie in a corner; some are equal."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 3, generator=generator, dtype=torch.float64) * torch.tensor(size)
    points[: count // 2] *= torch.tensor([0.2, 0.2, 1.0])
    points[count // 3 : count // 3 + 50] = points[count // 3]
    points[:, 2] -= size[2] / 2
    return points


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tree, "LEAF_POINTS", 100)
    monkeypatch.setattr(tree, "TILE_POINTS", 500)
    monkeypatch.setattr(tree, "SAMPLE_EVERY", 4)


# Every point, exactly


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
def test_every_point_gets_what_the_network_says_of_it(small_tiles, prepare, tile):
    points = scene(1200)
    # In another order, since networks must not be told by the order of the file.
    cloud = Cloud(points[torch.randperm(1200)], {})
    cloud.features["height"] = cloud.points[:, 2].float()
    result = predict.label(trained(**prepare), cloud, tile=tile, max_points=300, votes=2)
    assert torch.equal(result.labels, (cloud.points[:, 2].float() > 0).long())
    expected = torch.sigmoid(2 * cloud.points[:, 2].float().abs())  # what softmax says of (-h, h)
    torch.testing.assert_close(result.confidence, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", ["one tile", "small tiles"])
def test_thinned_away_points_get_the_label_of_the_nearest_one_left(size, request):
    if size == "small tiles":
        request.getfixturevalue("small_tiles")
    points = scene()
    result = predict.label(trained(voxel=0.4), Cloud(points), tile=1.7)
    left = points[pointgrad.voxel_sampling(points, 0.4).index]
    distance, nearest = cKDTree(left.numpy()).query(points.numpy(), 2)
    is_clear = distance[:, 1] > distance[:, 0] * (1 + 1e-9)
    assert is_clear.mean() > 0.95
    expected = left[torch.from_numpy(nearest[:, 0]), 2] > 0
    assert torch.equal(result.labels[is_clear], expected[is_clear].long())


@pytest.mark.parametrize(
    "prepare",
    [
        {"normalize": "center"},
        {"normalize": "center", "points": 128, "voxel": 0.2},
        {"normalize": "sphere", "points": 64},
    ],
)
def test_the_result_does_not_depend_on_how_the_scene_is_cut_into_tiles(monkeypatch, prepare):
    network = trained(Relative(), **prepare)
    results = []
    for leaf, tile, every in ((10**6, 10**6, 256), (100, 300, 4)):
        monkeypatch.setattr(tree, "LEAF_POINTS", leaf)
        monkeypatch.setattr(tree, "TILE_POINTS", tile)
        monkeypatch.setattr(tree, "SAMPLE_EVERY", every)
        results.append(predict.label(network, Cloud(scene(1500)), tile=2.5, max_points=512))
    assert 0.2 < results[0].labels.float().mean() < 0.8
    for other in results[1:]:
        assert torch.equal(other.labels, results[0].labels)
        torch.testing.assert_close(other.confidence, results[0].confidence, rtol=0, atol=1e-5)


def test_pieces_are_as_in_training_the_points_nearest_to_each_other():
    """Each has as many points as in training, none twice, and no hole inside."""
    network = trained(points=200)
    points = scene(4000)
    predict.label(network, Cloud(points), votes=1, max_points=200)
    seen = [given.reshape(-1, 200, 3) for given, _, _ in network.model.seen]
    pieces = torch.cat(seen)
    assert 4000 / 200 < len(pieces) < 4000 / 200 * 5
    numbers = cKDTree(points.float().numpy())
    for piece in pieces[::5]:
        center = piece.mean(0)
        radius = (piece - center).norm(dim=1).max()
        inside = numbers.query_ball_point(center.numpy(), float(radius) * 0.5)
        held = cKDTree(piece.numpy()).query(points[inside].float().numpy())[0]
        assert (held == 0).all()


def test_a_network_of_objects_sees_samples_of_the_whole():
    network = trained(points=300, normalize="sphere")
    predict.label(network, Cloud(scene(1000)), votes=2)
    shown = torch.cat([given.reshape(-1, 300, 3) for given, _, _ in network.model.seen])
    assert len(shown) == 2 * 4  # votes, and the parts of 1000 points
    assert torch.allclose(shown.norm(dim=2).amax(1), torch.ones(8))
    extent = shown.amax(1) - shown.amin(1)
    assert (extent > 0.8 * extent.amax(0)).all()  # none is a corner of the cloud


def test_far_coordinates_lose_nothing():
    """A scene far from zero is labelled as the same scene near zero."""
    points = (scene(1500) * 1024).round() / 1024
    network = trained(Relative(), normalize="center", points=100, voxel=0.25)
    near = predict.label(network, Cloud(points), tile=2.0)
    far = predict.label(network, Cloud(points, origin=torch.tensor([2.0**23, -(2.0**22), 0.0]).double()), tile=2.0)
    assert torch.equal(near.labels, far.labels)
    assert torch.equal(near.confidence, far.confidence)


def test_votes_are_averaged():
    """Over several cuts the borders of windows, which split a slope at arbitrary places, matter less."""
    points = scene(3000)
    once, often = (
        predict.label(trained(Relative(), normalize="center"), Cloud(points), tile=3.0, votes=v) for v in (1, 8)
    )
    assert not torch.equal(once.labels, often.labels)
    assert often.confidence.mean() < once.confidence.mean()  # they disagree about some points


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
    assert not result.confidence.is_inference()  # the caller may use it as any tensor


# The tree


@pytest.mark.parametrize("kind", ["uniform", "one outlier", "all equal", "a line", "one point"])
def test_tiles_are_the_plane_and_hold_about_equally_many(monkeypatch, kind):
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
    for tile, mine in zip(made.tiles(), inside, strict=True):
        assert set(leaf[mine]) <= set(tile.leaves)
        near = made.around(tile, 0.05)
        close = ((xy >= tile.low - 0.05) & (xy <= tile.high + 0.05)).all(1)
        assert set(leaf[close]) <= set(near)
        assert kind == "all equal" or mine.sum() < 600
    assert kind == "all equal" or np.bincount(leaf).max() < 120
    everywhere = np.array([[np.finfo(float).max, -np.finfo(float).max]])
    assert sum(int(tile.contains(everywhere)[0]) for tile in made.tiles()) == 1


def test_a_sample_does_not_depend_on_chunks_and_stays_small(monkeypatch):
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


# LAS and LAZ


def las_file(path, count=3000, version="1.4", point_format=7, **columns):
    """With everything that must survive: scaled and array extra bytes, records before and after the points."""
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(version=version, point_format=point_format)
    header.scales, header.offsets = [0.01, 0.001, 0.02], [6_000_000.0, -100.0, 7.5]
    header.add_extra_dims(
        [
            laspy.ExtraBytesParams("depth", np.int16, "scaled", offsets=np.array([3.0]), scales=np.array([0.5])),
            laspy.ExtraBytesParams("wave", "3f8"),
            *(laspy.ExtraBytesParams(name, column.dtype) for name, column in columns.items()),
        ]
    )
    header.vlrs.append(laspy.VLR("someone", 77, "theirs", b"kept as it is"))
    header.system_identifier, header.generating_software = "a scanner", "a program"
    random = np.random.default_rng(0)
    las = laspy.LasData(header, laspy.ScaleAwarePointRecord.zeros(count, header=header))
    las.X, las.Y = random.integers(0, 2000, (2, count))
    las.Z = random.integers(-100, 100, count)
    for name in las.point_format.dimension_names:
        if name not in ("X", "Y", "Z", "depth", "wave", *columns):
            most = las.point_format.dimension_by_name(name).max
            las[name] = random.integers(0, min(most, 30000), count, endpoint=True)
    las.points.array["depth"] = random.integers(-30000, 30000, count)
    las.wave = random.random((count, 3))
    for name, column in columns.items():
        las[name] = column
    if version == "1.4":
        from laspy.vlrs.vlrlist import VLRList

        las.evlrs = VLRList([laspy.VLR("someone", 78, "after the points", b"x" * 70_000)])
    las.write(path)
    return laspy.read(path)


@pytest.mark.parametrize(
    ("version", "point_format", "suffix"), [("1.4", 7, ".laz"), ("1.2", 3, ".las"), ("1.4", 6, ".las")]
)
def test_las_keeps_everything(tmp_path, version, point_format, suffix):
    before = las_file(tmp_path / f"a{suffix}", version=version, point_format=point_format)
    network = trained(Height(), classes=("low", "high ground"))
    report = predict.label_file(network, tmp_path / f"a{suffix}", tmp_path / "out" / f"a{suffix}", tile=5.0)
    import laspy

    after = laspy.read(report.target)
    for name in before.points.array.dtype.names:
        assert np.array_equal(before.points.array[name], after.points.array[name]), name
    for name in before.point_format.dimension_names:
        assert np.array_equal(before[name], after[name]), name
    for name in ("scales", "offsets", "mins", "maxs"):
        assert np.array_equal(getattr(before.header, name), getattr(after.header, name)), name
    for name in ("version", "system_identifier", "generating_software", "creation_date", "are_points_compressed"):
        assert getattr(before.header, name) == getattr(after.header, name), name
    assert before.header.point_format.id == after.header.point_format.id
    theirs, names = (
        [vlr.record_data_bytes() for vlr in after.header.vlrs if vlr.user_id == user]
        for user in ("someone", "pointgrad")
    )
    assert theirs == [b"kept as it is"]
    assert names == [b"low\nhigh ground"]
    if version == "1.4":
        assert [evlr.record_data_bytes() for evlr in after.evlrs] == [b"x" * 70_000]
    assert after.label.dtype == np.uint8
    assert np.array_equal(after.label, before.z > 0)
    assert np.allclose(after.confidence, 1 / (1 + np.exp(-2 * np.abs(before.z))), atol=1e-6)
    assert report.counts.tolist() == np.bincount(after.label).tolist()
    assert (tmp_path / "out" / "classes.txt").read_text() == "low\nhigh ground\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(["classes.txt", f"a{suffix}"])


@pytest.mark.parametrize("chunk", [311, 3000, 10**6])
def test_las_in_any_chunks_is_labelled_as_in_memory(tmp_path, monkeypatch, small_tiles, chunk):
    las = pytest.importorskip("pointgrad.data.files.las")
    las_file(tmp_path / "a.laz")
    network = trained(Relative(), normalize="center", points=100, voxel=0.5, features=("intensity",))
    network.model.forward = lambda points, features=None, **where: Relative.forward(network.model, points, **where)
    cloud = data.read(tmp_path / "a.laz")
    expected = predict.label(network, cloud)
    monkeypatch.setattr(las, "CHUNK", chunk)
    predict.label_file(network, tmp_path / "a.laz", tmp_path / "out" / "a.laz")
    again = data.read(tmp_path / "out" / "a.laz")
    assert torch.equal(again.labels, expected.labels)
    assert torch.equal(again.features["confidence"], expected.confidence)
    assert torch.equal(again.world(), cloud.world())


def test_las_results_in_slabs(tmp_path, monkeypatch, small_tiles):
    """What is mapped into memory at once may be less than the file."""
    before = las_file(tmp_path / "a.las")
    monkeypatch.setattr("pointgrad.predict.las.SLAB", 257)
    predict.label_file(trained(), tmp_path / "a.las", tmp_path / "out" / "a.las", tile=3.0)
    assert np.array_equal(data.read(tmp_path / "out" / "a.las").labels, before.z > 0)


def test_las_classification_codes(tmp_path):
    before = las_file(tmp_path / "a.las", version="1.2", point_format=3)
    import laspy

    predict.label_file(trained(), tmp_path / "a.las", tmp_path / "out" / "a.las", classification=(2, 6))
    after = laspy.read(tmp_path / "out" / "a.las")
    assert np.array_equal(after.classification, np.where(before.z > 0, 6, 2))
    for name in ("synthetic", "key_point", "withheld", "intensity"):  # the flags share a byte with the code
        assert np.array_equal(before[name], after[name])
    with pytest.raises(
        FileError, match=r"a\.las: expected one classification code for each of 2 classes \(low, high\), got 1"
    ):
        predict.label_file(trained(), tmp_path / "a.las", tmp_path / "b" / "a.las", classification=(2,))
    with pytest.raises(FileError, match=r"a\.las: expected classification codes from 0 to 31, .* got 64"):
        predict.label_file(trained(), tmp_path / "a.las", tmp_path / "b" / "a.las", classification=(2, 64))


def test_las_with_labels_of_its_own_keeps_them(tmp_path):
    own = np.arange(3000, dtype=np.int32)
    before = las_file(tmp_path / "a.laz", label=own)
    import laspy

    first = predict.label_file(trained(), tmp_path / "a.laz", tmp_path / "out" / "a.laz")
    after = laspy.read(first.target)
    assert np.array_equal(after.label, own)
    assert np.array_equal(after.predicted_label, before.z > 0)
    second = predict.label_file(trained(Height(0.5)), first.target, tmp_path / "again" / "a.laz")
    again = laspy.read(second.target)
    assert np.array_equal(again.predicted_label, before.z > 0.5)
    assert list(again.point_format.dimension_names) == list(after.point_format.dimension_names)
    las_file(tmp_path / "b.laz", label=own, predicted_label=own)
    with pytest.raises(FileError, match="expected no dimension predicted_label, or one of type uint8, found int32"):
        predict.label_file(trained(), tmp_path / "b.laz", tmp_path / "out" / "b.laz")


def test_many_classes_need_more_bits(tmp_path):
    las_file(tmp_path / "a.las")

    class Many(Height):
        def forward(self, points, features=None, **where):
            return torch.nn.functional.one_hot((points[..., 2] > 0).long() * 299, 300).float()

    classes = tuple(f"class {number}" for number in range(300))
    predict.label_file(trained(Many(), classes=classes), tmp_path / "a.las", tmp_path / "out" / "a.las")
    import laspy

    after = laspy.read(tmp_path / "out" / "a.las")
    assert after.label.dtype == np.uint16
    assert np.array_equal(after.label, np.where(after.z > 0, 299, 0))
