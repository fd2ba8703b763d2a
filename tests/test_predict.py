"""Prediction: every point gets what the network says about it, wherever it lies, in any format, and nothing is lost."""

import doctest
import importlib
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import DATA

import pointgrad
from pointgrad import data, predict
from pointgrad.data import Cloud, FileError, Prepare
from pointgrad.predict import labels, tree, workspace
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


PACKAGES = {"ply": "plyfile", "pcd": "pypcd4", "las": "laspy", "laz": "laspy"}


def write(path, cloud):
    """Skips the test where the package of the format is missing."""
    if path.suffix[1:] in PACKAGES:
        pytest.importorskip(PACKAGES[path.suffix[1:]])
    data.write(path, cloud)


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
        ({"normalize": "center", "points": 16, "voxel": 1.0}, 0.4),  # voxels are larger than windows
        ({"normalize": "sphere", "points": 64}, 2.5),
    ],
)
def test_the_result_does_not_depend_on_how_the_scene_is_cut_into_tiles(monkeypatch, prepare, window):
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


def test_pieces_are_as_in_training_the_points_nearest_to_each_other():
    """Each has as many points as in training, none twice, and no hole inside."""
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


def test_votes_near_a_border_count_less():
    """A network that is right in the middle of what it sees, and wrong in the three quarters around, is right."""

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
    assert not result.confidence.is_inference()  # the caller may use it as any tensor


def test_evaluation_mode_and_back():
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
def test_shapes_that_no_square_fits(shape):
    """Pieces are as full as elsewhere, and all points get their label."""
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
    header.scales, header.offsets = [0.01, 0.001, 0.02], [6_000_000.0, -100.0, 0.5]
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
    las.X = np.sort(random.integers(0, 2000, count))  # no two chunks are alike
    las.Y = random.integers(0, 2000, count)
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


def test_las_around_zero_in_any_chunks(tmp_path, monkeypatch):
    """Whether taking an origin away rounds depends on the points: chunks must agree on one."""
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(version="1.4", point_format=6)
    header.scales = [0.5, 0.001, 0.001]
    las = laspy.LasData(header)
    random = np.random.default_rng(0)
    las.X = np.sort(np.append(random.integers(-4001, -3700, 1990), random.integers(0, 4001, 10)))
    las.Y, las.Z = random.integers(-900, 900, (2, 2000))
    las.write(tmp_path / "a.las")
    results = []
    for chunk in (2000, 150):
        monkeypatch.setattr("pointgrad.data.files.las.CHUNK", chunk)
        target = tmp_path / str(chunk) / "a.las"
        predict.label_file(trained(Relative(), normalize="center", points=50, voxel=0.7), tmp_path / "a.las", target)
        results.append(data.read(target))
    assert results[0].origin[0] == -2001
    assert torch.equal(results[0].labels, results[1].labels)
    assert torch.equal(results[0].features["confidence"], results[1].features["confidence"])


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


def test_a_cloud_optimised_file_becomes_a_plain_one(tmp_path):
    """Its points keep their order, but chunks do not, so the index in its records would be wrong."""
    before = las_file(tmp_path / "plain.laz")
    import laspy

    before.header.vlrs.insert(0, laspy.VLR("copc", 1, "", bytes(160)))
    before.write(tmp_path / "a.copc.laz")
    assert [vlr.user_id for vlr in laspy.read(tmp_path / "a.copc.laz").header.vlrs].count("copc") == 1
    target = predict.output(tmp_path / "a.copc.laz", tmp_path / "out")
    assert target.name == "a.laz"
    predict.label_file(trained(), tmp_path / "a.copc.laz", target)
    after = laspy.read(target)
    assert np.array_equal(after.label, before.z > 0)
    assert "copc" not in [vlr.user_id for vlr in after.header.vlrs]
    assert "someone" in [vlr.user_id for vlr in after.header.vlrs]


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


# Complete or not at all


class Failing(Height):
    """Answers a few times, then does something else."""

    def __init__(self, then, calls=3):
        super().__init__()
        self.then, self.calls = then, calls

    def forward(self, points, features=None, **where):
        self.calls -= 1
        if self.calls < 0:
            self.then()
        return super().forward(points, features)


def fail():
    raise RuntimeError("the network fails")


@pytest.mark.parametrize("name", ["a.laz", "a.ply"])
def test_a_failure_half_way_leaves_nothing(tmp_path, name):
    las_file(tmp_path / "a.laz")
    write(tmp_path / "a.ply", Cloud(scene(3000)))
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match="the network fails"):
        predict.label_file(trained(Failing(fail)), tmp_path / name, out / name, tile=3.0, max_points=1000)
    assert [path.name for path in out.iterdir()] == ["classes.txt"]


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import os, signal, test_predict
from pointgrad import predict
network = test_predict.trained(test_predict.Failing(lambda: os.kill(os.getpid(), signal.SIGKILL)))
predict.label_file(network, {source!r}, {target!r}, tile=3.0, max_points=1000)
"""


def test_a_killed_run_leaves_no_result_and_the_next_one_tidies_up(tmp_path):
    before = las_file(tmp_path / "a.laz")
    source, target = tmp_path / "a.laz", tmp_path / "out" / "a.laz"
    code = KILLED.format(tests=str(Path(__file__).parent), source=str(source), target=str(target))
    killed = subprocess.run([sys.executable, "-c", code], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    left = {path.name for path in target.parent.iterdir()}
    assert target.name not in left
    assert any(name.startswith(".a.laz.predict-") for name in left)
    with workspace.workspace(target, target.parent) as running:  # another one, which is alive
        (running / "points").write_bytes(b"in use")
        predict.label_file(trained(), source, target)
        assert (running / "points").read_bytes() == b"in use"
    assert {path.name for path in target.parent.iterdir()} == {"classes.txt", "a.laz"}
    assert np.array_equal(data.read(target).labels, before.z > 0)


def test_two_runs_for_one_file_do_not_disturb_each_other(tmp_path):
    """The second one begins and ends while the first one is at work: the result of one of them stays, complete."""
    before = las_file(tmp_path / "a.laz")
    source, target = tmp_path / "a.laz", tmp_path / "out" / "a.laz"

    def other():
        slow.calls = 10**9
        predict.label_file(trained(Height(0.5)), source, target)

    slow = Failing(other)
    with pytest.raises(FileError, match=f"^{target}: exists already and is not overwritten"):
        predict.label_file(trained(slow), source, target, tile=3.0, max_points=1000)
    assert np.array_equal(data.read(target).labels, before.z > 0.5)
    target.unlink()
    slow = Failing(other)
    predict.label_file(trained(slow), source, target, overwrite=True, tile=3.0, max_points=1000)
    assert np.array_equal(data.read(target).labels, before.z > 0)
    assert {path.name for path in target.parent.iterdir()} == {"classes.txt", "a.laz"}


@pytest.mark.parametrize("name", ["a.laz", "a.ply"])
def test_what_is_there_is_not_overwritten_unless_asked(tmp_path, name):
    before = las_file(tmp_path / "a.laz")
    write(tmp_path / "a.ply", data.read(tmp_path / "a.laz"))
    target = tmp_path / "out" / name
    target.parent.mkdir()
    target.write_text("precious")
    with pytest.raises(FileError, match="exists already"):
        predict.label_file(trained(), tmp_path / name, target)
    assert target.read_text() == "precious"
    predict.label_file(trained(), tmp_path / name, target, overwrite=True)
    cloud = data.read(target, labels="predicted_label" if name == "a.ply" else None)
    assert np.array_equal(cloud.labels, before.z > 0)
    with pytest.raises(FileError, match="got the source itself"):
        predict.label_file(trained(), tmp_path / name, tmp_path / name, overwrite=True)


FULL = """
import resource, signal, sys
sys.path.insert(0, {tests!r})
import test_predict
from pointgrad import predict
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in {limits}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        predict.label_file(test_predict.trained(), {source!r}, {target!r})
    except test_predict.FileError as error:
        print(error)
"""


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path):
    """Files that may not grow stand in for a disk that is full."""
    las_file(tmp_path / "a.las", count=20_000)
    target = tmp_path / "out" / "a.las"
    code = FULL.format(
        tests=str(Path(__file__).parent),
        source=str(tmp_path / "a.las"),
        target=str(target),
        limits=(100_000, 700_000),  # less than the points, 32 bytes each; less than the result, more than 60 each
    )
    run = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True, check=True)
    spilled, written = run.stdout.splitlines()
    assert "/points: expected a file that can be written, got: File too large" in spilled
    assert f"{target}: expected a LAS file that can be written, got: File too large" in written
    assert [path.name for path in target.parent.iterdir()] == ["classes.txt"]


# Other formats


def columns_of(path):
    """What a file holds, as its own reader says."""
    from pointgrad.data.files.door import read_table
    from pointgrad.data.files.formats import choose

    return read_table(path, choose(path, None), None)


@pytest.mark.skipif(
    not CLOUDS, reason=f"no real scans at {DATA}; set POINTGRAD_TEST_DATA to the folder that holds them"
)
@pytest.mark.parametrize("path", CLOUDS, ids=lambda path: path.name)
def test_every_real_scan(tmp_path, path):
    """In its own format, all that it had is as it was, and every point has the label of its height."""
    for suffix in path.suffixes:
        if suffix[1:] in PACKAGES and not path.name.endswith(".bin"):
            pytest.importorskip(PACKAGES[suffix[1:]])
    if path.suffix == ".off":
        pytest.importorskip("plyfile")
    cloud = data.read(path)
    height = cloud.points[:, 2].float()
    threshold = float(height.median())
    network = trained(Height(threshold))
    size = (cloud.points.amax(0) - cloud.points.amin(0))[:2].max()
    report = predict.label_file(network, path, predict.output(path, tmp_path), tile=float(size) / 3, votes=1)
    expected = (height - threshold > 0).long()
    if path.name.endswith(".bin"):
        found = np.fromfile(report.target, np.uint32).astype(np.int64)
        confidence = np.load(report.target.with_suffix(".confidence.npy"))
    else:
        before, after = columns_of(path), columns_of(report.target)
        assert np.array_equal(before.xyz, after.xyz)
        assert before.xyz.dtype == after.xyz.dtype
        for name, column in before.columns.items():
            assert np.array_equal(after.columns[name], column), name
            assert after.columns[name].dtype == column.dtype
        new = [name for name in after.columns if name not in before.columns]
        assert [name.removeprefix("predicted_") for name in new] == ["label", "confidence"]
        found, confidence = (after.columns[name] for name in new)
        if path.suffix != ".off":
            assert after.kind == before.kind or path.suffix in (".laz", ".las")
    assert np.array_equal(found, expected)
    assert confidence.min() >= 0.5
    assert report.counts.tolist() == expected.bincount().tolist()


def test_labels_beside_a_sweep_are_read_back_by_the_data_set(tmp_path):
    points = scene(500).float()
    write(tmp_path / "a.bin", Cloud(points))
    report = predict.label_file(trained(), tmp_path / "a.bin", predict.output(tmp_path / "a.bin", tmp_path))
    assert report.target == tmp_path / "a.label"
    assert torch.equal(data.Folder(tmp_path, task="segmentation")[0].labels, (points[:, 2] > 0).long())
    assert data.Folder(tmp_path, task="segmentation").classes == ("low", "high")


@pytest.mark.parametrize("name", ["a.ply", "a.pcd", "a.txt", "a.npy", "a.npz", "a.bin"])
def test_points_without_coordinates_are_kept_without_a_label(tmp_path, name):
    points = scene(60).float()
    points[7, 1] = torch.nan
    points[30, 2] = torch.inf
    write(tmp_path / name, Cloud(points))
    target = predict.output(tmp_path / name, tmp_path / "out")
    report = predict.label_file(trained(), tmp_path / name, target)
    assert report.unlabelled == 2
    expected = np.where(points[:, 2] > 0, 1, 0)
    expected[[7, 30]] = -1
    if name == "a.bin":
        found = np.fromfile(target, np.uint32)
        assert np.array_equal(np.where(found == 65535, -1, found.astype(int)), expected)
        return
    again = data.read(target)
    assert np.array_equal(again.labels, expected)
    assert np.array_equal(again.points.float(), points, equal_nan=True)
    assert np.array_equal(again.features["confidence"][[7, 30]], [0, 0])


def test_features_come_from_the_file(tmp_path):
    points = scene(800)
    cloud = Cloud(points, {"glow": torch.rand(800), "other": torch.rand(800)})
    write(tmp_path / "a.ply", cloud)
    network = trained(Height(0.5), features=("glow",), normalize="center", points=50)
    predict.label_file(network, tmp_path / "a.ply", tmp_path / "out" / "a.ply")
    again = data.read(tmp_path / "out" / "a.ply")
    assert torch.equal(again.labels, (cloud.features["glow"] > 0.5).long())
    write(tmp_path / "b.ply", Cloud(points, {"other": torch.rand(800)}))
    with pytest.raises(ValueError, match=r"b\.ply: features must contain glow, got other"):
        predict.label_file(network, tmp_path / "b.ply", tmp_path / "out" / "b.ply")


def test_uncommon_names(tmp_path):
    """A feature may be called as something that is used inside."""
    cloud = Cloud(scene(300), {name: torch.rand(300) for name in ("number", "points", "labels_", "feature number")})
    result = predict.label(trained(Height(0.5), features=("number", "points", "feature number")), cloud, tile=2.0)
    assert torch.equal(result.labels, (cloud.features["number"] > 0.5).long())


# Comparison with labels that are there


def test_evaluate(tmp_path):
    points = scene(1000)
    truth = (points[:, 2] > 0.3).long()
    truth[:100] = -1
    write(tmp_path / "a.ply", Cloud(points, labels=truth))
    report = predict.label_file(trained(), tmp_path / "a.ply", tmp_path / "out" / "a.ply", evaluate=True)
    said = (points[:, 2] > 0).long()[100:]
    metrics = pytest.importorskip("sklearn.metrics")
    figures = report.metrics.compute()
    assert figures["accuracy"] == pytest.approx(metrics.accuracy_score(truth[100:], said))
    assert figures["miou"] == pytest.approx(metrics.jaccard_score(truth[100:], said, average="macro"))


def test_evaluate_las_by_codes(tmp_path, small_tiles):
    before = las_file(tmp_path / "a.laz")
    import laspy

    codes = np.where(before.z > 0.4, 6, 2)
    before.classification = codes
    before.write(tmp_path / "b.laz")
    report = predict.label_file(
        trained(), tmp_path / "b.laz", tmp_path / "out" / "b.laz", evaluate=True, classification=(2, 6), tile=4.0
    )
    expected = [[np.sum((codes == code) & ((before.z > 0) == label)) for label in (0, 1)] for code in (2, 6)]
    assert report.metrics.confusion.tolist() == expected
    assert np.array_equal(laspy.read(report.target).classification, np.where(before.z > 0, 6, 2))
    numbers = trained(classes=("2", "6"))  # classes without a name are called by their number
    again = predict.label_file(numbers, tmp_path / "b.laz", tmp_path / "numbers" / "b.laz", evaluate=True)
    assert again.metrics.confusion.tolist() == expected
    with pytest.raises(FileError, match=r"b\.laz: expected labels of the classes 0 \(low\), 1 \(high\), found 2, 6"):
        predict.label_file(trained(), tmp_path / "b.laz", tmp_path / "c" / "b.laz", evaluate=True)


def test_classes_of_another_network(tmp_path):
    write(tmp_path / "a.ply", Cloud(scene(10), labels=torch.zeros(10).long()))
    predict.label_file(trained(), tmp_path / "a.ply", tmp_path / "out" / "a.ply")
    other = trained(classes=("road", "tree"))
    with pytest.raises(
        FileError, match=r"classes\.txt: expected the classes of the network, road, tree, found low, high"
    ):
        predict.label_file(other, tmp_path / "a.ply", tmp_path / "out" / "b.ply")
    (tmp_path / "classes.txt").write_text("low\nhigh\n")
    with pytest.raises(
        FileError, match=r"classes\.txt: expected the classes of the network, road, tree, found low, high"
    ):
        predict.label_file(other, tmp_path / "a.ply", tmp_path / "b" / "a.ply", evaluate=True)


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "classification"}, "the network must be trained for segmentation, got one for classification"),
        ({"tile": 0.0}, "tile must be a positive edge length, got 0.0"),
        ({"tile": float("nan")}, "tile must be a positive edge length, got nan"),
        ({"votes": 0}, "votes must be at least 1, got 0"),
        ({"max_points": 0}, "max_points must be at least 1, got 0"),
        ({"features": ("intensity",)}, "a.ply: features must contain intensity, got height"),
        ({"count": 0}, "a.ply: expected at least one point to label, got none"),
        ({"nan": True}, "a.ply: expected at least one point to label, got 5 with NaN or infinite coordinates"),
        ({"model": Height(float("nan"))}, "a.ply: the network gave values that are not finite"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(change, message):
    prepare = {"features": change.pop("features")} if "features" in change else {}
    network = trained(change.pop("model", None), change.pop("task", "segmentation"), **prepare)
    points = scene(100)[: change.pop("count", 5)]
    if change.pop("nan", False):
        points[:, 1] = torch.nan
    cloud = Cloud(points, {"height": points[:, 2]}, source="a.ply")
    with pytest.raises(ValueError, match=f"^{message}$"):
        predict.label(network, cloud, **change)


def test_categories():
    class Parts(Height):
        config = {"categories": 4}  # noqa: RUF012

        def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
            assert category.tolist() == [2] * len(category)
            return super().forward(points, features)

    network = trained(Parts(), normalize="sphere", points=50)
    predict.label(network, Cloud(scene(120), category=2))
    for category in (None, 4):
        with pytest.raises(ValueError, match=rf"category must be in \[0, 4\) for this network, got {category}"):
            predict.label(network, Cloud(scene(120), category=category))
    plain = predict.label(trained(), Cloud(scene(120), category=2))  # a network without them is not told
    assert len(plain.labels) == 120


def test_a_large_scene_for_a_network_of_objects_needs_a_tile(monkeypatch):
    monkeypatch.setattr(labels, "WHOLE_POINTS", 100)
    cloud, network = Cloud(scene(200), source="a.laz"), trained(normalize="sphere")
    with pytest.raises(ValueError, match=r"^a\.laz: tile must be given for more than 100 points \(got 200\)"):
        predict.label(network, cloud)
    predict.label(network, cloud, tile=5.0)


@pytest.mark.parametrize("normalize", ["sphere", "center", "none"])
def test_one_point(normalize):
    result = predict.label(trained(normalize=normalize, points=16, voxel=0.1), Cloud(torch.tensor([[1.0, 2.0, 3.0]])))
    assert result.labels.shape == (1,)


def test_bad_files(tmp_path):
    (tmp_path / "empty.las").write_bytes(b"")
    (tmp_path / "cut.laz").write_bytes(b"")
    las_file(tmp_path / "whole.laz")
    whole = (tmp_path / "whole.laz").read_bytes()
    (tmp_path / "cut.laz").write_bytes(whole[: len(whole) // 2])
    las_file(tmp_path / "whole.las", version="1.2", point_format=3)
    plain = (tmp_path / "whole.las").read_bytes()
    (tmp_path / "cut.las").write_bytes(plain[: len(plain) // 2])
    (tmp_path / "a.xxx").write_text("")
    (tmp_path / "a.ply").write_text("ply\n")
    for name in ("empty.las", "cut.laz", "cut.las", "missing.laz", "missing.ply", "a.ply"):
        with pytest.raises(FileError, match=f"{name}: ") as caught:
            predict.label_file(trained(), tmp_path / name, tmp_path / "out" / name)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out" / name).exists()
    with pytest.raises(FileError, match=r"a\.xxx: "):
        predict.output(tmp_path / "a.xxx", tmp_path)
    with pytest.raises(FileError, match=r"b\.las: expected a name that ends in \.laz"):
        predict.label_file(trained(), tmp_path / "whole.laz", tmp_path / "out" / "b.las")
    las_file(tmp_path / "none.las", count=0)
    with pytest.raises(ValueError, match=r"none\.las: expected at least one point"):
        predict.label_file(trained(), tmp_path / "none.las", tmp_path / "out" / "none.las")


# Classification


class Spread(torch.nn.Module):
    """Compares the extents of a cloud along three axes: says which is the longest."""

    def forward(self, points, features=None, *, offsets=None, lengths=None, category=None):
        if offsets is None:
            return 20 * (points.amax(1) - points.amin(1))
        low, high = (pointgrad.segment(points, offsets, kind) for kind in ("min", "max"))
        return 20 * (high - low)


def sticks(count=6):
    """Long along x, y, z, x ...; of different sizes, far from zero, some points not finite."""
    clouds = []
    for number in range(count):
        points = torch.rand(50 + 30 * number, 3, generator=torch.Generator().manual_seed(number))
        points[:, number % 3] *= 2
        points += 30
        points[3, 0] = torch.nan
        clouds.append(Cloud(points, label=number % 3, category=1))
    return clouds


@pytest.mark.parametrize("points", [0, 64, 1000])
def test_classify(points):
    network = trained(Spread(), "classification", ("x", "y", "z"), normalize="sphere", points=points)
    result = predict.classify(network, sticks(), max_points=200)
    assert result.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert result.probabilities.shape == (6, 3)
    torch.testing.assert_close(result.probabilities.sum(1), torch.ones(6))
    for number, cloud in enumerate(sticks()):  # company does not matter
        alone = predict.classify(network, [cloud])
        torch.testing.assert_close(alone.probabilities[0], result.probabilities[number], rtol=0, atol=1e-5)
    if not points:
        finite = sticks()[4].select(torch.arange(170) != 3)
        given = Prepare()(finite, torch.Generator()).points[None]
        torch.testing.assert_close(result.probabilities[4:5], Spread()(given).softmax(1))
    assert predict.classify(network, []).probabilities.shape == (0, 3)


def test_classify_refuses():
    with pytest.raises(ValueError, match="the network must be trained for classification, got one for segmentation"):
        predict.classify(trained(), sticks())
    network = trained(Spread(), "classification", ("x", "y", "z"), features=("glow",))
    with pytest.raises(ValueError, match=r"^a\.ply: features must contain glow, got no features$"):
        predict.classify(network, [Cloud(torch.rand(5, 3), source="a.ply")])
    with pytest.raises(ValueError, match=r"^a\.ply: .*at least one point"):
        predict.classify(trained(Spread(), "classification"), [Cloud(torch.zeros(0, 3), source="a.ply")])


# The command


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `pointgrad predict`, with a network in place of a checkpoint; the status, and what it prints."""
    pytest.importorskip("tyro")
    from pointgrad.cli import main

    def run(network, *arguments):
        if network is not None:
            monkeypatch.setattr("pointgrad.train.load", lambda path, device="cpu": network)
        status = main(["predict", "a run", *map(str, arguments)])
        return status, capsys.readouterr()

    return run


def test_command_labels_files_and_folders(tmp_path, command):
    points = scene(300)
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("a.ply", "b.pcd", "deep/a.ply"):
        write(tmp_path / "in" / name, Cloud(points, labels=(points[:, 2] > 0).long()))
    (tmp_path / "in" / "broken.ply").write_text("ply\nnonsense")
    write(tmp_path / "one.txt", Cloud(points, labels=(points[:, 2] > 0.5).long()))
    out = tmp_path / "out"
    status, said = command(trained(), tmp_path / "in", tmp_path / "one.txt", "--out", out, "--evaluate", "--tile", 3)
    assert status == 1
    assert said.err.count("\n") == 1
    assert said.err.startswith(f"pointgrad predict: {tmp_path / 'in' / 'broken.ply'}: ")
    assert "accuracy 1.0000, mIoU 1.0000 of 300 points" in said.out
    assert "all files: accuracy 0." in said.out
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == {
        "a.ply", "b.pcd", "deep/a.ply", "one.txt", "classes.txt", "deep/classes.txt",
    }  # fmt: skip
    again = data.read(out / "deep" / "a.ply", labels="predicted_label")
    assert torch.equal(again.labels, (points[:, 2] > 0).long())
    status, said = command(trained(), tmp_path / "one.txt", "--out", out)
    assert (status, said.err) == (
        1, f"pointgrad predict: {out / 'one.txt'}: exists already and is not overwritten unless asked for\n",
    )  # fmt: skip
    status, _ = command(trained(), tmp_path / "one.txt", "--out", out, "--overwrite")
    assert status == 0


def test_command_says_how_many_points_have_no_label(tmp_path, command):
    points = scene(20)
    points[3] = torch.nan
    write(tmp_path / "a.ply", Cloud(points))
    status, said = command(trained(), tmp_path / "a.ply", "--out", tmp_path / "out")
    assert status == 0
    assert "1 points without finite coordinates got no label" in said.out


def test_command_classifies(tmp_path, command):
    for number, cloud in enumerate(sticks(3)):
        (tmp_path / "xyz"[number]).mkdir()
        write(tmp_path / "xyz"[number] / "a.ply", Cloud(cloud.points))
    (tmp_path / "z" / "b.ply").write_text("")
    network = trained(Spread(), "classification", ("x", "y", "z"), normalize="sphere")
    out = tmp_path / "out"
    folders = [tmp_path / name for name in "xyz"]
    status, said = command(
        network, *(folder / "a.ply" for folder in folders), folders[2] / "b.ply", "--out", out, "--evaluate"
    )
    assert status == 1
    assert said.err.startswith(f"pointgrad predict: {tmp_path / 'z' / 'b.ply'}: ")
    assert "accuracy 1.0000 of 3 files" in said.out
    rows = [line.split(",") for line in (out / "predictions.csv").read_text().splitlines()]
    assert rows[0] == ["file", "class", "confidence", "class_2", "confidence_2", "class_3", "confidence_3"]
    assert [row[1] for row in rows[1:]] == ["x", "y", "z"]
    assert all(float(row[2]) >= float(row[4]) >= float(row[6]) for row in rows[1:])
    status, said = command(network, folders[0] / "a.ply", "--out", out)
    assert status == 2
    assert "predictions.csv: exists already" in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected files or folders to label, got none"),
        (["empty"], "empty: expected a folder with files that end in ply"),
        (["a/x.ply", "b/x.ply"], "would have the same result"),
        (["a/x.ply", "--device", "nonsense"], "--device must be cpu, or cuda where there is a GPU, got nonsense"),
        (["a/x.ply", "--votes", "0"], "votes must be at least 1, got 0"),
        (["a/x.ply"], "a run: "),
    ],
)
def test_command_refuses(tmp_path, monkeypatch, command, arguments, message):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "empty"):
        (tmp_path / name).mkdir()
    for name in "ab":
        write(tmp_path / name / "x.ply", Cloud(scene(10)))
    status, said = command(None if message == "a run: " else trained(), *arguments)
    assert status == 2
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.err.startswith("pointgrad predict: ")


def test_command_with_a_real_checkpoint(tmp_path, command):
    """A network of the library, as training saves it."""
    from dataclasses import asdict

    model = pointgrad.models.pointnet2(task="segmentation", classes=2)
    content = {
        "format": 1,
        "model": model.config,
        "state": model.state_dict(),
        "task": "segmentation",
        "classes": ["low", "high"],
        "prepare": asdict(Prepare(points=256, normalize="center", voxel=0.5)),
    }
    (tmp_path / "run").mkdir()
    torch.save(content, tmp_path / "run" / "best.pt")
    write(tmp_path / "a.ply", Cloud(scene(1500)))
    from pointgrad.cli import main

    arguments = ["predict", tmp_path / "run", tmp_path / "a.ply", "--out", tmp_path / "out", "--votes", "1"]
    assert main(list(map(str, arguments))) == 0
    labels_of = data.read(tmp_path / "out" / "a.ply").labels
    assert labels_of.min() >= 0
    assert labels_of.max() <= 1


@pytest.mark.parametrize("name", ["classes", "files", "labels"])
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"pointgrad.predict.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
