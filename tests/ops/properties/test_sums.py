"""Sum rules: weights sum to one, totals are preserved, gradients sum to zero.

Exact for integers. Otherwise `close` allows a few roundings of the sum of absolute terms: a sum of n numbers in any
order errs by at most n units in its last place.
"""

import torch
from hypothesis import strategies as st

import pointgrad
from pointgrad import functional
from tests.ops.properties.laws import DEVICE, DTYPES, clouds, equal, indices, integers, law, offsets, reals

PADDING = st.sampled_from(["zeros", "border", "reflection"])


def close(received, expected, terms, roundings):
    """Assert equality up to `roundings` rounding errors of the sum of `terms`."""
    unit = torch.finfo(received.dtype).eps
    assert bool(((received.double() - expected).abs() <= roundings * unit * terms).all())


@st.composite
def scenes(draw, dtype):
    """Points and queries: on a lattice with ties and equal points, random, far from the origin, or close together."""
    dims, kind = draw(st.integers(1, 3)), draw(st.sampled_from(["lattice", "anywhere", "far", "tiny"]))
    n, m = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    if kind == "lattice":
        return draw(integers(n, dims, dtype=dtype)), draw(integers(m, dims, dtype=dtype))
    scale = {"anywhere": 1.0, "far": 1e18, "tiny": 1e-18}[kind]
    return draw(reals(n, dims, dtype=dtype)) * scale, draw(reals(m, dims, dtype=dtype)) * scale


@law(st.data(), st.integers(1, 9), st.sampled_from([0.5, 1.0, 2.0, 3.0]), DTYPES)
def test_interpolation_weights_sum_to_one(data, k, power, dtype):
    points, queries = data.draw(scenes(dtype))
    features = torch.eye(len(points), device=DEVICE, dtype=dtype).requires_grad_()  # the results are the weights
    weights = pointgrad.interpolate(features, points, queries, k, power=power)
    assert bool((weights >= 0).all())
    close(weights.sum(1), 1, 1, k)
    upstream = data.draw(integers(*weights.shape, dtype=dtype))
    (back,) = torch.autograd.grad(weights, features, upstream)
    close(back.sum(0), upstream.double().sum(0), upstream.double().abs().sum(0), len(points) + len(queries) + k)


@law(st.data(), st.integers(1, 5), st.sampled_from([1.0, 2.0]))
def test_gradients_of_interpolation_balance(data, k, power):
    """Weights are invariant to translation, rotation and scaling: forces, torques and virials cancel."""
    points, queries = (value.requires_grad_() for value in data.draw(scenes(torch.float64)))
    features = data.draw(reals(len(points), 2))
    gaps = torch.cdist(points.detach(), queries.detach())
    slope = power * float(features.abs().max()) / float(gaps[gaps > 0].min()) if bool((gaps > 0).any()) else 0.0
    assert_balanced(pointgrad.interpolate(features, points, queries, k, power=power), points, queries, 0, slope, data)


@law(st.data(), st.integers(1, 5))
def test_gradients_of_distances_balance(data, k):
    """A squared distance is homogeneous of degree 2."""
    points, queries = (value.requires_grad_() for value in data.draw(scenes(torch.float64)))
    slope = 2 * float(torch.cdist(points.detach(), queries.detach()).max())
    found = pointgrad.knn(points, k, queries)
    assert_balanced(torch.where(found.index >= 0, found.distance2, 0), points, queries, 2, slope, data)
    assert_balanced(pointgrad.chamfer_distance(points, queries), points, queries, 2, slope, data)


def assert_balanced(output, points, queries, degree, slope, data):
    """Assert that the gradients of a rigid-motion-invariant function, homogeneous of `degree`, balance.

    The tolerance is 1e-12 of the forces before they cancel; `slope` is the largest of one pair.
    """
    upstream = data.draw(reals(*output.shape))
    places = torch.cat([points, queries]).detach()
    forces = torch.cat(torch.autograd.grad(output, (points, queries), upstream, retain_graph=True))
    pulls = slope * float(upstream.abs().sum())
    assert bool((forces.sum(0).abs() <= 1e-12 * (pulls + float(forces.abs().sum()))).all())
    turning = torch.einsum("na,nb->ab", places, forces)
    reach = pulls * float(places.abs().max()) + float(torch.einsum("na,nb->ab", places.abs(), forces.abs()).sum())
    assert bool(((turning - turning.T).abs() <= 1e-12 * reach).all())
    given = degree * output.detach() * upstream
    assert abs(float(turning.trace() - given.sum())) <= 1e-12 * (reach + float(given.abs().sum()))


@law(clouds(least=2, dims=(1, 5)), st.integers(1, 5), st.data())
def test_gradients_of_lattice_distances_balance_exactly(points, k, data):
    queries = data.draw(integers(4, points.shape[1])).requires_grad_()
    points.requires_grad_()
    found = pointgrad.knn(points, min(k, len(points)), queries, any_dims=True)
    upstream = data.draw(integers(*found.distance2.shape))
    to_points, to_queries = torch.autograd.grad(found.distance2, (points, queries), upstream)
    equal(to_points.sum(0), -to_queries.sum(0))
    equal((points * to_points).sum() + (queries * to_queries).sum(), 2 * (upstream * found.distance2).sum())
    total = pointgrad.chamfer_distance(points, queries, reduction="sum", any_dims=True)
    to_points, to_queries = torch.autograd.grad(total, (points, queries))
    equal((points * to_points).sum() + (queries * to_queries).sum(), 2 * total)


@law(st.data(), st.integers(1, 9), st.integers(1, 6), st.sampled_from([1.0, 30.0, 1e4]), DTYPES)
def test_softmaxes_sum_to_one_and_their_gradients_to_zero(data, n, c, scale, dtype):
    logits = (data.draw(reals(n, c, dtype=dtype)) * scale).requires_grad_()
    mask, cuts = data.draw(indices(2, n, c)) >= 0, data.draw(offsets(n))
    segment = torch.bucketize(torch.arange(n, device=DEVICE), cuts[1:], right=True)

    def over_segments(x):
        return x.new_zeros(len(cuts) - 1, c).index_add(0, segment, x)

    rounding = n + c + 4
    of_logits = 2 * max(1.0, float(logits.detach().abs().max()))  # relative errors of a weight are those of its logit
    for shares, add, whole, allowed in (
        (functional.softmax(logits, 1), lambda x: x.sum(1), 1, rounding),
        (functional.log_softmax(logits, 1).exp(), lambda x: x.sum(1), 1, rounding + of_logits),
        (pointgrad.masked_softmax(logits, mask), lambda x: x.sum(1), mask.any(1).double(), rounding),
        (pointgrad.segment_softmax(logits, cuts), over_segments, (cuts.diff() > 0).double()[:, None], rounding),
    ):
        close(add(shares), whole, 1, allowed)
        assert bool((shares >= 0).all())
        upstream = data.draw(integers(n, c, dtype=dtype))
        (back,) = torch.autograd.grad(shares, logits, upstream)
        close(add(back), 0, 4, 4 * allowed)
    assert not pointgrad.masked_softmax(logits, mask)[~mask].any()


@law(st.data(), st.integers(1, 9), st.integers(1, 6), st.integers(1, 3), DTYPES)
def test_attention_weights_sum_to_one(data, n, k, heads, dtype):
    query, key = data.draw(reals(4, heads, 3, dtype=dtype)), data.draw(reals(n, heads, 3, dtype=dtype))
    index, bias = data.draw(indices(n, 4, k)), data.draw(reals(4, k, heads, dtype=dtype)).requires_grad_()
    has_neighbor = (index >= 0).any(1).double()[:, None, None]
    ones = torch.ones(n, heads, 2, device=DEVICE, dtype=dtype)
    close(pointgrad.neighbor_attention(query, key, ones, index, bias), has_neighbor, 1, 4 * k)
    value = data.draw(reals(n, heads, 2, dtype=dtype)).requires_grad_()
    out = pointgrad.neighbor_attention(query, key, value, index, bias)
    upstream = data.draw(reals(*out.shape, dtype=dtype))
    to_bias, to_value = torch.autograd.grad(out, (bias, value), upstream)
    # Gradients of weights sum to zero; those of values sum to the upstream gradient of queries with neighbors.
    size = float(upstream.abs().sum() * value.detach().abs().max())
    close(to_bias.sum(1), 0, size, 4 * k)
    close(to_value.sum(0), (upstream * has_neighbor).sum(0), float(upstream.abs().sum()), 8 * (k + n))


@law(
    st.data(),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int32]),
)
def test_scatter_keeps_totals(data, e, groups, dtype):
    values, index = data.draw(integers(2, e, 3, dtype=dtype)), data.draw(indices(groups, 2, e))
    kept = (index >= 0).unsqueeze(-1)
    equal(pointgrad.scatter(values, index, groups).sum(1), (values * kept).sum(1))
    count = pointgrad.histogram(index, groups)
    equal(count.sum(1), kept.sum((1, 2)))
    equal(pointgrad.histogram(index, groups, values[..., 0]), pointgrad.scatter(values[..., :1], index, groups)[..., 0])
    best, arg = pointgrad.scatter(values, index, groups, "max", return_arg=True)
    equal((arg >= 0).all(-1), count > 0)
    equal(torch.where(arg >= 0, values.gather(1, arg.clamp(min=0)), 0), best)
    beaten = values <= pointgrad.gather(best, index)
    assert bool((beaten | ~kept).all())
    mirrored = pointgrad.scatter(-values, index, groups, "min", return_arg=True)
    equal((-mirrored.values, mirrored.arg), (best, arg))


@law(st.data(), st.integers(1, 12), st.integers(1, 5), DTYPES)
def test_means_times_counts_are_sums(data, e, groups, dtype):
    values, index, cuts = data.draw(integers(e, 3, dtype=dtype)), data.draw(indices(groups, e)), data.draw(offsets(e))
    count, sizes = pointgrad.histogram(index, groups).unsqueeze(1), cuts.diff().unsqueeze(1)
    for mean, times, total in (
        (pointgrad.scatter(values, index, groups, "mean"), count, pointgrad.scatter(values, index, groups)),
        (pointgrad.segment(values, cuts, "mean"), sizes, pointgrad.segment(values, cuts)),
        (functional.mean(values, 0), e, values.sum(0)),
    ):
        close(
            mean * times, total.double(), total.double().abs(), 1
        )  # half a unit in the last place for the quotient and for the product
    low, high = (pointgrad.segment(values, cuts, reduce) for reduce in ("min", "max"))
    mean = pointgrad.segment(values, cuts, "mean")
    assert bool(((low <= mean) & (mean <= high)).all())
    equal(pointgrad.segment(values, cuts).sum(0), values.sum(0))


@law(clouds(dims=(3, 3), most=30, reach=12), st.sampled_from([1.0, 0.75, (0.5, 1.0, 3.0)]), st.data(), DTYPES)
def test_voxels_partition_the_points(points, edge, data, dtype):
    """Each point is in one voxel, each voxel in one cloud, and one point per voxel is kept."""
    points, cuts = points.to(dtype) / 4, data.draw(offsets(len(points)))
    size = torch.tensor(edge, device=DEVICE, dtype=dtype).expand(3)
    voxels = pointgrad.voxelize(points, edge, offsets=cuts)
    total = len(voxels.count)
    equal(voxels.coordinates[voxels.inverse], (points / size).floor().long())
    equal(torch.bincount(voxels.inverse, minlength=total), voxels.count)
    assert bool((voxels.count > 0).all())
    equal(voxels.offsets.diff(), pointgrad.voxel_sampling(points, edge, offsets=cuts).count)
    for cloud, (begin, end) in enumerate(zip(voxels.offsets[:-1].tolist(), voxels.offsets[1:].tolist(), strict=True)):
        places = voxels.coordinates[begin:end]
        equal(torch.unique(places, dim=0), places)  # sorted and unique
        own = voxels.inverse[cuts[cloud] : cuts[cloud + 1]]
        assert bool(((own >= begin) & (own < end)).all())
    kept = pointgrad.voxel_sampling(points, edge, offsets=cuts).index
    equal(voxels.inverse[kept].sort().values, torch.arange(total, device=DEVICE))
    lengths = data.draw(integers(2, most=len(points))).abs().long()
    padded = pointgrad.voxelize(points.expand(2, -1, -1), edge, lengths=lengths)
    equal(padded.count.sum(1), lengths)
    equal((padded.inverse >= 0).sum(1), lengths)
    equal((padded.count > 0).sum(1), padded.lengths)


@law(st.data(), st.integers(1, 8), PADDING, st.booleans())
def test_grid_weights_sum_to_one(data, n, padding, align):
    """Constants are reproduced and splatting preserves totals, except for what zero padding loses outside."""
    sizes = data.draw(st.tuples(*[st.sampled_from([1, 2, 4])] * 3)) if not align else (2, 3, 5)  # cells of 1, 1/2, 1/4
    points = data.draw(integers(2, n, 3, most=8)) / 4
    options = {"padding_mode": padding, "align_corners": align}
    share = pointgrad.grid_sample(torch.ones(2, 1, *sizes, device=DEVICE), points, **options)
    features = data.draw(integers(2, n, 3))
    total = pointgrad.splat(features, points, sizes, **options).sum((2, 3, 4))
    equal(total, (features * share).sum(1))
    if padding != "zeros":
        equal(share, torch.ones_like(share))


@law(st.data(), st.integers(1, 8))
def test_cells_reproduce_linear_functions(data, n):
    """A linear function given at the corners is reproduced everywhere; corner weights sum to one."""
    slope, points = data.draw(integers(3, 2)), data.draw(integers(n, 3, most=8)) / 4
    places = torch.tensor([[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)], device=DEVICE)
    corners = (places @ slope + 7).expand(n, 8, 2).clone().requires_grad_()
    points.requires_grad_()
    out = pointgrad.trilinear(corners, points)
    equal(out, points @ slope + 7)
    upstream = data.draw(integers(n, 2))
    to_corners, to_points = torch.autograd.grad(out, (corners, points), upstream)
    equal(to_corners.sum(1), upstream)
    equal(to_points, upstream @ slope.T)


@law(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 1))
def test_windows_are_counted(data, kernel, stride, dilation, padding):
    """The number of windows of a pixel equals its count in unfold, fold and a convolution with ones."""
    steps = {"dilation": dilation, "padding": padding, "stride": stride}
    image = data.draw(integers(2, 2, 7, 6))
    columns = functional.unfold(image, kernel, **steps)
    seen = functional.fold(torch.ones_like(columns), (7, 6), kernel, **steps)
    by_hand = torch.zeros(7, 6, device=DEVICE)
    reach = dilation * (kernel - 1) + 1
    for top in range(-padding, 7 + padding - reach + 1, stride):
        for left in range(-padding, 6 + padding - reach + 1, stride):
            for y in range(top, top + reach, dilation):
                for x in range(left, left + reach, dilation):
                    if 0 <= y < 7 and 0 <= x < 6:
                        by_hand[y, x] += 1
    equal(seen, by_hand.expand_as(image))
    equal(functional.fold(columns, (7, 6), kernel, **steps), image * seen)
    equal(columns.sum(), (image * seen).sum())
    ones = torch.ones(1, 2, kernel, kernel, device=DEVICE)
    equal(functional.conv2d(image, ones, **steps).sum(), (image * seen).sum())


@law(st.data(), st.integers(1, 8), st.integers(1, 6), st.sampled_from([0.0, 0.1, 1.0]), DTYPES)
def test_gradients_of_cross_entropy_sum_to_zero(data, n, c, smoothing, dtype):
    """Over the classes, for every row; ignored rows have none. For probabilities with any sum."""
    logits = data.draw(reals(n, c, dtype=dtype)).requires_grad_()
    target, weight = data.draw(indices(c, n)), data.draw(reals(c, dtype=dtype)).abs()
    soft = data.draw(reals(n, c, dtype=dtype)).abs()
    for aim, options in ((target, {"ignore_index": -1}), (soft, {})):
        loss = functional.cross_entropy(logits, aim, weight, reduction="sum", label_smoothing=smoothing, **options)
        (back,) = torch.autograd.grad(loss, logits)
        close(back.sum(1), 0, float(weight.max() * max(1, soft.abs().max()) * c), 4 * c)
        if aim is target:
            assert not back[target < 0].any()


@law(st.data(), st.integers(1, 3), st.sampled_from([1, 2, None]))
def test_pooling_preserves_the_sum_of_gradients(data, kernel, stride):
    image = data.draw(integers(2, 2, 6, 5)).requires_grad_()
    out, index = functional.max_pool2d(image, kernel, stride, return_indices=True)
    equal(image.flatten(2).gather(2, index.flatten(2)).view_as(out), out)
    upstream = data.draw(integers(*out.shape))
    (back,) = torch.autograd.grad(out, image, upstream)
    equal(back.sum((2, 3)), upstream.sum((2, 3)))


@law(st.data(), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1.0, 1e-3, 1e15]), DTYPES)
def test_cosine_similarity_has_no_slope_along_its_vectors(data, n, c, scale, dtype):
    a, b = (data.draw(reals(n, c, dtype=dtype)).mul(scale).requires_grad_() for _ in range(2))
    cosine = functional.cosine_similarity(a, b)
    assert bool((cosine.abs() <= 1 + c * torch.finfo(dtype).eps).all())
    close(functional.cosine_similarity(a, a), 1, 1, 2 * c + 4)
    to_a, to_b = torch.autograd.grad(cosine.sum(), (a, b))
    for place, slope in ((a, to_a), (b, to_b)):
        close((place * slope).sum(1), 0, 1, 8 * (c + 2))
    equal(functional.cosine_similarity(b, a), cosine)
    equal(functional.cosine_similarity(4 * a, 0.5 * b), cosine)
