"""Sampling, clusters, signatures and errors of pointgrad.compat.torch_cluster."""

import importlib.metadata
import importlib.util
import inspect
import math

import numpy as np
import pytest
import torch

from pointgrad.compat import torch_cluster
from pointgrad.compat.torch_cluster import fps, grid_cluster, knn, knn_graph, nearest, radius, radius_graph
from tests.compat.torch_cluster_loops import (
    DTYPES,
    FLOATS,
    fps_by_loop,
    pairs_by_loop,
    ragged,
)


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fps_equals_a_plain_loop(dtype, dim, default_place):
    src, batch = ragged([9, 0, 40, 1], dim, dtype, default_place.device)
    index = fps(src, batch, 0.3, random_start=False)
    expected = fps_by_loop(src[:9].cpu(), 3, 0) + [9 + p for p in fps_by_loop(src[9:49].cpu(), 12, 0)] + [49]
    assert index.dtype == torch.int64
    assert index.tolist() == expected


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fps_rounds_the_number_of_samples_up(dtype, ratio):
    """In every dtype; the original first rounds the ratio to 16 bits."""
    for size in (1, 2, 3, 10, 64, 100, 127):
        expected = math.ceil(np.float32(ratio) * np.float32(size))
        assert fps(torch.rand(size, 3).to(dtype), ratio=ratio).shape == (expected,)
        assert abs(expected - ratio * size) < 1


def test_fps_of_equal_points(default_place):
    """The original samples the first point repeatedly."""
    assert fps(torch.zeros(6, 3, device=default_place.device), ratio=1.0).sort().values.tolist() == list(range(6))


def test_fps_default_ratio():
    assert fps(torch.rand(11, 3)).shape == (6,)


def test_fps_ratio_per_cloud(default_place):
    src, batch = ragged([10, 20, 30], device=default_place.device)
    ratio = torch.tensor([0.1, 0.5, 1.0], device=default_place.device)
    index = fps(src, batch, ratio)
    assert torch.bincount(batch[index]).tolist() == [1, 10, 30]
    assert fps(src, batch, ratio[:1]).shape == (6,)
    assert fps(src, batch, ratio[1]).shape == (30,)


def test_fps_ptr(default_place):
    src, batch = ragged([10, 0, 20], device=default_place.device)
    expected = fps(src, batch, 0.4, random_start=False)
    for ptr in ([0, 10, 10, 30], torch.tensor([0, 10, 10, 30], device=default_place.device)):
        assert torch.equal(fps(src, ratio=0.4, random_start=False, ptr=ptr), expected)


def test_fps_of_points_of_any_rank():
    src = torch.rand(20, 2, 3)
    assert torch.equal(fps(src, random_start=False), fps(src.reshape(20, 6), random_start=False))


def test_fps_of_a_large_extent(default_place):
    """The original's GPU version starts with a distance of 5e4, so distant points seem equally far."""
    src = torch.rand(500, 3, device=default_place.device) * 1000
    assert fps(src, ratio=0.1, random_start=False).tolist() == fps_by_loop(src.cpu(), 50, 0)


def test_random_start_depends_on_the_seed(default_place):
    """The original's CPU version uses random numbers of the C library, which torch does not seed."""
    src, batch = ragged([50, 60], device=default_place.device)
    starts = set()
    for seed in range(20):
        torch.manual_seed(seed)
        index = fps(src, batch, 0.2)
        torch.manual_seed(seed)
        assert torch.equal(fps(src, batch, 0.2), index)
        assert batch[index].tolist() == [0] * 10 + [1] * 12
        first = int(index[0])
        assert index[:10].tolist() == fps_by_loop(src[:50].cpu(), 10, first)
        starts.add(first)
    assert len(starts) > 5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nearest_equals_a_plain_loop(dtype, default_place):
    x, batch_x = ragged([9, 0, 30, 1], 3, dtype, default_place.device)
    y, batch_y = ragged([3, 2, 9, 2], 3, dtype, default_place.device)
    expected = [min(pairs)[1] for _, pairs in pairs_by_loop(y, x, batch_y, batch_x)]
    assert nearest(x, y, batch_x, batch_y).tolist() == expected


def test_nearest_far_from_the_origin():
    """The original rescales coordinates and appends the cloud number, which loses precision."""
    x = torch.tensor([[4e6, 0], [4e6 + 1, 0], [4e6 + 2, 0]])
    batch = torch.tensor([0, 1, 1])
    assert nearest(x, x, batch, batch).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("x", "y"), [([0, 0, 1], [0]), ([1], [0, 0])])
def test_nearest_needs_points_in_each_cloud(x, y):
    x, y = torch.tensor(x), torch.tensor(y)
    with pytest.raises(ValueError, match="y must have at least one point in every cloud of x"):
        nearest(x.float(), y.float(), x, y)


def test_nearest_of_empty_input():
    assert nearest(torch.empty(0, 3), torch.rand(4, 3)).shape == (0,)
    with pytest.raises(ValueError, match="y must have at least one point"):
        nearest(torch.rand(4, 3), torch.empty(0, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_grid_cluster_equals_a_plain_loop(dim, dtype, default_place):
    pos = (torch.rand(60, dim) * 8).to(default_place.device, dtype)
    size = torch.tensor([1.0, 2.0, 4.0][:dim], device=default_place.device)
    cell = ((pos.cpu().double() - pos.cpu().double().amin(0)) / size.cpu()).floor().long()
    stride = [1]
    for axis in range(dim - 1):
        stride.append(stride[-1] * (int(cell[:, axis].max()) + 1))
    expected = (cell * torch.tensor(stride)).sum(1)
    assert torch.equal(grid_cluster(pos, size).cpu(), expected)


def test_grid_cluster_with_corners():
    pos = torch.tensor([[0.5, 0.5], [3.5, 0.5], [0.5, 2.5]])
    received = grid_cluster(pos, torch.ones(2), torch.zeros(2), torch.tensor([3.9, 2.9]))
    assert received.tolist() == [0, 3, 8]
    assert grid_cluster(torch.tensor([0.0, 3.0, 7.0]), torch.tensor([2.0])).tolist() == [0, 1, 3]
    assert grid_cluster(torch.empty(0, 2), torch.ones(2)).shape == (0,)


@pytest.mark.parametrize("call", [lambda x: knn(x, x, 3), lambda x: radius(x, x, 1.0), lambda x: knn_graph(x, 3)])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0)])
def test_empty_input_has_no_edges(shape, call):
    edges = call(torch.empty(shape))
    assert edges.shape == (2, 0)
    assert edges.dtype == torch.int64


def test_fps_of_empty_input():
    assert fps(torch.empty(0, 3)).tolist() == []
    assert fps(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)).tolist() == []


def test_batch_size_may_include_empty_clouds(default_place):
    x, batch = ragged([6, 7], device=default_place.device)
    assert torch.equal(knn_graph(x, 2, batch, batch_size=5), knn_graph(x, 2, batch))
    assert torch.equal(radius_graph(x, 4.0, batch, batch_size=5), radius_graph(x, 4.0, batch))
    assert torch.equal(fps(x, batch, random_start=False, batch_size=5), fps(x, batch, random_start=False))


def test_int32_batch_and_views():
    x, batch = ragged([6, 7])
    expected = knn_graph(x, 2, batch)
    assert torch.equal(knn_graph(x, 2, batch.int()), expected)
    assert torch.equal(knn_graph(x.T.contiguous().T, 2, torch.stack([batch, batch], 1)[:, 0]), expected)


@pytest.mark.parametrize(
    "call",
    [
        fps,
        lambda x: knn(x, x, 3),
        lambda x: knn_graph(x, 3),
        lambda x: radius_graph(x, 0.5),
        lambda x: nearest(x, x),
        lambda x: grid_cluster(x, torch.full((3,), 0.2)),
    ],
)
def test_indices_have_no_gradient(call):
    assert not call(torch.rand(20, 3, requires_grad=True)).requires_grad


UNSORTED = torch.tensor([0, 1, 0, 1])
FEW = torch.rand(4, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fps(FEW, UNSORTED),
        lambda: knn(FEW, FEW, 1, UNSORTED, UNSORTED),
        lambda: knn(FEW, FEW, 1, torch.zeros(4).long(), UNSORTED),
        lambda: knn_graph(FEW, 1, UNSORTED),
        lambda: radius(FEW, FEW, 1.0, UNSORTED, UNSORTED),
        lambda: radius_graph(FEW, 1.0, UNSORTED, batch_size=2),
        lambda: nearest(FEW, FEW, UNSORTED, UNSORTED),
    ],
)
def test_unsorted_batch(call):
    """The original silently returns wrong edges and samples (except for `nearest`)."""
    with pytest.raises(ValueError, match=r"batch(_x|_y)? must be sorted, got 1 before 0"):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: knn(FEW, FEW, 0), "k must be at least 1, got 0"),
        (lambda: knn(FEW, torch.rand(4, 3), 1), r"y must be \(M, D\) with D = 2, like x, got \(4, 3\)"),
        (lambda: knn(FEW, FEW, 1, torch.zeros(3).long()), r"batch_x must be \(N,\) = \(4,\)"),
        (
            lambda: knn(FEW, FEW, 1, None, torch.tensor([0, 0, 1, 1])),
            "batch_x must be a tensor if there are 2 clouds, got None",
        ),
        (lambda: knn_graph(FEW, 1, torch.tensor([0, 1, 2, 3]), batch_size=2), "below batch_size = 2, got 3"),
        (lambda: knn_graph(FEW, 1, torch.tensor([-1, 0, 0, 0])), "batch_x must be at least 0, got -1"),
        (lambda: knn_graph(FEW, 1, flow="up"), 'flow must be "source_to_target" or "target_to_source", got \'up\''),
        (lambda: radius(FEW, FEW, -1.0), "r must be at least 0, got -1.0"),
        (lambda: radius(FEW, FEW, float("nan")), "r must be at least 0, got nan"),
        (lambda: radius(FEW, FEW, 1.0, max_num_neighbors=-1), "max_num_neighbors must be at least 0, got -1"),
        (lambda: fps(FEW, ratio=0), r"ratio must be in \(0, 1\], got 0"),
        (lambda: fps(FEW, ratio=1.5), r"ratio must be in \(0, 1\], got 1.5"),
        (lambda: fps(FEW, ratio=torch.tensor([0.5, 0.5])), r"ratio must be one entry, or one per cloud, got \(2,\)"),
        (lambda: fps(FEW, ptr=[0, 9]), r"ptr\[-1\] must equal N = 4, got 9"),
        (lambda: grid_cluster(FEW, torch.ones(3)), r"size must be \(2,\), one for each axis of pos, got \(3,\)"),
        (lambda: grid_cluster(FEW, torch.zeros(2)), r"size must be positive, got \[0.0, 0.0\]"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fps([[0.0]]), "src must be a torch.Tensor, got list"),
        (lambda: fps(FEW, ratio="half"), "ratio must be a number or a tensor, got str 'half'"),
        (lambda: knn(FEW, FEW.double(), 1), "y must have the dtype of x, float32, got float64"),
        (lambda: knn(FEW, FEW, 1.5), "k must be an int, got float 1.5"),
        (lambda: radius(FEW, FEW, "far"), "r must be a number, got str 'far'"),
        (lambda: knn(FEW > 0, FEW > 0, 1), "x must be .*, got bool"),
        (lambda: grid_cluster(FEW, 0.5), "size must be a torch.Tensor, got float 0.5"),
    ],
)
def test_bad_types(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_voxel_numbers_wrap_around():
    """Like the int64 products of the original."""
    pos = torch.randint(0, 2**25, (20, 4)).double()
    pos[:2] = torch.tensor([[0.0], [2.0**25]])
    received = grid_cluster(pos, torch.ones(4, dtype=torch.float64))
    stride = [(2**25 + 1) ** axis for axis in range(4)]
    for row, number in zip(pos.long().tolist(), received.tolist(), strict=True):
        assert number % 2**64 == sum(map(math.prod, zip(row, stride, strict=True))) % 2**64


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [("graclus", "graclus_cluster", 2), ("sampler", "neighbor_sampler", 3), ("rw", "random_walk", 4)],
)
def test_graph_functions_raise(module, name, arguments):
    """`import torch_geometric.nn` imports them too, up to PyG 2.7."""
    assert name not in torch_cluster.__all__
    function = getattr(importlib.import_module(f"pointgrad.compat.torch_cluster.{module}"), name)
    assert getattr(torch_cluster, name) is function
    with pytest.raises(NotImplementedError, match=f"does not provide {name}, which works on graphs, not on points"):
        function(*[torch.zeros(3)] * arguments)


def test_parameters_of_tests():
    testing = importlib.import_module("pointgrad.compat.torch_cluster.testing")
    assert testing.devices[0] == torch.device("cpu")
    assert testing.tensor(None, torch.float, testing.devices[0]) is None
    for dtype in {*testing.dtypes, *testing.grad_dtypes, *testing.floating_dtypes}:
        assert testing.tensor([1, 2], dtype, testing.devices[0]).dtype == dtype
    with pytest.raises(AttributeError, match="has no attribute missing"):
        testing.missing  # noqa: B018


SIGNATURES = {
    "fps": "src, batch=None, ratio=None, random_start=True, batch_size=None, ptr=None",
    "knn": "x, y, k, batch_x=None, batch_y=None, cosine=False, num_workers=1, batch_size=None",
    "knn_graph": "x, k, batch=None, loop=False, flow='source_to_target', cosine=False, num_workers=1, batch_size=None",
    "radius": "x, y, r, batch_x=None, batch_y=None, max_num_neighbors=32, num_workers=1, batch_size=None,"
    " ignore_same_index=False",
    "radius_graph": "x, r, batch=None, loop=False, max_num_neighbors=32, flow='source_to_target', num_workers=1,"
    " batch_size=None",
    "nearest": "x, y, batch_x=None, batch_y=None",
    "grid_cluster": "pos, size, start=None, end=None",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(torch_cluster, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == SIGNATURES[name]


@pytest.mark.parametrize("name", ["fps", "knn", "radius", "nearest", "grid"])
def test_modules_and_functions_share_names(name):
    """`torch_cluster.knn` is the function, `import torch_cluster.knn` finds the module."""
    module = importlib.import_module(f"pointgrad.compat.torch_cluster.{name}")
    assert inspect.ismodule(module)
    functions = [f for f in vars(torch_cluster).values() if inspect.isfunction(f) and f.__module__ == module.__name__]
    assert functions
    assert all(getattr(module, f.__name__) is f for f in functions)


def test_pyg_detects_batch_size():
    """PyG searches for the word in the docstring."""
    assert "batch_size" in torch_cluster.knn.__doc__


def test_docstring_examples():
    import doctest

    for name in ("fps", "knn", "radius", "nearest", "grid"):
        module = importlib.import_module(f"pointgrad.compat.torch_cluster.{name}")
        result = doctest.testmod(module, extraglobs={"torch": torch})
        assert result.failed == 0
        assert result.attempted > 0


def test_counts_as_tensors():
    x, batch = torch.rand(12, 3), torch.arange(12) // 6
    expected = knn(x, x, 2, batch, batch, batch_size=2)
    assert torch.equal(knn(x, x, torch.tensor(2), batch, batch, batch_size=batch.max() + 1), expected)
    assert torch.equal(radius(x, x, 0.3, max_num_neighbors=torch.tensor(4)), radius(x, x, 0.3, max_num_neighbors=4))
