"""The functions of pointgrad.compat.pointnet2_ops against plain loops, and known defects of the original."""

import doctest
import math

import pytest
import torch

import pointgrad.compat
from pointgrad.compat.pointnet2_ops import _ext
from pointgrad.compat.pointnet2_ops import pointnet2_modules as modules
from pointgrad.compat.pointnet2_ops import pointnet2_utils as utils
from tests.compat.pointnet2_ops_loops import ball_by_loop, clouds, farthest_by_loop
from tests.support import unchanged

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_furthest_point_sample(dtype, default_place):
    points = clouds(default_place, dtype=dtype)
    index = utils.furthest_point_sample(points, 12)
    assert (index.dtype, index.shape, index.is_contiguous()) == (torch.int32, (2, 12), True)
    wide = points.cpu().to(torch.promote_types(dtype, torch.float32))
    assert index.tolist() == [farthest_by_loop(cloud, 12) for cloud in wide]
    assert torch.equal(utils.FurthestPointSampling.apply(points, 12), index)


def test_sampling_too_many_points_repeats_the_first(default_place):
    index = utils.furthest_point_sample(clouds(default_place, count=3), 6)
    assert index.sort(dim=1).values.tolist() == [[0, 0, 0, 0, 1, 2]] * 2
    assert index[:, 3:].tolist() == [[0, 0, 0]] * 2


def test_points_near_the_origin_are_sampled(default_place):
    """The original skips points with |p|^2 <= 1e-3 and therefore repeats index 0 in a small cloud."""
    points = clouds(default_place) * 0.01
    assert (points**2).sum(-1).max() < 1e-3
    index = utils.furthest_point_sample(points, 40)
    assert index.sort(dim=1).values.tolist() == [list(range(40))] * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_operation(dtype, default_place):
    features = torch.randn(2, 5, 9, device=default_place.device).to(dtype).requires_grad_()
    idx = torch.tensor([[0, 8, 8, 3], [1, 2, 0, 7]], dtype=torch.int32, device=default_place.device)
    out = utils.gather_operation(features, idx)
    expected = features.gather(2, idx.long()[:, None].expand(-1, 5, -1))
    assert torch.equal(out, expected)
    assert out.is_contiguous()
    weight = torch.randn_like(out)
    grad = torch.autograd.grad(out, features, weight)[0]
    torch.testing.assert_close(grad, torch.autograd.grad(expected, features, weight)[0])
    assert torch.equal(utils.GatherOperation.apply(features, idx), out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_grouping_operation(dtype, default_place):
    features = torch.randn(2, 5, 9, device=default_place.device).to(dtype).requires_grad_()
    idx = torch.randint(0, 9, (2, 4, 3), dtype=torch.int32).to(default_place.device)
    out = utils.grouping_operation(features, idx)
    expected = features.gather(2, idx.long().reshape(2, 1, 12).expand(-1, 5, -1)).reshape(2, 5, 4, 3)
    assert torch.equal(out, expected)
    assert out.is_contiguous()
    weight = torch.randn_like(out)
    grad = torch.autograd.grad(out, features, weight)[0]
    exact = features.detach().double().requires_grad_()
    exact.gather(2, idx.long().reshape(2, 1, 12).expand(-1, 5, -1)).backward(weight.double().flatten(2))
    torch.testing.assert_close(grad, exact.grad.to(dtype))  # summed in float32, rounded once
    assert torch.equal(utils.GroupingOperation.apply(features, idx), out)


def test_index_minus_one_gives_zeros(default_place):
    """The originals read out of bounds."""
    features = torch.ones(1, 2, 3, device=default_place.device, requires_grad=True)
    idx = torch.tensor([[-1, 2]], dtype=torch.int32, device=default_place.device)
    out = utils.gather_operation(features, idx)
    assert out.tolist() == [[[0, 1], [0, 1]]]
    grouped = utils.grouping_operation(features, idx[:, None])
    assert grouped.tolist() == [[[[0, 1]], [[0, 1]]]]
    (out.sum() + grouped.sum()).backward()
    assert features.grad.tolist() == [[[0, 0, 2], [0, 0, 2]]]


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_three_nn(dtype, grid, default_place):
    known, unknown = clouds(default_place, dtype=dtype, grid=grid), clouds(default_place, count=7, dtype=dtype)
    dist, idx = utils.three_nn(unknown, known)
    wide = torch.promote_types(dtype, torch.float32)
    pairs = ((unknown.to(wide)[:, :, None] - known.to(wide)[:, None]) ** 2).sum(-1)
    order = pairs.argsort(dim=-1, stable=True)[..., :3]
    assert (idx.dtype, dist.dtype) == (torch.int32, wide)
    torch.testing.assert_close(dist, pairs.gather(-1, order).sqrt())
    torch.testing.assert_close(pairs.gather(-1, idx.long()), pairs.gather(-1, order))  # ties may be rounded differently
    again = utils.ThreeNN.apply(unknown, known)
    assert torch.equal(again[0], dist)
    assert torch.equal(again[1], idx)


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_known(count, default_place):
    """Missing neighbors have index 0 and infinite distance, so that a weight of 1 / dist is zero."""
    known, unknown = clouds(default_place, count=count), clouds(default_place, count=4)
    dist, idx = utils.three_nn(unknown, known)
    assert (idx[..., count:] == 0).all()
    assert dist[..., count:].isinf().all()
    assert dist[..., :count].isfinite().all()


def test_three_nn_has_no_gradient(default_place):
    known, unknown = clouds(default_place).requires_grad_(), clouds(default_place).requires_grad_()
    dist, idx = utils.three_nn(unknown, known)
    assert not dist.requires_grad
    assert not idx.requires_grad
    assert not utils.furthest_point_sample(known, 4).requires_grad
    assert not utils.ball_query(0.5, 4, known, unknown).requires_grad


def test_three_interpolate(default_place):
    """The original's gradient of the weights is zero."""
    features = torch.randn(2, 5, 9, dtype=torch.float64, device=default_place.device, requires_grad=True)
    idx = torch.randint(0, 9, (2, 4, 3), dtype=torch.int32).to(default_place.device)
    weight = torch.rand(2, 4, 3, dtype=torch.float64, device=default_place.device, requires_grad=True)
    out = utils.three_interpolate(features, idx, weight)
    grouped = features.gather(2, idx.long().reshape(2, 1, 12).expand(-1, 5, -1)).reshape(2, 5, 4, 3)
    torch.testing.assert_close(out, (grouped * weight[:, None]).sum(-1))
    assert out.is_contiguous()
    nondet_tol = default_place.nondet_tol
    assert torch.autograd.gradcheck(
        lambda f, w: utils.three_interpolate(f, idx, w), (features, weight), nondet_tol=nondet_tol
    )
    assert torch.autograd.gradgradcheck(
        lambda f, w: utils.ThreeInterpolate.apply(f, idx, w), (features, weight), nondet_tol=nondet_tol
    )


def test_double_backward(default_place):
    """The originals are differentiable only once."""
    features = torch.randn(1, 2, 5, dtype=torch.float64, device=default_place.device, requires_grad=True)
    idx = torch.tensor([[4, 1, 1]], device=default_place.device)
    for function, index in ((utils.gather_operation, idx), (utils.grouping_operation, idx[:, None])):
        assert torch.autograd.gradgradcheck(lambda f, call=function, i=index: call(f, i), (features,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_higher_precision_than_features(dtype, default_place):
    """`three_nn` returns float32 distances for 16-bit points, because a weight of 1e-8 does not fit into 16 bits."""
    known, unknown = clouds(default_place, dtype=dtype), clouds(default_place, count=5, dtype=dtype)
    unknown[:, 0] = known[:, 3]
    features = torch.randn(2, 6, 40, device=default_place.device).to(dtype)
    dist, idx = utils.three_nn(unknown, known)
    weight = 1 / (dist + 1e-8)
    out = utils.three_interpolate(features, idx, weight / weight.sum(2, keepdim=True))
    assert out.dtype == dtype
    assert out.isfinite().all()
    torch.testing.assert_close(out[:, :, 0], features[:, :, 3])


@pytest.mark.parametrize(("radius", "nsample"), [(0.3, 8), (0.05, 4), (5.0, 64), (0.4, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ball_query(dtype, radius, nsample, default_place):
    points = clouds(default_place, dtype=dtype)
    centers = torch.cat([points[:, :5], points[:, :2] + 50], dim=1)  # the last two find nothing
    index = utils.ball_query(radius, nsample, points, centers)
    assert (index.dtype, index.is_contiguous()) == (torch.int32, True)
    for batch in range(2):
        for number, center in enumerate(centers[batch].cpu()):
            assert index[batch, number].tolist() == ball_by_loop(radius, nsample, points[batch].cpu(), center)
    assert torch.equal(utils.BallQuery.apply(radius, nsample, points, centers), index)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("radius", [1.0, 2.0, 3.0, math.sqrt(2)])
def test_points_on_the_sphere_are_outside(radius, dtype, default_place):
    """On a lattice many points are on the sphere; native balls include them."""
    axis = torch.arange(4.0)
    lattice = torch.cartesian_prod(axis, axis, axis).to(default_place.device, dtype)[None]
    index = utils.ball_query(radius, 64, lattice, lattice)
    expected = [ball_by_loop(radius, 64, lattice[0].cpu(), center) for center in lattice[0].cpu()]
    assert index[0].tolist() == expected


@pytest.mark.parametrize("use_xyz", [True, False])
def test_query_and_group(use_xyz, default_place):
    points, features = clouds(default_place), torch.randn(2, 5, 40, device=default_place.device)
    points.requires_grad_(), features.requires_grad_()
    centers = points[:, :6].detach().requires_grad_()
    out = utils.QueryAndGroup(0.4, 8, use_xyz=use_xyz)(points, centers, features)
    index = utils.ball_query(0.4, 8, points, centers)
    positions = utils.grouping_operation(points.transpose(1, 2), index) - centers.transpose(1, 2)[..., None]
    expected = utils.grouping_operation(features, index)
    expected = torch.cat([positions, expected], dim=1) if use_xyz else expected
    assert torch.equal(out, expected)
    assert out.is_contiguous()
    inputs = (points, centers, features) if use_xyz else (features,)
    weight = torch.randn_like(out)
    received = torch.autograd.grad(out, inputs, weight)
    torch.testing.assert_close(received, torch.autograd.grad(expected, inputs, weight))


def test_query_and_group_without_features(default_place):
    points = clouds(default_place)
    out = utils.QueryAndGroup(0.4, 8)(points, points[:, :6])
    assert out.shape == (2, 3, 6, 8)
    assert torch.equal(out, utils.QueryAndGroup(0.4, 8)(points, points[:, :6], torch.zeros_like(points.mT))[:, :3])
    with pytest.raises(ValueError, match="features must be given if use_xyz is False, got None"):
        utils.QueryAndGroup(0.4, 8, use_xyz=False)(points, points)


def test_group_all(default_place):
    points, features = clouds(default_place), torch.randn(2, 5, 40, device=default_place.device)
    assert torch.equal(utils.GroupAll()(points, None, features)[:, :, 0], torch.cat([points.mT, features], 1))
    assert torch.equal(utils.GroupAll(use_xyz=False)(points, None, features)[:, :, 0], features)
    assert torch.equal(utils.GroupAll()(points, None)[:, :, 0], points.mT)


@pytest.mark.parametrize("empty", ["batch", "centers"])
def test_empty_input(empty, default_place):
    points = clouds(default_place, batch=0 if empty == "batch" else 2)
    centers = points[:, :0] if empty == "centers" else points[:, :3]
    assert utils.ball_query(0.1, 4, points, centers).shape == (*centers.shape[:2], 4)
    assert utils.three_nn(centers, points)[1].shape == centers.shape
    index = torch.zeros(*centers.shape[:2], 4, dtype=torch.int32, device=points.device)
    assert utils.grouping_operation(points.transpose(1, 2), index).shape == (points.shape[0], 3, *index.shape[1:])


def test_non_contiguous_input(default_place):
    """The originals raise "must be a contiguous tensor"."""
    wide = torch.rand(2, 40, 6, device=default_place.device)
    points = wide[..., 1:4]
    assert torch.equal(utils.furthest_point_sample(points, 5), utils.furthest_point_sample(points.contiguous(), 5))
    expected = utils.ball_query(0.3, 5, points.contiguous(), points.contiguous())
    assert torch.equal(utils.ball_query(0.3, 5, points, points), expected)


def test_ext_module(default_place):
    """The backward functions, which programs use in custom autograd functions, return the gradients of autograd."""
    points, centers = clouds(default_place), clouds(default_place, count=6)
    features = torch.randn(2, 5, 40, device=default_place.device, requires_grad=True)
    idx = _ext.ball_query(centers, points, 0.4, 3)
    assert torch.equal(idx, utils.ball_query(0.4, 3, points, centers))
    assert torch.equal(_ext.furthest_point_sampling(points, 4), utils.furthest_point_sample(points, 4))
    distance2, nearest = _ext.three_nn(centers, points)
    dist, expected = utils.three_nn(centers, points)
    assert torch.equal(nearest, expected)
    assert torch.equal(distance2.sqrt(), dist)
    weight = torch.rand_like(dist)
    for function, backward, arguments in (
        (_ext.gather_points, _ext.gather_points_grad, (idx[..., 0].contiguous(),)),
        (_ext.group_points, _ext.group_points_grad, (idx,)),
        (_ext.three_interpolate, _ext.three_interpolate_grad, (nearest, weight)),
    ):
        out = function(features, *arguments)
        grad = torch.randn_like(out)
        received = backward(grad, *arguments, 40)
        assert received.is_contiguous()
        torch.testing.assert_close(received, torch.autograd.grad(out, features, grad)[0])


POINTS, FEATURES = torch.zeros(2, 6, 3), torch.zeros(2, 4, 6)
BAD = [
    (lambda: utils.furthest_point_sample(POINTS[0], 2), ValueError, "xyz must be (B, N, 3), got (6, 3)"),
    (lambda: utils.furthest_point_sample(POINTS.long(), 2), TypeError, "xyz must be float32, float64"),
    (lambda: utils.furthest_point_sample(POINTS, 2.0), TypeError, "npoint must be an int, got float 2.0"),
    (lambda: utils.furthest_point_sample(POINTS, 0), ValueError, "npoint must be at least 1, got 0"),
    (lambda: utils.ball_query(0.1, 0, POINTS, POINTS), ValueError, "nsample must be at least 1, got 0"),
    (lambda: utils.ball_query(-1, 2, POINTS, POINTS), ValueError, "radius must be positive, got -1"),
    (
        lambda: utils.ball_query(1, 2, POINTS, POINTS[:1]),
        ValueError,
        "new_xyz must be (B, N, 3) with B = 2, got (1, 6, 3)",
    ),
    (
        lambda: utils.three_nn(POINTS, POINTS.double()),
        TypeError,
        "known must have the dtype of unknown, float32, got float64",
    ),
    (
        lambda: utils.gather_operation(FEATURES[0], torch.zeros(2, 3).int()),
        ValueError,
        "features must be (B, C, N), got (4, 6)",
    ),
    (lambda: utils.gather_operation(FEATURES, torch.zeros(2, 3)), TypeError, "idx must be int64 or int32, got float32"),
    (
        lambda: utils.gather_operation(FEATURES, torch.zeros(2, 3, 1).int()),
        ValueError,
        "idx must be (B, M) with B = 2, got (2, 3, 1)",
    ),
    (
        lambda: utils.grouping_operation(FEATURES, torch.zeros(1, 3, 1).int()),
        ValueError,
        "idx must be (B, M, K) with B = 2, got (1, 3, 1)",
    ),
    (
        lambda: utils.three_interpolate(FEATURES, torch.zeros(2, 3, 3).int(), torch.zeros(2, 3)),
        ValueError,
        "weight must be (2, 3, 3), like idx, got (2, 3)",
    ),
    (
        lambda: modules.PointnetSAModule(mlp=[3, 4], npoint=4),
        ValueError,
        "radius and nsample must be given with npoint, got None and None",
    ),
    (
        lambda: modules.PointnetSAModuleMSG(4, [0.1], [8, 8], [[3, 4]]),
        ValueError,
        "radii, nsamples and mlps must have the same length, got 1, 2 and 1",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    """Bad input raises, where the originals abort the process or read out of bounds."""
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_index_out_of_range():
    with pytest.raises(ValueError, match="idx must be -1"):
        utils.gather_operation(FEATURES, torch.full((2, 3), 6))


@pytest.mark.parametrize("module", pointgrad.compat.modules("pointnet2_ops"), ids=lambda module: module.__name__)
def test_docstring_examples(module):
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0


def test_unchanged_program(monkeypatch, capsys):
    unchanged.in_this_process("pointnet2_ops", monkeypatch)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_program_by_command():
    assert len(unchanged.by_command("pointnet2_ops").splitlines()) == 3


def test_scalar_arguments_as_tensors():
    xyz = torch.rand(2, 20, 3)
    picks = utils.furthest_point_sample(xyz, torch.tensor(4))
    assert torch.equal(picks, utils.furthest_point_sample(xyz, 4))
    found = utils.ball_query(torch.tensor(0.5), torch.tensor(3), xyz, xyz)
    assert torch.equal(found, utils.ball_query(0.5, 3, xyz, xyz))


def test_sampling_an_empty_cloud():
    with pytest.raises(ValueError, match=r"xyz must be \(B, N, 3\) with N at least 1, got \(2, 0, 3\)"):
        utils.furthest_point_sample(torch.rand(2, 0, 3), 5)


def test_group_all_checks_features():
    with pytest.raises(ValueError, match=r"features must be \(B, C, N\) = \(2, C, 9\), like xyz, got \(2, 5, 4\)"):
        utils.GroupAll()(torch.rand(2, 9, 3), None, torch.rand(2, 5, 4))
