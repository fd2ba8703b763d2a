"""Neighbor search of pointgrad.compat.torch_cluster against plain loops."""

import math
import sys

import pytest
import torch

from pointgrad.compat.torch_cluster import knn, knn_graph, nearest, radius, radius_graph
from tests.compat.torch_cluster_loops import (
    DTYPES,
    FLOATS,
    knn_by_loop,
    radius_by_loop,
    ragged,
)


@pytest.mark.parametrize("dim", [1, 2, 3, 12])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_knn_equals_a_plain_loop(dtype, dim, default_place):
    x, batch_x = ragged([7, 0, 30, 1], dim, dtype, default_place.device)
    y, batch_y = ragged([3, 4, 9, 2], dim, dtype, default_place.device)
    edges = knn(x, y, 5, batch_x, batch_y)
    assert edges.dtype == torch.int64
    assert edges.is_contiguous()
    assert torch.equal(edges.cpu(), knn_by_loop(x, y, 5, batch_x, batch_y))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_dimensional_points(dtype, default_place):
    x = torch.tensor([0.0, 1, 5], dtype=dtype, device=default_place.device)
    y = torch.tensor([0.75, 4], dtype=dtype, device=default_place.device)
    assert knn(x, y, 2).tolist() == [[0, 0, 1, 1], [1, 0, 2, 1]]
    assert knn_graph(x, 1).tolist() == [[1, 0, 1], [0, 1, 2]]
    assert radius_graph(x, 1.5).tolist() == [[1, 0], [0, 1]]
    assert nearest(x, y).tolist() == [0, 0, 1]


def test_clouds_of_fewer_than_k_points():
    x, batch = ragged([2, 9])
    edges = knn(x, x, 4, batch, batch)
    assert torch.bincount(edges[0]).tolist() == [2, 2] + [4] * 9
    assert (batch[edges[0]] == batch[edges[1]]).all()


def test_k_above_100(default_place):
    x = torch.rand(300, 3, device=default_place.device)
    edges = knn(x, x[:4], 250)
    expected = torch.cdist(x[:4].double(), x.double()).argsort(1)[:, :250]
    assert torch.equal(edges[1].reshape(4, 250), expected)


def test_points_more_than_100000_units_apart(default_place):
    x = torch.tensor([[0.0], [3e5]], device=default_place.device)
    assert knn_graph(x, 1).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cosine(dtype, default_place):
    x, y = torch.randn(40, 5), torch.randn(9, 5) * 3
    similarity = torch.cosine_similarity(y.to(dtype).double()[:, None], x.to(dtype).double()[None], dim=2)
    edges = knn(x.to(default_place.device, dtype), y.to(default_place.device, dtype), 6, cosine=True)
    assert torch.equal(edges[1].reshape(9, 6).cpu(), similarity.argsort(1, descending=True)[:, :6])
    assert not torch.equal(edges, knn(x.to(default_place.device, dtype), y.to(default_place.device, dtype), 6))


def test_cosine_of_zero_vectors():
    x = torch.tensor([[0.0, 0], [1, 0], [0, 1]])
    assert knn(x, x, 3, cosine=True).tolist() == [[1, 1, 2, 2], [1, 2, 2, 1]]


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("loop", [False, True])
def test_knn_graph_equals_a_plain_loop(loop, flow, default_place):
    x, batch = ragged([6, 1, 0, 20], device=default_place.device)
    query, point = knn_by_loop(x, x, 4 if loop else 5, batch, batch)
    kept = slice(None) if loop else query != point
    expected = torch.stack([point, query] if flow == "source_to_target" else [query, point])[:, kept]
    assert torch.equal(knn_graph(x, 4, batch, loop, flow).cpu(), expected)


def test_equal_points_have_k_edges(default_place):
    """The original searches k + 1 neighbors and drops the point itself, which may not be among them."""
    x = torch.zeros(9, 3, device=default_place.device)
    source, target = knn_graph(x, 3)
    assert torch.bincount(target).tolist() == [3] * 9
    assert (source != target).all()
    assert source[:6].tolist() == [1, 2, 3, 0, 2, 3]
    source, target = radius_graph(x, 1.0, max_num_neighbors=3)
    assert torch.bincount(target).tolist() == [3] * 9
    assert (source != target).all()


@pytest.mark.parametrize("most", [1, 4, 32, 1000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_radius_equals_a_plain_loop(dtype, most, default_place):
    """If there are too many neighbors, the first in index order are taken on every device."""
    x, batch_x = ragged([7, 0, 60, 1], 2, dtype, default_place.device)
    y, batch_y = ragged([3, 4, 9, 2], 2, dtype, default_place.device)
    edges = radius(x, y, 2.71, batch_x, batch_y, most)
    assert edges.dtype == torch.int64
    assert torch.equal(edges.cpu(), radius_by_loop(x, y, 2.71, batch_x, batch_y, most))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("r", [1.0, 2.0, 5.0])
def test_points_at_distance_r_are_not_neighbors(r, dtype, default_place):
    x = torch.cartesian_prod(torch.arange(8), torch.arange(8)).to(default_place.device, dtype)
    batch = torch.zeros(64, dtype=torch.int64)
    expected = radius_by_loop(x, x, r, batch, batch, 64)
    assert torch.equal(radius(x, x, r, max_num_neighbors=64).cpu(), expected)
    near = torch.tensor([[0.0], [r * (1 - 2**-20)], [r * (1 + 2**-20)]], device=default_place.device)
    assert radius(near, near[:1], r).tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(("r", "found"), [(0.0, 0), (1e-30, 0), (3e-23, 2), (1e-20, 2), (1e30, 3), (math.inf, 3)])
def test_radii_whose_square_overflows_float32(r, found):
    x = torch.tensor([[0.0], [0.0], [1e6]])
    assert radius(x, x[:1], r).shape == (2, found)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("loop", [False, True])
def test_radius_graph_equals_a_plain_loop(loop, flow, default_place):
    x, batch = ragged([6, 1, 0, 20], 2, device=default_place.device)
    query, point = radius_by_loop(x, x, 3.0, batch, batch, 100)
    kept = slice(None) if loop else query != point
    expected = torch.stack([point, query] if flow == "source_to_target" else [query, point])[:, kept]
    assert torch.equal(radius_graph(x, 3.0, batch, loop, 100, flow).cpu(), expected)


def test_max_num_neighbors_without_loops(default_place):
    """The original searches one more neighbor and drops the point itself, which may not be among them."""
    x = torch.rand(50, 2, device=default_place.device)
    source, target = radius_graph(x, 10.0, max_num_neighbors=7)
    assert torch.bincount(target).tolist() == [7] * 50
    for point in range(50):
        assert source[target == point].tolist() == [other for other in range(8) if other != point][:7]


def test_ignore_same_index(default_place):
    x = torch.zeros(3, 2, device=default_place.device)
    y = torch.zeros(5, 2, device=default_place.device)
    y[1] = 9
    received = radius(x, y, 1.0, ignore_same_index=True)
    assert received.tolist() == [[0, 0, 2, 2, 3, 3, 3, 4, 4, 4], [1, 2, 0, 1, 0, 1, 2, 0, 1, 2]]
    received = radius(x, y, 1.0, max_num_neighbors=2, ignore_same_index=True)
    assert received.tolist() == [[0, 0, 2, 2, 3, 3, 4, 4], [1, 2, 0, 1, 0, 1, 0, 1]]
    assert radius(x, y, 1.0, max_num_neighbors=0).shape == (2, 0)


@pytest.mark.parametrize("entries", [1, 40, 101])
def test_search_in_parts(entries, monkeypatch):
    x, batch = ragged([6, 0, 1, 40, 12])
    functions = [
        lambda: knn(x, x, 5, batch, batch),
        lambda: knn_graph(x, 5, batch),
        lambda: knn_graph(x[:6], 5),
        lambda: radius_graph(x, 3.0, batch, max_num_neighbors=9),
    ]
    whole = [function() for function in functions]
    monkeypatch.setattr(sys.modules["pointgrad.compat.torch_cluster._edges"], "_MAX_ENTRIES", entries)
    for function, expected in zip(functions, whole, strict=True):
        assert torch.equal(function(), expected)


@pytest.mark.parametrize("width", [1, 3, 20])
def test_very_large_number_of_neighbors(width, monkeypatch):
    """Neighbor lists grow from a small width until none is full."""
    x, batch = ragged([6, 0, 1, 90, 12])
    functions = [
        lambda: knn(x, x, 1000, batch, batch),
        lambda: knn_graph(x, 60, batch),
        lambda: radius(x, x, 4.0, batch, batch, 10**9),
        lambda: radius_graph(x, 4.0, batch, max_num_neighbors=50),
        lambda: radius(x[:5], x, 4.0, max_num_neighbors=10**6, ignore_same_index=True),
    ]
    whole = [function() for function in functions]
    assert torch.equal(whole[2], radius_by_loop(x, x, 4.0, batch, batch, 10**9))
    monkeypatch.setattr(sys.modules["pointgrad.compat.torch_cluster._edges"], "_INITIAL_WIDTH", width)
    for function, expected in zip(functions, whole, strict=True):
        assert torch.equal(function(), expected)
