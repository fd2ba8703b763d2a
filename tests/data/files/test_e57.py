"""E57 files written by pye57, and damaged ones."""

import numpy as np
import pytest
import torch

from pointgrad import data
from pointgrad.cli import main

pye57 = pytest.importorskip("pye57")


def write(path, *scans):
    """Write scans, each a dictionary of columns with optional rotation (w, x, y, z) and translation."""
    with pye57.E57(str(path), "w") as file:
        for scan in scans:
            pose = {name: np.array(scan.pop(name)) for name in ("rotation", "translation") if name in scan}
            file.write_scan_raw(scan, **pose)


def scan(count, seed=0, **more):
    rng = np.random.default_rng(seed)
    points = rng.random((3, count)).astype("f4").astype("f8")  # pye57 writes single precision
    return {**dict(zip(("cartesianX", "cartesianY", "cartesianZ"), points, strict=True)), **more}


def test_one_scan(tmp_path):
    rng = np.random.default_rng(1)
    colors = {name: rng.integers(0, 256, 50).astype("u1") for name in ("colorRed", "colorGreen", "colorBlue")}
    intensity = rng.random(50).astype("f4")
    invalid = (np.arange(50) % 5 == 0).astype("i1")
    columns = scan(50, intensity=intensity, cartesianInvalidState=invalid, **colors)
    write(tmp_path / "a.e57", dict(columns))
    cloud = data.read(tmp_path / "a.e57")
    keep = invalid == 0
    expected = np.stack([columns[f"cartesian{axis}"] for axis in "XYZ"], 1)[keep]
    np.testing.assert_array_equal(cloud.world().numpy(), expected)
    assert list(cloud.features) == ["intensity", "red", "green", "blue"]
    np.testing.assert_array_equal(cloud.features["intensity"].numpy(), intensity[keep])
    np.testing.assert_array_equal(cloud.features["green"].numpy(), colors["colorGreen"][keep])
    assert cloud.features["red"].dtype == torch.uint8


def test_scans_are_moved_by_their_poses(tmp_path):
    quarter = [np.sqrt(0.5), 0, 0, np.sqrt(0.5)]  # 90 degrees about z
    first = scan(20, 1, intensity=np.ones(20, "f4"), rotation=quarter, translation=[100.0, 200.0, 5.0])
    second = scan(30, 2, translation=[6e5, 5e6, 0.0], rotation=[1.0, 0, 0, 0])
    write(tmp_path / "a.e57", dict(first), dict(second))
    cloud = data.read(tmp_path / "a.e57")
    x, y, z = (first[f"cartesian{axis}"] for axis in "XYZ")
    turned = np.stack([100 - y, 200 + x, 5 + z], 1)
    moved = np.stack([second[f"cartesian{axis}"] for axis in "XYZ"], 1) + np.array([6e5, 5e6, 0.0])
    np.testing.assert_allclose(cloud.world().numpy(), np.concatenate([turned, moved]), rtol=0, atol=1e-8)
    assert list(cloud.features) == ["scan"]  # only one of the scans has intensities
    assert cloud.features["scan"].tolist() == [0] * 20 + [1] * 30


def test_commands_read_e57(tmp_path, capsys):
    write(tmp_path / "a.e57", scan(40, intensity=np.linspace(0, 1, 40, dtype="f4")))
    assert main(["info", str(tmp_path / "a.e57")]) == 0
    assert "E57, 1 scan" in capsys.readouterr().out
    assert main(["convert", str(tmp_path / "a.e57"), str(tmp_path / "a.ply")]) == 0
    again = data.read(tmp_path / "a.ply")
    assert torch.equal(again.world(), data.read(tmp_path / "a.e57").world())


def test_damaged_files(tmp_path):
    write(tmp_path / "a.e57", scan(2000))
    whole = (tmp_path / "a.e57").read_bytes()
    random = np.random.default_rng(0)
    spoiled = bytearray(whole)
    spoiled[len(whole) // 2] ^= 0xFF
    for content in (b"ASTM-E57", whole[: len(whole) // 2], bytes(spoiled), random.bytes(5000)):
        (tmp_path / "b.e57").write_bytes(content)
        with pytest.raises(data.FileError, match=r"^\S*b\.e57: expected a file that can be read"):
            data.read(tmp_path / "b.e57")
