"""`python -m reliability.foreign.networks` on a made-up torch-pointcloud, and the table that shows its results."""

import json
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from reliability import page
from reliability.foreign import networks


class Network(nn.Module):
    """Outputs of a nested kind, and with a wrong number or gradient if requested."""

    def __init__(self, in_channels, num_classes, factor=1.0):
        super().__init__()
        self.layer = nn.Linear(in_channels + 3, num_classes)
        self.factor = factor

    def forward(self, x, pos, batch):
        out = self.layer(torch.cat([x, pos], 1)) * self.factor
        return {"logits": out, "stages": [(out.sqrt().detach(), out * 2)], "batch": batch}


class Voxels(nn.Module):
    def __init__(self, in_channels, **_):
        super().__init__()
        self.layer = nn.Linear(in_channels, 2)

    def forward(self, x, pos_grid, batch, category):
        assert len(torch.unique(torch.cat([batch[:, None], pos_grid], 1), dim=0)) == len(x)
        assert pos_grid.min() >= 0
        if category.shape != (2, 7):
            raise ValueError("wrong category")
        return self.layer(x)


def needs_mamba(**_):
    raise ImportError("Optional module 'mamba_ssm' is not installed.")


POINTS, GRID = ("x", "pos", "batch"), ("x", "pos_grid", "batch", "category")
FULL = {"in_channels": 4, "num_classes": 3}
REGISTERED = {
    "classification": {
        "good.first": (Network, FULL, POINTS),
        "good.second": (None, FULL, POINTS),  # only the first one is built
        "mamba": (needs_mamba, FULL, POINTS),
        "infinite": (Network, FULL | {"factor": torch.inf}, POINTS),
        "zero": (Network, FULL | {"factor": 0.0}, POINTS),
        "sizeless": (Network, {}, POINTS),
    },
    "part-segmentation": {"good": (Voxels, FULL | {"num_categories": 7}, GRID), "mamba": (Voxels, FULL, GRID)},
}


@pytest.fixture
def library(monkeypatch):
    """A package torch_pointcloud with these networks."""

    def create_model(name, task, return_info, **given):
        build, sizes, keys = REGISTERED[task][name]
        sizes = sizes | given
        if "in_channels" not in sizes:
            raise TypeError("pass the data-dependent arguments")
        return build(**sizes), {"input_keys": keys, "hparams": sizes}

    modules = {name: ModuleType(name) for name in ("torch_pointcloud", "torch_pointcloud.models")}
    registry = modules["torch_pointcloud.models._registry"] = ModuleType("torch_pointcloud.models._registry")
    registry._REGISTERED_MODELS = REGISTERED
    modules["torch_pointcloud"].create_model = create_model
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2")
    monkeypatch.setattr(networks.pointgrad.compat, "install", lambda: None)


def run(monkeypatch, out, *arguments):
    monkeypatch.setattr(sys, "argv", ["networks", "--out", str(out), *arguments])
    with pytest.raises(SystemExit) as ended:
        networks.main()
    return ended.value.code


def test_outcomes(library, monkeypatch, tmp_path):
    assert run(monkeypatch, tmp_path / "all.json") == 1
    record = json.loads((tmp_path / "all.json").read_text())
    found = {(row["architecture"], row["task"]): row for row in record["rows"].values()}
    outcomes = {
        key: ([row[step] for step in ("built", "forward", "backward")], row["reason"]) for key, row in found.items()
    }
    assert outcomes == {
        ("good", "classification"): ([True, True, True], ""),
        ("mamba", "classification"): ([False, False, False], "needs mamba_ssm"),
        ("infinite", "classification"): (
            [True, False, False], "ArithmeticError: output of shape (2048, 3) is not finite",
        ),
        ("zero", "classification"): ([True, False, False], "ArithmeticError: every output is 0"),
        ("sizeless", "classification"): ([True, True, True], ""),
        ("good", "part-segmentation"): ([True, True, True], ""),
        ("mamba", "part-segmentation"): ([True, False, False], "ValueError: wrong category"),
    }  # fmt: skip
    assert found["good", "classification"]["parameters"] == 24
    monkeypatch.setattr(page, "load", {"networks": record}.__getitem__)
    table = page.networks()
    assert table.startswith("torch-pointcloud 1.2, torch-geometric 1.2, torch ")
    assert "Of 5 architectures: 4 built, 2 forward, 2 backward." in table
    assert "| `good` | classification, part-segmentation | yes | yes | yes |  |" in table
    assert (
        "| `mamba` | classification, part-segmentation | no | no | no | needs mamba_ssm, ValueError: wrong category |"
        in table
    )


def test_exit_status_and_selection(library, monkeypatch, tmp_path, capsys):
    out = tmp_path / "good.json"
    assert run(monkeypatch, out, "--only", "g*d") == 0
    assert list(json.loads(out.read_text())["rows"]) == ["good, classification", "good, part-segmentation"]
    assert run(monkeypatch, out, "--only", "zero") == 1  # the others are kept
    assert list(json.loads(out.read_text())["rows"]) == [
        "good, classification", "good, part-segmentation", "zero, classification",
    ]  # fmt: skip
    assert run(monkeypatch, tmp_path / "none.json", "--only", "x") == 2
    assert "--only must match an architecture, got 'x'" in capsys.readouterr().err
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.3")  # rows of other versions are not kept
    assert run(monkeypatch, out, "--only", "sizeless") == 0
    assert list(json.loads(out.read_text())["rows"]) == ["sizeless, classification"]


def test_points_of_detectors():
    """In a street, `in_channels` includes the coordinates, and all points are in range."""
    sizes = {"in_channels": 5, "point_cloud_range": (0.0, -40, -3, 70, 40, 1)}
    x, pos, batch = networks.inputs("lion", "detection", POINTS, sizes)
    assert x.shape == (8192, 2)
    assert batch.bincount().tolist() == [4096, 4096]
    assert (pos.amin(0) > torch.tensor([0, -40, -3])).all()
    assert (pos.amax(0) < torch.tensor([70, 40, 1])).all()
    assert networks.inputs("pointnet", "classification", POINTS, {"in_channels": 0})[0] is None
