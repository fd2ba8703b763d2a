"""Transforms and `Prepare`: effect on points, normals, labels and features, including clouds with one point or none."""

import dataclasses
import doctest
import importlib
import math
import pkgutil

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

import pointgrad.data
from pointgrad.data import (
    Cloud,
    Compose,
    Crop,
    DropFeatures,
    DropInvalid,
    Dropout,
    Flip,
    Jitter,
    Normalize,
    Prepare,
    Rotate,
    SamplePoints,
    Scale,
    Shuffle,
    Translate,
    VoxelSample,
    read,
)
from tests.support.places import DATA

TRANSFORMS = [
    Rotate("x"), Rotate("y", 30), Rotate("z"), Rotate("any"), Rotate("any", 20), Scale(0.5, 2),
    Scale(0.5, 2, per_axis=True), Translate(0.3), Jitter(0.1, 0.2), Flip("xyz"), Dropout(0.9), Shuffle(), Crop(7),
    SamplePoints(7), SamplePoints(50), VoxelSample(0.4), Normalize("sphere"), Normalize("center"), DropInvalid(),
    DropFeatures(["number"], 0.5), Compose(Rotate(), Jitter()), Prepare(points=9, voxel=0.2),
]  # fmt: skip
MOVES = (Rotate, Scale, Translate, Jitter, Flip, Normalize, Compose, Prepare)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cloud_of(points: torch.Tensor, **features: torch.Tensor) -> Cloud:
    number = torch.arange(len(points))
    return Cloud(points, {"number": number.float(), **features}, labels=number % 5, source="a.ply")


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_input_is_not_modified_and_columns_stay_with_points(transform):
    points = torch.rand(20, 3, dtype=torch.float64)
    cloud = cloud_of(points.clone(), height=torch.rand(20, 2))
    before = {name: column.clone() for name, column in cloud.features.items()}
    out = transform(cloud, generator())
    assert torch.equal(cloud.points, points)
    assert torch.equal(cloud.labels, torch.arange(20) % 5)
    assert all(torch.equal(cloud.features[name], column) for name, column in before.items())
    assert out.points.dtype == torch.float64
    assert out.source == "a.ply"
    if isinstance(transform, DropFeatures):
        return
    number = out.features["number"].long()
    assert torch.equal(out.labels, number % 5)
    assert torch.equal(out.features["height"], before["height"][number])
    if not isinstance(transform, MOVES):
        assert torch.equal(out.points, points[number])


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_result_depends_on_the_generator_only(transform):
    cloud = cloud_of(torch.rand(20, 3))
    first, again = transform(cloud, generator(3)), transform(cloud, generator(3))
    assert torch.equal(first.points, again.points)
    assert torch.equal(first.features["number"], again.features["number"])
    state = torch.get_rng_state()
    results = {repr(transform(cloud, generator(seed)).points.tolist()) for seed in range(8)}
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is not used
    fixed = isinstance(transform, (VoxelSample, Normalize, DropInvalid, DropFeatures))
    assert len(results) == 1 if fixed else len(results) > 1


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
@pytest.mark.parametrize("count", [0, 1])
def test_small_clouds(transform, count):
    cloud = cloud_of(torch.full((count, 3), 2.0))
    if isinstance(transform, Prepare) and not count:
        with pytest.raises(ValueError, match=r"a.ply: expected at least one point, got none"):
            transform(cloud, generator())
        return
    out = transform(cloud, generator())
    grows = isinstance(transform, (SamplePoints, Prepare))
    assert len(out) == (getattr(transform, "points", 0) if grows and count else count)
    assert out.points.isfinite().all()


@pytest.mark.parametrize("rotate", [Rotate("x"), Rotate("y"), Rotate("z"), Rotate("any"), Rotate("any", 50)], ids=repr)
def test_rotations_keep_distances_and_orientation(rotate):
    points = torch.randn(10, 3, dtype=torch.float64)
    for seed in range(5):
        out = rotate(Cloud(points), generator(seed)).points
        torch.testing.assert_close(torch.cdist(out, out), torch.cdist(points, points))
        turn = torch.linalg.lstsq(points, out).solution
        assert torch.linalg.det(turn).item() == pytest.approx(1)
        assert math.degrees(math.acos(min(1.0, (turn.trace().item() - 1) / 2))) <= rotate.degrees + 1e-6
        if rotate.axis != "any":
            place = "xyz".index(rotate.axis)
            assert torch.equal(out[:, place], points[:, place])


def test_rotations_are_counterclockwise_with_uniform_angles():
    """Counterclockwise as seen from the tip of the axis, and uniform over the range."""
    for axis, start, end in (("z", 0, 1), ("x", 1, 2), ("y", 2, 0)):
        unit = Cloud(torch.eye(3, dtype=torch.float64)[[start]])
        turned = torch.stack([Rotate(axis, 90)(unit, generator(seed)).points[0] for seed in range(400)])
        angles = torch.atan2(turned[:, end], turned[:, start]).rad2deg()
        assert angles.abs().max() <= 90
        counts = torch.histc(angles, 4, -90, 90)
        assert counts.min() > 100 - 5 * 75**0.5  # binomial: 400 draws of 1/4


def test_any_rotation_is_uniform():
    """The trace of a uniformly distributed rotation has mean 0 and mean square 1."""
    unit = Cloud(torch.eye(3, dtype=torch.float64))
    traces = torch.stack([Rotate("any")(unit, generator(seed)).points.trace() for seed in range(3000)])
    assert abs(traces.mean()) < 5 / 3000**0.5
    assert abs(traces.square().mean() - 1) < 5 * (2 / 3000) ** 0.5  # the fourth moment is 3


@pytest.mark.parametrize("names", [("normal",), ("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z")])
@pytest.mark.parametrize("transform", [Rotate("any"), Flip("xyz", 0.7), Scale(0.5, 2, per_axis=True)], ids=repr)
def test_normals_stay_perpendicular(names, transform):
    """Points of a tilted plane with its normal."""
    normal = torch.nn.functional.normalize(torch.tensor([[1.0, -2.0, 0.5]]), dim=1)
    points = torch.randn(30, 3)
    points = points - (points @ normal.T) * normal
    rows = normal.expand(30, 3)
    columns = {"normal": rows} if len(names) == 1 else dict(zip(names, rows.unbind(1), strict=True))
    for seed in range(5):
        out = transform(cloud_of(points, **columns), generator(seed))
        turned = out.features["normal"] if len(names) == 1 else torch.stack([out.features[n] for n in names], dim=1)
        edges = out.points[1:] - out.points[:-1]
        torch.testing.assert_close((edges * turned[1:]).sum(1), torch.zeros(29), atol=1e-5, rtol=0)
        torch.testing.assert_close(turned.norm(dim=1), torch.ones(30))


def test_scale_translate_flip_ranges():
    ones = Cloud(torch.ones(1, 3))
    scales = torch.cat([Scale(0.5, 2)(ones, generator(s)).points for s in range(200)])
    assert (scales.amin() >= 0.5) & (scales.amax() <= 2) & (scales.amin() < 0.6) & (scales.amax() > 1.9)
    assert torch.equal(scales[:, 0], scales[:, 1])
    free = torch.cat([Scale(0.5, 2, per_axis=True)(ones, generator(s)).points for s in range(200)])
    assert np.abs(np.corrcoef(free.T.numpy()) - np.eye(3)).max() < 0.4
    moves = torch.cat([Translate(0.2)(ones, generator(s)).points - 1 for s in range(200)])
    assert (moves.amax(0) > 0.15).all()
    assert (moves.amin(0) < -0.15).all()
    assert moves.abs().max() <= 0.2 + 1e-6
    flips = torch.cat([Flip("xz", 0.25)(ones, generator(s)).points for s in range(400)])
    share = (flips < 0).float().mean(0)
    assert share[1] == 0
    assert (share[[0, 2]] - 0.25).abs().max() < 5 * (0.1875 / 400) ** 0.5


def test_jitter():
    out = Jitter(0.1, 0.15)(Cloud(torch.zeros(4000, 3)), generator()).points
    assert out.abs().max() == pytest.approx(0.15)
    inside = out[out.abs() < 0.15 - 1e-6]
    assert (out.abs() > 0.15 - 1e-6).float().mean() == pytest.approx(0.1336, abs=0.02)  # beyond 1.5 standard deviations
    assert inside.std() < 0.1


def test_dropout_repeats_the_first_kept_point():
    cloud = cloud_of(torch.rand(500, 3))
    shares = []
    for seed in range(100):
        number = Dropout(0.8)(cloud, generator(seed)).features["number"].long()
        stays = number == torch.arange(500)
        assert (number[~stays] == stays.int().argmax()).all()
        shares.append(1 - stays.float().mean().item())
    assert max(shares) < 0.9
    assert np.mean(shares) == pytest.approx(0.4, abs=5 * 0.8 / 12**0.5 / 10)


def test_crop_keeps_the_nearest_neighbors_of_a_point():
    points = torch.rand(200, 3, dtype=torch.float64)
    tree = cKDTree(points.numpy())
    balls = {tuple(sorted(tree.query(p, 20)[1].tolist())) for p in points.numpy()}
    crops = {tuple(Crop(20)(cloud_of(points), generator(s)).features["number"].long().tolist()) for s in range(20)}
    assert crops <= balls
    assert len(crops) > 5
    assert len(Crop(500)(cloud_of(points), generator())) == 200


def test_sampling():
    cloud = cloud_of(torch.rand(30, 3))
    fewer = SamplePoints(10)(cloud, generator()).features["number"].tolist()
    assert len(set(fewer)) == 10
    assert fewer != sorted(fewer)
    more = SamplePoints(100)(cloud, generator()).features["number"].long()
    assert more[:30].tolist() == list(range(30))
    assert set(more.bincount().tolist()) == {3, 4}
    assert SamplePoints(30)(cloud, generator()) is cloud
    counts = sum(
        SamplePoints(10)(cloud, generator(s)).features["number"].long().bincount(minlength=30) for s in range(300)
    )
    assert (counts - 100).abs().max() < 5 * (300 * 1 / 3 * 2 / 3) ** 0.5


def test_voxel_sample_keeps_the_point_nearest_to_each_center():
    points = torch.randn(300, 3, dtype=torch.float64)
    cell = (points / 0.5).floor()
    distance = (points - (cell + 0.5) * 0.5).norm(dim=1).tolist()
    best: dict[tuple, int] = {}
    for number, key in enumerate(map(tuple, cell.tolist())):
        if key not in best or distance[number] < distance[best[key]]:
            best[key] = number
    kept = VoxelSample(0.5)(cloud_of(points), generator()).features["number"].long().tolist()
    assert kept == sorted(best.values())


def test_normalize():
    points = torch.randn(50, 3, dtype=torch.float64) * 3 + 7
    expected = points.numpy() - points.numpy().mean(0)
    out = Normalize("center")(Cloud(points), generator()).points.numpy()
    np.testing.assert_allclose(out, expected)
    out = Normalize("sphere")(Cloud(points), generator()).points.numpy()
    np.testing.assert_allclose(out, expected / np.linalg.norm(expected, axis=1).max())
    same = Normalize()(Cloud(torch.full((4, 3), 5.0)), generator()).points
    assert torch.equal(same, torch.zeros(4, 3))


def test_non_finite_points_are_removed_by_drop_invalid_only():
    points = torch.rand(5, 3)
    points[1, 2], points[3, 0] = torch.nan, torch.inf
    cloud = cloud_of(points)
    assert DropInvalid()(cloud, generator()).features["number"].tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match=r"a.ply: coordinates must be finite, got 2 of 5 points with NaN or infinity"):
        Prepare()(cloud, generator())
    assert len(Compose(DropInvalid(), Prepare())(cloud, generator())) == 3


def test_prepare_applies_voxels_then_sampling_then_normalization():
    grid = torch.cartesian_prod(*[torch.arange(8.0) * 0.25 + 0.1] * 3)  # a voxel contains 4 x 4 x 4 of them
    cloud = cloud_of(grid)
    thin = Prepare(voxel=1.0, normalize="none")(cloud, generator())
    assert len(thin) == 8
    out = Prepare(points=4, voxel=1.0)(cloud, generator())
    assert len(out) == 4
    assert set(out.features["number"].tolist()) <= set(thin.features["number"].tolist())
    assert out.points.norm(dim=1).max() == pytest.approx(1)
    torch.testing.assert_close(out.points.mean(0), torch.zeros(3), atol=1e-6, rtol=0)


def test_prepare_of_large_coordinates_rounds_only_the_result():
    near = torch.rand(40, 3, dtype=torch.float64)
    far = Prepare()(Cloud(near + 6e6), generator()).points
    torch.testing.assert_close(far, Prepare()(Cloud(near), generator()).points, atol=1e-8, rtol=0)


def test_prepare_can_be_stored_in_a_checkpoint():
    prepare = Prepare(points=7, normalize="center", voxel=0.5, features=("red", "nx"))
    kept = dataclasses.asdict(prepare)
    assert kept == {
        "points": 7,
        "normalize": "center",
        "voxel": 0.5,
        "features": ("red", "nx"),
        "feature_center": (),
        "feature_scale": (),
    }
    assert Prepare(**{**kept, "features": list(kept["features"])}) == prepare
    with pytest.raises(ValueError, match=r"a.ply: features must contain red, nx, got number"):
        prepare(cloud_of(torch.rand(3, 3)), generator())


def test_drop_features():
    cloud = cloud_of(torch.rand(3, 3), red=torch.full((3,), 7, dtype=torch.uint8))
    drops = [DropFeatures(["red"], 0.3)(cloud, generator(s)).features["red"].sum().item() for s in range(300)]
    assert set(drops) == {0, 21}
    assert drops.count(0) / 300 == pytest.approx(0.3, abs=5 * (0.21 / 300) ** 0.5)
    with pytest.raises(ValueError, match="must contain blue"):
        DropFeatures(["blue"])(cloud, generator())


SCANS = {  # files in the data folder, and the number of distinct positions if known
    "MixedConifer.laz": None, "b9_training.ply": None, "colored_cloud.pcd": None, "dales_car_100.xyz": None,
    "dallas1.xyzcirn.txt.gz": None, "dragon_vrip_res4.ply": None, "house.laz": None, "kitten.off": None,
    "kitti_training_000000.bin": None, "lamppost.pcd": 1757, "milk_color.pcd": None, "modelnet_table_0348.off": None,
    "nuscenes_LIDAR_TOP_1532402927647951.pcd.bin": None, "room_scan1.pcd": 56159, "samp24-utm.pcd": None,
    "simple.las": None,
}  # fmt: skip


@pytest.mark.parametrize("name", SCANS)
def test_real_scans(name):
    path = DATA / "scans" / name
    if not path.exists():
        pytest.skip(f"no real scans at {DATA}; set POINTGRAD_TEST_DATA to the folder that holds them")
    for suffix, package in {".laz": "laspy", ".las": "laspy", ".pcd": "lzf"}.items():
        if path.suffix == suffix:
            pytest.importorskip(package)
    cloud = Compose(DropInvalid())(read(path), generator())
    cloud = dataclasses.replace(cloud, features={**cloud.features, "number": torch.arange(len(cloud))})
    points, number = cloud.points.clone(), torch.arange(len(cloud))
    extent = (points.amax(0) - points.amin(0)).max().item()
    for transform in (
        Compose(Prepare(points=512, voxel=extent / 50), Rotate("any"), Scale(), Jitter(), Flip(), Dropout()),
        Compose(Crop(300), Shuffle(), Normalize("center")),
    ):
        out = transform(cloud, generator())
        assert out.points.isfinite().all()
        chosen = out.features["number"]
        if cloud.labels is not None:
            assert torch.equal(out.labels, cloud.labels[chosen])
        assert torch.equal(cloud.points, points)
        assert torch.equal(cloud.features["number"], number)
    kept = VoxelSample(extent / 3000)(cloud, generator())
    assert len(kept) <= (SCANS[name] or len(cloud))  # duplicates are never kept
    assert len(kept.points.unique(dim=0)) == len(kept)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotate("w"), "axis must be x, y, z or any, got 'w'"),
        (lambda: Rotate("z", 200), "degrees must be in [0, 180], got 200"),
        (lambda: Scale(2, 1), "low and high must satisfy 0 < low <= high, got 2, 1"),
        (lambda: Translate(-1), "distance must be at least 0, got -1"),
        (lambda: Jitter(-1), "sigma and clip must be at least 0, got -1, 0.05"),
        (lambda: Flip("q"), "axes must be a subset of xyz, got 'q'"),
        (lambda: Flip("x", 2), "probability must be in [0, 1], got 2"),
        (lambda: Dropout(1.5), "most must be in [0, 1], got 1.5"),
        (lambda: Crop(0), "points must be at least 1, got 0"),
        (lambda: SamplePoints(0), "points must be at least 1, got 0"),
        (lambda: VoxelSample(0), "size must be a positive edge length, got 0"),
        (lambda: Normalize("cube"), "kind must be sphere or center, got 'cube'"),
        (lambda: Prepare(points=-1), "points must be at least 0, got -1"),
        (lambda: Prepare(normalize="cube"), "normalize must be one of sphere, center, none, got 'cube'"),
        (lambda: Prepare(voxel=-0.1), "voxel must be 0 or a positive edge length, got -0.1"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        make()
    assert str(raised.value) == message


def own_modules():
    names = [name for _, name, _ in pkgutil.walk_packages(pointgrad.data.__path__, "pointgrad.data.")]
    return [name for name in names if ".files" not in name]


@pytest.mark.parametrize("name", own_modules())
def test_documented_examples_run(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"torch": torch, "np": np}).failed == 0


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_the_centers_of_balanced_crops_are_of_rare_classes(balance):
    labels = torch.tensor([0] * 900 + [1] * 90 + [2] * 10 + [-1] * 100)
    points = torch.arange(1100.0)[:, None] * torch.tensor([1.0, 0.0, 0.0])
    cloud = Cloud(points, labels=labels)
    crop = Crop(1, balance)  # keeps the center only
    drawn = torch.cat([crop(cloud, generator(seed)).labels for seed in range(600)])
    shares = torch.tensor([900.0, 90.0, 10.0]) ** (1 - balance)
    expected = shares / shares.sum()
    assert drawn.min() >= 0  # a crop around points without a label may have nothing to learn or to measure
    found = torch.bincount(drawn, minlength=len(shares)) / 600
    assert ((found - expected).abs() < 5 * (expected * (1 - expected) / 600).sqrt()).all()


def test_a_balanced_crop_without_labels_is_a_crop():
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(1))
    for labels in (None, torch.full((50,), -1)):
        crops = [Crop(5, balance)(Cloud(points, labels=labels), generator(3)).points for balance in (0.0, 1.0)]
        assert torch.equal(*crops)
    with pytest.raises(ValueError, match=r"balance must be in \[0, 1\], got 2"):
        Crop(5, 2)
