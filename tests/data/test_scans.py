"""Real scans: facts from their README, comparison with other libraries, and round trips through every format."""

import gzip
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch

from pointgrad import data
from tests.support.places import DATA

SCANS = DATA / "scans"
if not SCANS.exists():
    pytest.skip(
        f"no real scans at {DATA}; set POINTGRAD_TEST_DATA to the folder that holds them", allow_module_level=True
    )

DALLAS = "dallas1.xyzcirn.txt.gz"
NUSCENES = "nuscenes_LIDAR_TOP_1532402927647951.pcd.bin"
COLUMNS = {DALLAS: "x y z class intensity return returns"}
POINTS = {
    "kitti_training_000000.bin": 115_384,
    NUSCENES: 34_688,
    "house.laz": 57_084,
    "MixedConifer.laz": 37_657,
    "simple.las": 1_065,
    DALLAS: 19_654,
    "samp24-utm.pcd": 7_492,
    "samp24-utm-ground.pcd": 5_434,
    "lamppost.pcd": 1_771,
    "room_scan1.pcd": 112_586,
    "milk_color.pcd": 13_704,
    "colored_cloud.pcd": 1_000,
    "b9_training.ply": 22_300,
    "dragon_vrip_res4.ply": 5_205,
    "kitten.off": 5_210,
    "modelnet_table_0348.off": 150,
    "dales_car_100.xyz": 150,
    "dales_tree_402.xyz": 267,
}
PACKAGES = {"pcd": "lzf", "las": "laspy", "laz": "lazrs", "h5": "h5py", "hdf5": "h5py"}


@cache
def get(name):
    need(name)
    return data.read(SCANS / name, columns=COLUMNS.get(name))


def need(name):
    suffix = name.rpartition(".")[2]
    if suffix in PACKAGES:
        pytest.importorskip(PACKAGES[suffix])


def test_all_scans_are_covered():
    other_files = {"kitti_training_000000.calib.txt", "kitti_training_000000.label_2.txt"}
    assert {path.name for path in SCANS.iterdir()} - other_files == set(POINTS)
    for name in other_files:  # not point clouds: camera calibration, bounding boxes
        for function in (data.read, data.info):
            with pytest.raises(data.FileError, match=f"{name}: expected .*numbers, found"):
                function(SCANS / name)


@pytest.mark.parametrize("name", POINTS)
def test_counts_and_bounds(name):
    cloud = get(name)
    found = data.info(SCANS / name, columns=COLUMNS.get(name))
    assert len(cloud) == found.points == POINTS[name]
    assert found.nonfinite == 0
    world = cloud.world()
    assert found.lower == tuple(world.amin(0).tolist())
    assert found.upper == tuple(world.amax(0).tolist())
    assert cloud.points.abs().max() < 6000  # near the origin
    assert {each.name for each in found.attributes} >= set(cloud.features)
    for each in found.attributes:
        if each.name in cloud.features:
            column = cloud.features[each.name]
            assert (each.low, each.high) == (column.min(), column.max())
    assert (found.labels is None) == (cloud.labels is None)
    if cloud.labels is not None:
        values, counts = cloud.labels.unique(return_counts=True)
        assert found.labels == dict(zip(values.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize(
    ("name", "doubled"),
    [(NUSCENES, 3_469), ("samp24-utm.pcd", 78), ("lamppost.pcd", 14), ("room_scan1.pcd", 112_586 - 56_159)],
)
def test_duplicate_points(name, doubled):
    need(name)
    assert data.info(SCANS / name).doubled == doubled


@pytest.mark.parametrize("name", ["kitti_training_000000.bin", "room_scan1.pcd", "b9_training.ply", "house.laz"])
def test_spacing_against_scipy(name):
    spatial = pytest.importorskip("scipy.spatial")
    places = np.unique(get(name).world().numpy(), axis=0)
    queries = places[np.random.default_rng(0).permutation(len(places))[:3000]]
    distance = spatial.cKDTree(places).query(queries, 2)[0][:, 1]
    assert data.info(SCANS / name).spacing == pytest.approx(np.median(distance), rel=0.15)  # estimated from a sample


@pytest.mark.parametrize("name", ["house.laz", "MixedConifer.laz", "simple.las"])
def test_las_against_laspy(name):
    laspy = pytest.importorskip("laspy")
    cloud, las = get(name), laspy.read(SCANS / name)
    assert np.array_equal(cloud.world().numpy(), las.xyz)
    assert np.array_equal(cloud.labels.numpy(), las.classification)
    dimensions = set(las.point_format.dimension_names) - {"X", "Y", "Z", "classification"}
    assert set(cloud.features) == dimensions
    for dimension in dimensions:
        assert np.array_equal(cloud.features[dimension].numpy(), las[dimension]), dimension


def test_classes():
    for name, classes in {"house.laz": [1, 2, 5, 6], "MixedConifer.laz": [1, 2, 11], "simple.las": [1, 2]}.items():
        assert get(name).labels.unique().tolist() == classes
    assert get("b9_training.ply").labels.unique().tolist() == [-1, 0, 1, 2]
    tree = get("MixedConifer.laz").features["treeID"]
    assert tree.dtype == torch.float64


@pytest.mark.parametrize("name", ["b9_training.ply", "dragon_vrip_res4.ply"])
def test_ply_against_plyfile(name):
    plyfile = pytest.importorskip("plyfile")
    ply, cloud = plyfile.PlyData.read(SCANS / name), get(name)
    rows = ply["vertex"].data
    assert cloud.points.numpy().dtype == rows["x"].dtype
    assert np.array_equal(cloud.world().numpy(), np.stack([rows[axis] for axis in "xyz"], 1).astype(np.float64))
    for column in set(rows.dtype.names) - {"x", "y", "z", "label"}:
        assert np.array_equal(cloud.features[column].numpy(), rows[column])
    assert data.info(SCANS / name).faces == (len(ply["face"].data) if "face" in ply else 0)


@pytest.mark.parametrize("name", [name for name in POINTS if name.endswith(".pcd")])
def test_pcd_against_pypcd4(name):
    pypcd4 = pytest.importorskip("pypcd4")
    pcd, cloud = pypcd4.PointCloud.from_path(SCANS / name), get(name)
    assert np.array_equal(cloud.world().numpy(), pcd.numpy(("x", "y", "z")).astype(np.float64))
    assert cloud.points.dtype == torch.float32
    packed = next((field for field in pcd.fields if field in ("rgb", "rgba")), None)
    if packed is not None:
        bits = pcd.pc_data[packed].view(np.uint32)
        assert np.array_equal(cloud.features["red"].numpy(), bits >> 16 & 255)
        assert np.array_equal(cloud.features["blue"].numpy(), bits & 255)
    if "normal_z" in pcd.fields:
        assert np.array_equal(cloud.features["nz"].numpy(), pcd.pc_data["normal_z"])
        assert "curvature" in cloud.features


@pytest.mark.parametrize("name", ["kitten.off", "modelnet_table_0348.off"])
def test_off_against_trimesh(name):
    trimesh = pytest.importorskip("trimesh")
    mesh = trimesh.load(SCANS / name, process=False)
    assert np.array_equal(get(name).world().numpy(), mesh.vertices)
    assert data.info(SCANS / name).faces == len(mesh.faces)
    if len(mesh.faces):
        points = data.read(SCANS / name, sample=200).points.numpy()
        _, distance, _ = trimesh.proximity.closest_point_naive(mesh, points)
        assert distance.max() < 1e-10


def test_sweeps_against_numpy():
    for name, width in (("kitti_training_000000.bin", 4), (NUSCENES, 5)):
        rows, cloud = np.fromfile(SCANS / name, np.float32).reshape(-1, width), get(name)
        assert np.array_equal(cloud.points.numpy(), rows[:, :3])
        assert np.array_equal(torch.stack(list(cloud.features.values()), 1).numpy(), rows[:, 3:])
    assert get(NUSCENES).features["ring"].unique().tolist() == list(range(32))


def test_gzipped_text_is_exact(tmp_path):
    """704519.910 is read as 704519.91: the same decimal number in every line."""
    with gzip.open(SCANS / DALLAS, "rt") as stream:
        lines = [line.split() for line in stream]
    cloud = get(DALLAS)
    assert cloud.labels.tolist() == [int(line[3]) for line in lines]
    assert cloud.features["returns"].tolist() == [int(line[6]) for line in lines]
    data.write(tmp_path / "a.xyz.gz", cloud)
    with gzip.open(tmp_path / "a.xyz.gz", "rt") as stream:
        head, *again = [line.split() for line in stream]
    assert head == ["#", "x", "y", "z", "intensity", "return", "returns", "label"]
    order = [0, 1, 2, 4, 5, 6, 3]
    for old, new in zip(lines, again, strict=True):
        assert [float(old[place]) for place in order] == [float(number) for number in new]
        assert all(len(new[axis]) <= len(old[axis]) for axis in range(3))


def test_ground_is_part_of_the_whole():
    """Compared as multisets, as in the README's definition of ground labels."""
    whole, ground = (
        Counter(map(tuple, get(name).world().tolist())) for name in ("samp24-utm.pcd", "samp24-utm-ground.pcd")
    )
    assert ground <= whole


def test_warning_for_float32_utm_coordinates():
    need("samp24-utm.pcd")
    found = data.info(SCANS / "samp24-utm.pcd")
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith("y is float32 in steps of 0.5 at 5.4")
    for name in ("kitti_training_000000.bin", "room_scan1.pcd", "b9_training.ply", "house.laz"):
        need(name)
        assert not data.info(SCANS / name).warnings


TARGETS = ["ply", "pcd", "las", "laz", "csv", "npy", "npz", "h5"]
SMALL = [name for name in POINTS if POINTS[name] < 25_000]


@pytest.mark.parametrize("suffix", [*TARGETS, "off", "obj", "xyz.gz"])
@pytest.mark.parametrize("name", SMALL)
def test_round_trip(tmp_path, name, suffix):
    """Every format that can store a scan restores coordinates, columns and labels."""
    _round_trip(tmp_path, name, suffix)


@pytest.mark.parametrize("suffix", ["ply", "pcd", "laz", "npz"])
@pytest.mark.parametrize("name", [name for name in POINTS if name not in SMALL])
def test_round_trip_of_large_scans(tmp_path, name, suffix):
    _round_trip(tmp_path, name, suffix)


@pytest.mark.parametrize("name", ["kitti_training_000000.bin", NUSCENES])
def test_round_trip_of_sweeps_is_exact(tmp_path, name):
    data.write(tmp_path / name, get(name))
    assert (tmp_path / name).read_bytes() == (SCANS / name).read_bytes()


@pytest.mark.parametrize("name", ["house.laz", "MixedConifer.laz", "simple.las"])
@pytest.mark.parametrize("alike", [False, True])
def test_las_integers_are_restored(tmp_path, name, alike):
    """Scale, offset and every integer are restored from the coordinates; with `like` also the coordinate system."""
    laspy = pytest.importorskip("laspy")
    need(name)
    data.write(tmp_path / name, get(name), like=SCANS / name if alike else None)
    old, new = laspy.read(SCANS / name), laspy.read(tmp_path / name)
    assert np.array_equal(new.header.scales, old.header.scales)
    assert np.array_equal(new.header.offsets, old.header.offsets)
    assert new.header.point_format.id == old.header.point_format.id
    for dimension in old.point_format.dimension_names:
        assert np.array_equal(new[dimension], old[dimension]), dimension
    if alike:
        assert [vlr.record_id for vlr in new.header.vlrs] == [vlr.record_id for vlr in old.header.vlrs]


def _round_trip(folder, name, suffix):
    need(f"a.{suffix}")
    cloud, path = get(name), folder / f"a.{suffix}"
    if suffix in ("off", "obj") and (cloud.features or cloud.labels is not None):
        with pytest.raises(data.FileError, match="expected only x, y, z"):
            data.write(path, cloud)
        assert not path.exists()
        return
    data.write(path, cloud)
    again = data.read(path)
    if suffix in ("las", "laz"):  # exact on a decimal grid, else within a billionth of the extent
        extent = float((cloud.world().amax(0) - cloud.world().amin(0)).max())
        assert (again.world() - cloud.world()).abs().max() <= max(extent * 1e-8, 1e-9)
    else:
        assert torch.equal(again.world(), cloud.world())
    for feature, column in cloud.features.items():
        assert torch.equal(again.features[feature].double(), column.double()), feature
    if cloud.labels is not None:
        assert torch.equal(again.labels, cloud.labels)
    if suffix in ("ply", "pcd", "npy", "npz", "h5"):
        assert again.points.dtype == cloud.points.dtype
