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
