"""The class counts and features of PointWeb's `pointops_cuda` against plain loops."""

import pytest
import torch

from pointgrad.compat import pointops_cuda

B, N, M, K, CLASSES = 2, 13, 5, 4, 3
RADIUS = 0.4


def ints(*shape, high):
    return torch.randint(0, high, shape, dtype=torch.int32)


@pytest.fixture
def scene():
    return torch.rand(B, M, 3), torch.rand(B, N, 3), ints(B, N, CLASSES, high=9)


def inside(center, points):
    return [row for row, point in enumerate(points) if float(((point - center) ** 2).sum()) < RADIUS**2]


def sums(counts, rows):
    return [sum(int(counts[row, column]) for row in rows) for column in range(CLASSES)]


def test_counts_of_an_index():
    counts, idx, out = ints(B, N, CLASSES, high=9), ints(B, M, K, high=N), ints(B, M, CLASSES, high=9)
    pointops_cuda.labelstat_idx_cuda(B, N, M, K, CLASSES, counts, idx, out)
    for b in range(B):
        assert out[b].tolist() == [sums(counts[b], rows) for rows in idx[b].tolist()]


def test_counts_of_a_ball(scene, monkeypatch):
    """Without a limit on the number of points, and in several parts."""
    centers, points, counts = scene
    centers[0, 0] = 50.0  # an empty ball
    out = ints(B, M, CLASSES, high=9)
    pointops_cuda.labelstat_ballrange_cuda(B, N, M, RADIUS, CLASSES, centers, points, counts, out)
    for b in range(B):
        assert out[b].tolist() == [sums(counts[b], inside(center, points[b])) for center in centers[b]]
    many = torch.rand(1, 2**13, 3), ints(1, 2**13, 1, high=9)
    queries, out = torch.rand(1, 3000, 3), ints(1, 3000, 1, high=9)
    pointops_cuda.labelstat_ballrange_cuda(1, 2**13, 3000, 9.0, 1, queries, *many, out)
    assert out.unique().tolist() == [int(many[1].sum())]


def test_counts_and_index_of_a_ball(scene):
    centers, points, counts = scene
    centers[0, 0] = 50.0
    out, idx = ints(B, M, CLASSES, high=9), torch.full((B, M, K), 7, dtype=torch.int32)
    pointops_cuda.labelstat_and_ballquery_cuda(B, N, M, RADIUS, K, CLASSES, centers, points, counts, idx, out)
    for b in range(B):
        for query in range(M):
            found = inside(centers[b, query], points[b])[:K]
            assert out[b, query].tolist() == sums(counts[b], found)
            padded = found + found[:1] * (K - len(found)) if found else [7] * K
            assert idx[b, query].tolist() == padded


def test_features_of_the_nearest(scene):
    queries, points, _ = scene
    idx = torch.zeros(B, M, dtype=torch.int32)
    pointops_cuda.featuredistribute_cuda(B, N, M, points, queries, idx)
    assert torch.equal(idx.long(), ((queries[:, :, None] - points[:, None]) ** 2).sum(-1).argmin(-1))
    features, out = torch.rand(B, 6, N), torch.zeros(B, 6, M)
    pointops_cuda.featuregather_forward_cuda(B, N, M, 6, features, idx, out)
    gradient, received = torch.rand(B, 6, M), torch.ones(B, 6, N)
    pointops_cuda.featuregather_backward_cuda(B, N, M, 6, gradient, idx, received)
    expected = torch.ones(B, 6, N)
    for b in range(B):
        for query in range(M):
            assert torch.equal(out[b, :, query], features[b, :, idx[b, query]])
            expected[b, :, idx[b, query]] += gradient[b, :, query]
    torch.testing.assert_close(received, expected)


def test_messages(scene):
    centers, points, counts = scene
    with pytest.raises(ValueError, match=r"new_label_stat must have b \* m \* nclass = 30 entries, got \(2, 5\)"):
        pointops_cuda.labelstat_ballrange_cuda(B, N, M, RADIUS, CLASSES, centers, points, counts, ints(B, M, high=2))
    with pytest.raises(ValueError, match="got 13"):
        pointops_cuda.labelstat_idx_cuda(
            B, N, M, K, CLASSES, counts, torch.full((B, M, K), N), ints(B, M, CLASSES, high=2)
        )
