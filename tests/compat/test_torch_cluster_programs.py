"""Programs that use torch_cluster and torch_scatter, PyG, and comparisons with the original torch_cluster."""

import importlib.metadata
import importlib.util
import inspect
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pointgrad
import pointgrad.compat
from pointgrad.compat import torch_cluster
from pointgrad.compat.torch_cluster import fps, grid_cluster, knn, knn_graph, nearest, radius, radius_graph
from tests.compat.torch_cluster_loops import ragged

SOURCE = Path(pointgrad.__file__).parents[1]
FOREIGN = Path(__file__).parent / "foreign"


@pytest.fixture(scope="module")
def original():
    return pytest.importorskip("torch_cluster", exc_type=ImportError)


def test_signatures_match_the_original(original):
    for name in ("fps", "knn", "knn_graph", "radius", "radius_graph", "nearest", "grid_cluster"):
        ours = inspect.signature(getattr(torch_cluster, name)).parameters
        theirs = inspect.signature(getattr(original, name)).parameters
        shared = list(ours)[: len(theirs)]
        assert shared == list(theirs)
        assert [ours[key].default for key in shared] == [theirs[key].default for key in shared]
        assert all(ours[key].default is False for key in list(ours)[len(theirs) :])  # ignore_same_index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbors_match_the_original(dtype, original):
    x, batch_x = ragged([50, 3, 0, 200], 3, dtype)
    y, batch_y = ragged([20, 4, 3, 60], 3, dtype)
    assert torch.equal(knn(x, y, 7, batch_x, batch_y), original.knn(x, y, 7, batch_x, batch_y))
    assert torch.equal(knn_graph(x, 5, batch_x), original.knn_graph(x, 5, batch_x))
    assert torch.equal(knn_graph(x, 5, loop=True), original.knn_graph(x, 5, loop=True))
    pairs = [edges.T.tolist() for edges in (radius(x, y, 2.0, batch_x, batch_y, 1000),)]
    assert sorted(pairs[0]) == sorted(original.radius(x, y, 2.0, batch_x, batch_y, 1000).T.tolist())
    received, expected = radius_graph(x, 2.0, batch_x), original.radius_graph(x, 2.0, batch_x, max_num_neighbors=500)
    full = torch.bincount(expected[1], minlength=253)
    assert torch.equal(torch.bincount(received[1], minlength=253), full.clamp(max=32))
    assert {tuple(edge) for edge in received.T.tolist()} <= {tuple(edge) for edge in expected.T.tolist()}


def test_points_at_distance_r_match_the_original(original):
    x = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))
    for r in (1.0, 2.0, 5.0):
        expected = original.radius(x, x, r, max_num_neighbors=64)
        assert sorted(radius(x, x, r, max_num_neighbors=64).T.tolist()) == sorted(expected.T.tolist())


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.7, None, torch.tensor([0.2, 0.5, 0.9])], ids=str)
def test_fps_matches_the_original(ratio, original):
    src, batch = ragged([50, 3, 200])
    assert torch.equal(fps(src, batch, ratio, False), original.fps(src, batch, ratio, False))
    ptr = torch.tensor([0, 50, 53, 253])
    assert torch.equal(fps(src, None, ratio, False, ptr=ptr), original.fps(src, None, ratio, False, ptr=ptr))


def test_clusters_match_the_original(original):
    pytest.importorskip("scipy")
    x, batch_x = ragged([50, 3, 200])
    y, batch_y = ragged([20, 4, 60])
    assert torch.equal(nearest(x, y, batch_x, batch_y), original.nearest(x, y, batch_x, batch_y))
    assert torch.equal(nearest(x, y), original.nearest(x, y))
    size = torch.tensor([0.7, 1.5, 2.0])
    assert torch.equal(grid_cluster(x, size), original.grid_cluster(x, size))
    corners = torch.tensor([-1.0, -2, -3]), torch.tensor([9.0, 8.5, 8.0])
    assert torch.equal(grid_cluster(x, size, *corners), original.grid_cluster(x, size, *corners))


# -- programs ----------------------------------------------------------------------------------------------------------

MODELS = ["torch_cluster", "torch_scatter"]


def losses_of(output):
    return [float(line) for line in output.split()]


@pytest.mark.parametrize("model", MODELS)
def test_unchanged_program(model, default_place, monkeypatch, capsys):
    theirs = [name for name in sys.modules if name.partition(".")[0] in MODELS]
    for name in theirs:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "argv", ["model.py", "--steps", "12", "--device", default_place.device])
    pointgrad.compat.install(*MODELS)
    try:
        runpy.run_path(str(FOREIGN / f"{model}_model.py"), run_name="__main__")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in MODELS]:
            del sys.modules[name]
    losses = losses_of(capsys.readouterr().out)
    assert len(losses) == 12
    assert losses[-1] < 0.8 * losses[0]


def run_python(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=120
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("model", MODELS)
def test_program_by_command(model):
    losses = losses_of(run_python("-m", "pointgrad.compat", "run", str(FOREIGN / f"{model}_model.py"), "--steps", "3"))
    assert len(losses) == 3
    assert losses[-1] < losses[0]


# Functions that PyG calls: those of torch_geometric.nn.pool, layers, and its scatter, segment and softmax.
PYG = """
import pointgrad.compat
pointgrad.compat.install("torch_cluster", "torch_scatter")
import torch
try:
    import torch_geometric
except ModuleNotFoundError as error:
    if error.name is None:  # one of ours
        raise
    print("without", error.name)
    raise SystemExit
from torch_geometric import nn, utils

x, batch = torch.rand(40, 3, requires_grad=True), torch.arange(40) // 20
same = batch[:, None] == batch[None]
distance = torch.cdist(x, x).masked_fill(~same, torch.inf).detach()
assert torch.equal(utils.scatter(x, batch, 0, reduce="max"), torch.stack([x[:20].amax(0), x[20:].amax(0)]))
utils.scatter(x, batch, 0, reduce="min").sum().backward()
assert x.grad.sum() == 6
means = torch.stack([x[:20].mean(0), x[20:].mean(0)])
assert utils.segment(x, torch.tensor([0, 20, 40]), reduce="mean").allclose(means)
assert utils.softmax(x[:, 0], batch).sum().isclose(torch.tensor(2.0))
if clusters:
    assert nn.fps(x, batch, 0.5).shape == (20,)
    query, found = nn.knn(x, x, 3, batch, batch)
    assert torch.equal(found.view(40, 3), distance.argsort(1)[:, :3])
    source, target = nn.knn_graph(x, 2, batch)
    assert torch.equal(source.view(40, 2), distance.argsort(1)[:, 1:3])
    assert nn.radius(x, x, 0.3, batch, batch).shape == (2, int((distance < 0.3).sum()))
    assert nn.radius_graph(x, 0.3, batch).shape == (2, int((distance < 0.3).sum()) - 40)
    assert torch.equal(nn.nearest(x, x, batch, batch), torch.arange(40))
    assert (batch[nn.voxel_grid(x, 9.0, batch).bool()] == 1).all()
    nn.DynamicEdgeConv(torch.nn.Linear(6, 8), k=4)(x, batch).sum().backward()
    assert nn.XConv(3, 8, dim=3, kernel_size=4, hidden_channels=4)(x, x, batch).shape == (40, 8)
    assert nn.GravNetConv(3, 8, 3, 4, k=4)(x, batch).shape == (40, 8)
print(torch_geometric.__version__)
"""


def test_pyg():
    if importlib.util.find_spec("torch_geometric") is None:
        pytest.skip("PyG is not installed")
    version = importlib.metadata.version("torch_geometric")
    clusters = tuple(map(int, version.split(".")[:2])) < (2, 8)  # later versions use pyg-lib instead
    printed = run_python("-c", f"clusters = {clusters}\n{PYG}").strip()
    if printed.startswith("without"):
        pytest.skip(f"PyG is installed {printed}")
    assert printed == version
