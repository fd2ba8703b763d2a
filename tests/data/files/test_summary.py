"""`info`, and the commands `pointgrad info` and `pointgrad convert`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.data.files import las as las_module
from pointgrad.data.files import summary
from tests.data.files.test_files import a_cloud, need


def test_info_against_scipy(tmp_path):
    spatial = pytest.importorskip("scipy.spatial")
    need("ply")
    cloud = a_cloud(900)
    twice = cloud.select(torch.cat([torch.arange(900), torch.arange(100), torch.arange(100)]))
    twice.points[5, 1], twice.points[6, 0] = torch.nan, torch.inf
    data.write(tmp_path / "a.ply", twice)
    found = data.info(tmp_path / "a.ply")
    world = twice.world()[twice.world().isfinite().all(1)].numpy()
    places = np.unique(world, axis=0)
    distance = spatial.cKDTree(places).query(world, 2)[0][:, 1]
    assert (found.points, found.nonfinite, found.doubled) == (1100, 2, len(world) - len(places))
    assert (found.lower, found.upper) == (tuple(world.min(0)), tuple(world.max(0)))
    assert found.spacing == pytest.approx(np.median(distance), rel=0.1)  # estimated from 1000 points
    assert found.labels == {label: int((twice.labels == label).sum()) for label in range(5)}
    assert {each.name: each.dtype for each in found.attributes}["gps_time"] == "float64"
    quality = next(each for each in found.attributes if each.name == "quality")
    assert (quality.low, quality.high) == (twice.features["quality"].min(), twice.features["quality"].max())
    assert found.size == (tmp_path / "a.ply").stat().st_size
    assert found.format == "PLY, binary little-endian"
    assert found.coordinates == "float64"


@pytest.mark.parametrize("suffix", ["las", "laz"])
def test_info_of_las_in_chunks(tmp_path, suffix, monkeypatch):
    """The result does not depend on the size of a chunk, which is never exceeded."""
    need(suffix)
    cloud = a_cloud(999).select(torch.arange(1998) % 999)
    data.write(tmp_path / f"a.{suffix}", cloud)
    whole = data.info(tmp_path / f"a.{suffix}")
    monkeypatch.setattr(las_module, "CHUNK", 100)
    assert max(len(part) for part in las_module.chunks(tmp_path / f"a.{suffix}")) == 100
    parts = data.info(tmp_path / f"a.{suffix}")
    assert parts.spacing == pytest.approx(whole.spacing, rel=0.1)  # estimated from different points
    for name in ("points", "lower", "upper", "attributes", "labels", "doubled", "format"):
        assert getattr(parts, name) == getattr(whole, name)
    assert whole.doubled == 999


def test_number_of_duplicates_is_estimated_for_large_files(tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "HASHES", 1000)
    np.save(tmp_path / "a.npy", np.tile(np.random.default_rng(0).random((20_000, 3)), (2, 1)))
    assert abs(data.info(tmp_path / "a.npy").doubled - 20_000) < 5 * 20_000 / 250**0.5


def test_info_of_identical_and_non_finite_points(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((5, 3)))
    found = data.info(tmp_path / "a.npy")
    assert (found.spacing, found.doubled, found.lower) == (None, 4, (0, 0, 0))
    np.save(tmp_path / "a.npy", np.full((5, 4), np.nan))
    found = data.info(tmp_path / "a.npy")
    assert (found.spacing, found.doubled, found.lower, found.nonfinite) == (None, 0, None, 5)
    assert (found.attributes[0].low, found.attributes[0].high) == (None, None)


def test_warning_for_coarse_coordinates(tmp_path):
    near = np.random.default_rng(0).random((500, 3)) * 50
    far = near + np.array([0, 5.4e6, 0])
    for xyz, dtype, count in ((far, np.float32, 1), (far, np.float64, 0), (near, np.float32, 0)):
        np.save(tmp_path / "a.npy", xyz.astype(dtype))
        found = data.info(tmp_path / "a.npy").warnings
        assert len(found) == count
        assert all(warning.startswith("y is float32 in steps of 0.5 at 5.4") for warning in found)


@pytest.fixture
def main():
    pytest.importorskip("tyro")
    pytest.importorskip("rich")
    from pointgrad.cli import main

    return main


def test_command_info(main, tmp_path, capsys):
    need("ply")
    data.write(tmp_path / "a.ply", a_cloud())
    data.write(tmp_path / "a[red].csv", a_cloud())  # must not be taken for markup
    assert main(["info", str(tmp_path / "a[red].csv")]) == 0
    assert "a[red].csv" in capsys.readouterr().out.replace("\n", "")
    assert main(["info", str(tmp_path / "a.ply")]) == 0
    shown = capsys.readouterr().out
    for part in ("a.ply", "PLY, binary little-endian", "200", "500000", "gps_time", "labels"):
        assert part in shown.replace("\n", "")
    assert main(["info", str(tmp_path)]) == 0  # all files of a folder
    shown = capsys.readouterr().out.replace("\n", "")
    assert "a[red].csv" in shown
    assert "a.ply" in shown
    assert main(["info"]) == 2
    assert "expected files or folders to describe, got none" in capsys.readouterr().err
    assert main(["info", "--json", str(tmp_path / "a.ply"), str(tmp_path / "none.ply")]) == 2
    out, err = capsys.readouterr()
    (found,) = json.loads(out)
    low, high = a_cloud().features["red"].aminmax()
    assert found["points"] == 200
    assert found["attributes"][1] == {"name": "red", "dtype": "uint8", "low": low, "high": high}
    path = tmp_path / "none.ply"
    assert err == f"pointgrad info: {path}: expected a file that can be read, got: No such file or directory\n"


def test_command_convert(main, tmp_path, capsys):
    laspy = pytest.importorskip("laspy")
    (tmp_path / "a.txt").write_text("".join(f"{x} 0 0 {x % 3}\n" for x in range(100)))
    source, target = str(tmp_path / "a.txt"), str(tmp_path / "a.las")
    assert main(["convert", source, target, "--columns", "x y z class"]) == 0
    assert capsys.readouterr().out == f"{target}: 100 points\n"
    assert np.array(laspy.read(target).classification).tolist() == [x % 3 for x in range(100)]
    thin = str(tmp_path / "b.las")
    assert main(["convert", target, thin, "--voxel", "10"]) == 0
    assert np.array(laspy.read(thin).x).tolist() == [5.0 + 10 * i for i in range(10)]  # the center of each voxel
    assert laspy.read(thin).header.scales.tolist() == laspy.read(target).header.scales.tolist()
    few = str(tmp_path / "b.ply")
    assert main(["convert", target, few, "--sample", "7", "--encoding", "ascii"]) == 0
    assert "element vertex 7" in Path(few).read_text()
    capsys.readouterr()
    for arguments in ([source, str(tmp_path / "a.off")], [source, few, "--voxel", "-1"], [str(tmp_path), few]):
        assert main(["convert", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("pointgrad convert: ")
        assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["info", "convert"])
def test_every_flag_has_help(main, command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert "Exit status" in text
    for flag in ("--columns", "--labels"):
        assert flag in text


@pytest.mark.parametrize("seed", range(3))
def test_isolated_points(tmp_path, seed):
    """Outliers above and far below a surface are counted, single or in pairs; the surface and its border are not."""
    rng = np.random.default_rng(seed)
    ground = np.stack([*rng.uniform(0, 60, (2, 20_000)), rng.normal(0, 0.02, 20_000)], 1)
    single = np.stack([*rng.uniform(0, 60, (2, 15)), rng.choice([-400.0, 90.0, 300.0], 15)], 1)
    single[:, 0] = np.arange(15) * 30.0
    pairs = np.repeat([[10.0, 10, 700], [50, 50, 900]], 2, axis=0) + rng.normal(0, 0.05, (4, 3))
    np.save(tmp_path / "a.npy", np.concatenate([ground, single, pairs])[rng.permutation(20_019)] + [5e5, 5e6, 0])
    assert data.info(tmp_path / "a.npy").isolated == 19


def test_isolated_points_of_las_in_chunks(tmp_path, monkeypatch):
    need("laz")
    points = torch.rand(3000, 3, generator=torch.Generator().manual_seed(0)).double() * torch.tensor([9.0, 9, 0.1])
    points[::500, 2] = torch.arange(6) * 50 + 50
    data.write(tmp_path / "a.laz", data.Cloud(points))
    monkeypatch.setattr(las_module, "CHUNK", 700)
    assert data.info(tmp_path / "a.laz").isolated == 6


@pytest.mark.parametrize(
    "points", [[[0.0, 0, 0]], [[1.0, 2, 3]] * 9, [[0, 0, 0], [0, 0, 1]], [[0, 0, 0], [np.nan] * 3]]
)
def test_isolated_points_of_tiny_files(tmp_path, points):
    np.save(tmp_path / "a.npy", np.array(points, float))
    assert data.info(tmp_path / "a.npy").isolated in (0, 2)  # two points have a spacing, and nothing around them


UTM = (
    'PROJCS["WGS 84 / UTM zone 32N",GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.25,'
    'AUTHORITY["EPSG","7030"]],AUTHORITY["EPSG","6326"]],AUTHORITY["EPSG","4326"]],AUTHORITY["EPSG","32632"]]'
)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], None),
        ([(2112, UTM.encode() + b"\0")], "WGS 84 / UTM zone 32N (EPSG:32632)"),
        ([(2112, b'COMPD_CS["one + two",PROJCS["one",AUTHORITY["EPSG","1"]],VERT_CS["two"]]')], "one + two"),
        ([(2112, b'PROJCRS["new",BASEGEOGCRS["x",ID["EPSG",4258]],ID["EPSG",25832]]')], "new (EPSG:25832)"),
        ([(2112, b"junk")], None),
        ([(34735, np.array([1, 1, 0, 1, 3072, 0, 1, 26912], "<u2").tobytes())], "EPSG:26912"),
        ([(34735, np.array([1, 1, 0, 2, 3072, 0, 1, 25832, 4096, 0, 1, 7837], "<u2").tobytes())], "EPSG:25832+7837"),
        (
            [
                (34735, np.array([1, 1, 0, 2, 1026, 34737, 6, 0, 2048, 0, 1, 4326], "<u2").tobytes()),
                (34737, b"Earth|rest\0"),
            ],
            "Earth (EPSG:4326)",
        ),
        ([(34735, np.array([1, 1, 0, 1, 3072, 0, 1, 32767], "<u2").tobytes())], None),
        ([(34735, b"\1\0\1")], None),
    ],
)
def test_coordinate_systems(tmp_path, records, expected):
    laspy = pytest.importorskip("laspy")
    las = laspy.LasData(laspy.LasHeader(version="1.4", point_format=6))
    las.x, las.y, las.z = np.random.default_rng(0).random((3, 20))
    for number, content in records:
        las.header.vlrs.append(laspy.VLR("LASF_Projection", number, "", content))
    las.write(tmp_path / "a.las")
    assert data.info(tmp_path / "a.las").crs == expected


def test_info_shows_class_names_and_coordinate_system(main, tmp_path, capsys):
    laspy = pytest.importorskip("laspy")
    las = laspy.LasData(laspy.LasHeader(version="1.4", point_format=6))
    las.x, las.y, las.z = np.random.default_rng(0).random((3, 30))
    las.classification = np.repeat([2, 9, 200], 10)
    las.header.vlrs.append(laspy.VLR("LASF_Projection", 2112, "", UTM.encode()))
    las.write(tmp_path / "a.las")
    assert main(["info", str(tmp_path / "a.las")]) == 0
    printed = capsys.readouterr().out
    assert "2 (ground): 10, 9 (water): 10, 200: 10" in printed
    assert "WGS 84 / UTM zone 32N (EPSG:32632)" in printed
    assert main(["info", str(tmp_path / "a.las"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["classes"] == {"2": "ground", "9": "water"}
    assert found["labels"] == {"2": 10, "9": 10, "200": 10}
    assert found["crs"].startswith("WGS 84")
