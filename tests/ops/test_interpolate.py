"""Properties specific to interpolation; test_contract.py tests the rest."""

import itertools

import pytest
import torch

import pointgrad

CORNERS = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=3)))  # in the order 4 x + 2 y + z


def test_reproduces_corners(place):
    """At a corner of the cell the result is its feature, which fixes the order of the corners."""
    corners = torch.randn(1, 8, 5).expand(8, 8, 5).to(place.device)
    values = pointgrad.trilinear(corners, CORNERS.to(place.device))
    torch.testing.assert_close(values, corners[0])


def test_agrees_with_grid_sample(place):
    """A cell is a 2 x 2 x 2 grid; the axes of grid_sample are z, y, x."""
    corners = torch.randn(40, 8, 6, dtype=torch.float64, device=place.device)
    points = torch.rand(40, 3, dtype=torch.float64, device=place.device) * 2 - 1
    grid = corners.reshape(40, 2, 2, 2, 6).permute(0, 4, 1, 2, 3)
    sampled = torch.nn.functional.grid_sample(grid, points.flip(1).reshape(40, 1, 1, 1, 3), align_corners=True)
    torch.testing.assert_close(pointgrad.trilinear(corners, points), sampled.reshape(40, 6))


def test_reproduces_linear_functions_and_their_slope(place):
    slope = torch.tensor([0.3, -2.0, 0.7], dtype=torch.float64)
    corners = (CORNERS.double() @ slope).reshape(1, 8, 1).expand(10, 8, 1).to(place.device)
    points = torch.randn(10, 3, dtype=torch.float64, device=place.device, requires_grad=True)
    values = pointgrad.trilinear(corners, points)
    torch.testing.assert_close(values[:, 0], points @ slope.to(place.device))
    (gradient,) = torch.autograd.grad(values.sum(), points)
    torch.testing.assert_close(gradient, slope.to(place.device).expand(10, 3))


def test_eikonal_loss(place):
    """A loss on the gradient itself: the second derivative reaches the corners."""
    corners = torch.randn(12, 8, 1, dtype=torch.float64, device=place.device, requires_grad=True)
    points = torch.rand(12, 3, dtype=torch.float64, device=place.device, requires_grad=True)

    def loss(corners):
        values = pointgrad.trilinear(corners, points)
        (gradient,) = torch.autograd.grad(values.sum(), points, create_graph=True)
        return ((gradient.norm(dim=1) - 1) ** 2).mean()

    assert torch.autograd.gradcheck(loss, corners, fast_mode=place.interpreted)


def test_third_derivative(place):
    corners = torch.randn(3, 8, 2, dtype=torch.float64, device=place.device, requires_grad=True)
    points = torch.rand(3, 3, dtype=torch.float64, device=place.device, requires_grad=True)

    def second(corners, points):
        value = pointgrad.trilinear(corners, points).pow(2).sum()
        (gradient,) = torch.autograd.grad(value, points, create_graph=True)
        (again,) = torch.autograd.grad(gradient.pow(2).sum(), points, create_graph=True)
        return again

    assert torch.autograd.gradcheck(second, (corners, points), fast_mode=place.interpreted)


def test_saves_corners_only_for_the_points_gradient():
    def saved_elements(corners, points):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
            pointgrad.trilinear(corners, points)
        return sum(kept)

    corners, points = torch.zeros(10, 8, 4, requires_grad=True), torch.zeros(10, 3)
    assert saved_elements(corners, points) == points.numel()
    assert saved_elements(corners, points.clone().requires_grad_()) == points.numel() + corners.numel()


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_casts_to_the_wider_dtype(half, place):
    corners = torch.randn(9, 8, 4, device=place.device).to(half).requires_grad_()
    points = torch.rand(9, 3, device=place.device)
    with torch.autocast(place.device, torch.bfloat16):
        values = pointgrad.trilinear(corners, points)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, pointgrad.trilinear(corners.float(), points))
    values.sum().backward()
    assert corners.grad.dtype == half


def test_third_derivative_builds_a_graph_only_if_required():
    corners = torch.randn(3, 8, 2, dtype=torch.float64, requires_grad=True)
    points = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    value = pointgrad.trilinear(corners, points).pow(2).sum()
    for _ in range(2):
        (value,) = torch.autograd.grad(value.sum(), points, create_graph=True)
    (third,) = torch.autograd.grad(value.sum(), corners)
    assert not third.requires_grad


def test_denormal_halves_survive_flushing():
    torch.set_flush_denormal(True)
    try:
        tiny = torch.full((2, 8, 3), 1e-6, dtype=torch.float16)
        values = pointgrad.trilinear(tiny, torch.zeros(2, 3, dtype=torch.float16))
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(values, tiny[:, 0])


def test_meta_tensors():
    values = pointgrad.trilinear(torch.empty(5, 8, 2, device="meta"), torch.empty(5, 3, device="meta"))
    assert values.shape == (5, 2)
    points = torch.empty(2, 5, 3, device="meta")
    assert pointgrad.grid_sample(torch.empty(2, 7, 3, 4, 5, device="meta"), points).shape == (2, 5, 7)
    assert pointgrad.splat(torch.empty(2, 5, 7, device="meta"), points, (3, 4, 5)).shape == (2, 7, 3, 4, 5)


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("near", [1e-3, 1e-6, 1e-9, 1e-15])
def test_slope_beside_a_point(near, power, place):
    """The weights of other points grow from zero there: a small difference must not be lost beside a large weight."""
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]], device=place.device)
    features = torch.tensor([[1.0], [2.0], [3.0]], device=place.device)

    def slope(dtype):
        query = torch.tensor([[near, 0, 0]], dtype=dtype, device=place.device, requires_grad=True)
        out = pointgrad.interpolate(features.to(dtype), points.to(dtype), query, power=power)
        return torch.autograd.grad(out.sum(), query)[0].double()

    torch.testing.assert_close(slope(torch.float32), slope(torch.float64), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-15, 1e-17, 1e-19, 1e-20, 1e-22, 1e-30, 1e-42])
def test_slopes_of_a_cloud_that_is_almost_one_point(scale, place):
    """Squared distances are denormal or nearly so: weights still sum to one, and no gradient is infinite or NaN."""
    points = (torch.rand(9, 3, device=place.device) * scale).requires_grad_()
    queries = (torch.rand(5, 3, device=place.device) * scale).requires_grad_()
    features = torch.randn(9, 64, device=place.device) * 30
    out = pointgrad.interpolate(torch.cat([features, torch.ones_like(features[:, :1])], 1), points, queries)
    torch.testing.assert_close(out[:, -1], torch.ones_like(out[:, -1]))
    grads = torch.autograd.grad(out.square().sum(), (points, queries))
    assert all(grad.isfinite().all() for grad in grads)


def test_interpolated_gradients_of_half_features_are_finite(place):
    """As with loss scaling: the gradient of a weight is a sum over channels, too large for float16."""
    points = torch.rand(30, 3, device=place.device, requires_grad=True)
    features = (torch.rand(30, 256, device=place.device) * 4 + 2).half()
    out = pointgrad.interpolate(features, points, torch.rand(9, 3, device=place.device))
    (out.float().sum() * 1024).backward()
    assert out.dtype == torch.float16
    assert points.grad.isfinite().all()
