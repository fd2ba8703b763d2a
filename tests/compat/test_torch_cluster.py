"""pointgrad.compat.torch_cluster: what torch-cluster documents, worked out by plain loops; what it gets wrong; itself
where it is installed."""

import importlib.metadata
import importlib.util
import inspect
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pointgrad
import pointgrad.compat
from pointgrad.compat import torch_cluster
from pointgrad.compat.torch_cluster import fps, grid_cluster, knn, knn_graph, nearest, radius, radius_graph

SOURCE = Path(pointgrad.__file__).parents[1]
FOREIGN = Path(__file__).parent / "foreign"

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8]


def ragged(sizes, dim=3, dtype=torch.float32, device="cpu"):
    """Clouds of these sizes one after another, and their batch vector."""
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    values = torch.rand(len(batch), dim) * 8
    return values.to(device, dtype), batch.to(device)


def pairs_by_hand(x, y, batch_x, batch_y):
    """For each query its cloud's points as (squared distance, number), in float64."""
    x, y = (np.asarray(v.cpu().double()).reshape(len(v), -1) for v in (x, y))
    for query in range(len(y)):
        same = [point for point in range(len(x)) if batch_x[point] == batch_y[query]]
        yield query, [(((x[point] - y[query]) ** 2).sum(), point) for point in same]


def knn_by_hand(x, y, k, batch_x, batch_y):
    found = [(q, p) for q, pairs in pairs_by_hand(x, y, batch_x, batch_y) for _, p in sorted(pairs)[:k]]
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 2).T


def radius_by_hand(x, y, r, batch_x, batch_y, most):
    pairs = pairs_by_hand(x, y, batch_x, batch_y)
    found = [(q, p) for q, near in pairs for p in [p for d2, p in near if d2 < r * r][:most]]
    return torch.tensor(found, dtype=torch.int64).reshape(-1, 2).T


def fps_by_hand(points, count, start):
    """Of one cloud, in float64, no point twice."""
    points = points.double().reshape(len(points), -1)
    picks, distance = [], torch.full((len(points),), math.inf, dtype=torch.float64)
    while len(picks) < count:
        picks.append(int(distance.argmax()) if picks else start)
        distance = torch.minimum(distance, (points - points[picks[-1]]).square().sum(1))
        distance[picks[-1]] = -1
    return picks


# -- knn ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 3, 12])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_knn_equals_a_plain_loop(dtype, dim, default_place):
    x, batch_x = ragged([7, 0, 30, 1], dim, dtype, default_place.device)
    y, batch_y = ragged([3, 4, 9, 2], dim, dtype, default_place.device)
    edges = knn(x, y, 5, batch_x, batch_y)
    assert edges.dtype == torch.int64
    assert edges.is_contiguous()
    assert torch.equal(edges.cpu(), knn_by_hand(x, y, 5, batch_x, batch_y))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_knn_of_numbers_without_a_dimension(dtype, default_place):
    x = torch.tensor([0.0, 1, 5], dtype=dtype, device=default_place.device)
    y = torch.tensor([0.75, 4], dtype=dtype, device=default_place.device)
    assert knn(x, y, 2).tolist() == [[0, 0, 1, 1], [1, 0, 2, 1]]
    assert knn_graph(x, 1).tolist() == [[1, 0, 1], [0, 1, 2]]
    assert radius_graph(x, 1.5).tolist() == [[1, 0], [0, 1]]
    assert nearest(x, y).tolist() == [0, 0, 1]


def test_clouds_shorter_than_k_have_fewer_edges():
    x, batch = ragged([2, 9])
    edges = knn(x, x, 4, batch, batch)
    assert torch.bincount(edges[0]).tolist() == [2, 2] + [4] * 9
    assert (batch[edges[0]] == batch[edges[1]]).all()


def test_k_above_100_works(default_place):
    x = torch.rand(300, 3, device=default_place.device)
    edges = knn(x, x[:4], 250)
    expected = torch.cdist(x[:4].double(), x.double()).argsort(1)[:, :250]
    assert torch.equal(edges[1].reshape(4, 250), expected)


def test_points_farther_than_100000_units_are_found(default_place):
    x = torch.tensor([[0.0], [3e5]], device=default_place.device)
    assert knn_graph(x, 1).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cosine_works_on_every_device(dtype, default_place):
    x, y = torch.randn(40, 5), torch.randn(9, 5) * 3
    similarity = torch.cosine_similarity(y.to(dtype).double()[:, None], x.to(dtype).double()[None], dim=2)
    edges = knn(x.to(default_place.device, dtype), y.to(default_place.device, dtype), 6, cosine=True)
    assert torch.equal(edges[1].reshape(9, 6).cpu(), similarity.argsort(1, descending=True)[:, :6])
    assert not torch.equal(edges, knn(x.to(default_place.device, dtype), y.to(default_place.device, dtype), 6))


def test_a_vector_of_zeros_has_no_angle():
    x = torch.tensor([[0.0, 0], [1, 0], [0, 1]])
    assert knn(x, x, 3, cosine=True).tolist() == [[1, 1, 2, 2], [1, 2, 2, 1]]


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("loop", [False, True])
def test_knn_graph_equals_a_plain_loop(loop, flow, default_place):
    x, batch = ragged([6, 1, 0, 20], device=default_place.device)
    query, point = knn_by_hand(x, x, 4 if loop else 5, batch, batch)
    kept = slice(None) if loop else query != point
    expected = torch.stack([point, query] if flow == "source_to_target" else [query, point])[:, kept]
    assert torch.equal(knn_graph(x, 4, batch, loop, flow).cpu(), expected)


def test_equal_points_have_exactly_k_edges(default_place):
    """The original looks for k + 1 and drops the point itself, which may not be among so many equals."""
    x = torch.zeros(9, 3, device=default_place.device)
    source, target = knn_graph(x, 3)
    assert torch.bincount(target).tolist() == [3] * 9
    assert (source != target).all()
    assert source[:6].tolist() == [1, 2, 3, 0, 2, 3]
    source, target = radius_graph(x, 1.0, max_num_neighbors=3)
    assert torch.bincount(target).tolist() == [3] * 9
    assert (source != target).all()


# -- radius ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 4, 32, 1000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_radius_equals_a_plain_loop(dtype, most, default_place):
    """The first in the order of the index, where the cap is reached: on every device."""
    x, batch_x = ragged([7, 0, 60, 1], 2, dtype, default_place.device)
    y, batch_y = ragged([3, 4, 9, 2], 2, dtype, default_place.device)
    edges = radius(x, y, 2.71, batch_x, batch_y, most)
    assert edges.dtype == torch.int64
    assert torch.equal(edges.cpu(), radius_by_hand(x, y, 2.71, batch_x, batch_y, most))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("r", [1.0, 2.0, 5.0])
def test_a_point_at_exactly_r_is_not_a_neighbour(r, dtype, default_place):
    x = torch.cartesian_prod(torch.arange(8), torch.arange(8)).to(default_place.device, dtype)
    batch = torch.zeros(64, dtype=torch.int64)
    expected = radius_by_hand(x, x, r, batch, batch, 64)
    assert torch.equal(radius(x, x, r, max_num_neighbors=64).cpu(), expected)
    near = torch.tensor([[0.0], [r * (1 - 2**-20)], [r * (1 + 2**-20)]], device=default_place.device)
    assert radius(near, near[:1], r).tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(("r", "found"), [(0.0, 0), (1e-30, 0), (3e-23, 2), (1e-20, 2), (1e30, 3), (math.inf, 3)])
def test_radii_whose_square_leaves_the_range_of_float32(r, found):
    x = torch.tensor([[0.0], [0.0], [1e6]])
    assert radius(x, x[:1], r).shape == (2, found)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("loop", [False, True])
def test_radius_graph_equals_a_plain_loop(loop, flow, default_place):
    x, batch = ragged([6, 1, 0, 20], 2, device=default_place.device)
    query, point = radius_by_hand(x, x, 3.0, batch, batch, 100)
    kept = slice(None) if loop else query != point
    expected = torch.stack([point, query] if flow == "source_to_target" else [query, point])[:, kept]
    assert torch.equal(radius_graph(x, 3.0, batch, loop, 100, flow).cpu(), expected)


def test_no_point_has_more_edges_than_asked_for(default_place):
    """The original asks for one more and drops the point itself, which may not be among the first."""
    x = torch.rand(50, 2, device=default_place.device)
    source, target = radius_graph(x, 10.0, max_num_neighbors=7)
    assert torch.bincount(target).tolist() == [7] * 50
    for point in range(50):
        assert source[target == point].tolist() == [other for other in range(8) if other != point][:7]


def test_the_same_index_is_ignored_on_request(default_place):
    x = torch.zeros(3, 2, device=default_place.device)
    y = torch.zeros(5, 2, device=default_place.device)
    y[1] = 9
    received = radius(x, y, 1.0, ignore_same_index=True)
    assert received.tolist() == [[0, 0, 2, 2, 3, 3, 3, 4, 4, 4], [1, 2, 0, 1, 0, 1, 2, 0, 1, 2]]
    received = radius(x, y, 1.0, max_num_neighbors=2, ignore_same_index=True)
    assert received.tolist() == [[0, 0, 2, 2, 3, 3, 4, 4], [1, 2, 0, 1, 0, 1, 0, 1]]
    assert radius(x, y, 1.0, max_num_neighbors=0).shape == (2, 0)


@pytest.mark.parametrize("entries", [1, 40, 101])
def test_large_searches_in_parts_are_the_same(entries, monkeypatch):
    x, batch = ragged([6, 0, 1, 40, 12])
    functions = [
        lambda: knn(x, x, 5, batch, batch),
        lambda: knn_graph(x, 5, batch),
        lambda: knn_graph(x[:6], 5),
        lambda: radius_graph(x, 3.0, batch, max_num_neighbors=9),
    ]
    whole = [function() for function in functions]
    monkeypatch.setattr(sys.modules["pointgrad.compat.torch_cluster._edges"], "_ENTRIES", entries)
    for function, expected in zip(functions, whole, strict=True):
        assert torch.equal(function(), expected)


@pytest.mark.parametrize("room", [1, 3, 20])
def test_asking_for_very_many_gives_all(room, monkeypatch):
    """Lists grow from a small room until none is full."""
    x, batch = ragged([6, 0, 1, 90, 12])
    functions = [
        lambda: knn(x, x, 1000, batch, batch),
        lambda: knn_graph(x, 60, batch),
        lambda: radius(x, x, 4.0, batch, batch, 10**9),
        lambda: radius_graph(x, 4.0, batch, max_num_neighbors=50),
        lambda: radius(x[:5], x, 4.0, max_num_neighbors=10**6, ignore_same_index=True),
    ]
    whole = [function() for function in functions]
    assert torch.equal(whole[2], radius_by_hand(x, x, 4.0, batch, batch, 10**9))
    monkeypatch.setattr(sys.modules["pointgrad.compat.torch_cluster._edges"], "_ROOM", room)
    for function, expected in zip(functions, whole, strict=True):
        assert torch.equal(function(), expected)


# -- fps ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fps_equals_a_plain_loop(dtype, dim, default_place):
    src, batch = ragged([9, 0, 40, 1], dim, dtype, default_place.device)
    index = fps(src, batch, 0.3, random_start=False)
    expected = fps_by_hand(src[:9].cpu(), 3, 0) + [9 + p for p in fps_by_hand(src[9:49].cpu(), 12, 0)] + [49]
    assert index.dtype == torch.int64
    assert index.tolist() == expected


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fps_returns_the_ratio_rounded_up(dtype, ratio):
    """In every dtype; the original rounds the ratio itself to 16 bits first."""
    for size in (1, 2, 3, 10, 64, 100, 127):
        expected = math.ceil(np.float32(ratio) * np.float32(size))
        assert fps(torch.rand(size, 3).to(dtype), ratio=ratio).shape == (expected,)
        assert abs(expected - ratio * size) < 1


def test_equal_points_are_not_picked_twice(default_place):
    """The original picks the first of them again and again."""
    assert fps(torch.zeros(6, 3, device=default_place.device), ratio=1.0).sort().values.tolist() == list(range(6))


def test_fps_takes_half_by_default():
    assert fps(torch.rand(11, 3)).shape == (6,)


def test_fps_takes_a_ratio_for_each_cloud(default_place):
    src, batch = ragged([10, 20, 30], device=default_place.device)
    ratio = torch.tensor([0.1, 0.5, 1.0], device=default_place.device)
    index = fps(src, batch, ratio)
    assert torch.bincount(batch[index]).tolist() == [1, 10, 30]
    assert fps(src, batch, ratio[:1]).shape == (6,)
    assert fps(src, batch, ratio[1]).shape == (30,)


def test_fps_takes_pointers_instead_of_a_batch(default_place):
    src, batch = ragged([10, 0, 20], device=default_place.device)
    expected = fps(src, batch, 0.4, random_start=False)
    for ptr in ([0, 10, 10, 30], torch.tensor([0, 10, 10, 30], device=default_place.device)):
        assert torch.equal(fps(src, ratio=0.4, random_start=False, ptr=ptr), expected)


def test_fps_takes_points_of_any_rank():
    src = torch.rand(20, 2, 3)
    assert torch.equal(fps(src, random_start=False), fps(src.reshape(20, 6), random_start=False))


def test_a_cloud_wider_than_224_units_is_sampled_right(default_place):
    """The original's GPU version begins with a distance of 5e4 everywhere, so 1 km of points look equally far."""
    src = torch.rand(500, 3, device=default_place.device) * 1000
    assert fps(src, ratio=0.1, random_start=False).tolist() == fps_by_hand(src.cpu(), 50, 0)


def test_the_random_start_follows_torch_manual_seed(default_place):
    """The original's CPU version draws from the C library, which torch does not seed."""
    src, batch = ragged([50, 60], device=default_place.device)
    starts = set()
    for seed in range(20):
        torch.manual_seed(seed)
        index = fps(src, batch, 0.2)
        torch.manual_seed(seed)
        assert torch.equal(fps(src, batch, 0.2), index)
        assert batch[index].tolist() == [0] * 10 + [1] * 12
        first = int(index[0])
        assert index[:10].tolist() == fps_by_hand(src[:50].cpu(), 10, first)
        starts.add(first)
    assert len(starts) > 5


# -- nearest and grid_cluster ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nearest_equals_a_plain_loop(dtype, default_place):
    x, batch_x = ragged([9, 0, 30, 1], 3, dtype, default_place.device)
    y, batch_y = ragged([3, 2, 9, 2], 3, dtype, default_place.device)
    expected = [min(pairs)[1] for _, pairs in pairs_by_hand(y, x, batch_y, batch_x)]
    assert nearest(x, y, batch_x, batch_y).tolist() == expected


def test_nearest_keeps_clouds_apart_far_from_the_origin():
    """The original rescales all coordinates and puts the cloud's number beside them, in the dtype of the points."""
    x = torch.tensor([[4e6, 0], [4e6 + 1, 0], [4e6 + 2, 0]])
    batch = torch.tensor([0, 1, 1])
    assert nearest(x, x, batch, batch).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("x", "y"), [([0, 0, 1], [0]), ([1], [0, 0])])
def test_nearest_needs_a_point_in_each_cloud(x, y):
    x, y = torch.tensor(x), torch.tensor(y)
    with pytest.raises(ValueError, match="y must be some points in each cloud that x has points in"):
        nearest(x.float(), y.float(), x, y)


def test_nearest_of_nothing():
    assert nearest(torch.empty(0, 3), torch.rand(4, 3)).shape == (0,)
    with pytest.raises(ValueError, match="y must be"):
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


def test_grid_cluster_between_given_corners():
    pos = torch.tensor([[0.5, 0.5], [3.5, 0.5], [0.5, 2.5]])
    received = grid_cluster(pos, torch.ones(2), torch.zeros(2), torch.tensor([3.9, 2.9]))
    assert received.tolist() == [0, 3, 8]
    assert grid_cluster(torch.tensor([0.0, 3.0, 7.0]), torch.tensor([2.0])).tolist() == [0, 1, 3]
    assert grid_cluster(torch.empty(0, 2), torch.ones(2)).shape == (0,)


# -- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [lambda x: knn(x, x, 3), lambda x: radius(x, x, 1.0), lambda x: knn_graph(x, 3)])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0)])
def test_nothing_has_no_edges(shape, call):
    edges = call(torch.empty(shape))
    assert edges.shape == (2, 0)
    assert edges.dtype == torch.int64


def test_samples_of_nothing():
    assert fps(torch.empty(0, 3)).tolist() == []
    assert fps(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)).tolist() == []


def test_batch_size_may_count_clouds_without_points(default_place):
    x, batch = ragged([6, 7], device=default_place.device)
    assert torch.equal(knn_graph(x, 2, batch, batch_size=5), knn_graph(x, 2, batch))
    assert torch.equal(radius_graph(x, 4.0, batch, batch_size=5), radius_graph(x, 4.0, batch))
    assert torch.equal(fps(x, batch, random_start=False, batch_size=5), fps(x, batch, random_start=False))


def test_int32_batches_and_views_are_taken():
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
def test_an_unsorted_batch_is_refused(call):
    """The original gives wrong edges and samples without a word (`nearest` excepted)."""
    with pytest.raises(ValueError, match=r"batch(_x|_y)? must be sorted, got 1 before 0"):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: knn(FEW, FEW, 0), "k must be at least 1, got 0"),
        (lambda: knn(FEW, torch.rand(4, 3), 1), r"y must be \(M, D\) with D = 2, like x, got \(4, 3\)"),
        (lambda: knn(FEW, FEW, 1, torch.zeros(3).long()), r"batch_x must be \(N,\) = \(4,\)"),
        (lambda: knn(FEW, FEW, 1, None, torch.tensor([0, 0, 1, 1])), "batch_x must be a tensor for 2 clouds, got None"),
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
def test_bad_values_get_one_sentence(call, message):
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
def test_bad_types_get_one_sentence(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize("name", ["graclus_cluster", "neighbor_sampler", "random_walk"])
def test_functions_of_graphs_may_be_imported_but_not_called(name):
    """`import torch_geometric.nn` imports them beside the others, up to PyG 2.7."""
    assert name not in torch_cluster.__all__
    with pytest.raises(NotImplementedError, match=f"has no {name}: it works on graphs, not on points"):
        getattr(torch_cluster, name)(torch.zeros(3), k=2)


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
def test_arguments_and_defaults(name):
    parameters = inspect.signature(getattr(torch_cluster, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == SIGNATURES[name]


@pytest.mark.parametrize("name", ["fps", "knn", "radius", "nearest", "grid"])
def test_modules_and_functions_share_names_as_in_the_original(name):
    """`torch_cluster.knn` is the function, `import torch_cluster.knn` finds the module."""
    module = importlib.import_module(f"pointgrad.compat.torch_cluster.{name}")
    assert inspect.ismodule(module)
    functions = [f for f in vars(torch_cluster).values() if inspect.isfunction(f) and f.__module__ == module.__name__]
    assert functions
    assert all(getattr(module, f.__name__) is f for f in functions)


def test_pyg_sees_that_batch_size_is_supported():
    """It looks for the word in the docstring."""
    assert "batch_size" in torch_cluster.knn.__doc__


def test_documented_examples_run():
    import doctest

    for name in ("fps", "knn", "radius", "nearest", "grid"):
        module = importlib.import_module(f"pointgrad.compat.torch_cluster.{name}")
        result = doctest.testmod(module, extraglobs={"torch": torch})
        assert result.failed == 0
        assert result.attempted > 0


# -- the original ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original():
    return pytest.importorskip("torch_cluster", exc_type=ImportError)


def test_signatures_are_the_originals(original):
    for name in ("fps", "knn", "knn_graph", "radius", "radius_graph", "nearest", "grid_cluster"):
        ours = inspect.signature(getattr(torch_cluster, name)).parameters
        theirs = inspect.signature(getattr(original, name)).parameters
        shared = list(ours)[: len(theirs)]
        assert shared == list(theirs)
        assert [ours[key].default for key in shared] == [theirs[key].default for key in shared]
        assert all(ours[key].default is False for key in list(ours)[len(theirs) :])  # ignore_same_index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_original_finds_the_same_neighbours(dtype, original):
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


def test_the_original_leaves_out_a_point_at_exactly_r(original):
    x = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))
    for r in (1.0, 2.0, 5.0):
        expected = original.radius(x, x, r, max_num_neighbors=64)
        assert sorted(radius(x, x, r, max_num_neighbors=64).T.tolist()) == sorted(expected.T.tolist())


@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.7, None, torch.tensor([0.2, 0.5, 0.9])], ids=str)
def test_the_original_samples_the_same_points(ratio, original):
    src, batch = ragged([50, 3, 200])
    assert torch.equal(fps(src, batch, ratio, False), original.fps(src, batch, ratio, False))
    ptr = torch.tensor([0, 50, 53, 253])
    assert torch.equal(fps(src, None, ratio, False, ptr=ptr), original.fps(src, None, ratio, False, ptr=ptr))


def test_the_original_clusters_the_same(original):
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
def test_a_program_runs_unchanged(model, default_place, monkeypatch, capsys):
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
def test_a_program_is_run_by_the_command(model):
    losses = losses_of(run_python("-m", "pointgrad.compat", "run", str(FOREIGN / f"{model}_model.py"), "--steps", "3"))
    assert len(losses) == 3
    assert losses[-1] < losses[0]


# What PyG itself calls: the functions of torch_geometric.nn.pool, layers, and its own scatter, segment and softmax.
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


def test_pyg_runs_on_it():
    if importlib.util.find_spec("torch_geometric") is None:
        pytest.skip("PyG is not installed")
    version = importlib.metadata.version("torch_geometric")
    clusters = tuple(map(int, version.split(".")[:2])) < (2, 8)  # from then on PyG asks pyg-lib instead
    printed = run_python("-c", f"clusters = {clusters}\n{PYG}").strip()
    if printed.startswith("without"):
        pytest.skip(f"PyG is installed {printed}")
    assert printed == version


def test_counts_may_be_tensors():
    x, batch = torch.rand(12, 3), torch.arange(12) // 6
    expected = knn(x, x, 2, batch, batch, batch_size=2)
    assert torch.equal(knn(x, x, torch.tensor(2), batch, batch, batch_size=batch.max() + 1), expected)
    assert torch.equal(radius(x, x, 0.3, max_num_neighbors=torch.tensor(4)), radius(x, x, 0.3, max_num_neighbors=4))
