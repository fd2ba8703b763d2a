"""Bad calls: every message states name, contract and received value, before any kernel runs."""

import re

import pytest
import torch
from torch import Tensor

import pointgrad
from pointgrad.catalog import OPERATORS
from pointgrad.catalog.base import ints

BAD_CALLS = [(op, bad) for op in OPERATORS for bad in op.errors]
features = torch.zeros(6, 4)
index = torch.zeros(5, dtype=torch.int64)


def _each(calls):
    return pytest.mark.parametrize(("op", "bad"), calls, ids=[f"{op.name}: {bad.message}" for op, bad in calls])


def moved(value, device):
    return value.to(device) if isinstance(value, Tensor) and value.device.type == "cpu" else value


@_each([(op, bad) for op, bad in BAD_CALLS if not bad.reads_values])
def test_metadata(op, bad, default_place):
    device = torch.empty(0, device=default_place.device).device
    args = [moved(value, device) for value in bad.args]
    kwargs = {name: moved(value, device) for name, value in bad.kwargs.items()}
    with pytest.raises(bad.error, match=f"^{re.escape(bad.message.replace(', cpu,', f', {device},'))}$"):
        op.call(*args, **kwargs)


@_each([(op, bad) for op, bad in BAD_CALLS if bad.reads_values])
def test_values(op, bad):
    with pytest.raises(bad.error, match=f"^{re.escape(bad.message)}$"):
        op.call(*bad.args, **bad.kwargs)


def test_backend_name():
    with pytest.raises(ValueError, match=r"^backend must be one of reference, cpu, triton, got 'gpu'$"):
        pointgrad.backend("gpu")


def test_order_of_checks():
    """With several errors at once: type before shape before dtype before device before value."""
    with pytest.raises(TypeError, match=r"index must be a torch\.Tensor"):
        pointgrad.gather(torch.zeros(7), None)
    with pytest.raises(ValueError, match="features must be"):
        pointgrad.gather(torch.zeros(7, dtype=torch.complex64), index)
    with pytest.raises(TypeError, match="start must be"):
        pointgrad.farthest_point_sampling(torch.zeros(6, 3, dtype=torch.int64), 7, start=1.5)
    with pytest.raises(TypeError, match="index must be int64"):
        pointgrad.gather(features, index.to("meta", torch.float32))


def test_a_refused_call_changes_nothing():
    before = features.clone()
    with pytest.raises(ValueError, match="index must be"):
        pointgrad.gather(features, ints(0, 99))
    assert torch.equal(features, before)


def test_compiled_code_raises_the_same_errors():
    compiled = torch.compile(pointgrad.gather, fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match=r"index must be -1 or in \[0, 6\), got 6"):
        compiled(features, ints(0, 6))


SWAPPED = torch.rand(2, 3, 50)
GOOD = torch.rand(2, 50, 3)
ROWS = torch.rand(2, 50, 4)
PASS = r"; they look transposed: pass {}\.transpose\(-2, -1\)"
OR_FLAG = ", or any_dims=True for clouds of 3 points with more than 3 dimensions"
ANY_DIMS = {
    "farthest_point_sampling": lambda points, **flag: pointgrad.farthest_point_sampling(points, 2, **flag),
    "knn": lambda points, **flag: pointgrad.knn(points, 2, **flag),
    "ball_query": lambda points, **flag: pointgrad.ball_query(points, 1.0, 2, **flag),
    "interpolate": lambda points, **flag: pointgrad.interpolate(points, points, points, **flag),
    "chamfer_distance": lambda points, **flag: pointgrad.chamfer_distance(points, points, **flag),
}
THREE_DIMS = {
    "random_sampling": lambda points: pointgrad.random_sampling(points, 2),
    "voxel_sampling": lambda points: pointgrad.voxel_sampling(points, 0.1),
    "NeighborIndex": pointgrad.NeighborIndex,
    "voxelize": lambda points: pointgrad.voxelize(points, 0.1),
    "grid_sample": lambda points: pointgrad.grid_sample(torch.rand(2, 1, 4, 4, 4), points),
    "splat": lambda points: pointgrad.splat(ROWS, points, (4, 4, 4)),
}


@pytest.mark.parametrize("name", ANY_DIMS)
def test_transposed_points(name):
    call = ANY_DIMS[name]
    message = r"^points must be .*, got \(2, 3, 50\)" + PASS.format("points") + OR_FLAG + "$"
    with pytest.raises(ValueError, match=message):
        call(SWAPPED)
    call(SWAPPED, any_dims=True)  # three points in 50 dimensions
    call(SWAPPED.transpose(1, 2))
    call(torch.rand(4, 3, 2))  # three points of a plane
    call(torch.rand(4, 4, 7))
    with pytest.raises(TypeError, match=r"^any_dims must be a bool, got int 1$"):
        call(GOOD, any_dims=1)


@pytest.mark.parametrize("name", THREE_DIMS)
def test_transposed_points_of_three_dimensions(name):
    with pytest.raises(ValueError, match=r"^points must be .*, got \(2, 3, 50\)" + PASS.format("points") + "$"):
        THREE_DIMS[name](SWAPPED)


def test_transposed_queries():
    with pytest.raises(ValueError, match=r"^queries must be .*, got \(2, 3, 50\)" + PASS.format("queries") + "$"):
        pointgrad.knn(GOOD, 2, SWAPPED)
    pointgrad.knn(torch.rand(2, 9, 50), 2, SWAPPED)  # three queries in 50 dimensions


def test_transposed_points_when_compiled():
    def search(points):
        return pointgrad.knn(points, 2).index

    compiled = torch.compile(search, fullgraph=True, backend="aot_eager", dynamic=True)
    assert torch.equal(compiled(GOOD), search(GOOD))
    wide = torch.rand(2, 9, 5)
    assert torch.equal(compiled(wide), search(wide))
