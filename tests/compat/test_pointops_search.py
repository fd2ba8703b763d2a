"""Sampling and neighbor search of pointgrad.compat.pointops against plain loops."""

import pytest
import torch

from pointgrad.compat import pointops
from pointgrad.compat.pointops.functions import pointops as older
from tests.compat.pointops_loops import DTYPES, ENDS, NEW_ENDS, ends, neighbors_by_loop, packed, queries_of, ranges


@pytest.mark.parametrize("dtype", DTYPES)
def test_farthest_point_sampling(dtype, default_place):
    points = packed(default_place, dtype=dtype)
    index = pointops.farthest_point_sampling(points, ends(default_place, *ENDS), ends(default_place, 5, 5, 8, 20))
    assert (index.dtype, index.shape) == (torch.int32, (20,))
    expected = []
    wide = points.cpu().to(torch.promote_types(dtype, torch.float32))
    for cloud, samples in zip(ranges(*ENDS), ranges(5, 5, 8, 20), strict=True):
        chosen = [cloud.start][: len(samples)]
        while len(chosen) < len(samples):
            distance2 = torch.stack([((wide[list(cloud)] - wide[pick]) ** 2).sum(1) for pick in chosen]).amin(0)
            chosen.append(cloud[int(distance2.argmax())])
        expected += chosen
    assert index.tolist() == expected
    for form in (pointops.FarthestPointSampling, pointops.FurthestSampling, older.FurthestSampling):
        again = form.apply(points, ends(default_place, *ENDS), ends(default_place, 5, 5, 8, 20))
        assert torch.equal(again, index)


def test_zero_samples_of_a_cloud(default_place):
    """The original overwrites a sample of another cloud."""
    points = packed(default_place, 6)
    index = pointops.farthest_point_sampling(points, ends(default_place, 2, 4, 6), ends(default_place, 1, 1, 2))
    assert index.tolist() == [0, 4]


def test_too_many_samples_repeat_the_first_point(default_place):
    points = packed(default_place, 5)
    index = pointops.farthest_point_sampling(points, ends(default_place, 2, 5), ends(default_place, 4, 9))
    assert index.tolist()[:4] == [0, 1, 0, 0]
    assert index.tolist()[4] == 2
    assert sorted(index.tolist()[5:7]) == [3, 4]
    assert index.tolist()[7:] == [2, 2]
    with pytest.raises(ValueError, match="new_offset must give 0 samples to the empty cloud 0, got 1"):
        pointops.farthest_point_sampling(points, ends(default_place, 0, 5), ends(default_place, 1, 2))


def test_batched_furthest_sampling(default_place):
    points = torch.rand(3, 30, 3, device=default_place.device)
    index = pointops.FurthestSampling.apply(points, 7)
    assert (index.dtype, index.shape) == (torch.int32, (3, 7))
    for cloud, picks in zip(points, index, strict=True):
        packed_picks = pointops.farthest_point_sampling(cloud, ends(default_place, 30), ends(default_place, 7))
        assert torch.equal(picks, packed_picks)


@pytest.mark.parametrize("nsample", [1, 4, 16])
@pytest.mark.parametrize("dtype", DTYPES)
def test_knn_query(dtype, nsample, default_place):
    points, queries = packed(default_place, dtype=dtype), packed(default_place, 20, dtype)
    arguments = (points, ends(default_place, *ENDS), queries, ends(default_place, *NEW_ENDS))
    idx, dist = pointops.knn_query(nsample, *arguments)
    assert (idx.dtype, dist.dtype) == (torch.int32, torch.promote_types(dtype, torch.float32))
    for cloud, query in queries_of(*NEW_ENDS):
        distance2, index = neighbors_by_loop(points, ranges(*ENDS)[cloud], queries[query])
        short = max(nsample - len(index), 0)
        assert idx[query].tolist() == index[:nsample].tolist() + [-1] * short
        expected = torch.cat([distance2[:nsample].sqrt(), distance2.new_full((short,), 1e5)])
        torch.testing.assert_close(dist[query].cpu(), expected)
    again = pointops.KNNQuery.apply(nsample, *arguments)
    assert torch.equal(again[0], idx)
    assert torch.equal(again[1], dist)


def test_knn_query_without_queries(default_place):
    points, offset = packed(default_place), ends(default_place, *ENDS)
    idx, dist = pointops.knn_query(3, points, offset)
    expected = pointops.knn_query(3, points, offset, points, offset)
    assert torch.equal(idx, expected[0])
    assert torch.equal(dist, expected[1])
    assert idx[:, 0].tolist() == list(range(40))


def test_k_above_128(default_place):
    """The original writes out of bounds."""
    points = packed(default_place, 300)
    idx, dist = pointops.knn_query(200, points, ends(default_place, 300), points[:5], ends(default_place, 5))
    for query in range(5):
        assert idx[query].tolist() == neighbors_by_loop(points, range(300), points[query])[1][:200].tolist()
    assert (dist.diff(dim=1) >= 0).all()


def test_knnquery_k_above_100(default_place):
    points = packed(default_place, 150)
    idx, _ = older.knnquery(120, points, points[:3], ends(default_place, 150), ends(default_place, 3))
    batched = older.knnquery(120, points[None], points[None, :3])
    for query in range(3):
        expected = neighbors_by_loop(points, range(150), points[query])[1][:120].tolist()
        assert idx[query].tolist() == expected
        assert batched[0, query].tolist() == expected


def test_distance_gradients(default_place):
    """The original has no backward. The gradient at distance zero, where the root has no derivative, is zero."""
    points = packed(default_place, 12, torch.float64).requires_grad_()
    offset = ends(default_place, 7, 12)

    def distances(xyz):
        return pointops.knn_query(3, xyz, offset)[1]

    distances(points).sum().backward()
    assert points.grad.isfinite().all()
    assert points.grad.abs().sum() > 0
    assert torch.autograd.gradcheck(lambda xyz: distances(xyz)[:, 1:], (points,), nondet_tol=default_place.nondet_tol)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_points_do_not_overflow(dtype, default_place):
    """181^2 + 181^2 overflows float16: in this precision all distances would be infinite."""
    points = (torch.rand(40, 3) * 2000).to(default_place.device, dtype)
    idx, dist = pointops.knn_query(40, points, ends(default_place, 40))
    for query in range(40):
        assert idx[query].tolist() == neighbors_by_loop(points, range(40), points[query])[1].tolist()
    assert dist.isfinite().all()
    assert dist.max() > 1000
    index = pointops.farthest_point_sampling(points, ends(default_place, 40), ends(default_place, 40))
    assert sorted(index.tolist()) == list(range(40))


def ball_by_loop(points, cloud, center, nsample, most, least):
    """Documented selection: in [least, most) or coincident, nearest first, at even ranks if there are too many."""
    distance2, index = neighbors_by_loop(points, cloud, center)
    most2, least2 = (torch.tensor(radius, dtype=distance2.dtype) ** 2 for radius in (most, least))
    kept = (distance2 < most2) & ((distance2 >= least2) | (distance2 <= 1e-5))
    distance2, index = distance2[kept], index[kept].tolist()
    count = len(index)
    ranks = [int(torch.tensor(count, dtype=torch.float32) / nsample * i) for i in range(nsample)]
    ranks = ranks if count > nsample else range(count)
    short = [0] * (nsample - len(ranks))
    picked = [index[rank] for rank in ranks] + [-1 for _ in short]
    return picked, [float(distance2[rank].sqrt()) for rank in ranks] + [1e5 for _ in short]


@pytest.mark.parametrize(("nsample", "most", "least"), [(4, 0.4, 0.0), (4, 0.6, 0.3), (50, 0.9, 0.0), (7, 0.9, 0.2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ball_query(dtype, nsample, most, least, default_place):
    points = packed(default_place, dtype=dtype)
    queries = torch.cat([points[:10], packed(default_place, 10, dtype)])
    arguments = (nsample, most, least, points, ends(default_place, *ENDS), queries, ends(default_place, *NEW_ENDS))
    idx, dist = pointops.ball_query(*arguments)
    assert (idx.dtype, dist.dtype) == (torch.int32, torch.promote_types(dtype, torch.float32))
    for cloud, query in queries_of(*NEW_ENDS):
        expected = ball_by_loop(points, ranges(*ENDS)[cloud], queries[query], nsample, most, least)
        assert idx[query].tolist() == expected[0]
        torch.testing.assert_close(dist[query].cpu(), torch.tensor(expected[1], dtype=dist.dtype))
    assert torch.equal(pointops.BallQuery.apply(*arguments)[0], idx)


def test_ball_of_more_than_2048_points(default_place):
    """In the original the order is wrong, the buffer overflows after 2048 points, and distances are indices."""
    points = packed(default_place, 3000) * 0.1
    center = points[:1]
    idx, dist = pointops.ball_query(5, 1.0, 0.0, points, ends(default_place, 3000), center, ends(default_place, 1))
    distance2, index = neighbors_by_loop(points, range(3000), center[0])
    assert idx[0].tolist() == [int(index[rank]) for rank in (0, 600, 1200, 1800, 2400)]
    torch.testing.assert_close(dist[0].cpu(), distance2[[0, 600, 1200, 1800, 2400]].sqrt())
    idx, dist = pointops.ball_query(3000, 1.0, 0.0, points, ends(default_place, 3000), center, ends(default_place, 1))
    assert torch.equal(idx[0].cpu().long(), index)


def test_max_radius_is_exclusive(default_place):
    line = torch.arange(5.0, device=default_place.device)[:, None] * torch.tensor(
        [1.0, 0, 0], device=default_place.device
    )
    arguments = (line, ends(default_place, 5), line[:1], ends(default_place, 1))
    assert pointops.ball_query(5, 3.0, 0.0, *arguments)[0].tolist() == [[0, 1, 2, -1, -1]]
    assert pointops.ball_query(5, 3.0, 2.0, *arguments)[0].tolist() == [[0, 2, -1, -1, -1]]
    assert sorted(pointops.random_ball_query(2, 3.0, 2.0, *arguments)[0][0].tolist()) == [0, 2]


def test_coincident_points_are_always_included(default_place):
    """Coincident means d^2 <= 1e-5, as in the original, but only within max_radius."""
    x = torch.tensor([0.0, 0.003, 0.004, 0.2, 0.5], device=default_place.device)
    points = x[:, None] * torch.tensor([1.0, 0, 0], device=default_place.device)
    arguments = (points, ends(default_place, 5), points[:1], ends(default_place, 1))
    assert pointops.ball_query(5, 1.0, 0.1, *arguments)[0].tolist() == [[0, 1, 3, 4, -1]]
    assert pointops.random_ball_query(5, 1.0, 0.1, *arguments)[0].tolist() == [[0, 1, 3, 4, -1]]
    assert pointops.ball_query(2, 1.0, 0.1, *arguments)[0].tolist() == [[0, 3]]
    assert pointops.ball_query(5, 0.002, 0.0, *arguments)[0].tolist() == [[0, -1, -1, -1, -1]]


@pytest.mark.parametrize("least", [0.0, 0.3])
def test_random_ball_query(least, default_place):
    points, offset = packed(default_place), ends(default_place, *ENDS)
    arguments = (5, 0.7, least, points, offset)
    torch.manual_seed(3)
    idx, dist = pointops.random_ball_query(*arguments)
    torch.manual_seed(3)
    assert torch.equal(pointops.RandomBallQuery.apply(*arguments)[0], idx)
    drawn = set()
    for _ in range(20):
        drawn |= {tuple(sorted(row)) for row in pointops.random_ball_query(*arguments)[0][20:21].tolist()}
    assert len(drawn) > 1
    for query, cloud in enumerate(pointops.offset2batch(offset).tolist()):
        everything = ball_by_loop(points, ranges(*ENDS)[cloud], points[query], 100, 0.7, least)[0]
        everything = {index for index in everything if index >= 0}
        picked = [index for index in idx[query].tolist() if index >= 0]
        assert len(picked) == len(set(picked)) == min(len(everything), 5)
        assert set(picked) <= everything
        real = (points[idx[query, : len(picked)].long()] - points[query]).norm(dim=1)
        torch.testing.assert_close(dist[query, : len(picked)], real)
        assert (dist[query, len(picked) :] == 1e5).all()


def test_knnquery_pads_with_the_first_index(default_place):
    """Pointcept's knn_query pads with -1. An empty cloud has no first index and also gives -1 here."""
    points, queries = packed(default_place), packed(default_place, 20)
    offset, new_offset = ends(default_place, *ENDS), ends(default_place, *NEW_ENDS)
    idx, dist = older.knnquery(8, points, queries, offset, new_offset)
    modern, modern_dist = pointops.knn_query(8, points, offset, queries, new_offset)
    first = torch.tensor([0, -1, 12, 15], device=default_place.device)[pointops.offset2batch(new_offset)]
    assert torch.equal(idx, torch.where(modern < 0, first[:, None].int(), modern))
    assert (modern[6:8] < 0).any()
    assert torch.equal(dist, modern_dist)
    assert torch.equal(older.KNNQuery.apply(8, points, queries, offset, new_offset)[0], idx)
    assert torch.equal(older.knnquery(2, points, None, offset, offset)[0][:, 0].cpu(), torch.arange(40).int())


def test_batched_knnquery(default_place):
    points, queries = torch.rand(2, 9, 3, device=default_place.device), torch.rand(2, 4, 3, device=default_place.device)
    idx = older.knnquery(5, points, queries)
    assert (idx.dtype, idx.shape) == (torch.int32, (2, 4, 5))
    order = torch.cdist(queries.double(), points.double()).argsort(dim=-1)
    assert torch.equal(idx.long(), order[..., :5])
    for form in (older.KNNQuery, older.KNNQuery_Heap, older.KNNQueryNaive):
        assert torch.equal(form.apply(5, points, queries), idx)
    assert torch.equal(older.KNNQueryExclude.apply(4, points, queries), idx[..., 1:])
    short = older.knnquery(12, points)
    assert (short[..., 9:] == 0).all()
    assert short[..., 0].tolist() == [list(range(9))] * 2
