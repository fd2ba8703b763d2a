"""The compiled modules `pointnet2._ext`, `pointnet2_batch_cuda` and `pointnet2_stack_cuda` against plain loops."""

import itertools
import re
from typing import ClassVar

import pytest
import torch

from pointgrad.compat import pointnet2_batch_cuda as batch
from pointgrad.compat import pointnet2_cuda
from pointgrad.compat import pointnet2_stack_cuda as stack
from pointgrad.compat.pointnet2 import _ext
from pointgrad.compat.pointnet2_ops import pointnet2_utils
from tests.compat.pointnet2_ops_loops import ball_by_loop, clouds, farthest_by_loop

B, C, N, M, K = 2, 3, 17, 5, 4


def ints(*shape, high=N):
    return torch.randint(0, high, shape, dtype=torch.int32)


class TestNoViews:
    """A custom autograd function returns the tensor of a raw function, and the program then changes it in place."""

    CASES: ClassVar = {
        "gather_points": lambda: (_ext.gather_points, _ext.gather_points_grad, (ints(B, M),)),
        "group_points": lambda: (_ext.group_points, _ext.group_points_grad, (ints(B, M, K),)),
        "three_interpolate": lambda: (
            _ext.three_interpolate,
            _ext.three_interpolate_grad,
            (ints(B, M, 3), torch.rand(B, M, 3)),
        ),
        "grouping_operation": lambda: (pointnet2_utils.grouping_operation, _ext.group_points_grad, (ints(B, M, K),)),
    }

    @pytest.mark.parametrize("channels", [1, C])
    @pytest.mark.parametrize("case", CASES)
    def test_in_place_after_a_custom_function(self, case, channels):
        forward, backward, rest = self.CASES[case]()

        class Custom(torch.autograd.Function):
            @staticmethod
            def forward(ctx, features):
                return forward(features, *rest)

            @staticmethod
            def backward(ctx, grad):
                return backward(grad.contiguous(), *rest, N)

        features = torch.rand(B, channels, N, requires_grad=True)
        out = Custom.apply(features)
        assert not forward(features.detach(), *rest)._is_view()
        out -= 1
        out.square().sum().backward()
        copy = features.detach().clone().requires_grad_()
        (forward(copy, *rest) - 1).square().sum().backward()
        torch.testing.assert_close(features.grad, copy.grad)

    @pytest.mark.parametrize("size", [1, 6])
    def test_other_functions(self, size):
        xyz = torch.rand(B, size, 3)
        results = [
            _ext.furthest_point_sampling(xyz, size),
            _ext.ball_query(xyz, xyz, 0.3, 1),
            *_ext.three_nn(xyz, xyz),
            _ext.gather_points_grad(torch.rand(B, 1, size), ints(B, size, high=size), size),
            _ext.group_points_grad(torch.rand(B, 1, size, 1), ints(B, size, 1, high=size), size),
            _ext.three_interpolate_grad(
                torch.rand(B, 1, size), ints(B, size, 3, high=size), torch.rand(B, size, 3), size
            ),
        ]
        assert not any(result._is_view() for result in results)


class TestBatch:
    def test_names(self):
        assert pointnet2_cuda.__all__ == batch.__all__
        assert batch.furthest_point_sampling_wrapper is batch.farthest_point_sampling_wrapper

    def test_sampling(self, default_place):
        points = clouds(default_place, B, N)
        idx = torch.full((B, M), 99, dtype=torch.int32, device=points.device)
        assert batch.farthest_point_sampling_wrapper(B, N, M, points, torch.full((B, N), 1e10), idx) is None
        assert idx.tolist() == [farthest_by_loop(cloud, M) for cloud in points.cpu()]

    def test_ball_query(self, default_place):
        points = clouds(default_place, B, N)
        centers = points[:, -M:].clone()
        centers[0, 0] = 9  # an empty ball, whose entries are not written
        idx = torch.full((B, M, K), 7, dtype=torch.int32, device=points.device)
        batch.ball_query_wrapper(B, N, M, 0.4, K, centers, points, idx)
        expected = [
            [ball_by_loop(0.4, K, cloud, center) for center in part]
            for cloud, part in zip(points, centers, strict=True)
        ]
        expected[0][0] = [7] * K
        assert idx.tolist() == expected

    def test_gather_and_group(self):
        features, idx, pairs = torch.rand(B, C, N), ints(B, M), ints(B, M, K)
        out, grouped = torch.empty(B, C, M), torch.empty(B, C, M, K)
        batch.gather_points_wrapper(B, C, N, M, features, idx, out)
        batch.group_points_wrapper(B, C, N, M, K, features, pairs, grouped)
        grad, grad_grouped = torch.rand_like(out), torch.rand_like(grouped)
        sums, sums_grouped = torch.ones(B, C, N), torch.zeros(B, C, N)
        expected, expected_grouped = torch.ones(B, C, N), torch.zeros(B, C, N)
        batch.gather_points_grad_wrapper(B, C, N, M, grad, idx, sums)
        batch.group_points_grad_wrapper(B, C, N, M, K, grad_grouped, pairs, sums_grouped)
        for b, c, m in itertools.product(range(B), range(C), range(M)):
            assert out[b, c, m] == features[b, c, idx[b, m]]
            expected[b, c, idx[b, m]] += grad[b, c, m]
            for k in range(K):
                assert grouped[b, c, m, k] == features[b, c, pairs[b, m, k]]
                expected_grouped[b, c, pairs[b, m, k]] += grad_grouped[b, c, m, k]
        torch.testing.assert_close(sums, expected)
        torch.testing.assert_close(sums_grouped, expected_grouped)

    def test_interpolation(self):
        known, unknown, features = torch.rand(B, M, 3), torch.rand(B, N, 3), torch.rand(B, C, M)
        dist2, idx = torch.empty(B, N, 3), torch.empty(B, N, 3, dtype=torch.int32)
        batch.three_nn_wrapper(B, N, M, unknown, known, dist2, idx)
        for b, n in itertools.product(range(B), range(N)):
            expected = ((known[b] - unknown[b, n]) ** 2).sum(1)
            assert idx[b, n].tolist() == expected.argsort()[:3].tolist()
            torch.testing.assert_close(dist2[b, n], expected.sort().values[:3])
        weight, out = torch.rand(B, N, 3), torch.empty(B, C, N)
        batch.three_interpolate_wrapper(B, C, M, N, features, idx, weight, out)
        grad, sums, expected = torch.rand(B, C, N), torch.zeros(B, C, M), torch.zeros(B, C, M)
        batch.three_interpolate_grad_wrapper(B, C, N, M, grad, idx, weight, sums)
        for b, c, n in itertools.product(range(B), range(C), range(N)):
            torch.testing.assert_close(out[b, c, n], (features[b, c, idx[b, n].long()] * weight[b, n]).sum())
            for k in range(3):
                expected[b, c, idx[b, n, k]] += weight[b, n, k] * grad[b, c, n]
        torch.testing.assert_close(sums, expected)

    def test_any_shape_with_the_right_number_of_entries(self):
        features, idx, out = torch.rand(B, C, N), ints(B, M), torch.empty(B * C * M)
        batch.gather_points_wrapper(
            B, C, torch.tensor(N), M, features.transpose(0, 1).contiguous().transpose(0, 1), idx, out
        )
        assert torch.equal(out.view(B, C, M), _ext.gather_points(features, idx))

    def test_requires_grad_is_ignored(self):
        features, out = torch.rand(B, C, N, requires_grad=True), torch.empty(B, C, M)
        batch.gather_points_wrapper(B, C, N, M, features, ints(B, M), out)
        assert not out.requires_grad

    def test_empty(self):
        idx = torch.empty(B, 0, dtype=torch.int32)
        batch.farthest_point_sampling_wrapper(B, N, 0, torch.rand(B, N, 3), None, idx)
        batch.gather_points_wrapper(B, C, N, 0, torch.rand(B, C, N), idx, torch.empty(B, C, 0))
        batch.ball_query_wrapper(0, N, M, 0.1, K, torch.empty(0, M, 3), torch.empty(0, N, 3), ints(0, M, K))

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"c": C + 1}, ValueError, f"points must have b * c * n = {B * (C + 1) * N} entries, got {(B, C, N)}"),
            ({"b": "2"}, TypeError, "b must be an int, got str '2'"),
            ({"n": -1}, ValueError, "n must be at least 0, got -1"),
            ({"points": [1]}, TypeError, "points must be a torch.Tensor, got list"),
            ({"points": ints(B, C, N)}, TypeError, "points must be float32, float64, float16 or bfloat16, got int32"),
            ({"idx": torch.rand(B, M)}, TypeError, "idx must be int64 or int32, got float32"),
            ({"idx": ints(B, M) + N}, ValueError, None),
            ({"idx": ints(B, M).to("meta")}, ValueError, "idx must be on the device of points, cpu, got meta"),
            ({"out": torch.empty(7)}, ValueError, f"out must have b * c * npoints = {B * C * M} entries, got (7,)"),
            ({"out": torch.empty(M, C, B).mT}, ValueError, "out must be contiguous, got strides (6, 1, 2)"),
            ({"out": ints(B, C, M)}, TypeError, "out must be float32, float64, float16 or bfloat16, got int32"),
        ],
    )  # fmt: skip
    def test_errors(self, change, error, message):
        arguments = {"b": B, "c": C, "n": N, "npoints": M, "points": torch.rand(B, C, N), "idx": ints(B, M)}
        arguments |= {"out": torch.empty(B, C, M)} | change
        with pytest.raises(error, match=None if message is None else f"^{re.escape(message)}$") as caught:
            batch.gather_points_wrapper(**arguments)
        assert "\n" not in str(caught.value)


class TestStack:
    SIZES, NEW_SIZES = (11, 0, 6), (3, 0, 2)

    def clouds(self):
        sizes, new_sizes = (torch.tensor(part, dtype=torch.int32) for part in (self.SIZES, self.NEW_SIZES))
        return torch.rand(N, 3), sizes, torch.rand(M, 3), new_sizes

    def pairs(self):
        """(first point, number of points, query) for every query."""
        for cloud, (size, queries) in enumerate(zip(self.SIZES, self.NEW_SIZES, strict=True)):
            for query in range(queries):
                yield sum(self.SIZES[:cloud]), size, sum(self.NEW_SIZES[:cloud]) + query

    def test_ball_query(self):
        xyz, sizes, centers, new_sizes = self.clouds()
        centers[:3], centers[3:] = xyz[5:8], xyz[12:14]
        centers[1] = 9
        idx = torch.zeros(M, K, dtype=torch.int32)
        stack.ball_query_wrapper(3, M, 0.5, K, centers, new_sizes, xyz, sizes, idx)
        for first, size, query in self.pairs():
            expected = ball_by_loop(0.5, K, xyz[first : first + size], centers[query])
            assert idx[query].tolist() == ([-1, 0, 0, 0] if query == 1 else expected)

    def test_group(self):
        _, sizes, _, new_sizes = self.clouds()
        features, idx, out = torch.rand(N, C), ints(M, K, high=6), torch.empty(M, C, K)
        stack.group_points_wrapper(3, M, C, K, features, sizes, idx, new_sizes, out)
        grad, sums, expected = torch.rand(M, C, K), torch.zeros(N, C), torch.zeros(N, C)
        stack.group_points_grad_wrapper(3, M, C, N, K, grad, idx, new_sizes, sizes, sums)
        for first, _, query in self.pairs():
            for k in range(K):
                assert torch.equal(out[query, :, k], features[first + idx[query, k]])
                expected[first + idx[query, k]] += grad[query, :, k]
        torch.testing.assert_close(sums, expected)

    def test_sampling(self):
        xyz, sizes, _, new_sizes = self.clouds()
        idx = torch.zeros(M, dtype=torch.int32)
        stack.stack_farthest_point_sampling_wrapper(xyz, torch.full((N,), 1e10), sizes, idx, new_sizes)
        assert idx.tolist() == [*farthest_by_loop(xyz[:11], 3), *(11 + i for i in farthest_by_loop(xyz[11:], 2))]

    def test_interpolation(self):
        known, sizes, unknown, new_sizes = self.clouds()
        dist2, idx = torch.empty(M, 3), torch.empty(M, 3, dtype=torch.int32)
        stack.three_nn_wrapper(unknown, new_sizes, known, sizes, dist2, idx)
        for first, size, query in self.pairs():
            expected = ((known[first : first + size] - unknown[query]) ** 2).sum(1)
            assert idx[query].tolist() == (first + expected.argsort()[:3]).tolist()
            torch.testing.assert_close(dist2[query], expected.sort().values[:3])
        features, weight, out = torch.rand(N, C), torch.rand(M, 3), torch.empty(M, C)
        stack.three_interpolate_wrapper(features, idx, weight, out)
        torch.testing.assert_close(out, (features[idx.long()] * weight.unsqueeze(2)).sum(1))
        grad, sums = torch.rand(M, C), torch.zeros(N, C)
        stack.three_interpolate_grad_wrapper(grad, idx, weight, sums)
        expected = torch.zeros(N, C)
        for query, k in itertools.product(range(M), range(3)):
            expected[idx[query, k]] += weight[query, k] * grad[query]
        torch.testing.assert_close(sums, expected)

    def test_voxel_query(self):
        grid, reach, radius = (4, 5, 6), (1, 2, 1), 0.45
        xyz, centers = torch.rand(N, 3), torch.rand(M, 3)
        voxels = torch.full((2, *grid), -1, dtype=torch.int32)
        for point in range(N):
            z, y, x = (int(value * size) for value, size in zip(xyz[point].flip(0), grid, strict=True))
            voxels[point % 2, z, y, x] = point
        coords = torch.stack([torch.arange(M) % 2, *((centers[:, 2 - i] * grid[i]).long() for i in range(3))], 1).int()
        idx = torch.full((M, 2), 7, dtype=torch.int32)
        stack.voxel_query_wrapper(M, *grid, 2, radius, *reach, centers, xyz, coords, voxels, idx)
        for m in range(M):
            hits = []
            for step in itertools.product(*(range(-size, size + 1) for size in reach)):
                voxel = [int(coords[m, 1 + i]) + step[i] for i in range(3)]
                if all(0 <= v < size for v, size in zip(voxel, grid, strict=True)):
                    point = int(voxels[(int(coords[m, 0]), *voxel)])
                    if point >= 0 and (xyz[point] - centers[m]).norm() <= radius:
                        hits.append(point)
            hits = hits[:2]
            assert idx[m].tolist() == ([-1, 7] if not hits else hits + hits[:1] * (2 - len(hits)))

    @pytest.mark.parametrize(
        ("sizes", "new_sizes", "index", "message"),
        [
            ([11, 7], [3, 2], 0, f"features_batch_cnt must sum to N = {N}, got 18"),
            ([11, 6], [3, 3], 0, f"idx_batch_cnt must sum to M = {M}, got 6"),
            ([11, 6], [3, 2], 6, "idx must be -1 or less than the size of its cloud, got an index outside"),
            ([17], [3, 2], 0, "features_batch_cnt must have B = 2 entries, got (1,)"),
        ],
    )
    def test_errors(self, sizes, new_sizes, index, message):
        sizes, new_sizes = torch.tensor(sizes), torch.tensor(new_sizes)
        idx = torch.full((M, K), index)
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            stack.group_points_wrapper(2, M, C, K, torch.rand(N, C), sizes, idx, new_sizes, torch.empty(M, C, K))

    @pytest.mark.parametrize("name", ["vector_pool_wrapper", "vector_pool_grad_wrapper"])
    def test_refusal(self, name):
        with pytest.raises(
            NotImplementedError, match=rf"^pointgrad\.compat\.pointnet2_stack_cuda does not provide {name} "
        ):
            getattr(stack, name)()
