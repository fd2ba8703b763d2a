"""PyTorch3D's operators, against plain loops that do what its documentation says, and against torch's own functions."""

import doctest
import inspect
import itertools
import pickle
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import pointgrad.compat
from pointgrad.compat import pytorch3d
from pointgrad.compat.pytorch3d.loss import chamfer_distance
from pointgrad.compat.pytorch3d.ops import (
    _manhattan,
    ball_query,
    knn_gather,
    knn_points,
    packed_to_padded,
    padded_to_packed,
    sample_farthest_points,
)
from pointgrad.compat.pytorch3d.ops.utils import masked_gather

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def device(default_place):
    return default_place.device


def grid_points(*shape, dtype=torch.float64):
    """Whole numbers: distances are exact in every dtype, and many are equal."""
    return torch.randint(0, 4, shape).to(dtype)


def distances(a, b, norm):
    """(P1, P2), pair by pair."""
    difference = (a[:, None].double() - b[None].double()).abs()
    return difference.pow(norm).sum(-1)


def expected_knn(p1, p2, lengths1, lengths2, norm, K):
    """Cloud by cloud: sorted by distance, then by index; 0 where there is nothing."""
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
    def test_is_a_stable_sort_of_all_distances(self, norm, dtype, device):
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

    def test_blocks_of_norm_1_agree_with_one(self, monkeypatch):
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
    def test_what_is_not_finite_is_not_a_perfect_match(self, norm, device):
        """Zero would look like one; nobody would see that a network has diverged."""
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

    def test_any_version_and_order_are_the_same(self):
        p1, p2 = torch.rand(1, 20, 3), torch.rand(1, 30, 3)
        usual = knn_points(p1, p2, K=4)
        assert torch.equal(usual.idx, knn_points(p1, p2, K=4, version=2, return_sorted=False).idx)

    def test_nothing_is_read_on_the_host(self):
        """A graph without breaks has no place for it; the original asks for the smallest length."""
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
    def test_picks_rows(self, dtype, device):
        x, idx = torch.randint(0, 2, (2, 6, 5)).to(dtype), torch.randint(0, 6, (2, 4, 3))
        expected = torch.stack([x[n][idx[n]] for n in range(2)])
        assert torch.equal(knn_gather(x.to(device), idx.to(device)).cpu(), expected)

    def test_places_past_the_lengths_are_zero(self, device):
        x, idx = torch.rand(2, 6, 5), torch.randint(0, 6, (2, 4, 3))
        picked = knn_gather(x.to(device), idx.to(device), torch.tensor([2, 6], device=device)).cpu()
        assert not picked[0, :, 2].any()
        assert torch.equal(picked[0, :, :2], x[0][idx[0, :, :2]])
        assert torch.equal(picked[1], x[1][idx[1]])
        wide = knn_gather(x[:, :2].to(device), torch.zeros(2, 4, 3, dtype=torch.int64, device=device)).cpu()
        assert not wide[:, :, 2].any()  # there are only two rows

    def test_an_index_of_a_ball_may_be_given(self, device):
        """-1 is read out of bounds by the original."""
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
    def test_the_first_in_the_order_of_the_index(self, dtype, device):
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
    def test_the_sphere_is_outside(self, dtype, radius, device):
        """Points on the sphere, and just inside of it, along an axis."""
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
    def test_a_ball_that_holds_everything(self, radius):
        assert torch.equal(ball_query(P, P, K=5, radius=radius).idx, torch.arange(5).expand(2, 5, 5))

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


def expected_farthest(points, length, k, start=0):
    """One cloud, as farthest point sampling is defined."""
    picked = [start][: min(k, length)]
    while len(picked) < min(k, length):
        nearest = distances(points[:length], points[picked], 2).min(dim=1).values
        nearest[picked] = -1
        picked.append(int(nearest.argmax()))
    return picked


class TestSampleFarthestPoints:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("k", [1, 7, 40, [3, 0, 30], torch.tensor([12, 1, 2])], ids=str)
    def test_picks(self, dtype, k, device):
        points, sizes = torch.rand(3, 25, 3).to(dtype), [25, 6, 13]
        picked, idx = sample_farthest_points(points.to(device), torch.tensor(sizes, device=device), K=k)
        counts = k.tolist() if isinstance(k, torch.Tensor) else [k] * 3 if isinstance(k, int) else k
        assert idx.shape == (3, max(counts))
        assert idx.dtype == torch.int64
        assert picked.dtype == dtype
        for n in range(3):
            expected = expected_farthest(points[n], sizes[n], counts[n])
            assert idx[n].tolist() == expected + [-1] * (max(counts) - len(expected))
            assert torch.equal(picked[n, : len(expected)].cpu(), points[n, expected])
            assert not picked[n, len(expected) :].any()

    @pytest.mark.parametrize("size", range(1, 9))
    def test_clouds_of_fewer_than_8_points(self, size, device):
        """The original launches the wrong number of threads on a GPU."""
        points = torch.rand(2, size, 3)
        _, idx = sample_farthest_points(points.to(device), K=8)
        for n in range(2):
            assert idx[n].tolist() == expected_farthest(points[n], size, 8) + [-1] * (8 - size)

    def test_float64_is_compared_in_float64(self, device):
        """Cast to float32, as the original does, the last two are equally far, and the first of them is taken."""
        points = torch.tensor([[0.0], [1.0], [1.0 + 1e-12]], dtype=torch.float64)[None]
        picked, idx = sample_farthest_points(points.to(device), K=2)
        assert idx.tolist() == [[0, 2]]
        assert picked.dtype == torch.float64

    @pytest.mark.parametrize("dims", [1, 2, 12])
    def test_any_dimension(self, dims, device):
        points = torch.rand(1, 20, dims)
        _, idx = sample_farthest_points(points.to(device), K=6)
        assert idx[0].tolist() == expected_farthest(points[0], 20, 6)

    def test_random_start(self, device):
        points, lengths = torch.rand(64, 9, 3), torch.tensor([9, 4] * 32)
        starts = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            _, idx = sample_farthest_points(points.to(device), lengths.to(device), 3, random_start_point=True)
            starts.append(idx[:, 0].cpu())
            for n in range(4):
                assert idx[n].tolist() == expected_farthest(points[n], int(lengths[n]), 3, int(idx[n, 0]))
        assert torch.equal(starts[0], starts[1])
        assert not torch.equal(starts[0], starts[2])
        assert (starts[0] < lengths).all()

    def test_gradient_reaches_the_points(self, device):
        points = torch.rand(1, 9, 3, device=device, requires_grad=True)
        picked, idx = sample_farthest_points(points, K=3)
        assert not idx.requires_grad
        picked.sum().backward()
        expected = torch.zeros(9)
        expected[idx[0].cpu()] = 1
        assert torch.equal(points.grad[0, :, 0].cpu(), expected)

    def test_default_is_50(self):
        assert sample_farthest_points(torch.rand(1, 60, 3))[1].shape == (1, 50)


class TestPackedToPadded:
    @pytest.mark.parametrize("rest", [(), (3,), (1,), (2, 4), (0,)], ids=str)
    @pytest.mark.parametrize("dtype", [*DTYPES, torch.int64], ids=str)
    def test_there_and_back(self, rest, dtype, device):
        sizes = [4, 0, 3, 1, 0]
        packed = torch.randint(1, 9, (8, *rest)).to(dtype)
        first = torch.tensor([0, 4, 4, 7, 8], device=device)
        padded = packed_to_padded(packed.to(device), first, 6)
        assert padded.shape == (5, 6, *rest)
        assert padded.dtype == dtype
        begin = 0
        for n, size in enumerate(sizes):
            assert torch.equal(padded[n, :size].cpu(), packed[begin : begin + size])
            assert not padded[n, size:].any()
            begin += size
        assert torch.equal(padded_to_packed(padded, first, 8).cpu(), packed)

    def test_the_padded_dimension_may_be_any(self, device):
        padded = torch.rand(2, 3, 5, 4, device=device)
        first = torch.tensor([0, 5], device=device)
        packed = padded_to_packed(padded, first, 8, max_size_dim=2)
        assert torch.equal(packed, padded.transpose(1, 2).flatten(0, 1)[:8])
        assert torch.equal(packed, padded_to_packed(padded, first, 8, max_size_dim=-2))

    def test_what_does_not_fit_is_left_out(self, device):
        """The original writes it out of bounds."""
        packed, first = torch.arange(1.0, 8.0, device=device), torch.tensor([0, 5], device=device)
        padded = packed_to_padded(packed, first, 3)
        assert padded.tolist() == [[1, 2, 3], [6, 7, 0]]
        assert padded_to_packed(padded, first, 7).tolist() == [1, 2, 3, 0, 0, 6, 7]

    def test_derivatives(self, device):
        first = torch.tensor([0, 2, 2], device=device)
        packed = torch.rand(5, 2, dtype=torch.float64, device=device, requires_grad=True)
        padded = torch.rand(3, 4, 2, dtype=torch.float64, device=device, requires_grad=True)
        assert gradcheck(lambda x: packed_to_padded(x, first, 4), packed)
        assert gradcheck(lambda x: padded_to_packed(x, first, 5), padded)
        assert gradgradcheck(lambda x: packed_to_padded(x, first, 4).square(), packed)

    def test_empty(self, device):
        none = torch.zeros(0, dtype=torch.int64, device=device)
        assert packed_to_padded(torch.zeros(0, 3, device=device), none, 4).shape == (0, 4, 3)
        assert padded_to_packed(torch.zeros(0, 4, 3, device=device), none, 0).shape == (0, 3)
        one = torch.zeros(1, dtype=torch.int64, device=device)
        assert not packed_to_padded(torch.zeros(0, 3, device=device), one, 4).any()
        assert packed_to_padded(torch.ones(2, 3, device=device), one, 0).shape == (1, 0, 3)


def one_direction(a, b, normals_a, normals_b, norm, abs_cosine):
    """For one pair of clouds, in float64: each point's distance to its nearest, and how their normals differ."""
    if not len(b):
        return torch.zeros(len(a), dtype=torch.float64), torch.ones(len(a), dtype=torch.float64)
    values, nearest = distances(a, b, norm).min(dim=1)
    cosine = torch.nn.functional.cosine_similarity(normals_a, normals_b[nearest], dim=1)
    return values, 1 - (cosine.abs() if abs_cosine else cosine)


def expected_chamfer(
    x, y, sizes_x, sizes_y, normals_x, normals_y, weights, batch_reduction, point_reduction, norm, single, abs_cosine
):
    """(loss, loss_normals), pair by pair."""
    reduce = {"mean": lambda v: v.sum() / max(len(v), 1), "sum": torch.sum, "max": lambda v: max([*v, v.new_zeros(())])}
    losses, normal_losses = [], []
    for n in range(len(x)):
        a, b = (x[n, : sizes_x[n]], normals_x[n, : sizes_x[n]]), (y[n, : sizes_y[n]], normals_y[n, : sizes_y[n]])
        sides = [(a, b)] if single else [(a, b), (b, a)]
        found = [one_direction(s[0], t[0], s[1], t[1], norm, abs_cosine) for s, t in sides]
        point = [[reduce[point_reduction](v * weights[n]) for v in values] for values in found]
        join = max if point_reduction == "max" else sum
        losses.append(join([p[0] for p in point]))
        normal_losses.append(join([p[1] for p in point]))
    both = torch.stack(losses), torch.stack(normal_losses)
    if batch_reduction == "sum":
        return tuple(v.sum() for v in both)
    if batch_reduction == "mean":
        return tuple(v.sum() / sum(weights) for v in both)
    return both


class TestChamferDistance:
    @pytest.mark.parametrize("norm", [1, 2])
    @pytest.mark.parametrize("single", [False, True], ids=["both", "single"])
    @pytest.mark.parametrize("point_reduction", ["mean", "sum", "max"])
    def test_is_the_sum_of_nearest_distances(self, norm, single, point_reduction, device):
        x, y = torch.randn(4, 12, 3, dtype=torch.float64), torch.randn(4, 9, 3, dtype=torch.float64)
        normals_x, normals_y = torch.randn_like(x), torch.randn_like(y)
        for ragged, weighted, batch_reduction, abs_cosine in itertools.product(
            [False, True], [False, True], ["mean", "sum", None], [True, False]
        ):
            sizes_x, sizes_y = ([12, 5, 0, 3], [9, 1, 4, 0]) if ragged else ([12] * 4, [9] * 4)
            weights = [0.5, 2.0, 0.0, 1.0] if weighted else [1.0] * 4
            expected = expected_chamfer(
                x, y, sizes_x, sizes_y, normals_x, normals_y, weights, batch_reduction, point_reduction, norm, single,
                abs_cosine,
            )  # fmt: skip
            has_normals = point_reduction != "max"
            loss, loss_normals = chamfer_distance(
                x.to(device),
                y.to(device),
                x_lengths=torch.tensor(sizes_x, device=device) if ragged else None,
                y_lengths=torch.tensor(sizes_y, device=device) if ragged else None,
                x_normals=normals_x.to(device) if has_normals else None,
                y_normals=normals_y.to(device) if has_normals else None,
                weights=torch.tensor(weights, device=device, dtype=torch.float64) if weighted else None,
                batch_reduction=batch_reduction,
                point_reduction=point_reduction,
                norm=norm,
                single_directional=single,
                abs_cosine=abs_cosine,
            )
            torch.testing.assert_close(loss.cpu(), expected[0])
            if has_normals:
                torch.testing.assert_close(loss_normals.cpu(), expected[1])
            else:
                assert loss_normals is None

    def test_one_number_per_point(self, device):
        x, y = torch.rand(2, 5, 3, device=device), torch.rand(2, 4, 3, device=device)
        (there, back), normals = chamfer_distance(x, y, batch_reduction=None, point_reduction=None)
        torch.testing.assert_close(there, torch.cdist(x, y).square().min(dim=2).values)
        torch.testing.assert_close(back, torch.cdist(y, x).square().min(dim=2).values)
        assert normals is None
        single, differ = chamfer_distance(
            x, y, x_normals=x, y_normals=y, batch_reduction=None, point_reduction=None, single_directional=True
        )
        assert torch.equal(single, there)
        assert differ.shape == (2, 5)
        _, both = chamfer_distance(x, y, x_normals=x, y_normals=y, batch_reduction=None, point_reduction=None)
        assert [part.shape for part in both] == [(2, 5), (2, 4)]

    @pytest.mark.parametrize("norm", [1, 2])
    def test_derivatives(self, norm, device):
        x = torch.randn(2, 4, 3, dtype=torch.float64, device=device, requires_grad=True)
        y = torch.randn(2, 5, 3, dtype=torch.float64, device=device, requires_grad=True)
        lengths, weights = torch.tensor([4, 2], device=device), torch.tensor([1.0, 3.0], device=device).double()

        def call(x, y):
            return chamfer_distance(x, y, x_lengths=lengths, x_normals=x, y_normals=y, weights=weights, norm=norm)

        tolerance = 0.0 if device == "cpu" else 1e-12
        assert gradcheck(call, (x, y), nondet_tol=tolerance)
        assert gradgradcheck(call, (x, y), nondet_tol=tolerance)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_16_bits_are_averaged_in_float32(self, dtype, device):
        x, y = torch.rand(2, 300, 3).to(dtype) * 300, torch.rand(2, 200, 3).to(dtype) * 300
        loss, _ = chamfer_distance(x.to(device), y.to(device))
        expected, _ = chamfer_distance(x.double(), y.double())
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.cpu().double(), expected, rtol=1e-6, atol=0)

    def test_clouds_that_know_their_lengths(self):
        x, y = torch.rand(2, 5, 3), torch.rand(2, 4, 3)
        lengths = torch.tensor([5, 2])

        def cloud(points, lengths, normals):
            return SimpleNamespace(
                points_padded=lambda: points, num_points_per_cloud=lambda: lengths, normals_padded=lambda: normals
            )

        found = chamfer_distance(cloud(x, lengths, x), cloud(y, None, y))
        expected = chamfer_distance(x, y, x_lengths=lengths, x_normals=x, y_normals=y)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
        assert chamfer_distance(cloud(x, lengths, None), y)[1] is None

    def test_weights_that_are_all_zero(self, device):
        x, y = torch.rand(3, 5, 3, device=device, requires_grad=True), torch.rand(3, 4, 3, device=device)
        for reduction, shape in (("mean", ()), ("sum", ()), (None, (3,))):
            loss, _ = chamfer_distance(x, y, weights=torch.zeros(3, device=device), batch_reduction=reduction)
            assert loss.shape == shape
            assert not loss.any()
            (gradient,) = torch.autograd.grad(loss.sum(), x)
            assert not gradient.any()

    def test_weights_may_stand_in_a_column(self):
        x, y, weights = torch.rand(3, 5, 3), torch.rand(3, 4, 3), torch.rand(3)
        assert torch.equal(
            chamfer_distance(x, y, weights=weights)[0], chamfer_distance(x, y, weights=weights[:, None])[0]
        )

    @pytest.mark.parametrize("norm", [1, 2])
    def test_autocast(self, norm, device):
        x, y = torch.rand(2, 50, 3, device=device), torch.rand(2, 40, 3, device=device)
        expected, _ = chamfer_distance(x, y, norm=norm)
        with torch.autocast(device, torch.bfloat16):
            loss, _ = chamfer_distance(x, y, norm=norm)
        torch.testing.assert_close(loss, expected)

    def test_a_diverged_cloud_has_no_loss(self, device):
        x, y = torch.rand(2, 5, 3, device=device), torch.rand(2, 4, 3, device=device)
        x[1, 2] = torch.nan
        assert not chamfer_distance(x, y, single_directional=True)[0].isfinite()
        assert chamfer_distance(x, y, batch_reduction=None)[0].isfinite().tolist() == [True, False]

    def test_empty(self, device):
        for n, p, q in itertools.product([0, 2], [0, 3], [0, 3]):
            x, y = torch.rand(n, p, 3, device=device), torch.rand(n, q, 3, device=device)
            for reduction in ("mean", "sum", "max"):
                loss, _ = chamfer_distance(x, y, point_reduction=reduction)
                assert loss.isfinite()
                assert p * q or loss == 0


P = torch.rand(2, 5, 3)
BAD = [
    (lambda: knn_points(P, P, norm=3), ValueError, "norm must be 1 or 2, got 3"),
    (lambda: knn_points(P, P, K=0), ValueError, "K must be at least 1, got 0"),
    (lambda: knn_points(P, P, K=1.0), TypeError, "K must be an int, got float 1.0"),
    (lambda: knn_points(P[0], P), ValueError, r"p1 must be \(N, P, D\), got \(5, 3\)"),
    (lambda: knn_points(P, P[:1]), ValueError, r"p2 must be .* N = 2 and D = 3, like p1, got \(1, 5, 3\)"),
    (lambda: knn_points(P, P.double()), TypeError, "p2 must have the dtype of p1, float32, got float64"),
    (lambda: knn_points(P, P, torch.tensor([6, 1])), ValueError, r"lengths1\[0\] must be .* got 6"),
    (lambda: knn_points(P, P, None, torch.tensor([1])), ValueError, r"lengths2 must be \(N,\) = \(2,\)"),
    (lambda: knn_points(P.long(), P), TypeError, "p1 must be float32, .* got int64"),
    (lambda: knn_gather(P, torch.zeros(2, 3)), ValueError, r"idx must be \(N, L, K\) with N = 2, got \(2, 3\)"),
    (lambda: knn_gather(P, torch.full((2, 3, 1), 5)), ValueError, r"index must be .* in \[0, 5\), got 5"),
    (lambda: masked_gather(P, torch.zeros(3, 3).long()), ValueError, "idx must be .* N = 2, got"),
    (lambda: ball_query(P, P, radius=0.0), ValueError, "radius must be positive, got 0.0"),
    (lambda: ball_query(P, P, radius=-1.0), ValueError, "radius must be positive, got -1.0"),
    (lambda: ball_query(P, P, radius=float("nan")), ValueError, "radius must be positive, got nan"),
    (lambda: ball_query(P, P, radius="1"), TypeError, "radius must be a number, got str '1'"),
    (lambda: sample_farthest_points(P, K=[1]), ValueError, "K must be one for each of 2 clouds, got 1"),
    (lambda: sample_farthest_points(P, K="2"), TypeError, "K must be an int, or a list or tensor of them, got str '2'"),
    (lambda: sample_farthest_points(P, K=torch.tensor([[2]])), ValueError, r"K must be an int or \(N,\), got \(1, 1\)"),
    (lambda: sample_farthest_points(P, K=0), ValueError, "K must be at least 1, got 0"),
    (lambda: sample_farthest_points(P, torch.tensor([6, 6])), ValueError, r"lengths\[0\] must be .* got 6"),
    (lambda: packed_to_padded(P, torch.zeros(1), 2), TypeError, "first_idxs must be int64 or int32, got float32"),
    (lambda: packed_to_padded(P, torch.tensor([0]), -1), ValueError, "max_size must be at least 0, got -1"),
    (lambda: packed_to_padded(P, torch.tensor([0]), 1.5), TypeError, "max_size must be an int, got float 1.5"),
    (lambda: padded_to_packed(P, torch.tensor([0]), 2), ValueError, r"first_idxs must be \(N,\) = \(2,\), got \(1,\)"),
    (lambda: chamfer_distance(P, P, point_reduction="min"), ValueError, "point_reduction must be .* got 'min'"),
    (lambda: chamfer_distance(P, P, batch_reduction="max"), ValueError, "batch_reduction must be .* got 'max'"),
    (lambda: chamfer_distance(P, P, point_reduction=None), ValueError, "batch_reduction must be None if"),
    (lambda: chamfer_distance(P, P, norm=0), ValueError, "norm must be 1 or 2, got 0"),
    (lambda: chamfer_distance(P, [1]), TypeError, "y must be a torch.Tensor, got list"),
    (lambda: chamfer_distance(P, P[:, :, :2]), ValueError, r"y must be .* D = 3, like x, got \(2, 5, 2\)"),
    (lambda: chamfer_distance(P, P, x_normals=P[:, :2]), ValueError, r"x_normals must be .* \(2, 5\), got"),
    (lambda: chamfer_distance(P, P, weights=torch.tensor([1.0, -1.0])), ValueError, "weights must be at least 0"),
    (lambda: chamfer_distance(P, P, weights=torch.ones(3)), ValueError, r"weights must be \(N,\) = \(2,\)"),
    (lambda: chamfer_distance(P, P, x_normals=P, point_reduction="max"), ValueError, "None if point_red"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), BAD, ids=[message for _, _, message in BAD])
def test_bad_input(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


SIGNATURES = {
    knn_points: "p1, p2, lengths1=None, lengths2=None, norm=2, K=1, version=-1, return_nn=False, return_sorted=True",
    knn_gather: "x, idx, lengths=None",
    ball_query: "p1, p2, lengths1=None, lengths2=None, K=500, radius=0.2, return_nn=True, "
    "skip_points_outside_cube=False",
    sample_farthest_points: "points, lengths=None, K=50, random_start_point=False",
    packed_to_padded: "inputs, first_idxs, max_size",
    padded_to_packed: "inputs, first_idxs, num_inputs, max_size_dim=1",
    masked_gather: "points, idx",
    chamfer_distance: "x, y, x_lengths=None, y_lengths=None, x_normals=None, y_normals=None, weights=None, "
    "batch_reduction='mean', point_reduction='mean', norm=2, single_directional=False, abs_cosine=True",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__name__)
def test_signature(function):
    parameters = inspect.signature(function).parameters.values()
    plain = [f"{p.name}={p.default!r}" if p.default is not p.empty else p.name for p in parameters]
    assert ", ".join(plain) == SIGNATURES[function]
    assert pickle.loads(pickle.dumps(function)) is function


def test_what_is_missing_is_said():
    for module, name in (
        (pytorch3d, "renderer"),
        (pytorch3d.ops, "iterative_closest_point"),
        (pytorch3d.loss, "point_mesh_face_distance"),
    ):
        original = module.__name__.removeprefix("pointgrad.compat.")
        expected = f"provides the point operators of pytorch3d only, and no {original}.{name}"
        with pytest.raises(AttributeError, match=expected):
            getattr(module, name)
        assert not hasattr(module, name)


def test_submodules_are_where_the_original_has_them():
    from pointgrad.compat.pytorch3d.loss import chamfer
    from pointgrad.compat.pytorch3d.ops.ball_query import ball_query as ball
    from pointgrad.compat.pytorch3d.ops.knn import _KNN
    from pointgrad.compat.pytorch3d.ops.packed_to_padded import packed_to_padded as pad
    from pointgrad.compat.pytorch3d.ops.sample_farthest_points import sample_farthest_points as sample

    assert (ball, pad, sample) == (ball_query, packed_to_padded, sample_farthest_points)
    assert chamfer.chamfer_distance is chamfer_distance
    assert isinstance(knn_points(P, P), _KNN)


@pytest.mark.parametrize("module", pointgrad.compat.modules("pytorch3d"), ids=lambda module: module.__name__)
def test_documented_examples_run(module):
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
    for name in getattr(module, "__all__", ()):
        assert ">>>" in getattr(module, name).__doc__


def test_a_program_runs_unchanged(device, monkeypatch, capsys):
    def imported():
        return [name for name in sys.modules if name.partition(".")[0] == "pytorch3d"]

    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "argv", ["pytorch3d_model.py", "--steps", "8", "--device", device])
    for name in imported():
        monkeypatch.delitem(sys.modules, name)  # comes back
    try:
        pointgrad.compat.install("pytorch3d")
        runpy.run_path(str(Path(__file__).parent / "foreign" / "pytorch3d_model.py"), run_name="__main__")
    finally:
        for name in imported():
            del sys.modules[name]
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2


def test_numbers_may_be_tensors():
    points = torch.rand(2, 9, 3)
    assert torch.equal(knn_points(points, points, K=torch.tensor(3)).idx, knn_points(points, points, K=3).idx)
    received = ball_query(points, points, K=torch.tensor(3), radius=torch.tensor(0.5)).idx
    assert torch.equal(received, ball_query(points, points, K=3, radius=0.5).idx)
    picks = sample_farthest_points(points, K=torch.tensor(4))[1]
    assert torch.equal(picks, sample_farthest_points(points, K=4)[1])
