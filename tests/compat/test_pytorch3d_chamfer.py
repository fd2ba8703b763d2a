"""The chamfer distance of pointgrad.compat.pytorch3d against plain loops."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pointgrad.compat.pytorch3d.loss import chamfer_distance
from tests.compat.pytorch3d_loops import distances


def one_direction(a, b, normals_a, normals_b, norm, abs_cosine):
    """Distance of each point of one cloud to its nearest neighbor, and the difference of their normals, in float64."""
    if not len(b):
        return torch.zeros(len(a), dtype=torch.float64), torch.ones(len(a), dtype=torch.float64)
    values, nearest = distances(a, b, norm).min(dim=1)
    cosine = torch.nn.functional.cosine_similarity(normals_a, normals_b[nearest], dim=1)
    return values, 1 - (cosine.abs() if abs_cosine else cosine)


def expected_chamfer(
    x, y, sizes_x, sizes_y, normals_x, normals_y, weights, batch_reduction, point_reduction, norm, single, abs_cosine
):
    """(loss, loss_normals) computed pair by pair."""
    reduce = {"mean": lambda v: v.sum() / max(len(v), 1), "sum": torch.sum, "max": lambda v: max([*v, v.new_zeros(())])}
    losses, normal_losses = [], []
    for n in range(len(x)):
        a, b = (x[n, : sizes_x[n]], normals_x[n, : sizes_x[n]]), (y[n, : sizes_y[n]], normals_y[n, : sizes_y[n]])
        sides = [(a, b)] if single else [(a, b), (b, a)]
        found = [one_direction(s[0], t[0], s[1], t[1], norm, abs_cosine) for s, t in sides]
        point = [[reduce[point_reduction](v * weights[n]) for v in values] for values in found]
        join = max if point_reduction == "max" else sum
        losses.append(join([p[0] for p in point]))
        normal_losses.append(join([p[1] for p in point]))
    both = torch.stack(losses), torch.stack(normal_losses)
    if batch_reduction == "sum":
        return tuple(v.sum() for v in both)
    if batch_reduction == "mean":
        return tuple(v.sum() / sum(weights) for v in both)
    return both


class TestChamferDistance:
    @pytest.mark.parametrize("norm", [1, 2])
    @pytest.mark.parametrize("single", [False, True], ids=["both", "single"])
    @pytest.mark.parametrize("point_reduction", ["mean", "sum", "max"])
    def test_equals_a_plain_loop(self, norm, single, point_reduction, device):
        x, y = torch.randn(4, 12, 3, dtype=torch.float64), torch.randn(4, 9, 3, dtype=torch.float64)
        normals_x, normals_y = torch.randn_like(x), torch.randn_like(y)
        for ragged, weighted, batch_reduction, abs_cosine in itertools.product(
            [False, True], [False, True], ["mean", "sum", None], [True, False]
        ):
            sizes_x, sizes_y = ([12, 5, 0, 3], [9, 1, 4, 0]) if ragged else ([12] * 4, [9] * 4)
            weights = [0.5, 2.0, 0.0, 1.0] if weighted else [1.0] * 4
            expected = expected_chamfer(
                x, y, sizes_x, sizes_y, normals_x, normals_y, weights, batch_reduction, point_reduction, norm, single,
                abs_cosine,
            )  # fmt: skip
            has_normals = point_reduction != "max"
            loss, loss_normals = chamfer_distance(
                x.to(device),
                y.to(device),
                x_lengths=torch.tensor(sizes_x, device=device) if ragged else None,
                y_lengths=torch.tensor(sizes_y, device=device) if ragged else None,
                x_normals=normals_x.to(device) if has_normals else None,
                y_normals=normals_y.to(device) if has_normals else None,
                weights=torch.tensor(weights, device=device, dtype=torch.float64) if weighted else None,
                batch_reduction=batch_reduction,
                point_reduction=point_reduction,
                norm=norm,
                single_directional=single,
                abs_cosine=abs_cosine,
            )
            torch.testing.assert_close(loss.cpu(), expected[0])
            if has_normals:
                torch.testing.assert_close(loss_normals.cpu(), expected[1])
            else:
                assert loss_normals is None

    def test_without_reduction(self, device):
        x, y = torch.rand(2, 5, 3, device=device), torch.rand(2, 4, 3, device=device)
        (forward, backward), normals = chamfer_distance(x, y, batch_reduction=None, point_reduction=None)
        torch.testing.assert_close(forward, torch.cdist(x, y).square().min(dim=2).values)
        torch.testing.assert_close(backward, torch.cdist(y, x).square().min(dim=2).values)
        assert normals is None
        single, difference = chamfer_distance(
            x, y, x_normals=x, y_normals=y, batch_reduction=None, point_reduction=None, single_directional=True
        )
        assert torch.equal(single, forward)
        assert difference.shape == (2, 5)
        _, both = chamfer_distance(x, y, x_normals=x, y_normals=y, batch_reduction=None, point_reduction=None)
        assert [part.shape for part in both] == [(2, 5), (2, 4)]

    @pytest.mark.parametrize("norm", [1, 2])
    def test_derivatives(self, norm, device):
        x = torch.randn(2, 4, 3, dtype=torch.float64, device=device, requires_grad=True)
        y = torch.randn(2, 5, 3, dtype=torch.float64, device=device, requires_grad=True)
        lengths, weights = torch.tensor([4, 2], device=device), torch.tensor([1.0, 3.0], device=device).double()

        def call(x, y):
            return chamfer_distance(x, y, x_lengths=lengths, x_normals=x, y_normals=y, weights=weights, norm=norm)

        tolerance = 0.0 if device == "cpu" else 1e-12
        assert gradcheck(call, (x, y), nondet_tol=tolerance)
        assert gradgradcheck(call, (x, y), nondet_tol=tolerance)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_16_bit_clouds_give_float32(self, dtype, device):
        x, y = torch.rand(2, 300, 3).to(dtype) * 300, torch.rand(2, 200, 3).to(dtype) * 300
        loss, _ = chamfer_distance(x.to(device), y.to(device))
        expected, _ = chamfer_distance(x.double(), y.double())
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.cpu().double(), expected, rtol=1e-6, atol=0)

    def test_pointclouds_objects(self):
        x, y = torch.rand(2, 5, 3), torch.rand(2, 4, 3)
        lengths = torch.tensor([5, 2])

        def cloud(points, lengths, normals):
            return SimpleNamespace(
                points_padded=lambda: points, num_points_per_cloud=lambda: lengths, normals_padded=lambda: normals
            )

        found = chamfer_distance(cloud(x, lengths, x), cloud(y, None, y))
        expected = chamfer_distance(x, y, x_lengths=lengths, x_normals=x, y_normals=y)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
        assert chamfer_distance(cloud(x, lengths, None), y)[1] is None

    def test_all_zero_weights(self, device):
        x, y = torch.rand(3, 5, 3, device=device, requires_grad=True), torch.rand(3, 4, 3, device=device)
        for reduction, shape in (("mean", ()), ("sum", ()), (None, (3,))):
            loss, _ = chamfer_distance(x, y, weights=torch.zeros(3, device=device), batch_reduction=reduction)
            assert loss.shape == shape
            assert not loss.any()
            (gradient,) = torch.autograd.grad(loss.sum(), x)
            assert not gradient.any()

    def test_column_of_weights(self):
        x, y, weights = torch.rand(3, 5, 3), torch.rand(3, 4, 3), torch.rand(3)
        assert torch.equal(
            chamfer_distance(x, y, weights=weights)[0], chamfer_distance(x, y, weights=weights[:, None])[0]
        )

    @pytest.mark.parametrize("norm", [1, 2])
    def test_autocast(self, norm, device):
        x, y = torch.rand(2, 50, 3, device=device), torch.rand(2, 40, 3, device=device)
        expected, _ = chamfer_distance(x, y, norm=norm)
        with torch.autocast(device, torch.bfloat16):
            loss, _ = chamfer_distance(x, y, norm=norm)
        torch.testing.assert_close(loss, expected)

    def test_nan_points_give_a_non_finite_loss(self, device):
        x, y = torch.rand(2, 5, 3, device=device), torch.rand(2, 4, 3, device=device)
        x[1, 2] = torch.nan
        assert not chamfer_distance(x, y, single_directional=True)[0].isfinite()
        assert chamfer_distance(x, y, batch_reduction=None)[0].isfinite().tolist() == [True, False]

    def test_empty(self, device):
        for n, p, q in itertools.product([0, 2], [0, 3], [0, 3]):
            x, y = torch.rand(n, p, 3, device=device), torch.rand(n, q, 3, device=device)
            for reduction in ("mean", "sum", "max"):
                loss, _ = chamfer_distance(x, y, point_reduction=reduction)
                assert loss.isfinite()
                assert p * q or loss == 0
