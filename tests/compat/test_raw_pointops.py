"""The compiled modules `pointops._C` and `pointops_cuda` against plain loops, and packed functions of openpoints."""

import importlib
import itertools
import re

import pytest
import torch

from pointgrad.compat import pointops, pointops_cuda
from pointgrad.compat.pointops import _C
from pointgrad.compat.pointops.functions import pointops as older
from tests.compat.pointnet2_ops_loops import ball_by_loop, farthest_by_loop

N, M, K, C, G = 17, 6, 4, 6, 3
ENDS, NEW_ENDS = [11, 11, 17], [4, 4, 6]
OFFSET, NEW_OFFSET = (torch.tensor(ends, dtype=torch.int32) for ends in (ENDS, NEW_ENDS))
CLOUDS = [(0, 11, range(4)), (11, 17, range(4, 6))]  # first and last point, queries


def ints(*shape, high=N):
    return torch.randint(0, high, shape, dtype=torch.int32)


def per_query():
    return ((first, last, query) for first, last, queries in CLOUDS for query in queries)


def neighbors(points, query, first, last):
    """(squared distance, row) of all points of a cloud, nearest first."""
    return sorted((float(((points[row] - query) ** 2).sum()), row) for row in range(first, last))


class TestSearch:
    @pytest.mark.parametrize("name", ["knn_query_cuda", "knnquery_cuda"])
    @pytest.mark.parametrize("count", [K, 8])
    def test_nearest(self, name, count):
        """With 8 neighbors the second cloud has too few points: -1 in Pointcept's, the first row in the older one."""
        xyz, new_xyz = torch.rand(N, 3, dtype=torch.float64), torch.rand(M, 3, dtype=torch.float64)
        idx, dist2 = torch.zeros(M, count, dtype=torch.int32), torch.zeros(M, count, dtype=torch.float64)
        function = getattr(_C if name == "knn_query_cuda" else pointops_cuda, name)
        assert function(M, count, xyz, new_xyz, OFFSET, NEW_OFFSET, idx, dist2) is None
        for first, last, query in per_query():
            found = neighbors(xyz, new_xyz[query], first, last)[:count]
            missing = count - len(found)
            padding = -1 if name == "knn_query_cuda" else first
            assert idx[query].tolist() == [row for _, row in found] + [padding] * missing
            torch.testing.assert_close(dist2[query].tolist(), [distance for distance, _ in found] + [1e10] * missing)

    def test_nearest_in_batches(self):
        xyz, new_xyz = torch.rand(2, 3, 3), torch.rand(2, M, 3)
        idx, dist2 = torch.zeros(2, M, K, dtype=torch.int32), torch.zeros(2, M, K)
        pointops_cuda.knnquery_cuda(2, 3, M, K, xyz, new_xyz, idx, dist2)
        for b, query in itertools.product(range(2), range(M)):
            found = neighbors(xyz[b], new_xyz[b, query], 0, 3)
            assert idx[b, query].tolist() == [*(row for _, row in found), 0]
            torch.testing.assert_close(dist2[b, query].tolist(), [*(d for d, _ in found), 1e10])

    def test_ball_query_of_pointcept(self):
        xyz, new_xyz = torch.rand(N, 3), torch.rand(M, 3)
        idx, dist2 = torch.zeros(M, K, dtype=torch.int32), torch.zeros(M, K)
        _C.ball_query_cuda(M, K, 0.2, 0.6, xyz, new_xyz, OFFSET, NEW_OFFSET, idx, dist2)
        expected, distance = pointops.ball_query(K, 0.6, 0.2, xyz, OFFSET, new_xyz, NEW_OFFSET)
        assert torch.equal(idx, expected)
        torch.testing.assert_close(dist2, distance**2)

    @pytest.mark.parametrize("min_radius", [0.0, 0.3])
    def test_random_ball_query_takes_the_given_order(self, min_radius):
        xyz, new_xyz = torch.rand(N, 3), torch.rand(M, 3)
        new_xyz[0] = xyz[3]  # the center itself is found even though it is nearer than min_radius
        order = torch.cat([torch.randperm(11), 11 + torch.randperm(6)]).int()
        idx, dist2 = torch.zeros(M, K, dtype=torch.int32), torch.zeros(M, K)
        _C.random_ball_query_cuda(M, K, min_radius, 0.6, order, xyz, new_xyz, OFFSET, NEW_OFFSET, idx, dist2)
        for first, last, query in per_query():
            near = {row: d for d, row in neighbors(xyz, new_xyz[query], first, last)}
            hits = [row for row in order[first:last].tolist() if near[row] <= 1e-5 or min_radius**2 <= near[row] < 0.36]
            hits = hits[:K]
            assert idx[query].tolist() == hits + [-1] * (K - len(hits))
            torch.testing.assert_close(dist2[query].tolist(), [near[row] for row in hits] + [1e10] * (K - len(hits)))

    @pytest.mark.parametrize("radius", [0.2, 0.6])
    def test_packed_ball_query_of_openpoints(self, radius):
        xyz = torch.rand(N, 3)
        new_xyz = xyz[[0, 3, 5, 9, 12, 16]]
        new_xyz[1] = 9  # an empty ball
        idx = torch.full((M, K), 5, dtype=torch.int32)
        pointops_cuda.ballquery_cuda(M, radius, K, xyz, new_xyz, OFFSET, NEW_OFFSET, idx)
        found = older.ballquery(radius, K, xyz, new_xyz, OFFSET, NEW_OFFSET)
        assert found.dtype == torch.int32
        for first, last, query in per_query():
            hits = [first + i for i in ball_by_loop(radius, K, xyz[first:last], new_xyz[query])]
            assert idx[query].tolist() == ([5] * K if query == 1 else hits)
            assert found[query].tolist() == ([0] * K if query == 1 else hits)

    def test_batched_forms_are_those_of_pointnet2(self):
        xyz, idx = torch.rand(2, N, 3), torch.zeros(2, M, dtype=torch.int32)
        pointops_cuda.furthestsampling_cuda(2, N, M, xyz, torch.full((2, N), 1e10), idx)
        assert idx.tolist() == [farthest_by_loop(cloud, M) for cloud in xyz]
        balls = torch.zeros(2, M, K, dtype=torch.int32)
        pointops_cuda.ballquery_cuda(2, N, M, 0.5, K, xyz[:, :M].contiguous(), xyz, balls)
        assert balls.tolist() == [[ball_by_loop(0.5, K, cloud, center) for center in cloud[:M]] for cloud in xyz]
        features, grouped = torch.rand(2, C, N), torch.zeros(2, C, M, K)
        pointops_cuda.grouping_forward_cuda(2, C, N, M, K, features, balls, grouped)
        sums, grad = torch.zeros(2, C, N), torch.rand(2, C, M, K)
        pointops_cuda.grouping_backward_cuda(2, C, N, M, K, grad, balls, sums)
        numbers, labels = torch.zeros(2, 1, M, K, dtype=torch.int64), ints(2, 1, N)
        pointops_cuda.grouping_int_forward_cuda(2, 1, N, M, K, labels, balls, numbers)
        expected = torch.zeros(2, C, N)
        for b, m, k in itertools.product(range(2), range(M), range(K)):
            assert torch.equal(grouped[b, :, m, k], features[b, :, balls[b, m, k]])
            assert numbers[b, 0, m, k] == labels[b, 0, balls[b, m, k]]
            expected[b, :, balls[b, m, k]] += grad[b, :, m, k]
        torch.testing.assert_close(sums, expected)
        three, weight, out = ints(2, M, 3), torch.rand(2, M, 3), torch.zeros(2, C, M)
        pointops_cuda.interpolation_forward_cuda(2, C, N, M, features, three, weight, out)
        rows = torch.stack([features[b, :, three[b].long()] for b in range(2)])  # (2, C, M, 3)
        torch.testing.assert_close(out, (rows * weight.unsqueeze(1)).sum(3))

    def test_packed_sampling(self):
        xyz, idx = torch.rand(N, 3), torch.zeros(M, dtype=torch.int32)
        pointops_cuda.furthestsampling_cuda(3, torch.tensor(11), xyz, OFFSET, NEW_OFFSET, None, idx)
        assert idx.tolist() == [*farthest_by_loop(xyz[:11], 4), *(11 + i for i in farthest_by_loop(xyz[11:], 2))]


class TestFeatures:
    """Forward functions against sums over loops; backward functions against autograd of these sums."""

    def check(self, forward, backward, expected, inputs):
        out, grad = expected(*inputs), torch.rand_like(expected(*inputs))
        received = torch.zeros_like(out)
        forward(received)
        torch.testing.assert_close(received, out.detach())
        sums = [torch.zeros_like(value) for value in inputs]
        backward(grad, sums)
        torch.testing.assert_close(sums, list(torch.autograd.grad(out, inputs, grad)))
        backward(grad, sums)
        torch.testing.assert_close(sums, [2 * value for value in torch.autograd.grad(expected(*inputs), inputs, grad)])

    def leaf(self, *shape):
        return torch.rand(*shape, dtype=torch.float64, requires_grad=True)

    def test_grouping(self):
        features, idx = self.leaf(N, C), ints(M, K)
        self.check(
            lambda out: _C.grouping_forward_cuda(M, K, C, features, idx, out),
            lambda grad, sums: pointops_cuda.grouping_backward_cuda(M, K, C, grad, idx, *sums),
            lambda x: torch.stack([torch.stack([x[i] for i in row]) for row in idx.tolist()]),
            [features],
        )

    def test_interpolation(self):
        features, idx, weight = self.leaf(N, C), ints(M, 3), torch.rand(M, 3, dtype=torch.float64)
        self.check(
            lambda out: pointops_cuda.interpolation_forward_cuda(M, C, 3, features, idx, weight, out),
            lambda grad, sums: _C.interpolation_backward_cuda(M, C, 3, grad, idx, weight, *sums),
            lambda x: torch.stack([sum(weight[m, k] * x[idx[m, k]] for k in range(3)) for m in range(M)]),
            [features],
        )

    def test_subtraction(self):
        first, second, idx = self.leaf(M, C), self.leaf(N, C), ints(M, K)
        self.check(
            lambda out: _C.subtraction_forward_cuda(M, K, C, first, second, idx, out),
            lambda grad, sums: pointops_cuda.subtraction_backward_cuda(M, K, C, idx, grad, *sums),
            lambda x, y: torch.stack([torch.stack([x[m] - y[idx[m, k]] for k in range(K)]) for m in range(M)]),
            [first, second],
        )

    def test_aggregation(self):
        features, position, weight, idx = self.leaf(N, C), self.leaf(M, K, C), self.leaf(M, K, G), ints(M, K)
        channel = torch.arange(C) % G
        self.check(
            lambda out: _C.aggregation_forward_cuda(M, K, C, G, features, position, weight, idx, out),
            lambda grad, sums: _C.aggregation_backward_cuda(M, K, C, G, features, position, weight, idx, grad, *sums),
            lambda x, p, w: torch.stack(
                [sum((x[idx[m, k]] + p[m, k]) * w[m, k, channel] for k in range(K)) for m in range(M)]
            ),
            [features, position, weight],
        )

    def test_attention(self):
        query, key, weight = self.leaf(N, G, C), self.leaf(N, G, C), self.leaf(C)
        target, refer = ints(M), ints(M)
        self.check(
            lambda out: _C.attention_relation_step_forward_cuda(M, G, C, query, key, weight, target, refer, out),
            lambda grad, sums: _C.attention_relation_step_backward_cuda(
                M, G, C, query, sums[0], key, sums[1], weight, sums[2], target, refer, grad
            ),
            lambda q, k, w: torch.stack([(q[target[m]] * k[refer[m]] * w).sum(1) for m in range(M)]),
            [query, key, weight],
        )
        share, value = self.leaf(M, G), self.leaf(N, G, C)
        rows = [[m for m in range(M) if target[m] == n] for n in range(N)]
        self.check(
            lambda out: _C.attention_fusion_step_forward_cuda(M, G, C, share, value, target, refer, out),
            lambda grad, sums: _C.attention_fusion_step_backward_cuda(
                M, G, C, share, sums[0], value, sums[1], target, refer, grad
            ),
            lambda s, v: torch.stack([sum((s[m, :, None] * v[refer[m]] for m in row), 0 * v[0]) for row in rows]),
            [share, value],
        )

    def test_inside_a_custom_function(self):
        idx = ints(M, K)

        class Grouping(torch.autograd.Function):
            @staticmethod
            def forward(ctx, features):
                output = torch.empty(M, K, C, dtype=features.dtype)
                pointops_cuda.grouping_forward_cuda(M, K, C, features, idx, output)
                return output

            @staticmethod
            def backward(ctx, grad):
                sums = torch.zeros(N, C, dtype=grad.dtype)
                pointops_cuda.grouping_backward_cuda(M, K, C, grad, idx, sums)
                return sums

        assert torch.autograd.gradcheck(Grouping.apply, self.leaf(N, C))


class TestErrors:
    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda: pointops_cuda.furthestsampling_cuda(1), TypeError,
             "furthestsampling_cuda takes 7 (packed) or 6 (batched) arguments, got 1"),
            (lambda: pointops_cuda.knnquery_cuda(1, 2), TypeError, "knnquery_cuda takes 8 arguments, got 2"),
            (lambda: _C.grouping_forward_cuda(M, K, C, torch.rand(N, 7), ints(M, K), torch.empty(M, K, C)), ValueError,
             f"input must have rows of c = {C} entries, got (17, 7)"),
            (lambda: _C.grouping_forward_cuda(M, K, C, torch.rand(N, C), ints(M, K), torch.empty(M, C)), ValueError,
             f"output must have m * nsample * c = {M * K * C} entries, got (6, 6)"),
            (lambda: _C.farthest_point_sampling_cuda(3, 11, torch.rand(N, 3), OFFSET, NEW_OFFSET, None, ints(M + 1)),
             ValueError, "idx must be (new_offset[-1],) = (6,), got (7,)"),
            (lambda: _C.aggregation_backward_cuda(
                M, K, C, G, torch.rand(N, C), torch.rand(M, K, C), torch.rand(M, K, G), ints(M, K), torch.rand(M, C),
                torch.zeros(N + 1, C), torch.zeros(M, K, C), torch.zeros(M, K, G)),
             ValueError, "grad_input must be (17, 6), like its input, got (18, 6)"),
        ],
    )  # fmt: skip
    def test_messages(self, call, error, message):
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            call()


class TestModules:
    @pytest.mark.parametrize(
        "name", ["aggregation", "attention", "grouping", "interpolation", "query", "sampling", "subtraction", "utils"]
    )
    def test_tree_of_an_installed_pointops(self, name):
        """An installed pointops has the modules of `functions` directly in the package."""
        module = importlib.import_module(f"pointgrad.compat.pointops.{name}")
        functions = importlib.import_module(f"pointgrad.compat.pointops.functions.{name}")
        assert module.__all__ == functions.__all__
        for public in module.__all__:
            assert getattr(module, public) is getattr(functions, public)
        for public in ("aggregation", "grouping", "interpolation", "subtraction"):
            assert callable(getattr(pointops, public)), "a module must not hide the function of the same name"


class TestQueryGroup:
    @pytest.mark.parametrize("method", ["knn", "ballquery"])
    @pytest.mark.parametrize("normalize", [False, True])
    def test_against_a_loop(self, method, normalize):
        xyz, feat = torch.rand(N, 3, requires_grad=True), torch.rand(N, C)
        new_xyz = xyz.detach()[[0, 3, 5, 9, 12, 16]]
        positions, grouped = older.querygroup(
            K, xyz, new_xyz, feat, OFFSET, NEW_OFFSET, radius=0.5, query_method=method, normalize_dp=normalize
        )
        assert positions.requires_grad
        for first, last, query in per_query():
            near = [row for _, row in neighbors(xyz.detach(), new_xyz[query], first, last)][:K]
            ball = [first + i for i in ball_by_loop(0.5, K, xyz.detach()[first:last], new_xyz[query])]
            rows = near if method == "knn" else ball
            assert torch.equal(grouped[query], feat[rows])
            expected = xyz[rows] - new_xyz[query]
            if normalize:
                expected = expected / (expected.norm(dim=1, keepdim=True) + 1e-8 if method == "knn" else 0.5)
            torch.testing.assert_close(positions[query], expected)

    def test_without_features_and_with_an_index(self):
        xyz, idx = torch.rand(N, 3), ints(N, K)
        positions, grouped = older.querygroup(K, xyz, None, None, OFFSET, OFFSET, idx=idx)
        assert grouped is None
        assert torch.equal(positions, xyz[idx.long()] - xyz.unsqueeze(1))
