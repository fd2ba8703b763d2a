"""The modules `chamfer`, `emd`, `emd_cuda`, `extensions`, `knn_cuda` and `simple_knn._C` against plain loops."""

import doctest
import itertools
import re

import pytest
import torch

from pointgrad.compat import chamfer, emd, emd_cuda, knn_cuda
from pointgrad.compat.extensions import chamfer_dist
from pointgrad.compat.extensions.emd import emd as approximate
from pointgrad.compat.extensions.emd import emd_module
from pointgrad.compat.simple_knn import _C as simple_knn

B, N, M = 2, 7, 9


def points(*shape, dtype=torch.float64):
    return torch.rand(*shape, 3, dtype=dtype)


def all_distances2(a, b):
    return ((a.unsqueeze(-2) - b.unsqueeze(-3)) ** 2).sum(-1)


class TestChamfer:
    def test_forward_and_backward(self):
        xyz1, xyz2 = points(B, N).requires_grad_(), points(B, M).requires_grad_()
        distance2 = all_distances2(xyz1, xyz2)
        expected1, expected2 = distance2.min(2), distance2.min(1)
        dist1, dist2, idx1, idx2 = chamfer.forward(xyz1, xyz2)
        torch.testing.assert_close([dist1, dist2], [expected1.values.detach(), expected2.values.detach()])
        assert (idx1.dtype, idx2.dtype) == (torch.int32, torch.int32)
        assert torch.equal(idx1.long(), expected1.indices)
        assert torch.equal(idx2.long(), expected2.indices)
        assert not any(value.requires_grad or value._is_view() for value in (dist1, dist2, idx1, idx2))
        grads = [torch.rand_like(dist1), torch.rand_like(dist2)]
        received = chamfer.backward(xyz1.detach(), xyz2.detach(), idx1, idx2, *grads)
        wanted = torch.autograd.grad([expected1.values, expected2.values], [xyz1, xyz2], grads)
        torch.testing.assert_close(received, list(wanted))

    @pytest.mark.parametrize(
        ("xyz1", "xyz2", "error", "message"),
        [
            (points(B, 0), points(B, M), ValueError, "xyz1 must be (B, N, 3) with N at least 1, got (2, 0, 3)"),
            (points(B, N), points(3, M), ValueError, "xyz2 must be (B, M, 3) with B = 2, got (3, 9, 3)"),
            (points(B, N), points(B, M).float(), TypeError, "xyz2 must have the dtype of xyz1, float64, got float32"),
            (points(B, N), points(B, M).to("meta"), ValueError, "xyz2 must be on the device of xyz1, cpu, got meta"),
        ],
    )
    def test_errors(self, xyz1, xyz2, error, message):
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            chamfer.forward(xyz1, xyz2)

    def test_modules(self):
        xyz1, xyz2 = points(1, N), points(1, M)
        xyz1[0, 2], xyz2[0, 3] = 0, xyz1[0, 1]  # a point to ignore, and a coincident pair
        xyz1.requires_grad_()
        for ignore in (False, True):
            kept = xyz1[:, [i for i in range(N) if i != 2]] if ignore else xyz1
            distance2 = all_distances2(kept, xyz2)
            to2, to1 = distance2.amin(2), distance2.amin(1)
            l2 = chamfer_dist.ChamferDistanceL2(ignore_zeros=ignore)(xyz1, xyz2)
            torch.testing.assert_close(l2, to2.mean() + to1.mean())
            split = chamfer_dist.ChamferDistanceL2_split(ignore)(xyz1, xyz2)
            torch.testing.assert_close(list(split), [to2.mean(), to1.mean()])
            l1 = chamfer_dist.ChamferDistanceL1(ignore)(xyz1, xyz2)
            torch.testing.assert_close(l1, (to2.sqrt().mean() + to1.sqrt().mean()) / 2)
            one_way = chamfer_dist.ChamferDistanceL1_PM(ignore)(xyz1, xyz2)
            torch.testing.assert_close(one_way, to2.sqrt().mean())
            assert torch.isfinite(torch.autograd.grad(l1 + one_way + l2, xyz1)[0]).all(), "sqrt at zero"


class TestAuction:
    def run(self, xyz1, xyz2, eps, iters):
        batch, size = xyz1.shape[:2]
        dist, price = torch.zeros(2, batch, size, dtype=xyz1.dtype)
        partner, owner = torch.zeros(2, batch, size, dtype=torch.int32)
        unused = [None] * 8
        assert emd.forward(xyz1, xyz2, dist, partner, price, owner, *unused, eps, iters) == 1
        return dist, partner, owner

    def test_optimal_within_eps(self):
        """Against all permutations."""
        xyz1, xyz2, eps = points(B, 6), points(B, 6), 1e-3
        dist, partner, owner = self.run(xyz1, xyz2, eps, 1000)
        cost = all_distances2(xyz1, xyz2).sqrt()
        for b in range(B):
            best = min(sum(cost[b, i, j] for i, j in enumerate(order)) for order in itertools.permutations(range(6)))
            assert sorted(partner[b].tolist()) == list(range(6))
            assert owner[b][partner[b].long()].tolist() == list(range(6))
            assert best - 1e-9 <= dist[b].sqrt().sum() <= best + 6 * eps

    def test_last_iteration_assigns_all(self):
        dist, partner, _ = self.run(points(B, 33), points(B, 33), 0.005, 2)
        assert partner.min() >= 0
        assert torch.isfinite(dist).all()

    @pytest.mark.parametrize("size", [0, 1])
    def test_small(self, size):
        dist, partner, _ = self.run(points(B, size), points(B, size), 0.005, 3)
        assert dist.shape == (B, size)
        assert partner.eq(0).all()

    def test_gradient(self):
        xyz1, xyz2 = points(B, N, dtype=torch.float32).requires_grad_(), points(B, N, dtype=torch.float32)
        dist, assignment = emd_module.emdModule()(xyz1, xyz2, 0.005, 50)
        dist.sqrt().mean().backward()
        copy = xyz1.detach().clone().requires_grad_()
        partner = torch.stack([xyz2[b, assignment[b].long()] for b in range(B)])
        (copy - partner).norm(dim=2).mean().backward()
        torch.testing.assert_close(xyz1.grad, copy.grad)

    def test_errors(self):
        with pytest.raises(ValueError, match=r"^xyz2 must have B \* N \* 3 = 42 entries, got \(2, 9, 3\)$"):
            self.run(points(B, N), points(B, M), 0.005, 3)


class TestApproximateMatching:
    def match_by_loop(self, xyz1, xyz2):
        """The algorithm of Fan, Su and Guibas, point by point."""
        n, m = len(xyz1), len(xyz2)
        left1, left2 = [float(max(m // n, 1))] * n, [float(max(n // m, 1))] * m
        match = torch.zeros(m, n, dtype=xyz1.dtype)
        for power in range(7, -3, -1):
            level = -(4.0**power) if power > -2 else 0.0
            near = (level * all_distances2(xyz1, xyz2)).exp()  # (n, m)
            share1 = [left1[k] / (1e-9 + float(sum(near[k, j] * left2[j] for j in range(m)))) for k in range(n)]
            share2 = []
            for j in range(m):
                wanted = float(sum(near[k, j] * share1[k] for k in range(n))) * left2[j]
                share2.append(min(left2[j] / (wanted + 1e-9), 1.0) * left2[j])
                left2[j] = max(0.0, left2[j] - wanted)
            for k in range(n):
                part = [float(near[k, j]) * share1[k] * share2[j] for j in range(m)]
                match[:, k] += torch.tensor(part, dtype=xyz1.dtype)
                left1[k] = max(0.0, left1[k] - sum(part))
        return match

    @pytest.mark.parametrize(("n", "m"), [(5, 5), (3, 6), (4, 1)])
    def test_against_a_loop(self, n, m):
        xyz1, xyz2 = points(B, n).requires_grad_(), points(B, m).requires_grad_()
        match = emd_cuda.approxmatch_forward(xyz1, xyz2)
        expected = torch.stack([self.match_by_loop(*pair) for pair in zip(xyz1.detach(), xyz2.detach(), strict=True)])
        torch.testing.assert_close(match, expected)
        cost = (all_distances2(xyz2, xyz1) * match).sum((1, 2))
        torch.testing.assert_close(emd_cuda.matchcost_forward(xyz1, xyz2, match), cost.detach())
        grad = torch.rand(B, dtype=torch.float64)
        wanted = torch.autograd.grad(cost, [xyz1, xyz2], grad)
        torch.testing.assert_close(emd_cuda.matchcost_backward(grad, xyz1, xyz2, match), list(wanted))

    def test_module(self):
        xyz1, xyz2 = points(B, N).requires_grad_(), points(B, N)
        loss = approximate()(xyz1, xyz2)
        loss.backward()
        match = emd_cuda.approxmatch_forward(xyz1, xyz2)
        torch.testing.assert_close(loss, (all_distances2(xyz2, xyz1) * match).sum() / (B * N))
        assert torch.isfinite(xyz1.grad).all()

    @pytest.mark.parametrize("empty", [(0, 3), (3, 0)])
    def test_empty(self, empty):
        with pytest.raises(ValueError, match=r"^xyz[12] must be .* at least 1, got \(2, 0, 3\)$"):
            emd_cuda.approxmatch_forward(points(B, empty[0]), points(B, empty[1]))
        assert emd_cuda.approxmatch_forward(points(0, 2), points(0, 3)).shape == (0, 3, 2)


class TestKnnCuda:
    @pytest.mark.parametrize("dims", [3, 5])
    @pytest.mark.parametrize("transposed", [False, True])
    def test_against_sorting(self, dims, transposed):
        ref, query = torch.rand(B, N, dims, requires_grad=True), torch.rand(B, M, dims)
        layout = (lambda value: value) if transposed else (lambda value: value.transpose(1, 2))
        distance, index = knn_cuda.KNN(k=4, transpose_mode=transposed)(layout(ref), layout(query))
        expected = all_distances2(query, ref.detach()).sqrt().sort(dim=2)
        torch.testing.assert_close(layout(distance), expected.values[..., :4])
        assert torch.equal(layout(index), expected.indices[..., :4])
        assert index.dtype == torch.int64
        assert not distance.requires_grad

    def test_function(self):
        ref, query = torch.rand(3, N), torch.rand(3, M)
        distance, index = knn_cuda.knn(ref, query, 2)
        expected = all_distances2(query.T, ref.T).sqrt().sort(dim=1)
        torch.testing.assert_close(distance, expected.values[:, :2].T)
        assert torch.equal(index, expected.indices[:, :2].T)

    @pytest.mark.parametrize(
        ("k", "query", "message"),
        [
            (N + 1, torch.rand(B, M, 3), f"k must be at most N = {N}, got {N + 1}"),
            (0, torch.rand(B, M, 3), "k must be at least 1, got 0"),
            (1, torch.rand(3, M, 3), "query must be (B, N, D) with B = 2, got (3, 9, 3)"),
            (1, torch.rand(B, M, 2), "query must be (B, N, D) with D = 3, got (2, 9, 2)"),
        ],
    )
    def test_errors(self, k, query, message):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            knn_cuda.KNN(k, True)(torch.rand(B, N, 3), query)


class TestSimpleKnn:
    def test_against_a_loop(self):
        cloud = points(30)
        cloud[7] = cloud[3]  # a duplicate is a neighbor at distance zero
        received = simple_knn.distCUDA2(cloud)
        for i in range(30):
            others = sorted(float(((cloud[i] - cloud[j]) ** 2).sum()) for j in range(30) if j != i)
            torch.testing.assert_close(received[i].item(), sum(others[:3]) / 3)

    @pytest.mark.parametrize("size", [0, 1, 2, 3])
    def test_few_points(self, size):
        cloud = torch.arange(size, dtype=torch.float32).unsqueeze(1).expand(-1, 3)  # distances 3 and 12
        expected = {0: [], 1: [0], 2: [3, 3], 3: [7.5, 3, 7.5]}[size]
        assert simple_knn.distCUDA2(cloud).tolist() == expected

    def test_no_gradient(self):
        assert not simple_knn.distCUDA2(points(5).requires_grad_()).requires_grad

    @pytest.mark.parametrize("bad", [torch.rand(3), torch.rand(2, 4), torch.rand(1, 2, 3)])
    def test_errors(self, bad):
        with pytest.raises(ValueError, match=r"^points must be \(N, 3\), got "):
            simple_knn.distCUDA2(bad)

    def test_docstring_example(self):
        result = doctest.testmod(simple_knn, extraglobs={"torch": torch})
        assert (result.attempted, result.failed) == (1, 0)
