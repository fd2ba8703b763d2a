"""Properties specific to the searches: agreement with SciPy on many clouds, every k, every selection."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

import pointgrad
from pointgrad import NeighborIndex, ball_query, knn
from tests.support.places import PLACES


def cloud(kind: str, count: int, dims: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    points = torch.rand(count, dims, generator=generator)
    if kind == "grid":
        points = (points * 6).floor()
    if kind == "clusters":
        points = (points * 4).floor() * 100 + torch.randn(count, dims, generator=generator)
    if kind == "duplicates":
        points = points[torch.randint(0, max(count // 10, 1), (count,), generator=generator)]
    if kind == "line":
        points = torch.cat([points[:, :1], torch.zeros(count, dims - 1)], dim=1)
    if kind == "far":
        points[count // 2] = 1e6
    return points


KINDS = ["uniform", "grid", "clusters", "duplicates", "line", "far"]


def all_pairs(points: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """(M, N) squared distances, axis by axis."""
    total = torch.zeros(len(queries), len(points), dtype=points.dtype)
    for axis in range(points.shape[1]):
        total += (points[None, :, axis] - queries[:, None, axis]) ** 2
    return total


def assert_as_scipy(found, points, queries, k, radius=math.inf):
    """SciPy computes in float64 and breaks ties arbitrarily: distances agree, and belong to the indices."""
    tree = cKDTree(points.double().numpy())
    distance, _ = tree.query(queries.double().numpy(), k=[*range(1, k + 1)], distance_upper_bound=radius)
    index, distance2, count = (x.cpu() for x in found)
    valid = index >= 0
    assert torch.equal(valid.sum(1), count)
    expected = torch.from_numpy(distance).float()
    edge = 1e-5 * radius if math.isfinite(radius) else 0  # a point on the boundary may round either way
    sure = (expected < radius - edge) | (expected.isinf() & ~valid)
    torch.testing.assert_close(distance2.sqrt()[sure], expected[sure], rtol=1e-4, atol=1e-5)
    for row in index:
        kept = row[row >= 0]
        assert len(kept.unique()) == len(kept)
    gap = points[index.clamp(min=0)] - queries[:, None]
    torch.testing.assert_close((gap**2).sum(-1)[valid], distance2[valid], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_knn_agrees_with_scipy(kind, place):
    size = 150 if place.interpreted else 3000
    points, queries = cloud(kind, size), cloud(kind, size // 3) + 0.1
    found = knn(points.to(place.device), 9, queries.to(place.device))
    assert_as_scipy(found, points, queries, 9)


@pytest.mark.parametrize("kind", KINDS)
def test_ball_agrees_with_scipy(kind, place):
    size = 150 if place.interpreted else 3000
    points = cloud(kind, size)
    radius = {"grid": 1.5, "clusters": 1.0}.get(kind, 0.2)
    found = ball_query(points.to(place.device), radius, 12)
    assert_as_scipy(found, points, points, 12, radius)


@pytest.mark.parametrize("k", [1, 3, 16, 33, 128, 500, 700])
@pytest.mark.parametrize("kind", ["uniform", "grid"])
def test_every_k_is_a_stable_sort_of_all_pairs(kind, k, place):
    if place.interpreted and k in (128, 500):
        pytest.skip("minutes in the interpreter; 33 and 700 of fewer points take the same path there")
    size = 40 if place.interpreted and k == 700 else 700
    points = cloud(kind, size)
    queries = cloud(kind, 33)
    k = min(k, size)
    distance2, order = all_pairs(points, queries).sort(dim=1, stable=True)
    index, received, count = knn(points.to(place.device), k, queries.to(place.device))
    assert torch.equal(index.cpu(), order[:, :k])
    assert torch.equal(received.cpu(), distance2[:, :k])
    assert (count == k).all()


@pytest.mark.parametrize("dims", range(1, 9))
def test_every_dimension(dims, place):
    points, queries = cloud("uniform", 90, dims), cloud("grid", 20, dims) / 6
    distance2, order = all_pairs(points, queries).sort(dim=1, stable=True)
    index, received, _ = knn(points.to(place.device), 5, queries.to(place.device))
    assert torch.equal(index.cpu(), order[:, :5])
    assert torch.equal(received.cpu(), distance2[:, :5])


def test_real_scan_agrees_with_scipy(scan, place):
    if place.interpreted or place.backend == "reference":
        pytest.skip("all pairs of a hundred thousand points: only where there is a kernel")
    found = knn(scan.to(place.device), 16)
    part = torch.arange(0, len(scan), 50)
    assert_as_scipy([x.cpu()[part] for x in found], scan, scan[part], 16)


def test_backends_agree_to_the_bit(kernel_place):
    """On a cloud large enough for all levels of the index."""
    if kernel_place.interpreted:
        pytest.skip("minutes in the interpreter; the contract compares small clouds")
    generator = torch.Generator().manual_seed(3)
    points = torch.rand(45_000, 3, generator=generator)
    queries = torch.rand(500, 3, generator=generator) * 1.2 - 0.1
    points, queries = points.to(kernel_place.device), queries.to(kernel_place.device)
    received = [*knn(points, 20, queries), *ball_query(points, 0.05, 40, queries, select="first")]
    with pointgrad.backend("reference"):
        expected = [*knn(points, 20, queries), *ball_query(points, 0.05, 40, queries, select="first")]
    for actual, desired in zip(received, expected, strict=True):
        assert torch.equal(actual, desired)


def test_first_is_the_order_of_the_index(place):
    points = cloud("uniform", 200)
    within = all_pairs(points, points) <= 0.3**2
    index, distance2, count = (x.cpu() for x in ball_query(points.to(place.device), 0.3, 6, select="first"))
    for row in range(200):
        expected = within[row].nonzero().squeeze(1)[:6]
        assert index[row, : count[row]].tolist() == expected.tolist()
        assert (index[row, count[row] :] == -1).all()
        assert distance2[row, count[row] :].isinf().all()


def test_random_selection_is_uniform(place):
    """All points of the ball are equally likely; a seed gives the same draw on every backend."""
    points = torch.zeros(20, 3)
    points[:, 0] = torch.arange(20)
    queries = torch.zeros(100 if place.interpreted else 2000, 3)
    torch.manual_seed(0)
    index, distance2, count = ball_query(points.to(place.device), 9.5, 4, queries.to(place.device), select="random")
    assert (count == 4).all()
    assert (distance2.diff(dim=1) > 0).all()  # nearest first
    assert index.max() <= 9
    times = torch.bincount(index.flatten().cpu(), minlength=10) / len(queries)
    assert (times - 0.4).abs().max() < 5 * math.sqrt(0.4 * 0.6 / len(queries))
    torch.manual_seed(0)
    with pointgrad.backend("reference"):
        again = ball_query(points.to(place.device), 9.5, 4, queries.to(place.device), select="random")
    assert torch.equal(again.index, index)
    assert not torch.equal(
        ball_query(points.to(place.device), 9.5, 4, queries.to(place.device), select="random").index, index
    )


def test_edges_of_the_ball_are_included(place):
    line = torch.arange(5.0, device=place.device)[:, None]
    assert ball_query(line, 1, 5).count.tolist() == [2, 3, 3, 3, 2]
    assert ball_query(line, 2, 5, min_radius=1).index.tolist() == [
        [1, 2, -1, -1, -1],
        [0, 2, 3, -1, -1],
        [1, 3, 0, 4, -1],
        [2, 4, 1, -1, -1],
        [3, 2, -1, -1, -1],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_open_ball_ends_just_below_its_radius(dtype, place):
    """Exactly: the number below the squared radius is inside, even if no radius has that square."""
    radius = torch.tensor(0.1, dtype=dtype)
    square = radius * radius
    below = torch.nextafter(square, torch.zeros_like(square))
    eps = torch.finfo(dtype).eps
    x = radius * (1 + torch.arange(-16, 16, dtype=dtype) * eps)
    y = radius * torch.linspace(0, 2, 9, dtype=dtype) * eps**0.5
    x, y = torch.cartesian_prod(x, y).unbind(1)
    distance2 = x * x + y * y
    assert (distance2 == square).any()
    assert (distance2 == below).any()
    points = torch.stack([x, y], dim=1).to(place.device)
    center = torch.zeros(1, 2, dtype=dtype, device=place.device)
    found = ball_query(points, 0.1, len(points), center, closed=False)
    assert sorted(found.index[0][found.index[0] >= 0].tolist()) == (distance2 < square).nonzero().flatten().tolist()
    found = NeighborIndex(points).ball_query(0.1, 5, center, closed=False, select="first")
    assert found.index[0].tolist() == (distance2 < square).nonzero().flatten()[:5].tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_non_finite_points_are_not_neighbors(bad, place):
    """NaN, infinity, and distances that overflow."""
    points = cloud("uniform", 40).to(place.device)
    points[7, 1] = bad
    index, distance2, count = knn(points, 40)
    assert not (index == 7).any(dim=1)[torch.arange(40) != 7].any()
    assert (count[torch.arange(40) != 7] == 39).all()
    assert count[7] == (1 if bad == 3e38 else 0)  # itself, at distance zero
    assert distance2[index >= 0].isfinite().all()


def test_a_radius_is_rounded_as_distances_are(place):
    points = torch.tensor([[0.0], [0.1]], device=place.device)  # neither 0.1 nor its square is exact
    assert ball_query(points, 0.1, 2).count.tolist() == [2, 2]


def test_many_equal_points_at_a_corner():
    """As in a scan padded with zeros: all leaves of zeros are equally near."""
    points = torch.rand(30_000, 3)
    points[torch.randperm(30_000)[:15_000]] = 0
    zeros = (points == 0).all(1).nonzero().squeeze(1)
    index, distance2, _ = knn(points, 16)
    assert torch.equal(index[zeros], zeros[:16].expand(15_000, 16))
    assert (distance2[zeros] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("positions", [1, 3, 40])
def test_many_equal_points(positions, dtype):
    """Leaves of equal points are skipped by their indices, wherever points that differ lie between them."""
    generator = torch.Generator().manual_seed(positions)
    places = torch.rand(positions, 3, generator=generator, dtype=dtype)
    points = places[torch.randint(positions, (2000,), generator=generator)]
    points[torch.randperm(2000, generator=generator)[:50]] += 1e-3
    points[0, 0] = -0.0
    queries = torch.cat([places.repeat(20, 1), points[::50]])

    def searches():
        index = pointgrad.NeighborIndex(points)  # with an index, few queries are searched with the tree too
        yield from index.knn(20)
        yield from index.knn(300, queries)
        for select, options in [("nearest", {}), ("first", {}), ("first", {"closed": False}), ("random", {})]:
            torch.manual_seed(0)
            yield from index.ball_query(0.5, 33, queries, select=select, **options)
            yield from index.ball_query(0.5, 33, queries, select=select, min_radius=1e-4, **options)

    with pointgrad.backend("reference"):
        expected = list(searches())
    for actual, desired in zip(searches(), expected, strict=True):
        assert torch.equal(actual, desired)


def test_half_precision_is_compared_in_float32(place):
    """Squares of more than 181 units overflow float16."""
    points = torch.tensor([[0.0], [600.0], [1000.0]], dtype=torch.float16, device=place.device)
    found = knn(points, 3)
    assert found.distance2[0].tolist() == [0.0, 360000.0, 1000000.0]
    assert found.distance2.dtype == torch.float32


def test_clouds_are_separate(place):
    points = torch.rand(300, 3, device=place.device)
    offsets = torch.tensor([0, 100, 100, 300], device=place.device)
    index = knn(points, 5, offsets=offsets).index
    assert (index[:100] < 100).all()
    assert (index[100:] >= 100).all()
    padded = torch.stack([points[:100], points[100:200], points[200:]])
    received = knn(padded, 5)
    for number in range(3):
        assert torch.equal(received.index[number], knn(padded[number], 5).index)


class TestNeighborIndex:
    @pytest.mark.parametrize("lengths", [None, torch.tensor([3, 5])])
    def test_deep_copy(self, lengths):
        points = torch.rand(2, 5, 3).requires_grad_()
        copied = copy.deepcopy(NeighborIndex(points, lengths=lengths))
        found, expected = copied.knn(2), NeighborIndex(points, lengths=lengths).knn(2)
        assert torch.equal(found.index, expected.index)
        found.distance2[..., 1].sum().backward()
        assert points.grad.abs().sum() > 0

    def test_agrees_with_the_functions(self, place):
        points, queries = cloud("uniform", 200).to(place.device), cloud("clusters", 50).to(place.device) / 400
        index = NeighborIndex(points)
        pairs = [
            (index.knn(4), knn(points, 4)),
            (index.knn(40, queries), knn(points, 40, queries)),
            (index.ball_query(0.2, 4), ball_query(points, 0.2, 4)),
            (index.ball_query(0.2, 3, queries, select="first"), ball_query(points, 0.2, 3, queries, select="first")),
        ]
        for received, expected in pairs:
            for actual, desired in zip(received, expected, strict=True):
                assert torch.equal(actual, desired)

    def test_keeps_its_own_copy(self, place):
        points = cloud("uniform", 60).to(place.device)
        offsets = torch.tensor([0, 20, 60], device=place.device)
        index = NeighborIndex(points, offsets=offsets)
        expected = index.knn(5)
        points.fill_(7)
        offsets.fill_(0)
        assert torch.equal(index.knn(5).index, expected.index)
        assert torch.equal(index.knn(5).distance2, expected.distance2)

    def test_gradients_reach_the_points_it_was_built_from(self, place):
        points = cloud("uniform", 30).to(place.device).requires_grad_()
        NeighborIndex(points).knn(4).distance2.sum().backward()
        received = points.grad.clone()
        points.grad = None
        knn(points, 4).distance2.sum().backward()
        torch.testing.assert_close(received, points.grad)

    def test_survives_a_change_of_backend(self):
        points = cloud("uniform", 100)
        index = NeighborIndex(points)
        expected = index.knn(3)
        with pointgrad.backend("reference"):
            assert torch.equal(index.knn(3).index, expected.index)
            built = NeighborIndex(points)
        assert torch.equal(built.knn(3).index, expected.index)


def test_gradient_by_hand(place):
    """d |p - q|^2 is 2 (p - q) for the point and the opposite for the query."""
    points = torch.tensor([[0.0, 0, 0], [1, 2, 3]], device=place.device, requires_grad=True)
    queries = torch.tensor([[1.0, 1, 1]], device=place.device, requires_grad=True)
    index, distance2, _ = knn(points, 3, queries)
    assert index.tolist() == [[0, 1, -1]]
    assert distance2.tolist() == [[3, 5, math.inf]]
    (distance2 * torch.tensor([1.0, 10, 100], device=place.device))[:, :2].sum().backward()
    assert points.grad.tolist() == [[-2, -2, -2], [0, 20, 40]]
    assert queries.grad.tolist() == [[2, -18, -38]]


def test_queries_in_a_wider_dtype_under_autocast(place):
    points, queries = cloud("uniform", 30).to(place.device), cloud("uniform", 9).to(place.device)
    with torch.autocast(place.device, torch.bfloat16):
        found = knn(points.bfloat16(), 3, queries)
    assert torch.equal(found.index, knn(points.bfloat16().float(), 3, queries).index)


def test_edges(place):
    index = torch.tensor([[[0, 1], [2, -1]], [[-1, -1], [1, 0]]], device=place.device)
    assert pointgrad.to_edges(index, 3).tolist() == [[0, 1, 2, 4, 3], [0, 0, 1, 3, 3]]
    points = cloud("uniform", 50).to(place.device)
    source, target = pointgrad.to_edges(knn(points, 4).index)
    assert torch.equal(target, torch.arange(50, device=place.device).repeat_interleave(4))
    assert torch.equal(source.view(50, 4), knn(points, 4).index)


def test_edges_are_not_dropped_where_their_numbers_overflow():
    index = torch.zeros(3, 2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=rf"^num_points must be at least 0 and below 2\^63 / 3, got {2**62}$"):
        pointgrad.to_edges(index, 2**62)
    assert pointgrad.to_edges(index, 2**60)[0].max() == 2**61


@given(
    seed=st.integers(0, 2**31),
    size=st.integers(0, 120),
    num_queries=st.integers(0, 40),
    dims=st.integers(1, 4),
    k=st.integers(1, 50),
    levels=st.sampled_from([2, 5, 1000]),
    select=st.sampled_from(["nearest", "first", "random"]),
    bounds=st.sampled_from([(math.inf, 0), (1.5, 0), (2.0, 0.5), (0.01, 0)]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
    parts=st.integers(1, 4),
)
@settings(deadline=None, max_examples=150)
def test_random_calls_agree_with_the_reference(seed, size, num_queries, dims, k, levels, select, bounds, dtype, parts):
    generator = np.random.default_rng(seed)
    points = torch.from_numpy(generator.integers(0, levels, (size, dims)) / levels * 4).to(dtype)
    queries = torch.from_numpy(generator.integers(0, levels, (num_queries, dims)) / levels * 4).to(dtype)
    cuts = [torch.from_numpy(np.sort(generator.integers(0, n + 1, parts - 1))) for n in (size, num_queries)]
    offsets, query_offsets = (
        torch.cat([torch.zeros(1, dtype=torch.int64), cut, torch.tensor([n])])
        for cut, n in zip(cuts, (size, num_queries), strict=True)
    )

    def search():
        torch.manual_seed(seed)
        return ball_query(
            points, bounds[0], k, queries, select=select, min_radius=bounds[1], offsets=offsets,
            query_offsets=query_offsets, any_dims=True,
        )  # fmt: skip

    received = search()
    with pointgrad.backend("reference"):
        expected = search()
    for actual, desired in zip(received, expected, strict=True):
        assert torch.equal(actual, desired)


@pytest.mark.skipif(not any(place.backend == "triton" for place in PLACES), reason="Triton cannot run here")
@pytest.mark.parametrize("queries", [8, 32])
def test_any_number_of_queries_per_program(monkeypatch, queries):
    """A program serves 8 queries on a GPU and a whole bucket in the interpreter, with the same result."""
    from pointgrad.ops.neighbors import all_kernels, kernels

    for module in (all_kernels, kernels):
        monkeypatch.setattr(module, "PER_PROGRAM", queries)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    points, offsets = torch.rand(75, 3, device=device), torch.tensor([0, 41, 41, 75], device=device)
    query_points, query_offsets = torch.rand(50, 3, device=device), torch.tensor([0, 13, 20, 50], device=device)
    for wide in (points, torch.cat([points, points], 1)):  # through the index, and through all points
        arguments = (wide, 5, query_points if wide is points else torch.cat([query_points, query_points], 1))
        with pointgrad.backend("triton"):
            received = knn(*arguments, offsets=offsets, query_offsets=query_offsets)
        with pointgrad.backend("reference"):
            expected = knn(*arguments, offsets=offsets, query_offsets=query_offsets)
        assert all(torch.equal(actual, desired) for actual, desired in zip(received, expected, strict=True))
