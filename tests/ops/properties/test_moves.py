"""Symmetries: translation, rotation, reflection, scaling and permutation of clouds.

Points lie on an integer lattice, where translations and the 48 symmetries of a cube do not round and distances are
exact: results must be equal to the last bit, and the many ties of a lattice must be broken alike. Scaling is by powers
of two, which is exact for all floating-point numbers. Tests that hold only up to rounding are marked as such.
"""

import torch
from hypothesis import strategies as st

import pointgrad
from pointgrad import functional
from tests.ops.properties.laws import (
    DEVICE,
    DTYPES,
    clouds,
    deterministic,
    equal,
    indices,
    integers,
    law,
    offsets,
    permutations,
    reals,
    turns,
)

SHIFTS = st.integers(-1000, 1000)
SELECT = st.sampled_from(["nearest", "first", "random"])


@st.composite
def moved(draw, **options):
    """Points and queries, and both after the same translation and rotation."""
    points = draw(clouds(**options))
    queries = draw(integers(draw(st.integers(1, 8)), points.shape[1], most=6))
    turn, shift = draw(turns(points.shape[1])), draw(integers(points.shape[1], most=1000))
    return points, queries, points @ turn + shift, queries @ turn + shift, turn


@law(moved(dims=(1, 5)), st.integers(0, 99), DTYPES)
def test_sampling_is_invariant_to_rigid_motion(motion, seed, dtype):
    points, _, others, _, _ = (value.to(dtype) for value in motion)
    wanted, start = seed % len(points) + 1, seed * 7 % len(points)
    for received, expected in zip(
        pointgrad.farthest_point_sampling(others, wanted, start=start, return_radius=True, any_dims=True),
        pointgrad.farthest_point_sampling(points, wanted, start=start, return_radius=True, any_dims=True),
        strict=True,
    ):
        equal(received, expected)


@law(moved(dims=(1, 5)), st.integers(1, 9), st.sampled_from([1.0, 2.0, 3.0, 1e9]), SELECT, st.booleans(), DTYPES)
def test_neighbors_are_invariant_to_rigid_motion(motion, k, radius, select, closed, dtype):
    points, queries, others, other_queries, turn = (value.to(dtype).requires_grad_() for value in motion)
    results = []
    for p, q, back in ((points, queries, turn), (others, other_queries, None)):
        torch.manual_seed(k)
        found = pointgrad.ball_query(p, radius, k, q, select=select, closed=closed, any_dims=True)
        finite = torch.where(found.index >= 0, found.distance2, 0)
        upstream = torch.arange(finite.numel(), device=DEVICE, dtype=dtype).reshape(finite.shape)
        grads = torch.autograd.grad(finite, (p, q), upstream)
        results.append((*found, *(grad if back is None else grad @ back for grad in grads)))
    for received, expected in zip(*results, strict=True):
        equal(received, expected)


@law(moved(), st.integers(1, 9), SELECT)
def test_neighbor_index_is_invariant_to_rigid_motion(motion, k, select):
    points, queries, others, other_queries, _ = motion
    results = []
    for p, q in ((points, queries), (others, other_queries)):
        torch.manual_seed(k)
        index = pointgrad.NeighborIndex(p)
        results.append((*index.knn(k, q), *index.ball_query(2.0, k, q, select=select)))
    for received, expected in zip(*results, strict=True):
        equal(received, expected)


@law(moved(), st.integers(1, 5), st.sampled_from([1.0, 2.0]), DTYPES)
def test_interpolation_is_invariant_to_rigid_motion(motion, k, power, dtype):
    points, queries, others, other_queries, turn = (value.to(dtype) for value in motion)
    features = torch.arange(3 * len(points), device=DEVICE, dtype=dtype).reshape(-1, 3)
    results = []
    for p, q, back in ((points, queries, turn), (others, other_queries, None)):
        p, q = p.clone().requires_grad_(), q.clone().requires_grad_()
        out = pointgrad.interpolate(features, p, q, k, power=power)
        with deterministic():
            grads = torch.autograd.grad(out.square().sum(), (p, q))
        results.append((out, *(grad if back is None else grad @ back for grad in grads)))
    for received, expected in zip(*results, strict=True):
        equal(received, expected)


@law(moved(), st.sampled_from(["mean", "sum"]), DTYPES)
def test_chamfer_distance_is_invariant_to_rigid_motion(motion, reduction, dtype):
    points, targets, others, other_targets, _ = (value.to(dtype) for value in motion)
    original = pointgrad.chamfer_distance(points, targets, reduction=reduction)
    equal(pointgrad.chamfer_distance(others, other_targets, reduction=reduction), original)
    equal(pointgrad.chamfer_distance(targets, points, reduction=reduction), original)  # and symmetric


@law(moved(dims=(3, 3)), st.data())
def test_groups_rotate_with_the_cloud(motion, data):
    points, centers, others, other_centers, turn = motion
    index = data.draw(indices(len(points), len(centers), 4))
    features = data.draw(integers(len(points), 2))
    original = pointgrad.group(features, index, points=points, centers=centers)
    transformed = pointgrad.group(features, index, points=others, centers=other_centers)
    equal(transformed, torch.cat([original[..., :3] @ turn, original[..., 3:]], -1))


@law(clouds(dims=(3, 3), reach=9), integers(3, most=20), st.sampled_from([1.0, 2.0, 0.5, (1.0, 2.0, 4.0)]), DTYPES)
def test_voxels_move_by_whole_voxels(points, shift, edge, dtype):
    """A translation by whole voxels moves the voxels and keeps their points."""
    points = points.to(dtype) / 4
    size = torch.tensor(edge, device=DEVICE, dtype=dtype).expand(3)
    shifted = points + shift.to(dtype) * size
    original, moved = pointgrad.voxelize(points, edge), pointgrad.voxelize(shifted, edge)
    equal(moved.inverse, original.inverse)
    equal(moved.coordinates, original.coordinates + shift.long())
    equal(moved.count, original.count)
    equal(moved.centers, original.centers + shift.to(dtype) * size)
    equal(pointgrad.voxel_sampling(shifted, edge).index, pointgrad.voxel_sampling(points, edge).index)


@law(clouds(dims=(3, 3), reach=9), turns(3), DTYPES)
def test_voxels_rotate(points, turn, dtype):
    """Away from voxel borders, a rotation renumbers the voxels and keeps their points."""
    points, turn = points.to(dtype) / 2 + 0.25, turn.to(dtype)
    original, transformed = pointgrad.voxelize(points, 1.0), pointgrad.voxelize(points @ turn, 1.0)

    def together(inverse):
        return inverse.unsqueeze(0) == inverse.unsqueeze(1)

    equal(together(transformed.inverse), together(original.inverse))
    equal(
        pointgrad.gather(transformed.centers, transformed.inverse),
        pointgrad.gather(original.centers, original.inverse) @ turn,
    )
    equal(pointgrad.voxel_sampling(points @ turn, 1.0).index, pointgrad.voxel_sampling(points, 1.0).index)


@law(st.integers(1, 40), st.integers(1, 3), st.integers(-20, 20), st.data(), DTYPES)
def test_scaling_by_powers_of_two(n, dims, exponent, data, dtype):
    """For any numbers: indices are equal, and distances scale to the last bit."""
    points, queries = data.draw(reals(n, dims, dtype=dtype)), data.draw(reals(7, dims, dtype=dtype))
    features, scale = data.draw(reals(n, 2, dtype=dtype)), 2.0**exponent
    large, far = points * scale, queries * scale
    original = pointgrad.farthest_point_sampling(points, n, return_radius=True)
    transformed = pointgrad.farthest_point_sampling(large, n, return_radius=True)
    equal((transformed.index, transformed.radius), (original.index, original.radius * scale))
    for limit in (0.5, 1e6):
        near = pointgrad.ball_query(points, limit, 6, queries)
        found = pointgrad.ball_query(large, limit * scale, 6, far)
        equal((found.index, found.distance2), (near.index, near.distance2 * scale**2))
    equal(pointgrad.interpolate(features, large, far), pointgrad.interpolate(features, points, queries))
    equal(pointgrad.chamfer_distance(large, far), pointgrad.chamfer_distance(points, queries) * scale**2)
    if dims == 3:
        voxels, larger = pointgrad.voxelize(points, 0.3), pointgrad.voxelize(large, 0.3 * scale)
        equal((larger.inverse, larger.coordinates), (voxels.inverse, voxels.coordinates))
        equal(larger.centers, voxels.centers * scale)
        equal(pointgrad.voxel_sampling(large, 0.3 * scale), pointgrad.voxel_sampling(points, 0.3))


@law(clouds(dims=(1, 4)), st.integers(1, 9), st.data())
def test_neighbors_of_shuffled_points(points, k, data):
    """Distances are equal; ties go to the first in the new order, as in a stable sort of all pairs."""
    queries = data.draw(integers(5, points.shape[1], most=6))
    order = data.draw(permutations(len(points)))
    shuffled = points[order]
    original, found = (pointgrad.knn(each, k, queries, any_dims=True) for each in (points, shuffled))
    equal(found.distance2, original.distance2)
    pairs = (queries.unsqueeze(1) - shuffled).square().sum(-1)
    equal(found.index[:, : len(points)], pairs.sort(dim=1, stable=True).indices[:, :k])
    turn = data.draw(permutations(len(queries)))
    for received, expected in zip(pointgrad.knn(points, k, queries[turn], any_dims=True), original, strict=True):
        equal(received, expected[turn])


@law(st.data(), st.integers(1, 24), st.integers(1, 3), DTYPES)
def test_shuffled_points_are_sampled_alike(data, n, dims, dtype):
    """Without equal distances: the same points in the same order."""
    points, order = data.draw(reals(n, dims, dtype=dtype)), data.draw(permutations(n))
    back = order.argsort()
    original = pointgrad.farthest_point_sampling(points, n, return_radius=True)
    transformed = pointgrad.farthest_point_sampling(points[order], n, start=back[:1], return_radius=True)
    equal((order[transformed.index], transformed.radius), tuple(original))


@law(st.data(), st.integers(1, 12), st.integers(1, 4), st.sampled_from(["sum", "mean", "max", "min"]))
def test_shuffled_rows_scatter_alike(data, e, groups, reduce):
    values, index = data.draw(integers(e, 3)), data.draw(indices(groups, e))
    order = data.draw(permutations(e))
    original = pointgrad.scatter(values, index, groups, reduce)
    equal(pointgrad.scatter(values[order], index[order], groups, reduce), original)
    rename = data.draw(permutations(groups))  # group j becomes rename[j]
    renamed = torch.where(index >= 0, rename[index.clamp(min=0)], -1)
    equal(pointgrad.scatter(values, renamed, groups, reduce)[rename], original)
    equal(pointgrad.histogram(renamed, groups)[rename], pointgrad.histogram(index, groups))


@law(st.data(), st.integers(1, 12), st.integers(1, 6))
def test_order_of_neighbors_does_not_matter(data, n, k):
    """Neither the order within a neighbor list nor that of the rows it refers to matters."""
    values, weights, index = data.draw(integers(n, 4)), data.draw(integers(5, k, 2)), data.draw(indices(n, 5, k))
    order, rows = data.draw(permutations(k)), data.draw(permutations(n))
    original = pointgrad.aggregate(weights, values, index)
    equal(pointgrad.aggregate(weights[:, order], values, index[:, order]), original)
    renamed = torch.where(index >= 0, rows.argsort()[index.clamp(min=0)], -1)
    equal(pointgrad.aggregate(weights, values[rows], renamed), original)
    equal(pointgrad.group(values[rows], renamed), pointgrad.group(values, index))
    query, key, value = (data.draw(reals(*shape)) for shape in ((5, 2, 3), (n, 2, 3), (n, 2, 4)))
    original = pointgrad.neighbor_attention(query, key, value, index)
    transformed = pointgrad.neighbor_attention(query, key[rows], value[rows], renamed[:, order])
    torch.testing.assert_close(transformed, original, rtol=1e-13, atol=1e-13)  # sums in another order


def padded_calls(data, b, n):
    """Calls on b clouds of n points: a list of tensors with leading dimension b, and the function."""
    points, queries = data.draw(integers(b, n, 3)), data.draw(integers(b, 5, 3))
    features, index = data.draw(integers(b, n, 4)), data.draw(indices(n, b, 5, 3))
    lengths = data.draw(integers(b, most=n)).abs().long()
    heads, weights = features.unflatten(2, (2, 2)), data.draw(integers(b, 5, 3))
    query = data.draw(integers(b, 5, 2, 2))
    grid = data.draw(integers(b, 2, 2, 3, 4))
    return [
        ([points, lengths], lambda p, s: pointgrad.farthest_point_sampling(p, 4, lengths=s, return_radius=True)),
        ([points, lengths], lambda p, s: pointgrad.voxel_sampling(p, 2.0, lengths=s)),
        ([points, lengths], lambda p, s: [x for x in pointgrad.voxelize(p, 2.0, lengths=s) if x is not None]),
        ([points, queries, lengths], lambda p, q, s: pointgrad.knn(p, 3, q, lengths=s)),
        ([points, queries, lengths], lambda p, q, s: pointgrad.ball_query(p, 2.0, 3, q, select="first", lengths=s)),
        ([features, points, queries, lengths], lambda f, p, q, s: pointgrad.interpolate(f, p, q, lengths=s)),
        ([points, queries], lambda p, q: pointgrad.chamfer_distance(p, q, batch_reduction="none")),
        ([features, index], pointgrad.group),
        ([features, index[..., 0]], pointgrad.gather),
        ([features, index, weights], pointgrad.interpolate_at),
        ([queries, index[..., 0]], lambda v, i: pointgrad.scatter(v, i, n, "max", return_arg=True)),
        ([queries, index[..., 0]], lambda v, i: pointgrad.scatter(v, i, n, "mean")),
        ([index[..., 0]], lambda i: pointgrad.histogram(i, n)),
        ([query, heads, heads, index], pointgrad.neighbor_attention),
        ([grid, queries / 4], pointgrad.grid_sample),
        ([features, points / 4], lambda f, p: pointgrad.splat(f, p, (2, 3, 4))),
        ([grid.flatten(2, 3)], lambda x: functional.unfold(x, 2)),
        ([grid.flatten(2, 3)], lambda x: functional.max_pool2d(x, 2)),
        ([features.mT, lengths.clamp(max=3)[:, None].expand(b, n)],
         lambda x, t: functional.cross_entropy(x, t, reduction="none")),
    ]  # fmt: skip


def as_tuple(result):
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


@law(st.data(), st.integers(1, 4), st.integers(1, 8))
def test_permuted_clouds(data, b, n):
    """Permuting the clouds of a batch permutes the results, to the last bit."""
    order = data.draw(permutations(b))
    for tensors, call in padded_calls(data, b, n):
        expected = as_tuple(call(*tensors))
        for received, original in zip(as_tuple(call(*(x[order] for x in tensors))), expected, strict=True):
            equal(received, original[order])


@law(st.data(), st.integers(1, 20))
def test_permuted_packed_clouds(data, n):
    """Permuting packed clouds keeps the results of each; indices move with its first point."""
    points, cuts = data.draw(integers(n, 3)), data.draw(offsets(n))
    order = data.draw(permutations(len(cuts) - 1))
    sizes = cuts.diff()[order]
    moved = torch.cat([cuts.new_zeros(1), sizes.cumsum(0)])
    pieces = [torch.arange(int(cuts[c]), int(cuts[c + 1]), device=DEVICE) for c in order]
    rows = torch.cat(pieces)  # the old position of each point
    original, transformed = (pointgrad.knn(p, 4, offsets=o) for p, o in ((points, cuts), (points[rows], moved)))
    equal(transformed.distance2, original.distance2[rows])
    equal(torch.where(transformed.index >= 0, rows[transformed.index.clamp(min=0)], -1), original.index[rows])
    kept, others = (pointgrad.voxel_sampling(p, 2.0, offsets=o) for p, o in ((points, cuts), (points[rows], moved)))
    equal(rows[others.index].sort().values, kept.index)
    equal(others.count, kept.count[order])
    picks = [min(int(size), 3) for size in cuts.diff()]
    original = pointgrad.farthest_point_sampling(points, picks, offsets=cuts)
    transformed = pointgrad.farthest_point_sampling(points[rows], [picks[c] for c in order], offsets=moved)
    equal(rows[transformed], torch.cat([original.split(picks)[c] for c in order]))
    values = pointgrad.segment(points[rows], moved, "max", return_arg=True)
    before = pointgrad.segment(points, cuts, "max", return_arg=True)
    equal(values.values, before.values[order])
    equal(torch.where(values.arg >= 0, rows[values.arg.clamp(min=0)], -1), before.arg[order])
    equal(pointgrad.segment_softmax(points[rows], moved), pointgrad.segment_softmax(points, cuts)[rows])


@law(st.data(), st.integers(1, 10), st.integers(1, 9))
def test_permuted_channels(data, n, c):
    order, dtype = data.draw(permutations(c)), data.draw(DTYPES)
    features, index = data.draw(integers(n, c, dtype=dtype)), data.draw(indices(n, 6, 3))
    points, queries = data.draw(integers(n, 3, dtype=dtype)), data.draw(integers(6, 3, dtype=dtype))
    weights, cuts = data.draw(integers(6, 3, dtype=dtype)), data.draw(offsets(n))
    corners, cells = data.draw(integers(4, 8, c, dtype=dtype)), data.draw(integers(4, 3, dtype=dtype)) / 4
    calls = [
        lambda o: pointgrad.group(features[:, o], index),
        lambda o: pointgrad.aggregate(weights, features[:, o], index),
        lambda o: pointgrad.interpolate(features[:, o], points, queries),
        lambda o: pointgrad.trilinear(corners[..., o], cells),
        lambda o: pointgrad.segment_softmax(features[:, o], cuts),
        *(lambda o, r=r: pointgrad.segment(features[:, o], cuts, r) for r in ("sum", "mean", "max", "min")),
        *(lambda o, r=r: pointgrad.scatter(features[:, o], index.flatten()[:1].expand(n), n, r)
          for r in ("sum", "mean", "max", "min")),
    ]  # fmt: skip
    for call in calls:
        equal(call(order), call(torch.arange(c, device=DEVICE))[..., order])


@law(st.data(), st.integers(1, 8), st.integers(1, 6), SHIFTS, DTYPES)
def test_softmax_is_invariant_to_a_common_shift(data, n, c, shift, dtype):
    """Integer logits: the subtraction is exact, so results are equal."""
    logits, cuts = data.draw(integers(n, c, dtype=dtype)), data.draw(offsets(n))
    mask = data.draw(indices(2, n, c)) >= 0
    target = data.draw(indices(c, n))
    index, heads = data.draw(indices(n, 4, 3)), data.draw(integers(n, 2, 2, dtype=dtype))
    bias, query = data.draw(integers(4, 3, 2, dtype=dtype)), data.draw(integers(4, 2, 2, dtype=dtype))
    for call, value in (
        (lambda x: functional.softmax(x, 1), logits),
        (lambda x: functional.log_softmax(x, 1), logits),
        (lambda x: pointgrad.masked_softmax(x, mask), logits),
        (lambda x: pointgrad.segment_softmax(x, cuts), logits),
        (lambda x: functional.cross_entropy(x, target, ignore_index=-1, reduction="none"), logits),
        (lambda b: pointgrad.neighbor_attention(query, heads, heads, index, b, scale=1.0), bias),
    ):
        equal(call(value + shift), call(value))


@law(st.data(), st.integers(1, 8), st.integers(2, 6))
def test_permuted_classes(data, n, c):
    """Equal up to the order of a sum of c exponentials."""
    logits, order = data.draw(reals(n, c)), data.draw(permutations(c))
    target, weight = data.draw(indices(c, n)), data.draw(reals(c)).abs()
    renamed = torch.where(target >= 0, order.argsort()[target.clamp(min=0)], -1)
    options = {"ignore_index": -1, "label_smoothing": 0.1, "reduction": "sum"}
    original = functional.cross_entropy(logits, target, weight, **options)
    transformed = functional.cross_entropy(logits[:, order], renamed, weight[order], **options)
    torch.testing.assert_close(transformed, original, rtol=1e-13, atol=1e-13)
    rows = data.draw(permutations(n))
    none = {**options, "reduction": "none"}
    original = functional.cross_entropy(logits, target, weight, **none)
    equal(functional.cross_entropy(logits[rows], target[rows], weight, **none), original[rows])


@law(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3))
def test_convolution_moves_with_the_image(data, kernel, stride, down, right):
    """Moving an image within zeros by whole strides moves convolution, unfolding and pooling with it."""
    canvas = torch.zeros(1, 2, 24, 24, device=DEVICE)
    image, weight = data.draw(integers(1, 2, 5, 5)), data.draw(integers(3, 2, kernel, kernel))
    original, transformed = canvas.clone(), canvas.clone()
    original[..., 6:11, 6:11] = image
    transformed[..., 6 + down * stride : 11 + down * stride, 6 + right * stride : 11 + right * stride] = image

    def columns(x):
        rows = functional.unfold(x, kernel, stride=stride)
        return rows.unflatten(2, 2 * [(24 - kernel) // stride + 1])

    for call in (
        lambda x: functional.conv2d(x, weight, stride=stride),
        lambda x: functional.max_pool2d(x.abs(), kernel, stride=stride),
        columns,
    ):
        equal(call(transformed), call(original).roll((down, right), (-2, -1)))


@law(st.data(), st.sampled_from(["zeros", "border", "reflection"]), st.booleans())
def test_grids_rotate_with_their_points(data, padding, align):
    """The axes of grid and points are permuted or mirrored."""
    sizes = (2, 2, 2) if align else data.draw(st.tuples(*[st.sampled_from([1, 2, 4])] * 3))
    grid, points = data.draw(integers(1, 2, *sizes)), data.draw(integers(1, 9, 3, most=7)) / 4
    options = {"padding_mode": padding, "align_corners": align}
    original = pointgrad.grid_sample(grid, points, **options)
    axes = data.draw(st.permutations(range(3)))  # of the grid, (D, H, W); points are (x, y, z) along (W, H, D)
    turned = grid.permute(0, 1, *(2 + a for a in axes))
    columns = [2 - axes[2 - column] for column in range(3)]
    equal(pointgrad.grid_sample(turned, points[..., columns], **options), original)
    axis = data.draw(st.integers(0, 2))
    sign = torch.ones(3, device=DEVICE).index_fill(0, torch.tensor(axis, device=DEVICE), -1)
    mirrored = pointgrad.grid_sample(grid.flip(4 - axis), points * sign, **options)
    equal(mirrored, original)
    features = data.draw(integers(1, 9, 2))
    splat = pointgrad.splat(features, points, sizes, **options)
    equal(pointgrad.splat(features, points * sign, sizes, **options), splat.flip(4 - axis))


@law(st.data(), st.integers(1, 6))
def test_cells_rotate_with_their_points(data, n):
    """A cell is mirrored along one axis, and two axes are exchanged."""
    corners, points = data.draw(integers(n, 8, 2)), data.draw(integers(n, 3, most=6)) / 4
    cube, original = corners.unflatten(1, (2, 2, 2)), pointgrad.trilinear(corners, points)
    axis = data.draw(st.integers(0, 2))
    sign = torch.ones(3, device=DEVICE).index_fill(0, torch.tensor(axis, device=DEVICE), -1)
    equal(pointgrad.trilinear(cube.flip(1 + axis).flatten(1, 3), points * sign), original)
    axes = data.draw(st.permutations(range(3)))
    turned = cube.permute(0, *(1 + a for a in axes), 4).flatten(1, 3)
    equal(pointgrad.trilinear(turned, points[:, list(axes)]), original)
