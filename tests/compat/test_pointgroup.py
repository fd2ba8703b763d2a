"""The modules `PG_OP`, `pointgroup_ops_cuda` and `pointgroup_ops` against plain loops."""

import itertools
import re
from collections import deque

import pytest
import torch

from pointgrad.compat import PG_OP, pointgroup_ops, pointgroup_ops_cuda

N, C = 40, 3
OFFSETS = torch.tensor([0, 25, 25, N], dtype=torch.int32)
BATCH = torch.tensor([0] * 25 + [2] * 15, dtype=torch.int32)


def balls_by_loop(points, radius):
    lists = []
    for i in range(N):
        same = [j for j in range(N) if BATCH[j] == BATCH[i]]
        lists.append([j for j in same if ((points[i] - points[j]) ** 2).sum() < radius**2])
    return lists


def clusters_by_loop(labels, lists, threshold):
    seen, clusters = set(), []
    for seed in range(len(labels)):
        if seed in seen:
            continue
        cluster, queue = [seed], deque([seed])
        seen.add(seed)
        while queue:
            for near in lists[queue.popleft()]:
                if near not in seen and labels[near] == labels[seed]:
                    seen.add(near)
                    cluster.append(near)
                    queue.append(near)
        if len(cluster) >= threshold:
            clusters.append(cluster)
    return clusters


class TestBallsAndClusters:
    @pytest.mark.parametrize("radius", [0.01, 0.3, 2.0])
    @pytest.mark.parametrize("space", [1, 50])
    def test_balls(self, radius, space):
        points = torch.rand(N, 3)
        idx, start_len = pointgroup_ops.ballquery_batch_p(points, BATCH, OFFSETS, radius, space)
        assert (idx.dtype, start_len.dtype) == (torch.int32, torch.int32)
        received = [idx[start : start + length].tolist() for start, length in start_len.tolist()]
        assert received == balls_by_loop(points, radius)
        assert start_len[:, 1].sum() == len(idx)

    def test_raw_balls_without_enough_space(self):
        points, idx = torch.rand(N, 3), torch.full((N,), -5, dtype=torch.int32)
        start_len = torch.zeros(N, 2, dtype=torch.int32)
        expected = list(itertools.chain(*balls_by_loop(points, 0.5)))
        total = pointgroup_ops_cuda.ballquery_batch_p(points, BATCH, OFFSETS, idx, start_len, N, 1, 0.5)
        assert total == len(expected) > N
        assert idx.tolist() == expected[:N]

    def test_at_most_1000_points(self):
        idx, start_len = pointgroup_ops.ballquery_batch_p(
            torch.zeros(1010, 3), torch.zeros(1010, dtype=torch.int32), torch.tensor([0, 1010]), 0.1, 10
        )
        assert start_len[:, 1].tolist() == [1000] * 1010
        assert idx[-1000:].tolist() == list(range(1000))

    def test_empty(self):
        none = torch.empty(0, dtype=torch.int32)
        idx, start_len = pointgroup_ops.ballquery_batch_p(torch.empty(0, 3), none, torch.tensor([0]), 0.1, 10)
        assert idx.shape == (0,)
        clusters, offsets = pointgroup_ops.bfs_cluster(none, idx, start_len, 1)
        assert clusters.shape == (0, 2)
        assert offsets.tolist() == [0]

    @pytest.mark.parametrize("threshold", [1, 4])
    @pytest.mark.parametrize("directed", [False, True])
    def test_clusters(self, threshold, directed):
        points, labels = torch.rand(N, 3), torch.randint(0, 2, (N,), dtype=torch.int32)
        lists = balls_by_loop(points, 0.35)
        if directed:  # as after a ball query that was cut off
            lists = [row[: 1 + i % 3] for i, row in enumerate(lists)]
        lengths = torch.tensor([len(row) for row in lists], dtype=torch.int32)
        start_len = torch.stack([lengths.cumsum(0) - lengths, lengths], 1).int()
        idx = torch.tensor(list(itertools.chain(*lists)), dtype=torch.int32)
        clusters, offsets = pointgroup_ops.bfs_cluster(labels, idx, start_len, threshold)
        expected = clusters_by_loop(labels.tolist(), lists, threshold)
        assert clusters.dtype == offsets.dtype == torch.int32
        assert clusters.tolist() == [[i, point] for i, cluster in enumerate(expected) for point in cluster]
        assert offsets.tolist() == [0, *itertools.accumulate(map(len, expected))]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"batch_idxs": BATCH * 0}, "batch_idxs must have the clouds of batch_offsets, got others"),
            ({"batch_offsets": OFFSETS[:-1]}, f"batch_offsets must be offsets from 0 to n = {N}, got [0, 25, 25]"),
            ({"start_len": BATCH}, f"start_len must have n * 2 = {2 * N} entries, got (40,)"),
        ],
    )  # fmt: skip
    def test_errors(self, change, message):
        arguments = {"xyz": torch.rand(N, 3), "batch_idxs": BATCH, "batch_offsets": OFFSETS}
        arguments |= {"idx": torch.zeros(N, dtype=torch.int32), "start_len": torch.zeros(N, 2, dtype=torch.int32)}
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            PG_OP.ballquery_batch_p(**(arguments | change), n=N, meanActive=1, radius=0.1)

    def test_lists_outside(self):
        start_len = torch.tensor([[0, 1], [1, 5]], dtype=torch.int32)
        with pytest.raises(ValueError, match=r"^start_len must name lists within 2 entries, got another one$"):
            pointgroup_ops.bfs_cluster(torch.zeros(2).int(), torch.tensor([0, 1]), start_len, 1)
        with pytest.raises(ValueError, match=r"^ball_query_idxs must be -1 or in \[0, 2\), got 7$"):
            pointgroup_ops.bfs_cluster(torch.zeros(2).int(), torch.tensor([0, 7]), start_len.clamp(max=1), 1)


class TestVoxels:
    def voxels_by_loop(self, coords):
        groups = {}
        for row, voxel in enumerate(map(tuple, coords.tolist())):
            groups.setdefault(voxel, []).append(row)
        return groups

    @pytest.mark.parametrize("mode", [1, 2, 3, 4])
    def test_numbering(self, mode):
        coords = torch.randint(0, 2, (N, 4))
        groups = self.voxels_by_loop(coords)
        voxels, numbers, table = pointgroup_ops.voxelization_idx(coords, 2, mode)
        assert list(map(tuple, voxels.tolist())) == list(groups)
        assert numbers.tolist() == [list(groups).index(tuple(voxel)) for voxel in coords.tolist()]
        kept = [{1: rows[:1], 2: rows[-1:]}.get(mode, rows) for rows in groups.values()]
        most = max(map(len, kept))
        assert table.tolist() == [[len(rows), *rows, *[0] * (most - len(rows))] for rows in kept]
        assert (numbers.dtype, table.dtype) == (torch.int32, torch.int32)

    def test_unique_mode(self):
        with pytest.raises(ValueError, match=r"^coords must be unique for mode 0, got equal rows$"):
            pointgroup_ops.voxelization_idx(torch.zeros(2, 4, dtype=torch.int64), 1, 0)
        assert pointgroup_ops.voxelization_idx(torch.tensor([[0, 1, 2, 3]]), 1, 0)[2].tolist() == [[1, 0]]

    @pytest.mark.parametrize("mode", [3, 4])
    def test_features(self, mode):
        coords = torch.randint(0, 2, (N, 4))
        groups = list(self.voxels_by_loop(coords).values())
        _, numbers, table = pointgroup_ops.voxelization_idx(coords, 2, mode)
        feats = torch.rand(N, C, dtype=torch.float64, requires_grad=True)
        out = pointgroup_ops.voxelization(feats, table, mode)
        expected = [feats[rows].sum(0) / (len(rows) if mode == 4 else 1) for rows in groups]
        torch.testing.assert_close(out, torch.stack(expected))
        assert torch.autograd.gradcheck(lambda x: pointgroup_ops.voxelization(x, table, mode), feats)
        back = pointgroup_ops.point_recover(out, table, N)
        torch.testing.assert_close(back, out[numbers.long()])
        rows = torch.rand(len(groups), C, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: pointgroup_ops.point_recover(x, table, N), rows)


class TestProposals:
    BOUNDS = torch.tensor([0, 7, 7, 30, N], dtype=torch.int32)

    def parts(self, rows):
        return [rows[begin:end] for begin, end in itertools.pairwise(self.BOUNDS.tolist())]

    def test_reductions(self):
        rows = torch.rand(N, C)
        means = torch.stack([part.mean(0) if len(part) else torch.zeros(C) for part in self.parts(rows)])
        torch.testing.assert_close(pointgroup_ops.sec_mean(rows, self.BOUNDS), means)
        least = torch.stack([part.amin(0) if len(part) else torch.full((C,), torch.inf) for part in self.parts(rows)])
        assert torch.equal(pointgroup_ops.sec_min(rows, self.BOUNDS), least)
        most = torch.stack([part.amax(0) if len(part) else torch.full((C,), -torch.inf) for part in self.parts(rows)])
        assert torch.equal(pointgroup_ops.sec_max(rows, self.BOUNDS), most)
        assert torch.equal(pointgroup_ops.roipool(rows, self.BOUNDS), most)

    def test_roipool_gradient(self):
        rows = torch.rand(N, C, requires_grad=True)
        weight = torch.rand(4, C)
        grad = torch.autograd.grad(pointgroup_ops.roipool(rows, self.BOUNDS), rows, weight)[0]
        expected = torch.zeros(N, C)
        for p, (begin, end) in enumerate(itertools.pairwise(self.BOUNDS.tolist())):
            for c in range(C if end > begin else 0):
                expected[begin + int(rows[begin:end, c].argmax()), c] += weight[p, c]
        assert torch.equal(grad, expected)

    def test_iou(self):
        idx, labels = torch.randint(0, N, (N,), dtype=torch.int32), torch.randint(-1, 3, (N,))
        sizes = torch.tensor([int((labels == i).sum()) for i in range(3)], dtype=torch.int32)
        received = pointgroup_ops.get_iou(idx, self.BOUNDS, labels, sizes)
        for p, part in enumerate(self.parts(idx)):
            for i in range(3):
                shared = sum(int(labels[point]) == i for point in part.tolist())
                torch.testing.assert_close(received[p, i].item(), shared / (len(part) + int(sizes[i]) - shared + 1e-5))

    def test_errors(self):
        with pytest.raises(ValueError, match=r"^offsets must be non-decreasing from 0 to N = 40, got \[0, 41\]$"):
            pointgroup_ops.sec_mean(torch.rand(N, C), torch.tensor([0, 41]))
