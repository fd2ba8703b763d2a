"""Voxel grids of pointgrad.compat.pytorch3d against plain loops."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from pointgrad.compat.pytorch3d import ops
from pointgrad.compat.pytorch3d.structures import Pointclouds, Volumes
from pointgrad.compat.pytorch3d.transforms import random_rotations
from tests.compat.test_pytorch3d_geometry import float64, repeatable


def expected_volumes(points, features, size, extents, mode, align_corners):
    """Densities and features in one tensor (N, 1 + C, D, H, W), by loops."""
    result = torch.zeros(len(points), 1 + features.shape[2], *size, dtype=torch.float64)
    for n, cloud in enumerate(points):
        for point, feature in zip(cloud.tolist(), features[n], strict=True):
            votes = [()]
            for axis, x in enumerate(reversed(point)):
                extent = extents[n][axis]
                position = (x + 1) / 2 * (extent - 1) if align_corners else (x + 1) / 2 * extent - 0.5
                low = int(np.floor(position + (0.5 if mode == "nearest" else 0.0)))
                share = 0 if mode == "nearest" else position - low
                options = [(low, 1 - share), (low + 1, share)]
                votes = [(*vote, option) for vote in votes for option in options if 0 <= option[0] < extent]
            for vote in votes:
                weight = np.prod([share for _, share in vote])
                result[(n, slice(None), *(voxel for voxel, _ in vote))] += weight * torch.cat([torch.ones(1), feature])
    return result


def test_autocast(device):
    """Factorizations in 16 bits would fail."""
    x, y = torch.rand(2, 2, 12, 3, device=device)
    expected = [*ops.corresponding_points_alignment(x, y), ops.estimate_pointcloud_normals(x, 5)]
    expected += ops.iterative_closest_point(x, x + 0.01).RTs
    with torch.autocast(device, torch.bfloat16):
        found = [*ops.corresponding_points_alignment(x, y), ops.estimate_pointcloud_normals(x, 5)]
        found += ops.iterative_closest_point(x, x + 0.01).RTs
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits(dtype, device):
    """Sums and factorizations are in float32."""
    x = torch.rand(1, 20, 3).to(device, dtype)
    y = (x.float() @ random_rotations(1, device=device) + 0.5).to(dtype)
    wide = ops.corresponding_points_alignment(x.float(), y.float())
    for a, b in zip(ops.corresponding_points_alignment(x, y), wide, strict=True):
        assert torch.equal(a, b.to(dtype))
    assert torch.equal(ops.estimate_pointcloud_normals(x, 5), ops.estimate_pointcloud_normals(x.float(), 5).to(dtype))


class TestVolumes:
    @pytest.mark.parametrize("mode", ["trilinear", "nearest"])
    @pytest.mark.parametrize("align_corners", [True, False])
    @pytest.mark.parametrize("extents", [None, [[3, 2, 4], [2, 4, 1]]], ids=["whole", "parts"])
    def test_sums(self, mode, align_corners, extents, device):
        """Points reach one voxel beyond the grid, where the original has weights greater than 1 and less than 0."""
        size = (3, 4, 5)
        points = torch.rand(2, 30, 3, dtype=torch.float64) * 3 - 1.5
        features = float64(2, 30, 2)
        expected = expected_volumes(points, features, size, extents or [size] * 2, mode, align_corners)
        found, densities = ops.add_points_features_to_volume_densities_features(
            points.to(device), features.to(device), torch.zeros(2, 1, *size, dtype=torch.float64, device=device), None,
            mode, grid_sizes=None if extents is None else torch.tensor(extents, device=device),
            rescale_features=False, align_corners=align_corners,
        )  # fmt: skip
        torch.testing.assert_close(torch.cat([densities, found], 1).cpu(), expected)

    def test_mask_and_average(self, device):
        points, features = torch.rand(1, 9, 3, device=device) * 2 - 1, torch.rand(1, 9, 2, device=device)
        features[0, 4], points[0, 7] = torch.nan, torch.nan
        mask = torch.ones(1, 9, device=device)
        mask[0, 4] = 0
        keep = [0, 1, 2, 3, 5, 6, 8]
        initial = torch.rand(1, 1, 3, 3, 3, device=device), torch.rand(1, 2, 3, 3, 3, device=device)
        before = [volume.clone() for volume in initial]
        for mode, least in (("trilinear", 0.5), ("nearest", 1.0)):
            found, densities = ops.add_points_features_to_volume_densities_features(
                points, features, *initial, mode, 0.5, mask)  # fmt: skip
            added = expected_volumes(points[:, keep].cpu(), features[:, keep].cpu(), (3, 3, 3), [(3, 3, 3)], mode, True)
            total = torch.cat(before, 1).cpu() + added
            torch.testing.assert_close(densities.cpu(), total[:, :1].float())
            torch.testing.assert_close(found.cpu(), (total[:, 1:] / total[:, :1].clamp(min=least)).float())
            assert all(torch.equal(a, b) for a, b in zip(initial, before, strict=True))

    @pytest.mark.parametrize("align_corners", [True, False])
    def test_clouds_and_volumes(self, align_corners, device):
        """Clouds and grids of different sizes, in world coordinates."""
        clouds = Pointclouds(
            [float64(5, 3) / 2, float64(3, 3) / 2], features=[float64(5, 2), float64(3, 2)]
        )  # fmt: skip
        sizes = [(3, 4, 5), (2, 3, 3)]
        densities = [torch.zeros(1, *size, dtype=torch.float64, device=device) for size in sizes]
        features = [torch.zeros(2, *size, dtype=torch.float64, device=device) for size in sizes]
        volumes = Volumes(densities, features, 0.7, (0.1, 0.2, 0.3), align_corners)
        found = ops.add_pointclouds_to_volumes(clouds.to(device), volumes, rescale_features=False)
        for n, size in enumerate(sizes):
            extent = (torch.tensor(size[::-1]) - 1) * 0.7 / 2
            local = (clouds.points_list()[n] + torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)) / extent
            expected = expected_volumes(
                local[None], clouds.features_list()[n][None], size, [size], "trilinear", align_corners
            )
            torch.testing.assert_close(found.densities_list()[n].cpu(), expected[0, :1])
            torch.testing.assert_close(found.features_list()[n].cpu(), expected[0, 1:])
        assert not volumes.densities().any()

    def test_derivatives(self, device):
        points = (torch.rand(1, 4, 3, dtype=torch.float64, device=device) * 1.5 - 0.7).requires_grad_()
        inputs = [float64(*shape, device=device) for shape in ((1, 4, 2), (1, 1, 2, 3, 3), (1, 2, 2, 3, 3))]
        inputs = [points, *(given.abs().add(0.5).requires_grad_() for given in inputs)]
        for sizes in (None, torch.tensor([[2, 2, 3]], device=device)):
            assert gradcheck(
                lambda *given: ops.add_points_features_to_volume_densities_features(*given, grid_sizes=sizes),  # noqa: B023
                inputs, nondet_tol=repeatable(device),
            )  # fmt: skip
        found, _ = ops.add_points_features_to_volume_densities_features(*inputs, mode="nearest")
        found.sum().backward()
        assert points.grad is None
        assert inputs[1].grad.any()
