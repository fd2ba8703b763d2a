"""Neighbor search of pointgrad.compat.pytorch3d against plain loops."""

import itertools
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pointgrad.compat.pytorch3d.loss import chamfer_distance
from pointgrad.compat.pytorch3d.ops import (
    _manhattan,
    ball_query,
    knn_gather,
    knn_points,
    sample_farthest_points,
)
from pointgrad.compat.pytorch3d.ops.utils import masked_gather
from tests.compat.pytorch3d_loops import DTYPES, distances, grid_points


def expected_knn(p1, p2, lengths1, lengths2, norm, K):
    """Neighbors of each cloud, sorted by distance, then by index; padded with 0."""
    dists = torch.zeros(p1.shape[0], p1.shape[1], K, dtype=torch.float64)
    idx = torch.zeros(p1.shape[0], p1.shape[1], K, dtype=torch.int64)
    for n, (n1, n2) in enumerate(zip(lengths1, lengths2, strict=True)):
        found = distances(p1[n, :n1], p2[n, :n2], norm).sort(dim=1, stable=True)
        dists[n, :n1, : min(K, n2)] = found.values[:, :K]
        idx[n, :n1, : min(K, n2)] = found.indices[:, :K]
    return dists, idx


def expected_ball(p1, p2, lengths1, lengths2, K, radius):
    idx = torch.full((p1.shape[0], p1.shape[1], K), -1)
    dists = torch.zeros(p1.shape[0], p1.shape[1], K, dtype=torch.float64)
    for n, (n1, n2) in enumerate(zip(lengths1, lengths2, strict=True)):
        distance2 = distances(p1[n, :n1], p2[n, :n2], 2)
        for i in range(n1):
            inside = [j for j in range(n2) if distance2[i, j] < radius**2][:K]
            idx[n, i, : len(inside)] = torch.tensor(inside, dtype=torch.int64)
            dists[n, i, : len(inside)] = distance2[i, inside]
    return dists, idx


class TestKnnPoints:
    @pytest.mark.parametrize("norm", [1, 2])
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_equals_a_stable_sort_of_all_distances(self, norm, dtype, device):
        for (p, q), k, dims in itertools.product([(30, 40), (5, 3)], [1, 4, 45], [1, 3, 11]):
            p1, p2 = grid_points(2, p, dims, dtype=dtype), grid_points(2, q, dims, dtype=dtype)
            dists, idx = expected_knn(p1, p2, [p] * 2, [q] * 2, norm, k)
            found = knn_points(p1.to(device), p2.to(device), norm=norm, K=k)
            assert found.idx.dtype == torch.int64
            assert found.dists.dtype == dtype
            assert torch.equal(found.idx.cpu(), idx)
            assert torch.equal(found.dists.cpu(), dists.to(dtype))
            assert found.knn is None

    @pytest.mark.parametrize("norm", [1, 2])
    def test_lengths_pad_with_zeros(self, norm, device):
        p1, p2 = grid_points(4, 9, 3), grid_points(4, 7, 3)
        sizes1, sizes2 = [9, 4, 0, 5], [2, 7, 3, 0]
        dists, idx = expected_knn(p1, p2, sizes1, sizes2, norm, 3)
        lengths1, lengths2 = (torch.tensor(sizes, device=device) for sizes in (sizes1, sizes2))
        found = knn_points(p1.to(device), p2.to(device), lengths1, lengths2.int(), norm, 3, return_nn=True)
        assert torch.equal(found.idx.cpu(), idx)
        assert torch.equal(found.dists.cpu(), dists)
        for n, i, k in itertools.product(range(4), range(9), range(3)):
            expected = p2[n, idx[n, i, k]] if k < sizes2[n] else torch.zeros(3, dtype=torch.float64)
            assert torch.equal(found.knn[n, i, k].cpu(), expected)

    @pytest.mark.parametrize("norm", [1, 2])
    def test_derivatives(self, norm, device):
        p1 = torch.randn(2, 5, 3, dtype=torch.float64, device=device, requires_grad=True)
        p2 = torch.randn(2, 4, 3, dtype=torch.float64, device=device, requires_grad=True)
        lengths1, lengths2 = torch.tensor([5, 2], device=device), torch.tensor([2, 4], device=device)

        def call(p1, p2):
            found = knn_points(p1, p2, lengths1, lengths2, norm=norm, K=3, return_nn=True)
            return found.dists, found.knn

        tolerance = 0.0 if device == "cpu" else 1e-12
        assert gradcheck(call, (p1, p2), nondet_tol=tolerance)
        assert gradgradcheck(call, (p1, p2), nondet_tol=tolerance)
        assert not knn_points(p1, p2).idx.requires_grad

    def test_norm_1_in_blocks(self, monkeypatch):
        p1, p2 = torch.rand(3, 50, 3), torch.rand(3, 40, 3)
        whole = knn_points(p1, p2, norm=1, K=5)
        monkeypatch.setattr(_manhattan, "CPU_PAIRS", 300)  # two queries at a time
        parts = knn_points(p1, p2, norm=1, K=5)
        assert torch.equal(whole.idx, parts.idx)
        assert torch.equal(whole.dists, parts.dists)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_norm_1_of_random_points(self, dtype, device):
        p1, p2 = torch.randn(2, 60, 3, dtype=dtype), torch.randn(2, 80, 3, dtype=dtype)
        dists, idx = expected_knn(p1, p2, [60] * 2, [80] * 2, 1, 6)
        found = knn_points(p1.to(device), p2.to(device), norm=1, K=6)
        assert torch.equal(found.idx.cpu(), idx)
        torch.testing.assert_close(found.dists.cpu(), dists.to(dtype))
        assert (found.dists.diff(dim=2) >= 0).all()

    @pytest.mark.parametrize("norm", [1, 2])
    def test_non_finite_points_have_infinite_distance(self, norm, device):
        """A distance of zero would look like a perfect match and hide that a network has diverged."""
        p1, p2 = torch.rand(1, 4, 3), torch.rand(1, 5, 3)
        p1[0, 1, 2], p2[0, 3, 0] = torch.nan, torch.inf
        found = knn_points(p1.to(device), p2.to(device), norm=norm, K=5)
        assert found.dists[0, 1].isinf().all()
        assert found.dists[0, [0, 2, 3]].isinf().cpu().tolist() == [[False] * 4 + [True]] * 3
        assert sorted(found.idx[0, 0].tolist()) == [0, 0, 1, 2, 4]
        short = knn_points(p1.to(device), p2.to(device), lengths2=torch.tensor([2], device=device), norm=norm, K=3)
        assert (short.dists[0, :, 2] == 0).all()

    def test_empty(self, device):
        for n, p, q in itertools.product([0, 2], [0, 3], [0, 3]):
            p1, p2 = torch.rand(n, p, 3, device=device), torch.rand(n, q, 3, device=device)
            for norm in (1, 2):
                found = knn_points(p1, p2, norm=norm, K=2, return_nn=True)
                assert found.dists.shape == found.idx.shape == (n, p, 2)
                assert found.knn.shape == (n, p, 2, 3)
                assert q or not found.idx.any()

    def test_result(self):
        found = knn_points(torch.rand(1, 4, 3), torch.rand(1, 5, 3), K=2, return_nn=True)
        assert type(found).__name__ == "KNN"
        assert found._fields == ("dists", "idx", "knn")
        assert all(value.is_contiguous() for value in found)
        again = pickle.loads(pickle.dumps(found))
        assert type(again) is type(found)
        dists, idx, knn = found
        assert torch.equal(again.idx, idx)
        assert knn is found.knn
        assert dists is found.dists

    def test_version_and_return_sorted_are_ignored(self):
        p1, p2 = torch.rand(1, 20, 3), torch.rand(1, 30, 3)
        usual = knn_points(p1, p2, K=4)
        assert torch.equal(usual.idx, knn_points(p1, p2, K=4, version=2, return_sorted=False).idx)

    def test_compiles_without_graph_breaks(self):
        """Nothing is read on the host; the original reads the minimum of the lengths."""
        lengths = torch.tensor([3, 20])

        def call(p1, p2, lengths):
            found = knn_points(p1, p2, lengths, lengths, K=5, return_nn=True)
            near = knn_points(p1, p2, lengths, lengths, norm=1, K=5)
            ball = ball_query(p1, p2, lengths, lengths, K=5)
            sampled, _ = sample_farthest_points(p1, lengths, K=5)
            loss, _ = chamfer_distance(p1, p2, lengths, lengths, p1, p2, weights=p1[:, 0, 0])
            return found.dists.sum() + found.knn.sum() + near.dists.sum() + ball.knn.sum() + sampled.sum() + loss

        p1, p2 = torch.rand(2, 20, 3), torch.rand(2, 20, 3)
        torch._dynamo.reset()
        compiled = torch.compile(call, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(p1, p2, lengths), call(p1, p2, lengths))


class TestKnnGather:
    @pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool], ids=str)
    def test_gathers_rows(self, dtype, device):
        x, idx = torch.randint(0, 2, (2, 6, 5)).to(dtype), torch.randint(0, 6, (2, 4, 3))
        expected = torch.stack([x[n][idx[n]] for n in range(2)])
        assert torch.equal(knn_gather(x.to(device), idx.to(device)).cpu(), expected)

    def test_entries_beyond_the_lengths_are_zero(self, device):
        x, idx = torch.rand(2, 6, 5), torch.randint(0, 6, (2, 4, 3))
        picked = knn_gather(x.to(device), idx.to(device), torch.tensor([2, 6], device=device)).cpu()
        assert not picked[0, :, 2].any()
        assert torch.equal(picked[0, :, :2], x[0][idx[0, :, :2]])
        assert torch.equal(picked[1], x[1][idx[1]])
        wide = knn_gather(x[:, :2].to(device), torch.zeros(2, 4, 3, dtype=torch.int64, device=device)).cpu()
        assert not wide[:, :, 2].any()  # there are only two rows

    def test_ball_query_index(self, device):
        """The original reads out of bounds for an index of -1."""
        points = torch.rand(1, 20, 3, device=device)
        found = ball_query(points, points, K=20, radius=0.3)
        features = torch.rand(1, 20, 4, device=device, requires_grad=True)
        picked = knn_gather(features, found.idx)
        assert (found.idx < 0).any()
        assert not picked[found.idx < 0].any()
        picked.sum().backward()
        expected = torch.bincount(found.idx[found.idx >= 0], minlength=20).float()
        assert torch.equal(features.grad[0, :, 0], expected)

    def test_masked_gather(self, device):
        points = torch.rand(2, 6, 3)
        for idx in (torch.randint(-1, 6, (2, 9)), torch.randint(-1, 6, (2, 4, 9))):
            expected = torch.where(idx[..., None] < 0, 0, torch.stack([points[n][idx[n]] for n in range(2)]))
            assert torch.equal(masked_gather(points.to(device), idx.to(device)).cpu(), expected)


class TestBallQuery:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_first_points_in_index_order(self, dtype, device):
        sizes1, sizes2 = [30, 11, 0], [40, 5, 3]
        lengths1, lengths2 = (torch.tensor(sizes, device=device) for sizes in (sizes1, sizes2))
        for dims, k, radius in itertools.product([2, 3, 10], [3, 60], [1.5, 2.0]):
            p1, p2 = grid_points(3, 30, dims, dtype=dtype), grid_points(3, 40, dims, dtype=dtype)
            dists, idx = expected_ball(p1, p2, sizes1, sizes2, k, radius)
            found = ball_query(p1.to(device), p2.to(device), lengths1, lengths2, K=k, radius=radius)
            assert torch.equal(found.idx.cpu(), idx)
            assert torch.equal(found.dists.cpu(), dists.to(dtype))
            assert torch.equal(found.knn, masked_gather(p2.to(device), found.idx))
            assert found.idx.is_contiguous()
            assert found.dists.is_contiguous()

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("radius", [0.2, 1.0, 3.0, 0.1, 1e-3, 1e3])
    def test_points_on_the_sphere_are_outside(self, dtype, radius, device):
        """Points on the sphere and just inside it, along an axis."""
        on = torch.tensor(radius, dtype=dtype)
        inside = torch.nextafter(torch.nextafter(on, on * 0), on * 0)
        p2 = torch.stack([on, -on, inside, -inside])[None, :, None].to(device)
        found = ball_query(torch.zeros_like(p2[:, :1]), p2, K=4, radius=on.item())
        assert found.idx.tolist() == [[[2, 3, -1, -1]]]

    def test_defaults(self):
        points = torch.rand(1, 30, 3)
        found = ball_query(points, points)
        expected = ball_query(points, points, None, None, 500, 0.2, True, False)
        assert found.idx.shape == (1, 30, 500)
        assert torch.equal(found.idx, expected.idx)
        assert ball_query(points, points, return_nn=False).knn is None
        other = ball_query(points, points, radius=torch.tensor(0.2), skip_points_outside_cube=True)
        assert torch.equal(found.idx, other.idx)

    @pytest.mark.parametrize("radius", [1e30, 1e39, float("inf")])
    def test_ball_of_all_points(self, radius):
        points = torch.rand(2, 5, 3)
        assert torch.equal(ball_query(points, points, K=5, radius=radius).idx, torch.arange(5).expand(2, 5, 5))

    def test_derivatives(self, device):
        p1 = torch.rand(2, 5, 3, dtype=torch.float64, device=device, requires_grad=True)
        p2 = torch.rand(2, 6, 3, dtype=torch.float64, device=device, requires_grad=True)

        def call(p1, p2):
            found = ball_query(p1, p2, K=4, radius=0.6)
            return found.dists, found.knn

        tolerance = 0.0 if device == "cpu" else 1e-12
        assert (ball_query(p1, p2, K=4, radius=0.6).idx < 0).any()
        assert gradcheck(call, (p1, p2), nondet_tol=tolerance)
        assert gradgradcheck(call, (p1, p2), nondet_tol=tolerance)
