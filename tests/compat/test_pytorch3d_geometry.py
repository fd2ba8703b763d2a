"""Normals and alignment of pointgrad.compat.pytorch3d against numpy, scipy and plain loops."""

import itertools

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from pointgrad.compat.pytorch3d import ops
from pointgrad.compat.pytorch3d.loss import chamfer_distance
from pointgrad.compat.pytorch3d.ops import _linalg
from pointgrad.compat.pytorch3d.ops.points_alignment import SimilarityTransform
from pointgrad.compat.pytorch3d.ops.sample_farthest_points import sample_farthest_points_naive
from pointgrad.compat.pytorch3d.ops.utils import get_point_covariances
from pointgrad.compat.pytorch3d.structures import Pointclouds, Volumes
from pointgrad.compat.pytorch3d.transforms import random_rotations


def repeatable(device):
    """Tolerance between runs: sums on a GPU have no fixed order."""
    return 0.0 if device == "cpu" else 1e-12


def float64(*shape, device="cpu", **options):
    return torch.randn(*shape, dtype=torch.float64, device=device, **options)


class TestFactorizations:
    @pytest.mark.parametrize("dims", [2, 3, 5])
    def test_derivatives(self, dims, device):
        half = float64(2, dims, dims, device=device, requires_grad=True)

        def eigen(half):
            values, vectors = _linalg.symmetric_eigen(half + half.mT)
            return values, vectors.abs()

        assert gradcheck(eigen, half)
        assert gradgradcheck(eigen, half)
        assert gradcheck(lambda m: _linalg.nearest_rotation(m, True)[0], half)
        assert gradcheck(lambda m: _linalg.nearest_rotation(m, False)[0], half)
        assert gradgradcheck(lambda m: _linalg.nearest_rotation(m, False)[0], half)

    def test_equal_values(self, device):
        """The derivatives of torch.linalg.eigh and svd are not finite here."""
        matrix = torch.diag(torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64, device=device)).requires_grad_()
        _, vectors = _linalg.symmetric_eigen(matrix)
        (grad,) = torch.autograd.grad(vectors[..., 0].abs().sum(), matrix)
        assert grad.isfinite().all()
        assert gradcheck(lambda m: _linalg.nearest_rotation(m, False)[0], matrix)
        for values in ([0.0, 0.0, 0.0], [1.0, 0.0, 0.0]):
            matrix = torch.diag(torch.tensor(values, device=device)).requires_grad_()
            (grad,) = torch.autograd.grad(_linalg.nearest_rotation(matrix, False)[0].sum(), matrix)
            assert grad.isfinite().all()

    def test_non_finite_matrices(self, device):
        matrix = torch.eye(3, device=device).repeat(3, 1, 1)
        matrix[1, 0, 2] = torch.nan
        for result in (*_linalg.symmetric_eigen(matrix), _linalg.nearest_rotation(matrix, False)[0]):
            assert result.flatten(1).isnan().all(1).tolist() == [False, True, False]


class TestNormals:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    @pytest.mark.parametrize("sizes", [[12, 12], [12, 8]], ids=str)
    def test_frames_equal_those_of_numpy(self, dtype, sizes, device):
        points = [torch.randn(size, 3, dtype=dtype) * torch.tensor([1, 2, 3], dtype=dtype) + 50 for size in sizes]
        batch = Pointclouds(points).to(device)
        variances, frames = ops.estimate_pointcloud_local_coord_frames(batch, 6)
        normals = ops.estimate_pointcloud_normals(batch, 6)
        assert torch.equal(normals, frames[..., 0])
        assert normals.dtype == dtype
        tolerance = 1e-9 if dtype == torch.float64 else 2e-3
        for n, cloud in enumerate(points):
            cloud = cloud.double().numpy()
            for i, point in enumerate(cloud):
                near = cloud[np.argsort(((cloud - point) ** 2).sum(1))[:6]]
                values, vectors = np.linalg.eigh(np.cov(near.T, bias=True))
                np.testing.assert_allclose(variances[n, i].cpu().numpy(), values, atol=tolerance)
                for column in (0, 2):
                    found, expected = frames[n, i, :, column].cpu().numpy(), vectors[:, column]
                    assert abs(abs(found @ expected) - 1) < tolerance
                    assert ((near - point) @ found < -1e-4).sum() <= 2
                second = np.cross(frames[n, i, :, 0].cpu(), frames[n, i, :, 2].cpu())
                np.testing.assert_allclose(frames[n, i, :, 1].cpu(), second, atol=1e-6)
            assert not frames[n, len(cloud) :].any()

    def test_plane(self, device):
        """Two directions have equal curvature for symmetric neighbors; gradients stay finite."""
        grid = torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij"), -1).reshape(1, 16, 2)
        points = functional.pad(grid, (0, 1)).to(device).requires_grad_()
        normals = ops.estimate_pointcloud_normals(points, 5)
        torch.testing.assert_close(normals.abs(), torch.tensor([0.0, 0.0, 1.0], device=device).expand(1, 16, 3))
        (normals * torch.randn(3, device=device)).sum().backward()
        assert points.grad.isfinite().all()
        assert points.grad.any()

    def test_derivatives(self, device):
        points = float64(1, 7, 3, device=device, requires_grad=True)

        def frames(points):
            return ops.estimate_pointcloud_local_coord_frames(points, 5)

        assert gradcheck(frames, points, nondet_tol=repeatable(device))

    def test_covariances_of_small_clouds(self, device):
        """The original counts the padding as points at the origin."""
        points = torch.rand(2, 5, 2, dtype=torch.float64) + 3
        covariances, near = get_point_covariances(points.to(device), torch.tensor([5, 3], device=device), 4)
        small = points[1, :3]
        for i in range(3):
            np.testing.assert_allclose(covariances[1, i].cpu(), np.cov(small.T, bias=True))
            assert sorted(near[1, i, :3].tolist()) == sorted(small.tolist())
        assert not covariances[1, 3:].any()
        assert not near[1, 3:].any()

    def test_signs_are_kept_without_disambiguation(self, device):
        points = torch.rand(1, 9, 3, device=device)
        _, oriented = ops.estimate_pointcloud_local_coord_frames(points, 4)
        _, plain = ops.estimate_pointcloud_local_coord_frames(points, 4, disambiguate_directions=False)
        torch.testing.assert_close(oriented[..., [0, 2]].abs(), plain[..., [0, 2]].abs())

    def test_pointclouds_method(self, device):
        batch = Pointclouds([torch.rand(9, 3, device=device), torch.rand(7, 3, device=device)])
        normals = batch.estimate_normals(5, assign_to_self=True)
        assert batch.normals_padded() is normals
        assert [len(item) for item in batch.normals_list()] == [9, 7]
        other = batch.estimate_normals(6)
        assert batch.normals_padded() is not other


class TestAlignment:
    @pytest.mark.parametrize("ragged", [False, True])
    def test_against_scipy(self, ragged, device):
        """Noisy points, so that the optimum is not zero."""
        sizes = [9, 5] if ragged else [9, 9]
        x = [float64(size, 3) for size in sizes]
        y = [points @ random_rotations(1, torch.float64)[0] + float64(3) + float64(*points.shape) / 5 for points in x]
        given = [Pointclouds(items).to(device) if ragged else torch.stack(items).to(device) for items in (x, y)]
        found = ops.corresponding_points_alignment(*given)
        for n in range(2):
            a, b = x[n] - x[n].mean(0), y[n] - y[n].mean(0)
            rotation, _ = Rotation.align_vectors(b.numpy(), a.numpy())
            np.testing.assert_allclose(found.R[n].cpu(), rotation.as_matrix().T, atol=1e-10)
            shift = y[n].mean(0) - x[n].mean(0) @ found.R[n].cpu()
            torch.testing.assert_close(found.T[n].cpu(), shift)
        assert found.s.tolist() == [1, 1]

    @pytest.mark.parametrize("dims", [2, 3, 6])
    @pytest.mark.parametrize("reflect", [False, True])
    def test_similarity(self, dims, reflect, device):
        x = float64(3, 20, dims, device=device)
        rotation = torch.linalg.qr(float64(3, dims, dims, device=device))[0]
        flip = (torch.linalg.det(rotation) < 0) != reflect
        rotation[:, 0] = torch.where(flip[:, None], -rotation[:, 0], rotation[:, 0])
        scale, shift = torch.rand(3, dtype=torch.float64, device=device) + 0.1, float64(3, dims, device=device)
        y = scale[:, None, None] * (x @ rotation) + shift[:, None]
        found = ops.corresponding_points_alignment(x, y, estimate_scale=True, allow_reflection=reflect)
        for value, expected in zip(found, (rotation, shift, scale), strict=True):
            torch.testing.assert_close(value, expected)
        proper = ops.corresponding_points_alignment(x, y)
        torch.testing.assert_close(torch.linalg.det(proper.R), torch.ones(3, dtype=torch.float64, device=device))

    def test_weights_of_zero_leave_points_out(self, device):
        x, y = float64(2, 8, 3, device=device), float64(2, 8, 3, device=device)
        weights = torch.ones(2, 8, device=device)
        weights[:, 5:] = 0
        found = ops.corresponding_points_alignment(x, y, weights, estimate_scale=True)
        expected = ops.corresponding_points_alignment(x[:, :5], y[:, :5], estimate_scale=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)

    def test_weights_enter_the_covariance_squared(self, device):
        """As in the original: not the least-squares optimum for these weights."""
        x, y, weights = float64(1, 6, 3), float64(1, 6, 3), torch.rand(1, 6, dtype=torch.float64)
        mean_x, mean_y = ((weights[..., None] * cloud).sum(1) / weights.sum() for cloud in (x, y))
        covariance = sum(
            w**2 * (p - mean_x[0])[:, None] * (q - mean_y[0]) for w, p, q in zip(weights[0], x[0], y[0], strict=True)
        )
        u, _, v = torch.linalg.svd(covariance)
        sign = torch.tensor([1, 1, torch.linalg.det(u @ v).sign()], dtype=torch.float64)
        expected = u @ torch.diag(sign) @ v
        found = ops.corresponding_points_alignment(x.to(device), y.to(device), weights.to(device))
        torch.testing.assert_close(found.R[0].cpu(), expected)
        clouds = [Pointclouds(cloud).to(device) for cloud in (x, y)]
        again = ops.corresponding_points_alignment(*clouds, [weights[0].to(device)])
        torch.testing.assert_close(again.R, found.R)

    def test_derivatives(self, device):
        x, y = (float64(2, 6, 3, device=device, requires_grad=True) for _ in range(2))
        weights = torch.rand(2, 6, dtype=torch.float64, device=device, requires_grad=True)

        def align(x, y, weights):
            return tuple(ops.corresponding_points_alignment(x, y, weights, estimate_scale=True))

        assert gradcheck(align, (x, y, weights))

    def test_symmetric_shapes_have_finite_gradients(self, device):
        """All singular values are equal."""
        corners = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=3)), dtype=torch.float64, device=device)
        x = corners[None].clone().requires_grad_()
        found = ops.corresponding_points_alignment(x, x.detach() @ random_rotations(1, torch.float64, device))
        (found.R * float64(3, 3, device=device)).sum().backward()
        assert x.grad.isfinite().all()
        assert x.grad.any()

    def test_ambiguous_rotations_give_a_warning(self):
        with pytest.warns(UserWarning, match="cannot return a unique rotation: a cloud has only 2 points in 3 dim"):
            ops.corresponding_points_alignment(torch.rand(1, 2, 3), torch.rand(1, 2, 3))
        line = torch.arange(5.0)[None, :, None].expand(1, 5, 3) * torch.tensor([1.0, 0.0, 0.0])
        with pytest.warns(
            UserWarning, match="cannot return a unique rotation: the points of a cloud lie in a subspace"
        ):
            found = ops.corresponding_points_alignment(line, line)
        torch.testing.assert_close(line @ found.R + found.T, line)


class TestIterativeClosestPoint:
    def test_small_motion(self, device):
        x = torch.rand(2, 40, 3, dtype=torch.float64, device=device)
        rotation = torch.tensor(Rotation.from_rotvec([0.02, -0.03, 0.01]).as_matrix(), device=device)
        solution = ops.iterative_closest_point(x, x @ rotation + 0.01)
        assert solution.converged
        torch.testing.assert_close(solution.RTs.R, rotation.expand(2, 3, 3))
        torch.testing.assert_close(solution.Xt, x @ rotation + 0.01)
        assert solution.rmse.max() < 1e-12
        assert len(solution.t_history) < 20
        assert solution.t_history[-1] is solution.RTs
        started = ops.iterative_closest_point(x, x @ rotation + 0.01, init_transform=solution.RTs)
        assert len(started.t_history) == 2

    @pytest.mark.parametrize("same", [True, False])
    def test_padding_is_not_aligned(self, same, device):
        """The original aligns the padding of clouds of the same sizes with itself."""
        x = [torch.rand(30, 3, dtype=torch.float64) + 2, torch.rand(12, 3, dtype=torch.float64) + 2]
        y = [cloud + 0.02 for cloud in x]
        if not same:
            y = [torch.cat([cloud, torch.rand(3, 3, dtype=torch.float64) - 9]) for cloud in y]
        clouds = Pointclouds(x).to(device)
        solution = ops.iterative_closest_point(clouds, Pointclouds(y).to(device))
        assert isinstance(solution.Xt, Pointclouds)
        for n in range(2):
            alone = ops.iterative_closest_point(x[n][None].to(device), y[n][None].to(device))
            torch.testing.assert_close(solution.RTs.T[n], alone.RTs.T[0])
            torch.testing.assert_close(solution.Xt.points_list()[n], clouds.points_list()[n] + 0.02)

    def test_scale_and_output(self, device, capsys):
        x = torch.rand(1, 60, 2, dtype=torch.float64, device=device) - 0.5
        solution = ops.iterative_closest_point(x, 1.02 * x, estimate_scale=True, verbose=True)
        torch.testing.assert_close(solution.RTs.s, torch.tensor([1.02], dtype=torch.float64, device=device))
        assert f"ICP has converged in {len(solution.t_history)} iterations." in capsys.readouterr().out
        nothing = ops.iterative_closest_point(x, x, max_iterations=0)
        assert not nothing.converged
        assert nothing.rmse is None
        assert torch.equal(nothing.Xt, x)

    def test_gradient_of_a_perfect_fit(self, device):
        """The square root of zero has no infinite gradient."""
        x = torch.rand(1, 10, 3, device=device, requires_grad=True)
        solution = ops.iterative_closest_point(x, x.detach())
        solution.rmse.sum().backward()
        assert x.grad.isfinite().all()


class TestUtilities:
    def test_weighted_mean(self, device):
        x, weight = torch.rand(4, 7, 3), torch.rand(4, 7)
        expected = np.average(x.numpy(), axis=1, weights=weight[..., None].expand(4, 7, 3).numpy())
        found = ops.wmean(x.to(device), weight.to(device))
        assert found.shape == (4, 1, 3)
        np.testing.assert_allclose(found[:, 0].cpu(), expected, rtol=1e-5)
        over = ops.wmean(x.to(device), weight.to(device), dim=(0, 1), keepdim=False)
        np.testing.assert_allclose(
            over.cpu(), np.average(x.reshape(-1, 3).numpy(), axis=0, weights=weight.flatten().numpy()), rtol=1e-5
        )
        torch.testing.assert_close(ops.wmean(x), x.mean(1, keepdim=True))
        assert not ops.wmean(x, torch.zeros(7)).any()

    def test_conversion(self, device):
        points = [torch.rand(2, 3, device=device), torch.rand(5, 3, device=device)]
        batch = Pointclouds(points)
        padded, sizes = ops.convert_pointclouds_to_tensor(batch)
        assert padded is batch.points_padded()
        assert sizes.tolist() == [2, 5]
        same, full = ops.convert_pointclouds_to_tensor(padded)
        assert same is padded
        assert full.tolist() == [5, 5]
        assert ops.is_pointclouds(batch)
        assert torch.equal(ops.eyes(3, 2, device), torch.eye(3, device=device).expand(2, 3, 3))

    def test_naive_sampling(self):
        points = torch.rand(2, 30, 3)
        for naive, native in zip(
            sample_farthest_points_naive(points, K=7), ops.sample_farthest_points(points, K=7), strict=True
        ):
            assert torch.equal(naive, native)

    def test_chamfer_distance_of_clouds(self, device):
        """Lengths and normals come from the clouds."""
        x = Pointclouds(*([torch.rand(size, 3, device=device) for size in (6, 0, 3)] for _ in range(2)))
        y = Pointclouds(*([torch.rand(size, 3, device=device) for size in (4, 2, 5)] for _ in range(2)))
        found = chamfer_distance(x, y, batch_reduction=None)
        expected = chamfer_distance(
            x.points_padded(), y.points_padded(), x.num_points_per_cloud(), y.num_points_per_cloud(),
            x.normals_padded(), y.normals_padded(), batch_reduction=None,
        )  # fmt: skip
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


P, V = torch.rand(2, 4, 3), torch.rand(2, 1, 3, 3, 3)
CLOUDS, RAGGED = Pointclouds(P), Pointclouds([P[0], P[0, :3]])
IDENTITY = SimilarityTransform(torch.eye(3).expand(2, 3, 3), torch.zeros(2, 3), torch.ones(2))
align, icp, add = (
    ops.corresponding_points_alignment,
    ops.iterative_closest_point,
    ops.add_points_features_to_volume_densities_features,
)
BAD = [
    (lambda: ops.estimate_pointcloud_normals(P, 4), "neighborhood_size must be less than .* each cloud, 4, got 4"),
    (lambda: ops.estimate_pointcloud_normals(P[..., :2], 2), r"pointclouds must be Pointclouds or \(N, P, 3\)"),
    (lambda: ops.estimate_pointcloud_normals([P], 2), r"pcl must be Pointclouds or a tensor \(N, P, D\), got list"),
    (lambda: ops.convert_pointclouds_to_tensor(P[0]), r"pcl must be Pointclouds or \(N, P, D\), got \(4, 3\)"),
    (lambda: ops.wmean(P, torch.rand(3)), r"weights are not compatible with x \(2, 4, 3\), got \(3,\)"),
    (lambda: align(P, P[:, :3]), r"Y must be \(2, 4, 3\), like X, got \(2, 3, 3\)"),
    (lambda: align(P, P, P), r"weights must be \(N, P\) = \(2, 4\), got \(2, 4, 3\)"),
    (lambda: align(CLOUDS, CLOUDS, [P[0, :, 0], P[0, :2, 0]]), r"weights must be tensors of .* got \[4, 2\]"),
    (lambda: align(RAGGED, CLOUDS), r"the sizes of the clouds of Y must be \[4, 3\], like X, got \[4, 4\]"),
    (lambda: icp(P, P[:1]), r"Y must be \(N, P2, D\) with N = 2 and D = 3, like X"),
    (lambda: icp(P, P, IDENTITY[:2]), r"init_transform must be \(R, T, s\) with shapes"),
    (lambda: icp(P, P, 3), r"init_transform must be \(R, T, s\) .* got int"),
    (lambda: add(P, P, V, None, "cubic"), "mode must be .* got 'cubic'"),
    (lambda: add(P, P, V[0], None), r"volume_densities must be \(N, 1, D, H, W\)"),
    (lambda: add(P[:1], P, V, None), r"points_3d must be \(2, 4, 3\)"),
    (lambda: add(P, P, V, V), r"volume_features must be \(2, 3, 3, 3, 3\)"),
    (lambda: add(P, P, V, None, mask=P), r"mask must be \(2, 4\)"),
    (lambda: add(P, P, V, None, grid_sizes=torch.ones(3)), "grid_sizes must be"),
    (lambda: ops.add_pointclouds_to_volumes(CLOUDS, Volumes(V)), "pointclouds must have features, got None"),
    (lambda: ops.add_pointclouds_to_volumes(CLOUDS[0], Volumes(V)), "pointclouds must be as many clouds as volumes"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
