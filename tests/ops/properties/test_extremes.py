"""Limits of floating-point numbers: overflow, denormals, signed zeros, NaN and infinity."""

import contextlib

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st

import pointgrad
from pointgrad import functional
from tests.ops.properties.laws import DEVICE, DTYPES, equal, indices, integers, law, offsets, reals

HALVES = st.sampled_from([torch.float16, torch.bfloat16])


# Overflow


@law(st.data(), st.integers(1, 20), st.sampled_from([1, 7, 200, 2000]), HALVES)
def test_halves_are_compared_in_float32(data, n, scale, dtype):
    """float16 squares overflow at 181 units; the results equal those in float64 for integers up to 8000."""
    points, queries = data.draw(integers(n, 3)) * scale, data.draw(integers(4, 3)) * scale
    points, queries = points.to(dtype), queries.to(dtype)
    wide, wide_queries = points.double(), queries.double()
    found, exact = pointgrad.knn(points, 5, queries), pointgrad.knn(wide, 5, wide_queries)
    equal((found.index, found.distance2.double()), (exact.index, exact.distance2))
    radius = 2.5 * scale
    equal(
        pointgrad.ball_query(points, radius, 5, queries).index,
        pointgrad.ball_query(wide, radius, 5, wide_queries).index,
    )
    sampled = pointgrad.farthest_point_sampling(points, n, return_radius=True)
    expected = pointgrad.farthest_point_sampling(wide, n, return_radius=True)
    equal(sampled.index, expected.index)
    torch.testing.assert_close(sampled.radius.double(), expected.radius, rtol=1e-7, atol=0)
    total = pointgrad.chamfer_distance(wide, wide_queries)
    torch.testing.assert_close(pointgrad.chamfer_distance(points, queries).double(), total, rtol=1e-6, atol=0)


@law(st.data(), st.integers(2, 20), st.sampled_from([1e17, 1e18, 1e19, 1e20, 1e30, 1e37]))
def test_pairs_too_far_apart_are_not_neighbors(data, n, scale):
    """float32 squares overflow at 1.8e19 units; the remaining neighbors are those found in float64."""
    points, queries = data.draw(integers(n, 3)) * scale, data.draw(integers(4, 3)) * scale
    points[0] = points[1]  # at least one neighbor
    found = pointgrad.knn(points, n, queries)
    delta = queries.unsqueeze(1) - points
    near = delta.square().sum(-1).isfinite()
    equal(found.count, near.sum(1))
    equal((found.index >= 0).sum(1), found.count)
    assert bool(near.gather(1, found.index.clamp(min=0))[found.index >= 0].all())
    assert bool(found.distance2[found.index >= 0].isfinite().all())
    assert bool((found.distance2[found.index < 0] == torch.inf).all())
    weights = pointgrad.interpolate(torch.eye(n, device=DEVICE), points, queries)
    torch.testing.assert_close(weights.sum(1), near.any(1).float())  # zeros without a neighbor
    lonely = pointgrad.chamfer_distance(points, queries, reduction="none")
    equal(lonely.to_points[~near.any(1)], torch.zeros_like(lonely.to_points[~near.any(1)]))
    picks = pointgrad.farthest_point_sampling(points, n)
    equal(picks.sort().values, torch.arange(n, device=DEVICE))


@law(st.data(), st.integers(1, 40), HALVES)
def test_means_of_large_halves_do_not_overflow(data, n, dtype):
    """Means are divided before they are rounded; a float16 sum of two would overflow."""
    large = torch.finfo(torch.float16).max if dtype == torch.float16 else 2.0**100
    values, index = torch.full((n, 2), large, device=DEVICE, dtype=dtype), data.draw(indices(2, n))
    occupied = pointgrad.histogram(index, 2).unsqueeze(1) > 0
    equal(pointgrad.scatter(values, index, 2, "mean"), torch.where(occupied, values[:1], 0).expand(2, 2))
    cuts = data.draw(offsets(n))
    filled = (cuts.diff() > 0).unsqueeze(1)
    equal(pointgrad.segment(values, cuts, "mean"), torch.where(filled, values[:1], 0).expand(-1, 2))
    equal(functional.mean(values, 0), values[0])
    points = data.draw(reals(n, 3, dtype=torch.float32))
    equal(pointgrad.interpolate(values, points, points + 0.3), values)
    torch.testing.assert_close(functional.softmax(values, 1), torch.full_like(values, 0.5))


# Denormals


@contextlib.contextmanager
def flushed():
    """Flush denormal results to zero if the processor supports it."""
    supported = torch.set_flush_denormal(True)
    try:
        yield supported
    finally:
        torch.set_flush_denormal(False)


@law(st.data(), st.integers(1, 12), st.integers(-76, -62) | st.integers(-149, -126), st.booleans())
def test_tiny_clouds_agree_with_the_definition(data, n, exponent, flush):
    """Coordinates or their squares are denormal; all backends agree with and without flushing."""
    points, queries = (data.draw(integers(rows, 3)) * 2.0**exponent for rows in (n, 4))
    features = data.draw(integers(n, 2))

    def results():
        found = pointgrad.ball_query(points, 1.0, n, queries)
        out = pointgrad.interpolate(features, points, queries)
        picks = pointgrad.farthest_point_sampling(points, n, return_radius=True)
        voxels = pointgrad.voxelize(points, 1.0)
        return [out, *found, *picks, voxels.inverse, voxels.coordinates, pointgrad.voxel_sampling(points, 1.0).index]

    with flushed() if flush else contextlib.nullcontext():
        received = results()
        with pointgrad.backend("reference"):
            expected = results()
    assert bool(received[0].isfinite().all())
    # A sum: a GPU rounds products and additions together, up to once for each of three terms of at most 4.
    torch.testing.assert_close(received[0], expected[0], rtol=0, atol=0 if DEVICE == "cpu" else 3 * 4 * 2.0**-24)
    for actual, desired in zip(received[1:], expected[1:], strict=True):
        equal(actual, desired)


@law(st.data(), st.integers(1, 12))
def test_denormal_halves_survive_flushing(data, n):
    """Denormal halves are normal numbers in float32, in which sums are computed."""
    values = (data.draw(integers(n, 4)) * 2.0**-24).half()
    index, cuts = data.draw(indices(3, n)), data.draw(offsets(n))
    lists, weights = data.draw(indices(n, 5, 3)), data.draw(integers(5, 3)).half()
    image = values.reshape(1, n, 2, 2)
    calls = [
        *(lambda r=r: pointgrad.scatter(values, index, 3, r) for r in ("sum", "mean", "max", "min")),
        *(lambda r=r: pointgrad.segment(values, cuts, r) for r in ("sum", "mean", "max", "min")),
        lambda: pointgrad.gather(values, index.clamp(max=n - 1)),
        lambda: pointgrad.histogram(index, 3, values[:, 0]),
        lambda: pointgrad.aggregate(weights, values, lists),
        lambda: functional.unfold(image, 2, padding=1),
        lambda: functional.fold(functional.unfold(image, 2, padding=1), 2, 2, padding=1),
        lambda: functional.max_pool2d(image, 2),
        lambda: functional.cat([values, values]),
        lambda: functional.relu(values),
        lambda: functional.mean(values, 0),
        lambda: functional.nll_loss(values, index.clamp(min=0), reduction="sum"),
    ]  # fmt: skip
    plain = [call() for call in calls]
    with flushed():
        for number, (call, expected) in enumerate(zip(calls, plain, strict=True)):
            assert torch.equal(call(), expected), number


# Signed zeros


@law(st.data(), st.integers(1, 10), DTYPES)
def test_zeros_of_both_signs_are_equal(data, n, dtype):
    """As coordinates and as compared values: the first one is taken, whatever its sign."""
    signs = data.draw(integers(n, 3, most=1, dtype=dtype))
    points = torch.where(signs < 0, -0.0, signs)  # -0, 0 and 1
    plain = points + 0.0
    queries = torch.tensor([[0.0, -0.0, 0.0], [-0.0, 1.0, -0.0]], device=DEVICE, dtype=dtype)
    for call in (
        lambda p: pointgrad.knn(p, n, queries),
        lambda p: pointgrad.ball_query(p, 1.0, n, queries, select="first"),
        lambda p: pointgrad.farthest_point_sampling(p, n, return_radius=True),
        lambda p: pointgrad.voxelize(p, 0.5)[:4],
        lambda p: pointgrad.voxel_sampling(p, 0.5),
        lambda p: (pointgrad.interpolate(signs, p, queries),),
        lambda p: (pointgrad.chamfer_distance(p, queries),),
        lambda p: (functional.softmax(p, 1), functional.log_softmax(p, 1)),
        lambda p: pointgrad.scatter(p, torch.zeros_like(signs[:, 0]).long(), 1, "max", return_arg=True),
        lambda p: pointgrad.scatter(p, torch.zeros_like(signs[:, 0]).long(), 1, "min", return_arg=True),
        lambda p: pointgrad.segment(p, torch.tensor([0, n], device=DEVICE), "max", return_arg=True),
        lambda p: functional.max_pool2d(p[None], (n, 3), return_indices=True),
    ):
        for received, expected in zip(call(points), call(plain), strict=True):
            equal(received, expected)


# NaN and infinity


@law(st.data(), st.integers(2, 20), st.sampled_from([torch.nan, torch.inf, -torch.inf]), DTYPES)
def test_non_finite_points_change_nothing(data, n, bad, dtype):
    """Searches, interpolation and voxels ignore such points; sampling takes them last."""
    points, queries = data.draw(integers(n, 3, dtype=dtype)), data.draw(integers(4, 3, dtype=dtype))
    features, wrong = data.draw(integers(n, 2, dtype=dtype)), data.draw(indices(2, n)) > 0
    wrong[0] = False
    poisoned = points.clone()
    poisoned[wrong, data.draw(st.integers(0, 2))] = bad
    kept = torch.arange(n, device=DEVICE)[~wrong]

    expected, found = pointgrad.knn(points[kept], 5, queries), pointgrad.knn(poisoned, 5, queries)
    equal((found.distance2, found.count), (expected.distance2, expected.count))
    equal(found.index, torch.where(expected.index >= 0, kept[expected.index.clamp(min=0)], -1))
    out = pointgrad.interpolate(features, poisoned.requires_grad_(), queries)
    equal(out, pointgrad.interpolate(features[kept], points[kept], queries))
    (back,) = torch.autograd.grad(out.sum(), poisoned)
    assert bool(back.isfinite().all())
    assert not back[wrong].any()
    equal(pointgrad.chamfer_distance(poisoned, queries), pointgrad.chamfer_distance(points[kept], queries))
    voxels, fewer = pointgrad.voxelize(poisoned, 0.5), pointgrad.voxelize(points[kept], 0.5)
    equal((voxels.inverse[~wrong], voxels.coordinates, voxels.count), (fewer.inverse, fewer.coordinates, fewer.count))
    assert bool((voxels.inverse[wrong] == -1).all())
    equal(pointgrad.voxel_sampling(poisoned, 0.5).index, kept[pointgrad.voxel_sampling(points[kept], 0.5).index])
    picks = pointgrad.farthest_point_sampling(poisoned, n)
    equal(picks[: len(kept)], kept[pointgrad.farthest_point_sampling(points[kept], len(kept))])
    equal(picks[len(kept) :], torch.arange(n, device=DEVICE)[wrong])


CALLS = {
    "gather": lambda x, index, cuts: pointgrad.gather(x, index),
    "group": lambda x, index, cuts: pointgrad.group(x, index[:, None]),
    "scatter, sum": lambda x, index, cuts: pointgrad.scatter(x, index, len(x)),
    "scatter, mean": lambda x, index, cuts: pointgrad.scatter(x, index, len(x), "mean"),
    "scatter, max": lambda x, index, cuts: pointgrad.scatter(x, index, len(x), "max"),
    "scatter, min": lambda x, index, cuts: pointgrad.scatter(x, index, len(x), "min"),
    "segment, sum": lambda x, index, cuts: pointgrad.segment(x, cuts),
    "segment, mean": lambda x, index, cuts: pointgrad.segment(x, cuts, "mean"),
    "segment, max": lambda x, index, cuts: pointgrad.segment(x, cuts, "max"),
    "segment, min": lambda x, index, cuts: pointgrad.segment(x, cuts, "min"),
    "segment_softmax": lambda x, index, cuts: pointgrad.segment_softmax(x, cuts),
    "aggregate": lambda x, index, cuts: pointgrad.aggregate(torch.ones_like(x[:, :1]), x, index[:, None]),
    "unfold": lambda x, index, cuts: functional.unfold(x[None], (2, 1), padding=(1, 0)),
    "fold": lambda x, index, cuts: functional.fold(x.T[:, None].repeat(1, 2, 1).flatten(0, 1), (len(x) + 1, 1), (2, 1)),
    "max_pool2d": lambda x, index, cuts: functional.max_pool2d(x[None], 2, stride=1, padding=1),
    "softmax": lambda x, index, cuts: functional.softmax(x, 1),
    "log_softmax": lambda x, index, cuts: functional.log_softmax(x, 1),
    "mean": lambda x, index, cuts: functional.mean(x, 1),
    "cat": lambda x, index, cuts: functional.cat([x, x]),
    "relu": lambda x, index, cuts: functional.relu(x),
    "conv1d": lambda x, index, cuts: functional.conv1d(x.T[:, None], torch.ones(1, 1, 2, device=DEVICE), padding=1),
}


@pytest.mark.parametrize("name", CALLS)
@law(st.data(), st.integers(2, 8))
def test_nan_reaches_exactly_the_dependent_results(name, data, n):
    """Results that do not depend on it keep their bits, the others are NaN; also for gradients."""
    call = CALLS[name]
    x, index, cuts = data.draw(reals(n, 3, dtype=torch.float32)), data.draw(indices(n, n)), data.draw(offsets(n))
    assume(name != "segment_softmax" or bool((cuts.diff() != 1).all()))  # a segment of one has weight 1 for any logit
    at = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, 2))
    poisoned, rows = x.clone(), x.clone()
    poisoned[at] = torch.nan
    clean, received = call(x, index, cuts), call(poisoned, index, cuts)
    # Dependent results: those that a large change in either direction changes.
    up, down = x.clone(), x.clone()
    up[at], down[at] = 50.0, -50.0
    depends = (call(up, index, cuts) != clean) | (call(down, index, cuts) != clean)
    equal(received.isnan(), depends)
    equal(received[~depends], clean[~depends])

    rows.requires_grad_()
    out = call(rows, index, cuts)
    if not out.numel():
        return
    upstream = torch.ones_like(out)
    place = data.draw(st.integers(0, out.numel() - 1))
    ones = torch.autograd.grad(out, rows, upstream, retain_graph=True)[0]
    upstream.view(-1)[place] = torch.nan
    back = torch.autograd.grad(out, rows, upstream, retain_graph=True)[0]
    upstream.view(-1)[place] = 1e6
    reached = torch.autograd.grad(out, rows, upstream)[0] != ones
    assert bool((back.isnan() >= reached).all())
    equal(back[~back.isnan()], ones[~back.isnan()])
