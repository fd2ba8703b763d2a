"""Properties specific to grid_sample and splat; test_contract.py tests the rest."""

import math
from fractions import Fraction

import pytest
import torch

import pointgrad

every_padding = pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
every_alignment = pytest.mark.parametrize("align_corners", [False, True], ids=["faces", "centers"])


def torch_sample(grid, points, padding_mode="zeros", align_corners=False):
    """grid_sample of PyTorch, whose points form a grid and whose channels come first."""
    values = torch.nn.functional.grid_sample(
        grid, points[:, :, None, None, :], mode="bilinear", padding_mode=padding_mode, align_corners=align_corners
    )
    return values[:, :, :, 0, 0].transpose(1, 2)


def values_and_grads(sample, grid, points, upstream, **settings):
    grid, points = grid.detach().requires_grad_(), points.detach().requires_grad_()
    values = sample(grid, points, **settings)
    return values, *torch.autograd.grad(values, (grid, points), upstream)


@every_padding
@every_alignment
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "float"])
@pytest.mark.parametrize("size", [(3, 4, 5), (1, 3, 2), (1, 1, 1)], ids=str)
def test_grid_sample_agrees_with_torch(size, dtype, padding_mode, align_corners, place):
    settings = {"padding_mode": padding_mode, "align_corners": align_corners}
    grid = torch.randn(2, 4, *size, dtype=dtype, device=place.device)
    near = torch.randn(2, 30, 3, dtype=dtype, device=place.device)
    points = torch.cat([near, near * 30], dim=1)
    upstream = torch.randn(2, 60, 4, dtype=dtype, device=place.device)
    received = values_and_grads(pointgrad.grid_sample, grid, points, upstream, **settings)
    expected = values_and_grads(torch_sample, grid, points, upstream, **settings)
    for actual, desired in zip(received, expected, strict=True):
        # At a distance of a hundred voxels the position within the cell loses two digits.
        tolerance = {} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(actual, desired, **tolerance)


@every_padding
@every_alignment
@pytest.mark.parametrize("size", [(4, 2, 8), (5, 3, 2)], ids=str)
def test_grid_sample_has_the_slope_of_torch(size, padding_mode, align_corners, place):
    """On voxels, faces, borders and turning points, where the slope is not unique."""
    settings = {"padding_mode": padding_mode, "align_corners": align_corners}
    grid = torch.randn(1, 4, *size, device=place.device)
    # Multiples of 1/8, so that neither side rounds; they include all these positions.
    points = (torch.randint(-26, 27, (1, 128, 3)) / 8).to(place.device)
    upstream = torch.randn(1, 128, 4, device=place.device)
    received = values_and_grads(pointgrad.grid_sample, grid, points, upstream, **settings)
    expected = values_and_grads(torch_sample, grid, points, upstream, **settings)
    for actual, desired in zip(received, expected, strict=True):
        torch.testing.assert_close(actual, desired, rtol=1e-5, atol=1e-4)


@every_padding
@every_alignment
def test_grids_are_twice_differentiable(padding_mode, align_corners):
    settings = {"padding_mode": padding_mode, "align_corners": align_corners}
    grid = torch.randn(1, 2, 3, 2, 3, dtype=torch.float64, requires_grad=True)
    features = torch.randn(1, 5, 2, dtype=torch.float64, requires_grad=True)
    points = torch.randn(1, 5, 3, dtype=torch.float64, requires_grad=True)
    for call, values in (
        (lambda grid, points: pointgrad.grid_sample(grid, points, **settings), grid),
        (lambda features, points: pointgrad.splat(features, points, (3, 2, 3), **settings), features),
    ):
        assert torch.autograd.gradcheck(call, (values, points))
        assert torch.autograd.gradgradcheck(call, (values, points))


@every_padding
@every_alignment
def test_second_derivatives_are_the_same_on_every_backend(padding_mode, align_corners, place):
    """Finite differences check the second derivatives of C++ above."""

    def second(device):
        torch.manual_seed(0)
        grid = torch.randn(1, 2, 3, 2, 3, dtype=torch.float64).to(device).requires_grad_()
        points = torch.randn(1, 20, 3, dtype=torch.float64).to(device).requires_grad_()
        values = pointgrad.grid_sample(grid, points, padding_mode=padding_mode, align_corners=align_corners)
        sources = (grid, points)
        first = torch.autograd.grad(values.pow(2).sum(), sources, create_graph=True)
        return [grad.cpu() for grad in torch.autograd.grad(sum(grad.pow(2).sum() for grad in first), sources)]

    with pointgrad.backend("cpu"):
        expected = second("cpu")
    for actual, desired in zip(second(place.device), expected, strict=True):
        torch.testing.assert_close(actual, desired)


@every_padding
@every_alignment
def test_splat_is_the_adjoint_of_grid_sample(padding_mode, align_corners, place):
    settings = {"padding_mode": padding_mode, "align_corners": align_corners}
    grid = torch.randn(2, 3, 3, 4, 5, dtype=torch.float64, device=place.device, requires_grad=True)
    features = torch.randn(2, 50, 3, dtype=torch.float64, device=place.device)
    points = torch.randn(2, 50, 3, dtype=torch.float64, device=place.device) * 2
    splatted = pointgrad.splat(features, points, (3, 4, 5), **settings)
    (expected,) = torch.autograd.grad(torch_sample(grid, points, **settings), grid, features)
    torch.testing.assert_close(splatted, expected)
    sampled = pointgrad.grid_sample(grid, points, **settings)
    torch.testing.assert_close((sampled * features).sum(), (grid * splatted).sum())


def test_splat_by_hand(place):
    """A quarter of the way from voxel 1 to voxel 2 along z, on a voxel along y and x."""
    points = torch.tensor([[[1.0, -1.0, -0.375]]], device=place.device)
    expected = torch.zeros(1, 2, 5, 2, 3, device=place.device)
    expected[0, :, 1, 0, 2] = torch.tensor([6.0, 0.75], device=place.device)
    expected[0, :, 2, 0, 2] = torch.tensor([2.0, 0.25], device=place.device)
    features = torch.tensor([[[8.0, 1.0]]], device=place.device)
    torch.testing.assert_close(pointgrad.splat(features, points, (5, 2, 3), align_corners=True), expected)


def test_eikonal_loss_on_a_grid(place):
    """A loss on the slope of a signed distance grid has a gradient for the voxels."""
    grid = torch.randn(1, 1, 3, 4, 3, dtype=torch.float64, device=place.device, requires_grad=True)
    points = torch.rand(1, 9, 3, dtype=torch.float64, device=place.device, requires_grad=True)

    def loss(grid):
        distance = pointgrad.grid_sample(grid, points, padding_mode="border")
        (slope,) = torch.autograd.grad(distance.sum(), points, create_graph=True)
        return ((slope.norm(dim=-1) - 1) ** 2).mean()

    assert torch.autograd.gradcheck(loss, grid, fast_mode=place.interpreted, nondet_tol=place.nondet_tol)


def test_third_derivative_on_a_grid(place):
    grid = torch.randn(1, 2, 3, 3, 3, dtype=torch.float64, device=place.device, requires_grad=True)
    points = torch.randn(1, 3, 3, dtype=torch.float64, device=place.device, requires_grad=True)

    def second(grid, points):
        value = pointgrad.grid_sample(grid, points, padding_mode="reflection").pow(2).sum()
        (slope,) = torch.autograd.grad(value, points, create_graph=True)
        (again,) = torch.autograd.grad(slope.pow(2).sum(), points, create_graph=True)
        return again

    assert torch.autograd.gradcheck(second, (grid, points), fast_mode=place.interpreted, nondet_tol=place.nondet_tol)


def test_without_channels_no_point_matters(place):
    """Even a point so far away that its weights overflow."""
    points = torch.full((1, 3), 1e31, device=place.device, requires_grad=True)
    (slope,) = torch.autograd.grad(pointgrad.trilinear(torch.empty(1, 8, 0, device=place.device), points).sum(), points)
    assert torch.equal(slope, torch.zeros_like(points))
    points = torch.rand(1, 2, 3, device=place.device, requires_grad=True)
    empty = torch.empty(1, 0, 2, 2, 2, device=place.device, requires_grad=True)
    value = pointgrad.grid_sample(empty, points)
    (slope,) = torch.autograd.grad(value.sum(), points, create_graph=True)
    (second,) = torch.autograd.grad(slope, points, torch.full_like(slope, float("inf")))
    assert torch.equal(slope, torch.zeros_like(points))
    assert torch.equal(second, torch.zeros_like(points))


@every_alignment
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 2, 8, 13])
def test_reflection_is_exact_from_any_distance(size, dtype, align_corners, place):
    """A linear ramp shows where a point is reflected to, compared with exact fractions."""
    largest = int(math.log2(torch.finfo(dtype).max)) - 6
    sizes = 2.0 ** torch.randint(-2, largest, (60,)).to(dtype)
    far = torch.randn(60, dtype=dtype).sign() * (1 + torch.rand(60, dtype=dtype)) * sizes
    points = torch.zeros(1, 60, 3, dtype=dtype)
    points[0, :, 0] = far
    ramp = torch.arange(size, dtype=dtype).reshape(1, 1, 1, 1, size)
    found = pointgrad.grid_sample(
        ramp.to(place.device), points.to(place.device), padding_mode="reflection", align_corners=align_corners
    )
    last = size - 1
    low, span = (0.0, last) if align_corners else (-0.5, size)
    units = (far + 1) / 2 * last if align_corners else ((far + 1) * size - 1) / 2  # voxels, rounded
    rests = [Fraction(away) % (2 * max(span, 1)) for away in (units - low).abs().tolist()]
    expected = [float(min(max(min(rest, 2 * span - rest) + Fraction(low), 0), last)) for rest in rests]
    torch.testing.assert_close(found.flatten().cpu(), torch.tensor(expected, dtype=dtype))


@every_padding
@every_alignment
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_non_finite_points(bad, padding_mode, align_corners, place):
    """Non-finite points sample zeros, splat nothing and pass no gradient; infinity is clamped to the border."""
    settings = {"padding_mode": padding_mode, "align_corners": align_corners}
    grid = torch.randn(1, 2, 3, 4, 5, device=place.device, requires_grad=True)
    features = torch.randn(1, 3, 2, device=place.device, requires_grad=True)
    points = torch.zeros(1, 3, 3, device=place.device)
    points[0, [0, 1, 2], [0, 1, 2]] = bad
    if padding_mode == "border" and bad != bad:
        assert not pointgrad.grid_sample(grid, points, **settings).any()
    elif padding_mode == "border":
        finite = points.clamp(-9, 9)
        assert torch.equal(pointgrad.grid_sample(grid, points, **settings), torch_sample(grid, finite, **settings))
        return
    points.requires_grad_()
    sampled = pointgrad.grid_sample(grid, points, **settings)
    splatted = pointgrad.splat(features, points, (3, 4, 5), **settings)
    assert not sampled.any()
    assert not splatted.any()
    for output, source in ((sampled, grid), (splatted, features)):
        assert not any(grad.any() for grad in torch.autograd.grad(output.sum(), (source, points)))


@every_padding
def test_points_very_far_outside(padding_mode, place):
    grid = torch.rand(1, 2, 3, 4, 5, device=place.device) + 1
    points = (
        torch.randn(1, 100, 3, device=place.device) * 10 ** torch.linspace(3, 37, 100, device=place.device)[:, None]
    )
    values = pointgrad.grid_sample(grid, points, padding_mode=padding_mode)
    if padding_mode == "zeros":
        assert not values.any()
    else:
        assert ((values > 0.999) & (values < 2.001)).all()


def test_few_points_agree_with_many(place):
    """Few points are sampled from the grid itself, many from a copy with channels last."""
    grid = torch.randn(2, 4, 9, 8, 7, device=place.device)
    features = torch.randn(2, 60, 4, device=place.device)
    points = torch.randn(2, 60, 3, device=place.device)
    upstream = torch.randn(2, 60, 4, device=place.device)
    values, by_grid, by_points = values_and_grads(pointgrad.grid_sample, grid, points, upstream)
    splatted = pointgrad.splat(features, points, (9, 8, 7))
    total, by_grid_total = torch.zeros_like(splatted), torch.zeros_like(by_grid)
    for few in torch.arange(60, device=place.device).chunk(5):
        part = values_and_grads(pointgrad.grid_sample, grid, points[:, few], upstream[:, few])
        torch.testing.assert_close(part[0], values[:, few])
        torch.testing.assert_close(part[2], by_points[:, few])
        by_grid_total += part[1]
        total += pointgrad.splat(features[:, few], points[:, few], (9, 8, 7))
    torch.testing.assert_close(by_grid_total, by_grid, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total, splatted, rtol=1e-5, atol=1e-5)


def test_grid_with_channels_last(place):
    grid = torch.randn(2, 6, 3, 4, 5, device=place.device)
    points = torch.randn(2, 40, 3, device=place.device)
    upstream = torch.randn(2, 40, 6, device=place.device)
    expected = values_and_grads(pointgrad.grid_sample, grid, points, upstream)
    last = grid.to(memory_format=torch.channels_last_3d)
    received = values_and_grads(pointgrad.grid_sample, last, points, upstream)
    for actual, desired in zip(received, expected, strict=True):
        torch.testing.assert_close(actual, desired)


def test_splat_without_features():
    for shape in ((2, 4, 0), (0, 4, 3)):
        features = torch.zeros(shape, requires_grad=True)
        points = torch.zeros(*shape[:2], 3, requires_grad=True)
        splatted = pointgrad.splat(features, points, (2, 3, 4))
        assert splatted.shape == (shape[0], shape[2], 2, 3, 4)
        assert not any(grad.any() for grad in torch.autograd.grad(splatted.sum(), (features, points)))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_splat_sums_in_float32(half, place):
    """In float16 2048 + 1 is 2048."""
    features = torch.ones(1, 609, 1, dtype=half, device=place.device)
    features[0, 0] = 2048
    points = torch.zeros(1, 609, 3, dtype=half, device=place.device)
    assert pointgrad.splat(features, points, (1, 1, 1)).item() == 2048 + 608


def test_splat_in_a_fixed_order(place):
    """In deterministic mode, with many points per voxel and with none."""
    features, points = torch.randn(2, 50, 5), torch.randn(2, 50, 3) / 3
    features, points = features.to(place.device), points.to(place.device)
    expected = pointgrad.splat(features.double(), points.double(), (2, 3, 3))
    torch.use_deterministic_algorithms(True)
    try:
        first = pointgrad.splat(features, points, (2, 3, 3))
        assert torch.equal(first, pointgrad.splat(features, points, (2, 3, 3)))
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(first.double(), expected, rtol=1e-5, atol=1e-5)


def test_grid_sample_saves_the_grid_only_for_the_points_gradient():
    def saved_elements(grid, points):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            pointgrad.grid_sample(grid, points)
        return sum(kept)

    grid, points = torch.zeros(1, 2, 3, 3, 3, requires_grad=True), torch.zeros(1, 4, 3)
    assert saved_elements(grid, points) == points.numel()
    assert saved_elements(grid, points.clone().requires_grad_()) == points.numel() + grid.numel()


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_casts_grid_and_points_to_the_wider_dtype(half, place):
    grid = torch.randn(1, 2, 3, 3, 3, device=place.device).to(half).requires_grad_()
    points = torch.rand(1, 9, 3, device=place.device)
    with torch.autocast(place.device, torch.bfloat16):
        values = pointgrad.grid_sample(grid, points)
        splatted = pointgrad.splat(values.to(half), points, (3, 3, 3))
    assert values.dtype == splatted.dtype == torch.float32
    torch.testing.assert_close(values, pointgrad.grid_sample(grid.float(), points))
    splatted.sum().backward()
    assert grid.grad.dtype == half


def test_grids_compile_once_for_all_sizes():
    def sample_and_splat(grid, points):
        return pointgrad.splat(pointgrad.grid_sample(grid, points), points, grid.shape[2:])

    torch._dynamo.reset()
    compiled = torch.compile(sample_and_splat, fullgraph=True, dynamic=True, backend="aot_eager")

    def inputs(n):
        return torch.rand(n, n + 1, n + 2, n + 3, n + 4), torch.rand(n, 2 * n, 3)

    compiled(*inputs(5))
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (4, 7):
            arguments = inputs(n)
            torch.testing.assert_close(compiled(*arguments), sample_and_splat(*arguments))


@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
def test_a_corner_outside_takes_no_part_in_a_slope(poison, place):
    """Found by fuzzing: zeros outside the grid were multiplied by an infinite feature."""
    beyond = torch.tensor([[[0.9, 0.0, 0.0]]], device=place.device, requires_grad=True)  # the only voxel's center
    features, grad = torch.full((1, 1, 1), poison, device=place.device), torch.full((1, 1, 1, 1, 1), 2.0)
    (received,) = torch.autograd.grad(pointgrad.splat(features, beyond, (1, 1, 1)), beyond, grad.to(place.device))
    assert torch.equal(received[0, 0, 0].nan_to_num(7.0), torch.tensor(-poison, device=place.device).nan_to_num(7.0))
