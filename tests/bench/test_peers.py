"""Peer libraries: how they are found, and that their adapters return correct results."""

import dataclasses
import importlib
import json
import sys
import types
from pathlib import Path

import pytest
import torch

from pointgrad import bench
from pointgrad.bench import families, harness, peers, table
from pointgrad.bench.comparison import Implementation, Setup
from tests.bench.support import NUMBERS, doubling, implementations, measure, peer


def test_missing_peer_is_listed_with_its_install_command():
    _, found = measure(doubling(), [peer("nosuch", None, module="nosuch_library.ops")])
    assert found.found["nosuch"] == {"version": None, "missing": "not installed", "get": "pip install nosuch"}
    record = {"quick": False, "GB_per_s": 1.0, "rows": [], "peers": found.found}
    assert "nosuch not installed: pip install nosuch" in table.remarks(record)


def test_peer_that_cannot_be_imported_is_reported_with_the_reason(tmp_path, monkeypatch):
    (tmp_path / "broken_peer.py").write_text("raise OSError('libusb.so: cannot open shared object file')")
    (tmp_path / "needy_peer.py").write_text("import nosuch_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    assert peers.load("broken_peer") == (None, "cannot be imported: libusb.so: cannot open shared object file")
    assert peers.load("needy_peer") == (None, "cannot be imported: No module named 'nosuch_dependency'")


def test_compat_modules_installed_under_the_name_of_a_peer_are_not_the_peer(monkeypatch):
    ours = types.ModuleType("pointgrad.compat.torch_cluster")
    monkeypatch.setitem(sys.modules, "torch_cluster", ours)
    assert peers.load("torch_cluster") == (None, "replaced by pointgrad.compat")
    renamed = types.ModuleType("pointnet2_ops")
    renamed.__file__ = str(Path(bench.__file__).parents[1] / "compat" / "pointnet2_ops" / "__init__.py")
    utils = types.ModuleType("pointnet2_ops.pointnet2_utils")
    monkeypatch.setitem(sys.modules, "pointnet2_ops", renamed)
    monkeypatch.setitem(sys.modules, "pointnet2_ops.pointnet2_utils", utils)
    assert peers.load("pointnet2_ops.pointnet2_utils")[0] is None
    assert peers.load("json")[0] is json


def test_peer_is_used_on_its_devices_only():
    result, found = measure(doubling(), [peer("gpu_only", None, devices=("cuda",))])
    assert list(result["implementations"]) == ["ours"]
    assert found.found == {}


def test_best_variant_of_a_peer_is_shown():
    variants = {"h=3": Implementation(lambda: 2 * NUMBERS), "h=4": Implementation(lambda: 0)}
    result, _ = measure(doubling(), [peer("trees", lambda module, numbers: variants)])
    assert result["implementations"]["trees h=4"]["state"] == "wrong"
    assert list(table.fastest(result, "peer")) == ["trees"]


@pytest.mark.parametrize("seed", [0, 5])  # with seed 0, no query of a small ball finds a neighbor
def test_installed_peers_return_correct_results(seed):
    pytest.importorskip("fpsample")
    pytest.importorskip("scipy")
    found = peers.Peers("cpu", peers.table())
    seen = set()
    for family in ("sampling", "neighbors", "scatter", "gather"):
        for row in families.rows(family, Setup("cpu", True)):
            if any(word in row.name for word in ("7812", "12500 x 64", "LiDAR")):
                continue
            torch.manual_seed(seed)
            comparison = row.build()
            for name, make in implementations(comparison, found):
                seen.add(name.partition(" ")[0])
                assert harness.check_first_call(make, comparison)[0] in ("timed", "declined"), f"{row.name}: {name}"
    assert {"fpsample", "scipy"} <= seen


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("pointnet2_ops", "pointnet2_ops.pointnet2_utils"),
        ("pointops", "pointops"),
        ("pytorch3d", "pytorch3d.ops"),
        ("torch_cluster", "torch_cluster"),
        ("torch_scatter", "torch_scatter"),
    ],
)
def test_adapters_match_the_signatures_of_the_peers(name, module, monkeypatch):
    """Tested with `pointgrad.compat`, which has the signatures of peers that may not be installed."""
    if name == "pytorch3d":
        loss = importlib.import_module("pointgrad.compat.pytorch3d.loss")
        monkeypatch.setitem(sys.modules, "pytorch3d.loss", loss)
        monkeypatch.setitem(sys.modules, "pytorch3d", importlib.import_module("pointgrad.compat.pytorch3d"))
    (entry,) = [each for each in peers.table() if each.name == name]
    found = peers.Peers("cpu", [dataclasses.replace(entry, devices=("cpu",))], found={name: {}})
    found._modules[name] = importlib.import_module(f"pointgrad.compat.{module}")
    tried = set()
    for family in ("sampling", "neighbors", "distance", "gather", "scatter", "interpolate"):
        for row in families.rows(family, Setup("cpu", True)):
            if any(word in row.name for word in ("7812", "LiDAR")):
                continue
            comparison = row.build()
            if comparison.work and comparison.work[0] in entry.work:
                ((_, make),) = found.implementations(*comparison.work)
                assert harness.check_first_call(make, comparison)[:2] == ("timed", ""), row.name
                tried.add(comparison.work[0])
    assert tried == set(entry.work)
