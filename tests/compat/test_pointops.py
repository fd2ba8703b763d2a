"""Grouping, interpolation and attention of pointgrad.compat.pointops against plain loops."""

import doctest
import importlib

import pytest
import torch

import pointgrad.compat
from pointgrad.compat import pointops
from pointgrad.compat.pointops.functions import pointops as older
from tests.compat.pointops_loops import DTYPES, ENDS, NEW_ENDS, ends, neighbors_by_loop, packed, queries_of, ranges
from tests.support import unchanged


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_xyz", [False, True])
def test_grouping(with_xyz, dtype, default_place):
    points, centers = packed(default_place, 9, dtype), packed(default_place, 4, dtype)
    features = torch.randn(9, 5, device=default_place.device).to(dtype)
    idx = torch.tensor([[0, 8, -1], [1, 1, 2], [-1, -1, -1], [7, 6, 5]], dtype=torch.int32, device=default_place.device)
    out = pointops.grouping(idx, features, points, centers, with_xyz)
    valid = (idx >= 0)[..., None]
    expected = torch.where(valid, features[idx.long()], 0)
    if with_xyz:
        expected = torch.cat([torch.where(valid, points[idx.long()] - centers[:, None], 0), expected], dim=-1)
    assert torch.equal(out, expected)
    assert out.is_contiguous()
    if not with_xyz:
        assert torch.equal(pointops.grouping2(features, idx), out)
        assert torch.equal(pointops.Grouping.apply(features, idx), out)
        assert torch.equal(older.grouping(features, idx), out)


def test_batched_grouping(default_place):
    features = torch.randn(2, 5, 9, device=default_place.device)
    idx = torch.randint(0, 9, (2, 4, 3), dtype=torch.int32).to(default_place.device)
    expected = features.gather(2, idx.long().reshape(2, 1, 12).expand(-1, 5, -1)).reshape(2, 5, 4, 3)
    assert torch.equal(older.grouping(features, idx), expected)
    assert torch.equal(older.Grouping.apply(features, idx), expected)
    whole = older.grouping_int(features.mul(100).long(), idx)
    assert (whole.dtype, whole.is_contiguous()) == (torch.int64, True)
    assert torch.equal(whole, expected.mul(100).long())
    assert torch.equal(pointops.Gathering.apply(features, idx[..., 0]), expected[..., 0])
    assert torch.equal(pointops.gathering(features, idx[..., 0]), expected[..., 0])


def test_batched_interpolation(default_place):
    known, unknown = torch.rand(2, 9, 3, device=default_place.device), torch.rand(2, 4, 3, device=default_place.device)
    features = torch.randn(2, 5, 9, device=default_place.device)
    dist, idx = older.nearestneighbor(unknown, known)
    pairs = torch.cdist(unknown.double(), known.double()).sort(dim=-1)
    assert torch.equal(idx.long(), pairs.indices[..., :3])
    torch.testing.assert_close(dist, pairs.values[..., :3].float())
    weight = torch.rand_like(dist)
    out = older.interpolation(features, idx, weight)
    grouped = older.grouping(features, idx)
    torch.testing.assert_close(out, (grouped * weight[:, None]).sum(-1))
    assert torch.equal(older.Interpolation.apply(features, idx, weight), out)
    assert torch.equal(older.NearestNeighbor.apply(unknown, known)[1], idx)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_interpolation(k, default_place):
    points, queries = packed(default_place), packed(default_place, 20)
    features = torch.randn(40, 5, device=default_place.device)
    arguments = (points, queries, features, ends(default_place, 12, 15, 15, 40), ends(default_place, *NEW_ENDS))
    out = pointops.interpolation(*arguments, k)
    for cloud, query in queries_of(*NEW_ENDS):
        distance2, index = neighbors_by_loop(points, ranges(12, 15, 15, 40)[cloud], queries[query])
        weight = 1 / (distance2[:k].sqrt() + 1e-8)
        expected = (features.cpu()[index[:k]] * (weight / weight.sum())[:, None]).sum(0)
        torch.testing.assert_close(out[query].cpu(), expected)
    assert torch.equal(pointops.interpolation2(*arguments, k), out)
    assert torch.equal(pointops.Interpolation.apply(*arguments, k), out)
    assert torch.equal(older.interpolation(*arguments, k), out)
    assert torch.equal(older.Interpolation.apply(*arguments, k), out)


def test_interpolation_with_fewer_than_k_points(default_place):
    """The original interprets -1 as the last point of the whole batch."""
    points, queries = packed(default_place, 6), packed(default_place, 3)
    features = torch.tensor([[1.0], [1.0], [1e30], [1e30], [1e30], [1e30]], device=default_place.device)
    out = pointops.interpolation(points, queries, features, ends(default_place, 2, 2, 6), ends(default_place, 1, 2, 3))
    assert out[:2].flatten().tolist() == [1.0, 0.0]


def test_interpolation_gradients(default_place):
    """`interpolation` is also differentiable in the coordinates, unlike the original; `interpolation2` is not."""
    points, queries = packed(default_place, 9, torch.float64), packed(default_place, 4, torch.float64)
    features = torch.randn(9, 2, dtype=torch.float64, device=default_place.device)
    offset, new_offset = ends(default_place, 5, 9), ends(default_place, 2, 4)
    inputs = [x.requires_grad_() for x in (points, queries, features)]
    nondet_tol = default_place.nondet_tol
    assert torch.autograd.gradcheck(
        lambda *x: pointops.interpolation(*x, offset, new_offset), inputs, nondet_tol=nondet_tol
    )
    out = pointops.interpolation2(*inputs, offset, new_offset)
    grads = torch.autograd.grad(out.sum(), inputs, allow_unused=True)
    assert [grad is None for grad in grads] == [True, True, False]


def test_subtraction(default_place):
    one, two = (torch.randn(4, 5, dtype=torch.float64, device=default_place.device) for _ in range(2))
    idx = torch.tensor([[0, 3], [2, 2], [1, 0], [3, 1]], dtype=torch.int32, device=default_place.device)
    assert torch.equal(pointops.subtraction(one, two, idx), one[:, None] - two[idx.long()])
    inputs = (one.requires_grad_(), two.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: pointops.Subtraction.apply(a, b, idx), inputs)
    idx[1, 0] = -1
    assert torch.equal(pointops.subtraction(one, two, idx)[1, 0], one[1])


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_aggregation(groups, default_place):
    """Channel c uses weight c % groups, and entries of -1 are ignored."""
    values = torch.randn(4, 6, dtype=torch.float64, device=default_place.device)
    position = torch.randn(5, 3, 6, dtype=torch.float64, device=default_place.device)
    weight = torch.randn(5, 3, groups, dtype=torch.float64, device=default_place.device)
    idx = torch.randint(0, 4, (5, 3), dtype=torch.int32).to(default_place.device)
    idx[2, 1] = -1
    expected = torch.zeros(5, 6, dtype=torch.float64)
    for row in range(5):
        for k in range(3):
            for channel in range(6):
                if idx[row, k] >= 0:
                    term = values[idx[row, k], channel] + position[row, k, channel]
                    expected[row, channel] += float(term * weight[row, k, channel % groups])
    torch.testing.assert_close(pointops.aggregation(values, position, weight, idx).cpu(), expected)
    inputs = [x.requires_grad_() for x in (values, position, weight)]
    nondet_tol = default_place.nondet_tol
    assert torch.autograd.gradcheck(lambda *x: pointops.Aggregation.apply(*x, idx), inputs, nondet_tol=nondet_tol)


def test_attention_relation_step(default_place):
    """The original computes the gradient of the weight and drops it."""
    query, key = (torch.randn(4, 2, 3, dtype=torch.float64, device=default_place.device) for _ in range(2))
    weight = torch.randn(3, dtype=torch.float64, device=default_place.device)
    target = torch.tensor([0, 0, 3, 1, 2], device=default_place.device)
    refer = torch.tensor([1, 2, 3, 0, 0], device=default_place.device)
    out = pointops.attention_relation_step(query, key, weight, target, refer)
    torch.testing.assert_close(out, (query[target] * key[refer] * weight).sum(-1))
    inputs = [x.requires_grad_() for x in (query, key, weight)]
    call = pointops.AttentionRelationStep.apply
    nondet_tol = default_place.nondet_tol
    assert torch.autograd.gradcheck(lambda *x: call(*x, target, refer), inputs, nondet_tol=nondet_tol)
    assert torch.autograd.gradgradcheck(lambda *x: call(*x, target, refer), inputs, nondet_tol=nondet_tol)


def test_attention_fusion_step(default_place):
    weight = torch.randn(5, 2, dtype=torch.float64, device=default_place.device)
    value = torch.randn(4, 2, 3, dtype=torch.float64, device=default_place.device)
    target = torch.tensor([0, 0, 3, 1, 0], dtype=torch.int32, device=default_place.device)
    refer = torch.tensor([1, 2, 3, 0, 0], dtype=torch.int32, device=default_place.device)
    expected = torch.zeros_like(value).index_add(0, target.long(), weight[..., None] * value[refer.long()])
    torch.testing.assert_close(pointops.attention_fusion_step(weight, value, target, refer), expected)
    inputs = [x.requires_grad_() for x in (weight, value)]
    call = pointops.AttentionFusionStep.apply
    nondet_tol = default_place.nondet_tol
    assert torch.autograd.gradcheck(lambda *x: call(*x, target, refer), inputs, nondet_tol=nondet_tol)


@pytest.mark.parametrize("dilation", [0, 1, 3])
@pytest.mark.parametrize("nsample", [1, 4])
def test_query_and_group(nsample, dilation, default_place):
    """Every (dilation + 1)-th neighbor; in a small cloud all points are spread over the entries."""
    points, queries = packed(default_place), packed(default_place, 20)
    features = torch.randn(40, 5, device=default_place.device)
    offset, new_offset = ends(default_place, 12, 13, 16, 40), ends(default_place, *NEW_ENDS)
    out, idx = pointops.query_and_group(nsample, points, queries, features, None, offset, new_offset, dilation)
    for cloud, query in queries_of(*NEW_ENDS):
        members = ranges(12, 13, 16, 40)[cloud]
        step = dilation
        if len(members) < 1 + (nsample - 1) * (dilation + 1):
            step = (len(members) - 1) / (nsample - 1) - 1
        nearest = neighbors_by_loop(points, members, queries[query])[1].tolist()
        assert idx[query].tolist() == [nearest[int((step + 1) * i)] for i in range(nsample)]
    assert torch.equal(out, torch.cat([points[idx.long()] - queries[:, None], features[idx.long()]], dim=-1))
    arguments = (nsample, points, queries, features, idx, offset, new_offset)
    assert torch.equal(pointops.query_and_group(*arguments, with_feat=False), idx)
    assert torch.equal(pointops.query_and_group(*arguments, with_xyz=False)[0], features[idx.long()])


def test_knn_and_ball_query_and_group(default_place):
    points, queries = packed(default_place), packed(default_place, 20)
    features = torch.randn(40, 5, device=default_place.device)
    clouds = {"offset": ends(default_place, *ENDS), "new_xyz": queries, "new_offset": ends(default_place, *NEW_ENDS)}
    out, idx = pointops.knn_query_and_group(features, points, **clouds, nsample=4, with_xyz=True)
    assert torch.equal(idx, pointops.knn_query(4, points, *clouds.values())[0])
    assert torch.equal(out, pointops.grouping(idx, features, points, queries, with_xyz=True))
    again, same = pointops.knn_query_and_group(features, points, new_xyz=queries, idx=idx, with_xyz=True)
    assert same is idx
    assert torch.equal(again, out)
    out, idx = pointops.ball_query_and_group(features, points, **clouds, max_radio=0.5, nsample=4)
    assert torch.equal(idx, pointops.ball_query(4, 0.5, 0, points, *clouds.values())[0])
    assert torch.equal(out, pointops.grouping(idx, features, points))


@pytest.mark.parametrize("use_xyz", [True, False])
def test_queryandgroup(use_xyz, default_place):
    points, queries = packed(default_place), packed(default_place, 20)
    features = torch.randn(40, 5, device=default_place.device, requires_grad=True)
    offset, new_offset = ends(default_place, 12, 13, 16, 40), ends(default_place, *NEW_ENDS)
    out = older.queryandgroup(4, points, queries, features, None, offset, new_offset, use_xyz=use_xyz)
    idx = older.knnquery(4, points, queries, offset, new_offset)[0]
    expected = features[idx.long()]
    expected = torch.cat([points[idx.long()] - queries[:, None], expected], -1) if use_xyz else expected
    assert torch.equal(out, expected)
    assert torch.equal(older.queryandgroup(4, points, queries, features, idx, offset, new_offset, use_xyz), out)
    out.sum().backward()
    torch.testing.assert_close(features.grad[:, 0].cpu(), idx.flatten().cpu().long().bincount(minlength=40).float())


@pytest.mark.parametrize("radius", [None, 0.4])
def test_batched_query_and_group(radius, default_place):
    points = torch.rand(2, 30, 3, device=default_place.device)
    features, centers = torch.randn(2, 5, 30, device=default_place.device), points[:, :6]
    layer = older.QueryAndGroup(radius=radius, nsample=8)
    out = layer(points, centers, features)
    idx = older.knnquery(8, points, centers) if radius is None else older.ballquery(radius, 8, points, centers)
    positions = older.grouping(points.mT, idx) - centers.mT[..., None]
    assert torch.equal(out, torch.cat([positions, older.grouping(features, idx)], 1))
    assert torch.equal(layer(points, centers, features, idx), out)
    assert torch.equal(layer(points), layer(points, points))
    assert older.GroupAll()(points, None, features).shape == (2, 8, 1, 30)


def test_compile(default_place):
    """Searches, groups and sums in one graph, which is valid for other offsets too."""
    points, features = packed(default_place), torch.randn(40, 5, device=default_place.device)

    def network(xyz, feat, offset):
        grouped, idx = pointops.knn_query_and_group(feat, xyz, offset, nsample=4, with_xyz=True)
        weight = torch.softmax(grouped[..., :1], dim=1)
        feat = pointops.aggregation(feat, grouped[..., 3:], weight, idx)
        dilated, _ = pointops.query_and_group(4, xyz, xyz, feat, None, offset, offset, dilation=1)
        first = older.queryandgroup(4, xyz, xyz, feat, None, offset, offset)
        return (dilated + first).sum(1), pointops.interpolation(xyz, xyz + 0.1, feat, offset, offset)

    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    for values in ([12, 40], [3, 40]):
        offset = ends(default_place, *values)
        torch.testing.assert_close(compiled(points, features, offset), network(points, features, offset))


def test_offset2batch_and_batch2offset(default_place):
    offset = ends(default_place, 2, 2, 5)
    batch = pointops.offset2batch(offset)
    assert batch.dtype == torch.int64
    assert batch.tolist() == [0, 0, 2, 2, 2]
    back = pointops.batch2offset(batch)
    assert back.dtype == torch.int32
    assert back.tolist() == [2, 2, 5]


POINTS, ROWS, OFFSET = torch.zeros(6, 3), torch.zeros(6, 4), torch.tensor([6])
INDEX = torch.zeros(6, 2, dtype=torch.int32)
BAD = [
    (lambda: pointops.knn_query(0, POINTS, OFFSET), ValueError, "nsample must be at least 1, got 0"),
    (lambda: pointops.knn_query(3, POINTS[None], OFFSET), ValueError, "xyz must be (N, 3), got (1, 6, 3)"),
    (lambda: pointops.knn_query(3, POINTS, POINTS), ValueError, "offset must be (B,), got (6, 3)"),
    (lambda: pointops.knn_query(3, POINTS, OFFSET.float()), TypeError, "offset must be int64 or int32, got float32"),
    (lambda: pointops.knn_query(3, POINTS, OFFSET - 1), ValueError, "offsets[-1] must equal N = 6, got 5"),
    (
        lambda: pointops.ball_query(3, 0.1, 0.2, POINTS, OFFSET),
        ValueError,
        "min_radius must be in [0, max_radius = 0.1)",
    ),
    (lambda: pointops.ball_query(3, "a", 0.2, POINTS, OFFSET), TypeError, "max_radius must be a number, got str 'a'"),
    (
        lambda: pointops.farthest_point_sampling(POINTS, OFFSET, INDEX[:2, 0]),
        ValueError,
        "new_offset must be (1,), like",
    ),
    (lambda: pointops.grouping(INDEX.float(), ROWS, POINTS), TypeError, "idx must be int64 or int32, got float32"),
    (lambda: pointops.grouping(INDEX, ROWS, POINTS[:5], with_xyz=True), ValueError, "xyz must be (6, 3), like feat"),
    (
        lambda: pointops.interpolation(POINTS, POINTS, ROWS[:5], OFFSET, OFFSET),
        ValueError,
        "feat must be (6, C), like xyz",
    ),
    (lambda: pointops.subtraction(ROWS[:5], ROWS, INDEX), ValueError, "input1 must be (N, C) = (6, 4), got (5, 4)"),
    (
        lambda: pointops.aggregation(ROWS, ROWS, ROWS, INDEX),
        ValueError,
        "position must be (N, K, C) = (6, 2, 4), got (6, 4)",
    ),
    (
        lambda: pointops.aggregation(ROWS, torch.zeros(6, 2, 4), torch.zeros(6, 2, 3), INDEX),
        ValueError,
        "weight must be (6, 2) like idx",
    ),
    (
        lambda: pointops.attention_fusion_step(ROWS, ROWS, INDEX[:, 0], INDEX[:, 0]),
        ValueError,
        "value must be (N, G, C), got",
    ),
    (
        lambda: pointops.knn_query_and_group(ROWS, POINTS, OFFSET),
        ValueError,
        "nsample must be given if idx is None, got None",
    ),
    (lambda: older.knnquery(2, POINTS), ValueError, "xyz must be (B, N, 3), or (N, 3) with offset, got (6, 3)"),
    (lambda: older.furthestsampling(POINTS, 2), ValueError, "xyz must be (B, N, 3), got (6, 3)"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_module_names():
    """The functions are in the same modules as in Pointcept."""
    for module, names in {
        "query": "knn_query ball_query random_ball_query KNNQuery BallQuery RandomBallQuery",
        "sampling": "farthest_point_sampling FarthestPointSampling",
        "grouping": "grouping grouping2 Grouping",
        "interpolation": "interpolation interpolation2 Interpolation",
        "subtraction": "subtraction Subtraction",
        "aggregation": "aggregation Aggregation",
        "attention": "attention_relation_step attention_fusion_step AttentionRelationStep AttentionFusionStep",
        "utils": "query_and_group knn_query_and_group ball_query_and_group batch2offset offset2batch",
    }.items():
        loaded = importlib.import_module(f"pointgrad.compat.pointops.functions.{module}")
        for name in names.split():
            assert callable(getattr(loaded, name))
            assert getattr(pointops, name) is getattr(loaded, name)


@pytest.mark.parametrize("module", pointgrad.compat.modules("pointops"), ids=lambda module: module.__name__)
def test_docstring_examples(module):
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0


def test_unchanged_program(monkeypatch, capsys):
    unchanged.in_this_process("pointops", monkeypatch)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_program_by_command():
    assert len(unchanged.by_command("pointops").splitlines()) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_mixed_precision_is_promoted(dtype):
    xyz, feat = torch.rand(9, 3), torch.rand(9, 4)
    idx, _ = pointops.knn_query(3, xyz, torch.tensor([9]))
    received = pointops.grouping(idx, feat.to(dtype), xyz, with_xyz=True)
    expected = torch.cat([xyz[idx.long()] - xyz[:, None], feat.to(dtype)[idx.long()]], dim=-1)
    assert received.dtype == expected.dtype
    torch.testing.assert_close(received, expected)
    weight = torch.rand(9, 3, 2).to(dtype)
    mixed = pointops.aggregation(feat, torch.zeros(9, 3, 4), weight, idx)
    assert mixed.dtype == torch.promote_types(dtype, torch.float32)


def test_decreasing_offsets():
    xyz = torch.rand(9, 3)
    with pytest.raises(ValueError, match="new_offset must be non-decreasing, got a decrease of 2 at cloud 1"):
        pointops.farthest_point_sampling(xyz, torch.tensor([5, 9]), torch.tensor([4, 2]))
    with pytest.raises(ValueError, match=r"offset must be non-decreasing, got \[5, 3\]"):
        pointops.offset2batch(torch.tensor([5, 3]))
    with pytest.raises(ValueError, match="batch must be sorted, got a number after a larger one"):
        pointops.batch2offset(torch.tensor([1, 0, 1]))


def test_counts_as_tensors():
    xyz, offset = torch.rand(9, 3), torch.tensor([9])
    few = pointops.knn_query(torch.tensor(3), xyz, offset)[0]
    assert torch.equal(few, pointops.knn_query(3, xyz, offset)[0])
