"""Order: sorted results, monotonicity, idempotence.

All are exact: they concern indices, or compare numbers that were computed in the same way.
"""

import torch
from hypothesis import strategies as st

import pointgrad
from pointgrad import functional
from tests.ops.properties.laws import (
    DEVICE,
    DTYPES,
    clouds,
    equal,
    indices,
    integers,
    law,
    offsets,
    permutations,
    reals,
)


@st.composite
def any_cloud(draw, dtype, dims=(1, 3)):
    """A cloud on a lattice, with equal points and ties, or of any numbers."""
    if draw(st.booleans()):
        return draw(clouds(dims=dims)).to(dtype)
    return draw(reals(draw(st.integers(1, 24)), draw(st.integers(*dims)), dtype=dtype))


@law(st.data(), DTYPES)
def test_fewer_samples_are_the_first_of_more(data, dtype):
    """Covering radii never grow, and each is the distance of the next pick from all before it."""
    points = data.draw(any_cloud(dtype, dims=(1, 5)))
    n = len(points)
    index, radius = pointgrad.farthest_point_sampling(points, n, return_radius=True, any_dims=True)
    fewer = data.draw(st.integers(1, n))
    less = pointgrad.farthest_point_sampling(points, fewer, return_radius=True, any_dims=True)
    equal(tuple(less), (index[:fewer], radius[:fewer]))
    equal(index.sort().values, torch.arange(n, device=DEVICE))
    assert bool((radius.diff() <= 0).all())
    for pick in range(1, n):
        gap = (points[index[:pick]] - points[index[pick]]).square().sum(1).sqrt().min()
        torch.testing.assert_close(radius[pick - 1], gap)
    start = index[:fewer].unsqueeze(0)
    equal(pointgrad.farthest_point_sampling(points, n, start=start, any_dims=True), index)


@law(st.data(), st.integers(1, 30), DTYPES)
def test_fewer_neighbors_are_the_first_of_more(data, k, dtype):
    points = data.draw(any_cloud(dtype, dims=(1, 5)))
    queries = data.draw(integers(4, points.shape[1], dtype=dtype))
    index, distance2, count = pointgrad.knn(points, k, queries, any_dims=True)
    assert bool((distance2[:, 1:] >= distance2[:, :-1]).all())
    equal(count, torch.full_like(count, min(k, len(points))))
    fewer = data.draw(st.integers(1, k))
    less = pointgrad.knn(points, fewer, queries, any_dims=True)
    equal((less.index, less.distance2), (index[:, :fewer], distance2[:, :fewer]))
    own = pointgrad.knn(points, 1, any_dims=True)
    equal(own.distance2, torch.zeros_like(own.distance2))  # every point finds itself or an equal point
    assert bool((own.index[:, 0] <= torch.arange(len(points), device=DEVICE)).all())


def members(found, points):
    """Mask (M, N) of the points in each ball."""
    inside = torch.zeros(len(found.index), points + 1, dtype=torch.bool, device=DEVICE)
    return inside.scatter(1, torch.where(found.index >= 0, found.index, points), True)[:, :points]


@law(st.data(), st.sampled_from([0.5, 1.0, 1.5, 2.0]), st.sampled_from([0.25, 1.0, 3.0]), DTYPES)
def test_balls_are_nested(data, radius, more, dtype):
    """Open in closed, small in large; a ball is a smaller open ball plus a shell; `select` only chooses among them."""
    points = data.draw(any_cloud(dtype))
    queries, n = data.draw(integers(4, points.shape[1], dtype=dtype)), len(points)
    options = {"k": n + 2, "queries": queries}
    closed = members(pointgrad.ball_query(points, radius, **options), n)
    opened = members(pointgrad.ball_query(points, radius, closed=False, **options), n)
    large = members(pointgrad.ball_query(points, radius + more, **options), n)
    shell = members(pointgrad.ball_query(points, radius + more, min_radius=radius, **options), n)
    assert bool((opened <= closed).all() and (closed <= large).all())
    equal(opened | shell, large)
    equal(opened & shell, torch.zeros_like(opened))
    nearest = pointgrad.knn(points, n + 2, queries)
    equal(
        nearest.index.masked_fill(nearest.distance2 > radius**2, -1),
        pointgrad.ball_query(points, radius, **options).index,
    )
    k = data.draw(st.integers(1, n))
    for select in ("nearest", "first", "random"):
        few = pointgrad.ball_query(points, radius, k, queries, select=select)
        assert bool((members(few, n) <= closed).all())
        equal(few.count, closed.sum(1).clamp(max=k))
        equal(members(few, n).sum(1), few.count)
        key = few.index if select == "first" else few.distance2
        ordered = (key[:, 1:] >= key[:, :-1]) | (few.index[:, 1:] < 0)
        assert bool(ordered.all())


@law(st.data(), st.sampled_from([0.3, 1.0, 0.7, 2.5]), DTYPES)
def test_thinning_twice_is_thinning_once(data, size, dtype):
    points = data.draw(any_cloud(dtype, dims=(3, 3)))
    kept = points[pointgrad.voxel_sampling(points, size).index]
    equal(pointgrad.voxel_sampling(kept, size).index, torch.arange(len(kept), device=DEVICE))
    voxels = pointgrad.voxelize(points, size)
    again = pointgrad.voxelize(voxels.centers, size)
    equal(again.coordinates, voxels.coordinates)
    equal(again.inverse, torch.arange(len(voxels.centers), device=DEVICE))
    double = pointgrad.voxelize(points, 2 * size)  # twice as large: each consists of whole small voxels
    equal(double.coordinates[double.inverse], voxels.coordinates[voxels.inverse].div(2, rounding_mode="floor"))


@law(st.data(), st.integers(1, 10), st.integers(1, 8))
def test_gathering_composes(data, n, m):
    features, first, order = data.draw(integers(n, 3)), data.draw(indices(n, m)), data.draw(permutations(n))
    second = data.draw(indices(m, 5))
    both = torch.where(second >= 0, first[second.clamp(min=0)], -1)
    equal(pointgrad.gather(pointgrad.gather(features, first), second), pointgrad.gather(features, both))
    equal(pointgrad.gather(pointgrad.gather(features, order), order.argsort()), features)
    lists = data.draw(indices(n, m, 3))
    equal(pointgrad.group(features, lists).flatten(0, 1), pointgrad.gather(features, lists.flatten()))
    edges = pointgrad.to_edges(lists)
    equal(edges[0], lists[lists >= 0])
    equal(torch.bincount(edges[1], minlength=m), (lists >= 0).sum(1))
    count = pointgrad.histogram(first, n).unsqueeze(1)
    equal(pointgrad.scatter(pointgrad.gather(features, first), first, n), features * count)
    for reduce in ("mean", "max", "min"):  # copies of a row reduce to the row
        equal(pointgrad.scatter(pointgrad.gather(features, first), first, n, reduce), features * (count > 0))


@law(st.data(), st.integers(1, 10))
def test_reducing_groups_of_one_changes_nothing(data, n):
    values, order = data.draw(integers(n, 3)), data.draw(permutations(n))
    alone = torch.arange(n + 1, device=DEVICE)
    for reduce in ("sum", "mean", "max", "min"):
        equal(pointgrad.segment(values, alone, reduce), values)
        equal(pointgrad.scatter(values, order, n, reduce)[order], values)
    cuts = data.draw(offsets(n))
    once = pointgrad.segment(values, cuts, "max")
    segment = torch.bucketize(torch.arange(n, device=DEVICE), cuts[1:], right=True)
    equal(pointgrad.segment(once[segment], cuts, "max"), once)
    equal(pointgrad.scatter(values, segment, len(cuts) - 1, "max"), once)


@law(st.data(), st.integers(1, 12), DTYPES)
def test_interpolation_stays_between_its_neighbors(data, k, dtype):
    """At a point its feature; elsewhere between the smallest and the largest, up to one rounding per term."""
    points = data.draw(any_cloud(dtype))
    features, queries = (
        data.draw(integers(len(points), 2, dtype=dtype)),
        data.draw(reals(5, points.shape[1], dtype=dtype)),
    )
    room = 4 * (k + 1) * torch.finfo(dtype).eps * 4
    found = pointgrad.group(features, pointgrad.knn(points, min(k, len(points)), queries).index)
    out = pointgrad.interpolate(features, points, queries, k)
    assert bool(((out >= found.amin(1) - room) & (out <= found.amax(1) + room)).all())
    equal(pointgrad.interpolate(features, points, queries, 1), found[:, 0])
    same = (points.unsqueeze(0) == points.unsqueeze(1)).all(-1).sum(1)
    at_points = pointgrad.interpolate(features, points, points, k)
    equal(at_points[same == 1], features[same == 1])


@law(st.data(), st.integers(1, 6), st.integers(1, 6), DTYPES)
def test_elementary_laws(data, n, c, dtype):
    x, y = data.draw(reals(n, c, dtype=dtype)), data.draw(reals(n, c, dtype=dtype))
    equal(functional.relu(functional.relu(x)), functional.relu(x))
    equal(functional.relu(x) - functional.relu(-x), x)
    order = x.argsort(1)
    for call in (functional.softmax, functional.log_softmax):
        assert bool((call(x, 1).gather(1, order).diff(dim=1) >= 0).all())  # monotonic
    assert bool((functional.log(x.abs()).gather(1, x.abs().argsort(1)).diff(dim=1) >= 0).all())
    joined = functional.cat([x, y], 1)
    equal((joined[:, :c], joined[:, c:]), (x, y))
    best = functional.max_pool2d(x[None, None], (n, c))
    equal(best.flatten(), x.max().reshape(1))
    best, worst = (functional.cross_entropy(x, order[:, place], reduction="none") for place in (-1, 0))
    assert bool((best <= worst).all())


@law(st.data(), DTYPES)
def test_chamfer_distance_is_not_negative_and_zero_for_equal_clouds(data, dtype):
    points = data.draw(any_cloud(dtype))
    others = data.draw(integers(5, points.shape[1], dtype=dtype))
    assert float(pointgrad.chamfer_distance(points, others)) >= 0
    shuffled = points[data.draw(permutations(len(points)))]
    equal(pointgrad.chamfer_distance(points, shuffled), torch.zeros((), device=DEVICE, dtype=dtype))
    before = pointgrad.chamfer_distance(points, others, direction="to_targets", reduction="none").to_targets
    more = torch.cat([others, points[:1]])
    after = pointgrad.chamfer_distance(points, more, direction="to_targets", reduction="none").to_targets
    assert bool((after <= before).all())  # more targets are never farther
