"""`pointgrad graph`, and how targets are found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("tyro", reason="the command line needs tyro, which is not installed")

import pointgrad
from pointgrad.cli import main
from pointgrad.cli.target import TargetError, load

NETWORK = """
import torch, pointgrad

def abstraction(points, features):
    centers = pointgrad.gather(points, pointgrad.farthest_point_sampling(points, 8))
    index = pointgrad.knn(points, 4, centers).index
    return pointgrad.group(features, index).amax(-2)

def pair():
    layer = torch.nn.Linear(3, 4)
    return layer(torch.rand(2, 3)), layer

def no_graph():
    return torch.ones(3)

def wrong():
    return torch.ones(2, 3) @ torch.ones(2, 3)

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 4)

net = Net()
number = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Current folder with network modules, which are imported afresh."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "network.py").write_text(NETWORK)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit('usage: leaving')\n")
    yield tmp_path
    for name in ("network", "broken", "leaving"):
        sys.modules.pop(name, None)


def test_page_and_summary(here, capsys):
    assert main(["graph", "network:abstraction", "--shapes", "32,3", "32,5"]) == 0
    printed = capsys.readouterr().out
    assert "pointgrad::gather" in printed
    assert "held only for backward" in printed
    assert "written to abstraction.html" in printed
    assert "features" in (here / "abstraction.html").read_text()


def test_names_come_from_arguments_and_modules(here):
    assert main(["graph", "network.py:Net", "--shapes", "2,3", "--out", "net.json"]) == 0
    assert {node["name"] for node in json.loads((here / "net.json").read_text())["nodes"]} >= {
        "weight", "bias", "input",
    }  # fmt: skip
    assert main(["graph", "network:net", "--shapes", "2,3", "--out", "same.json"]) == 0
    assert main(["graph", "network:pair", "--out", "pair.svg"]) == 0
    ElementTree.parse(here / "pair.svg")
    assert ">weight<" in (here / "pair.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["network"], 2, "target must be package.module:function, got 'network'"),
        (["network:pair", "--shapes", "2,x"], 2, "--shapes must be sizes separated by commas, such as 2,1024,3, got"),
        (["network:pair", "--out", "a.png"], 2, "--out must end in .html, .svg, .json, got 'a.png'"),
        (["network:pair", "--out", "no/folder/a.svg"], 2, "cannot write no/folder/a.svg: No such file or directory"),
        (["missing:f"], 3, "cannot import missing: ModuleNotFoundError: No module named 'missing'"),
        (["broken:f"], 3, "cannot import broken: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        (["leaving:f"], 3, "cannot import leaving: SystemExit: usage: leaving"),
        (["network:f"], 3, "network:f: network has no 'f'"),
        (["network:number"], 3, "network:number must be a function or a module, got int"),
        (["network:no_graph"], 4, "network:no_graph: ValueError: output must require grad, got a tensor without"),
        (["network:wrong"], 4, "network.py:17): RuntimeError: ... mat1 and mat2 shapes cannot be multiplied"),
        (["network:abstraction"], 4, "missing 2 required positional arguments: 'points' and 'features'"),
    ],
)  # fmt: skip
def test_errors_are_one_line(here, capsys, arguments, status, message):
    assert main(["graph", *arguments]) == status
    error = capsys.readouterr().err
    assert error.startswith("pointgrad graph: ")
    assert all(
        part in error for part in message.split("... ")
    )  # "..." stands for text that depends on the version of torch
    assert error.count("\n") == 1
    assert not [path for path in here.iterdir() if path.suffix in (".html", ".svg", ".json")]


def test_wrong_command_line_exits_with_status_2(here):
    with pytest.raises(SystemExit) as error:
        main(["graph"])
    assert error.value.code == 2


def test_run_as_a_program(here):
    command = [sys.executable, "-m", "pointgrad", "graph", "network:pair", "--out", "pair.svg"]
    found_at = {**os.environ, "PYTHONPATH": str(Path(pointgrad.__file__).parents[1])}
    result = subprocess.run(command, capture_output=True, text=True, cwd=here, env=found_at, timeout=120)
    assert result.returncode == 0, result.stderr
    assert (here / "pair.svg").exists()


def test_load(here):
    import math

    assert load("math:sqrt") is math.sqrt
    assert load("network:Net.forward").__name__ == "forward"
    assert load(f"{here}/network.py:pair").__name__ == "pair"
    for target in ("network", ":f", "network:", ""):
        with pytest.raises(TargetError, match=r"target must be package\.module:function") as error:
            load(target)
        assert error.value.status == 2
