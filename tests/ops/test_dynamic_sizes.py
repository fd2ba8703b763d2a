"""`torch.compile(dynamic=True)` of every operator: growing numbers of clouds, points, neighbors and channels."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import pointgrad
from pointgrad import catalog
from pointgrad import functional as F

SIZES = range(3, 7)


def index(rows, *shape):
    return torch.randint(-1, rows, shape)


def offsets(n, parts):
    """(parts + 1,): `parts` clouds of n points."""
    return torch.arange(parts + 1) * n


def both_searches(points, queries, k):
    found = pointgrad.NeighborIndex(points)
    return found.knn(k, queries), found.ball_query(0.5, k, queries)


# A function, and arguments of which every size grows with n.
CALLS = {
    "gather": lambda n: (pointgrad.gather, torch.rand(n, n + 1), index(n, n + 2)),
    "group": lambda n: (
        lambda f, i, p, c: pointgrad.group(f, i, points=p, centers=c),
        torch.rand(n, n + 1), index(n, n + 2, n + 3), torch.rand(n, 3), torch.rand(n + 2, 3),
    ),
    "scatter": lambda n: (
        lambda v, i, s: [pointgrad.scatter(v, i, s, reduce) for reduce in ("sum", "mean", "max")],
        torch.rand(n, n + 1), index(n + 2, n), n + 2,
    ),
    "segment": lambda n: (
        lambda v, o: [pointgrad.segment(v, o, reduce) for reduce in ("sum", "mean", "max")],
        torch.rand(n * n, n + 1), offsets(n, n),
    ),
    "segment_softmax": lambda n: (pointgrad.segment_softmax, torch.rand(n * n, n + 1), offsets(n, n)),
    "histogram": lambda n: (pointgrad.histogram, index(n + 1, n), n + 1, torch.rand(n)),
    "farthest_point_sampling": lambda n: (
        lambda p, m, o: pointgrad.farthest_point_sampling(p, m, offsets=o), torch.rand(n * n, 3), n - 1, offsets(n, n),
    ),
    "random_sampling": lambda n: (
        lambda p, m, o: pointgrad.random_sampling(p, m, offsets=o), torch.rand(n * n, 3), n - 1, offsets(n, n),
    ),
    "voxel_sampling": lambda n: (
        lambda p, o: pointgrad.voxel_sampling(p, 0.3, offsets=o), torch.rand(n * n, 3), offsets(n, n),
    ),
    "unique_voxels": lambda n: (
        lambda c, o: pointgrad.unique_voxels(c, offsets=o), torch.randint(3, (n * n, 3)), offsets(n, n),
    ),
    "voxelize": lambda n: (lambda p, o: pointgrad.voxelize(p, 0.3, offsets=o), torch.rand(n * n, 3), offsets(n, n)),
    "voxelize, features": lambda n: (
        lambda p, f: [pointgrad.voxelize(p, 0.3, features=f, reduce=r).features for r in ("mean", "max", "first")],
        torch.rand(n, 9, 3), torch.rand(n, 9, n + 1),
    ),
    "knn": lambda n: (
        lambda p, k, q, o, r: pointgrad.knn(p, k, q, offsets=o, query_offsets=r),
        torch.rand(n * n, 3), n + 2, torch.rand(n * (n + 1), 3), offsets(n, n), offsets(n + 1, n),
    ),
    "ball_query": lambda n: (
        lambda p, k, q, o, r: pointgrad.ball_query(p, 0.3, k, q, offsets=o, query_offsets=r),
        torch.rand(n * n, 3), n + 2, torch.rand(n * (n + 1), 3), offsets(n, n), offsets(n + 1, n),
    ),
    "NeighborIndex": lambda n: (both_searches, torch.rand(n, 3), torch.rand(n + 1, 3), n + 2),
    "interpolate": lambda n: (
        lambda f, p, q, k, o, r: pointgrad.interpolate(f, p, q, k, offsets=o, query_offsets=r),
        torch.rand(n * n, n + 1), torch.rand(n * n, 3), torch.rand(n * (n + 1), 3), n, offsets(n, n), offsets(n + 1, n),
    ),
    "interpolate_at": lambda n: (
        pointgrad.interpolate_at, torch.rand(n, n + 1), index(n, n + 2, n + 3), torch.rand(n + 2, n + 3),
    ),
    "trilinear": lambda n: (pointgrad.trilinear, torch.rand(n, 8, n + 1), torch.rand(n, 3)),
    "aggregate": lambda n: (
        pointgrad.aggregate, torch.rand(n, n + 1, n + 2), torch.rand(n + 3, 2 * n + 4), index(n + 3, n, n + 1),
    ),
    "neighbor_attention": lambda n: (
        pointgrad.neighbor_attention, torch.rand(n, n + 1, n + 2), torch.rand(n + 3, n + 1, n + 2),
        torch.rand(n + 3, n + 1, n + 4), index(n + 3, n, n + 5), torch.rand(n, n + 5, n + 1),
    ),
    "patch_attention": lambda n: (
        lambda q, i, p, o, c, t: pointgrad.patch_attention(q, q, q, i, p, offsets=o, coordinates=c, bias_table=t),
        torch.rand(n * n, n + 1, n + 2), torch.arange(n * n), n + 2, offsets(n, n), index(n, n * n, 3),
        torch.rand(9, n + 1),
    ),
    "patch_index": lambda n: (
        lambda i, p, s: pointgrad.patch_index(i, p, lengths=s),
        torch.arange(n + 1).repeat(n, 1), n + 2, torch.arange(n),
    ),
    "rotary_embedding": lambda n: (
        pointgrad.rotary_embedding, torch.rand(n, n + 1, n + 2, 6 * n), torch.rand(n, n + 1, 3),
    ),
    "masked_softmax": lambda n: (pointgrad.masked_softmax, torch.rand(n, n + 1), torch.rand(n, n + 1) > 0.5),
    "cross_entropy": lambda n: (F.cross_entropy, torch.rand(n, n + 1, n + 2), index(n, n, n + 2).clamp(min=0)),
    "cross_entropy, probabilities": lambda n: (F.cross_entropy, torch.rand(n, n + 1), torch.rand(n, n + 1)),
    "nll_loss": lambda n: (F.nll_loss, torch.rand(n, n + 1, n + 2), index(n, n, n + 2).clamp(min=0)),
    "knn, padded": lambda n: (
        lambda p, k, q, s, t: pointgrad.knn(p, k, q, lengths=s, query_lengths=t),
        torch.rand(n, n + 1, 3), n + 2, torch.rand(n, n + 3, 3), torch.arange(n), torch.arange(n),
    ),
    "to_edges": lambda n: (pointgrad.to_edges, index(n, n, n + 1, n + 2), n),
    "grid_sample": lambda n: (
        pointgrad.grid_sample, torch.rand(n, n + 1, n + 2, n + 3, n + 4), torch.rand(n, n + 5, 3),
    ),
    "splat": lambda n: (
        lambda f, p, d, h, w: pointgrad.splat(f, p, (d, h, w)),
        torch.rand(n, n + 1, n + 2), torch.rand(n, n + 1, 3), n, n + 1, n + 2,
    ),
    "chamfer_distance": lambda n: (pointgrad.chamfer_distance, torch.rand(n, n + 1, 3), torch.rand(n, n + 2, 3)),
    "unfold": lambda n: (lambda x, s: F.unfold(x, 3, padding=1, stride=s), torch.rand(n, n + 1, n + 2, n + 3), n),
    "fold": lambda n: (lambda x, h, w: F.fold(x, (h, w), 2), torch.rand(n, 4 * n, n * (n + 1)), n + 1, n + 2),
    "conv1d": lambda n: (F.conv1d, torch.rand(n, n + 1, n + 2), torch.rand(n + 3, n + 1, n)),
    "conv2d": lambda n: (
        F.conv2d, torch.rand(n, n + 1, n + 2, n + 3), torch.rand(n + 4, n + 1, n, n), torch.rand(n + 4),
    ),
    "sparse_conv": lambda n: (
        lambda f, w, c, b, o: pointgrad.sparse_conv(
            f, w, pointgrad.strided_map(c, (1, 2, 2), stride=2, offsets=o), bias=b
        ),
        torch.rand(n * n, n + 1), torch.rand(4, n + 1, n + 2), index(n, n * n, 3), torch.rand(n + 2), offsets(n, n),
    ),
    "sparse_pool": lambda n: (
        lambda f, c: [
            pointgrad.sparse_pool(f, pointgrad.submanifold_map(c, 3), reduce) for reduce in ("max", "mean", "sum")
        ],
        torch.rand(n, n + 1, n + 2), index(n, n, n + 1, 3),
    ),
    "submanifold_map": lambda n: (
        lambda c, s: pointgrad.submanifold_map(c, 2, lengths=s), index(n, n, n + 1, 3), torch.arange(n),
    ),
    "strided_map": lambda n: (
        lambda c, o: pointgrad.strided_map(c, 3, stride=2, offsets=o), index(n, n * n, 3), offsets(n, n),
    ),
    "transposed_map": lambda n: (
        lambda c, o: pointgrad.transposed_map(c, 2, stride=2, offsets=o), index(n, n * n, 3), offsets(n, n),
    ),
    "space_filling_curve": lambda n: (
        lambda c, o: pointgrad.space_filling_curve(c, "z", offsets=o), torch.randint(n, (n * n, 3)), offsets(n, n),
    ),
    "serialize": lambda n: (
        lambda c, s: pointgrad.serialize(c, lengths=s), torch.randint(n, (n, n + 1, 3)), torch.arange(n),
    ),
    "max_pool2d": lambda n: (F.max_pool2d, torch.rand(n, n + 1, n + 2, n + 3), n),
}  # fmt: skip


def test_every_operator():
    assert CALLS.keys() - {"knn, padded"} == {op.name for op in catalog.OPERATORS if op.samples}


@pytest.mark.parametrize("build", CALLS.values(), ids=CALLS)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_two_compilations(build):
    """The second one where equal sizes of the first call differ later."""
    torch._dynamo.reset()
    counter = CompileCounter()
    call, *_ = build(SIZES[0])
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
    for n in SIZES:
        _, *arguments = build(n)
        compiled(*arguments)
    assert counter.frame_count <= 2
