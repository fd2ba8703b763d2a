"""Transform3d of pointgrad.compat.pytorch3d against loops over points."""

import pytest
import torch
from torch.autograd import gradcheck

from pointgrad.compat.pytorch3d import transforms
from pointgrad.compat.pytorch3d.transforms import Rotate, RotateAxisAngle, Scale, Transform3d, Translate


def homogeneous(points, matrix):
    """Points (P, 3) as rows times one matrix, by loops."""
    rows = [[*point, 1.0] for point in points.tolist()]
    moved = [[sum(row[i] * matrix[i][j] for i in range(4)) for j in range(4)] for row in rows]
    return torch.tensor([[value / row[3] for value in row[:3]] for row in moved], dtype=torch.float64)


class TestTransform3d:
    def transform(self, device, dtype=torch.float64):
        rotation = transforms.random_rotations(1, dtype, device)
        return (
            Transform3d(dtype=dtype, device=device).scale(2.0, 3.0, 0.5).rotate(rotation)
            .translate(torch.randn(4, 3, dtype=dtype, device=device)).rotate_axis_angle(30, "Y")
        )  # fmt: skip

    def test_points(self, device):
        transform = self.transform(device)
        points = torch.randn(4, 5, 3, dtype=torch.float64, device=device)
        moved = transform.transform_points(points)
        for n in range(4):
            expected = homogeneous(points[n], transform.get_matrix()[n].tolist())
            torch.testing.assert_close(moved[n].cpu(), expected)
        steps = points
        for part in transform._transforms:
            steps = part.transform_points(steps)
        torch.testing.assert_close(moved, steps)
        assert len(transform) == 4
        assert transform.transform_points(points[0]).shape == (4, 5, 3)
        assert transform[1].transform_points(points[0]).shape == (5, 3)

    def test_projection(self, device):
        matrix = torch.randn(4, 4, dtype=torch.float64, device=device)
        points = torch.randn(6, 3, dtype=torch.float64, device=device)
        moved = Transform3d(matrix=matrix).transform_points(points)
        torch.testing.assert_close(moved.cpu(), homogeneous(points, matrix.tolist()))
        matrix[:, 3] = 0
        for sign in (1, -1):
            matrix[3, 3] = sign * 1e-9
            clamped = Transform3d(matrix=matrix).transform_points(points, eps=1e-2)
            plain = points @ matrix[:3, :3] + matrix[3, :3]
            torch.testing.assert_close(clamped, plain / (sign * 1e-2))

    def test_normals_stay_perpendicular(self, device):
        transform = self.transform(device)
        tangents, other = torch.randn(2, 5, 3, dtype=torch.float64, device=device)
        normals = torch.linalg.cross(tangents, other)
        moved = transform.transform_points(tangents) - transform.transform_points(torch.zeros_like(tangents))
        assert (transform.transform_normals(normals) * moved).sum(-1).abs().max() < 1e-12

    @pytest.mark.parametrize("together", [True, False])
    def test_inverse(self, together, device):
        transform = self.transform(device)
        points = torch.randn(4, 5, 3, dtype=torch.float64, device=device)
        back = transform.inverse(invert_composed=together).transform_points(transform.transform_points(points))
        torch.testing.assert_close(back, points)

    @pytest.mark.parametrize("index", [1, -1, [0, 2], slice(1, 3), [], torch.tensor([True, False, True])], ids=str)
    def test_indexing_keeps_class_and_dtype(self, index):
        """The original's subclasses become float32, and RotateAxisAngle raises an error."""
        xyz = torch.randn(3, 3, dtype=torch.float64)
        for transform in (
            Translate(xyz, dtype=torch.float64), Scale(xyz, dtype=torch.float64),
            Rotate(transforms.random_rotations(3, torch.float64), dtype=torch.float64),
            RotateAxisAngle(xyz[0], dtype=torch.float64), Transform3d(matrix=torch.randn(3, 4, 4, dtype=torch.float64)),
        ):  # fmt: skip
            selected = transform[index]
            expected = transform.get_matrix()[[index] if isinstance(index, int) else index]
            assert torch.equal(selected.get_matrix(), expected)
            assert type(selected) is type(transform)
            assert len(selected) == len(expected)
            torch.testing.assert_close(selected.inverse().get_matrix(), torch.linalg.inv(expected))

    def test_derivatives(self):
        points = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
        scale, shift, angle = (torch.rand(2, dtype=torch.float64, requires_grad=True) for _ in range(3))

        def call(points, scale, shift, angle):
            transform = Transform3d(dtype=torch.float64).scale(scale).translate(shift, 1, shift)
            return transform.rotate_axis_angle(angle, "Z").transform_points(points)

        assert gradcheck(call, (points, scale, shift, angle))

    def test_stack_copy_and_move(self, device):
        transform = self.transform(device)
        stacked = transform.stack(Transform3d(dtype=torch.float64, device=device))
        assert torch.equal(stacked.get_matrix()[:4], transform.get_matrix())
        assert len(stacked) == 5
        assert transform.to(device) is transform
        copy = transform.clone()
        copy._matrix.zero_()
        assert transform._matrix.any()
        single = transform.to(device, dtype=torch.float32)
        assert single.dtype == single.get_matrix().dtype == torch.float32
        assert transform.dtype == torch.float64
        assert transform.cpu().device.type == "cpu"

    def test_rigid_logarithm(self, device):
        log = torch.randn(3, 6, dtype=torch.float64, device=device) / 2
        torch.testing.assert_close(Transform3d(matrix=transforms.se3_exp_map(log)).get_se3_log(), log)

    def test_check_of_rotations(self, monkeypatch):
        Rotate(torch.ones(3, 3))
        monkeypatch.setenv("PYTORCH3D_CHECK_ROTATION_MATRICES", "1")
        Rotate(torch.eye(3))
        with pytest.warns(UserWarning, match="R is not a valid rotation matrix"):
            Rotate(-torch.eye(3))
