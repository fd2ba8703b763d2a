"""Rotations and transforms of pointgrad.compat.pytorch3d against scipy, matrix exponentials and finite differences."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch.autograd import gradcheck, gradgradcheck

from pointgrad.compat.pytorch3d import transforms
from pointgrad.compat.pytorch3d.transforms import Rotate, RotateAxisAngle, Scale, Transform3d, Translate, so3

CONVENTIONS = [a + b + c for a, b, c in itertools.product("XYZ", repeat=3) if a != b != c]
PI = math.pi
# Ordinary vectors, small ones, and angles at which formulas are singular.
VECTORS = [
    [0.3, -1.2, 0.7], [0.0, 0.0, 0.0], [1e-9, 0.0, 0.0], [1e-5, -2e-5, 3e-5], [1e-2, 0.0, 1e-2], [0.6, 0.8, 0.0],
    [PI, 0.0, 0.0], [0.0, -PI, 0.0], [0.0, 0.0, PI - 1e-6], [PI / math.sqrt(2), PI / math.sqrt(2), 0.0],
    [1.5, 1.6, -1.7], [4.0, 0.0, 0.0],
]  # fmt: skip


def vectors(device, dtype=torch.float64):
    return torch.tensor(VECTORS, device=device, dtype=dtype)


def quaternions(rotation, device="cpu"):
    return torch.tensor(np.roll(rotation.as_quat(), 1, axis=-1), device=device)


def random_rotations(number):
    return Rotation.random(number, random_state=np.random.default_rng(0))


class TestAgainstScipy:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_axis_angle(self, dtype, device):
        given = vectors(device, dtype)
        expected = Rotation.from_rotvec(given.double().cpu().numpy())
        tolerance = 1e-14 if dtype == torch.float64 else 1e-6
        matrix = transforms.axis_angle_to_matrix(given)
        quaternion = transforms.axis_angle_to_quaternion(given)
        assert matrix.dtype == quaternion.dtype == dtype
        assert abs(matrix.cpu().numpy() - expected.as_matrix()).max() < tolerance
        assert abs(transforms.quaternion_to_matrix(quaternion).cpu().numpy() - expected.as_matrix()).max() < tolerance
        assert torch.equal(matrix, transforms.axis_angle_to_matrix(given, fast=True))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_back_to_axis_angle(self, dtype, device):
        """At pi, both directions of the axis are right."""
        given = vectors(device, dtype)[:-1]
        tolerance = 1e-9 if dtype == torch.float64 else 2e-3
        back = transforms.matrix_to_axis_angle(transforms.axis_angle_to_matrix(given), fast=True)
        difference = torch.minimum((back - given).abs().amax(1), (back + given).abs().amax(1))
        assert difference.max() < tolerance
        small = given.square().sum(1) < 9
        torch.testing.assert_close(back[small], given[small], atol=1e-6 if dtype == torch.float32 else 1e-14, rtol=1e-5)

    def test_random_rotations_round_trip(self, device):
        rotation = random_rotations(200)
        matrix = torch.tensor(rotation.as_matrix(), device=device)
        found = transforms.matrix_to_quaternion(matrix)
        expected = quaternions(rotation, device)
        torch.testing.assert_close(found, torch.where(expected[:, :1] < 0, -expected, expected))
        torch.testing.assert_close(transforms.matrix_to_axis_angle(matrix).cpu(), torch.tensor(rotation.as_rotvec()))
        torch.testing.assert_close(transforms.so3_log_map(matrix).cpu(), torch.tensor(rotation.as_rotvec()))
        six = transforms.matrix_to_rotation_6d(matrix)
        assert torch.equal(six, matrix[:, :2].flatten(1))
        torch.testing.assert_close(transforms.rotation_6d_to_matrix(six * 3), matrix)
        cosine = transforms.so3_rotation_angle(matrix, cos_angle=True)
        torch.testing.assert_close(cosine.cpu(), torch.tensor(np.cos(rotation.magnitude())))

    @pytest.mark.parametrize("convention", CONVENTIONS)
    def test_euler_angles(self, convention, device):
        angles = torch.rand(50, 3, dtype=torch.float64, device=device) * 6 - 3
        matrix = transforms.euler_angles_to_matrix(angles, convention)
        expected = Rotation.from_euler(convention, angles.cpu().numpy())
        assert abs(matrix.cpu().numpy() - expected.as_matrix()).max() < 1e-14
        found = transforms.matrix_to_euler_angles(matrix, convention)
        assert abs(found.cpu().numpy() - expected.as_euler(convention)).max() < 1e-10

    @pytest.mark.parametrize("convention", CONVENTIONS)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_gimbal_lock(self, convention, dtype, device):
        """The original's gradients are infinite."""
        angles = torch.rand(20, 3, dtype=dtype, device=device) * 6 - 3
        singular = [PI / 2, -PI / 2] if convention[0] != convention[2] else [0.0, PI]
        angles[:, 1] = torch.tensor(singular, dtype=dtype, device=device).repeat(10)
        matrix = transforms.euler_angles_to_matrix(angles, convention).requires_grad_()
        found = transforms.matrix_to_euler_angles(matrix, convention)
        again = transforms.euler_angles_to_matrix(found, convention)
        assert (again - matrix).abs().max() < (1e-14 if dtype == torch.float64 else 1e-6)
        assert (found[:, 0] == 0).all()
        found.sum().backward()
        assert matrix.grad.abs().max() < 10

    def test_gimbal_lock_with_exact_zeros(self, device):
        """The original's angles give another matrix."""
        matrix = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], device=device)
        angles = transforms.matrix_to_euler_angles(matrix, "XYZ")
        assert (transforms.euler_angles_to_matrix(angles, "XYZ") - matrix).abs().max() < 1e-6

    def test_quaternion_products(self, device):
        a, b = random_rotations(30), random_rotations(60)[30:]
        q, r = quaternions(a, device), quaternions(b, device)
        expected = torch.tensor((a * b).as_matrix(), device=device)
        torch.testing.assert_close(transforms.quaternion_to_matrix(transforms.quaternion_multiply(q, r)), expected)
        assert (transforms.quaternion_multiply(q, r)[:, 0] >= 0).all()
        raw = transforms.quaternion_raw_multiply(q, r)
        assert torch.equal(transforms.standardize_quaternion(raw), transforms.quaternion_multiply(q, r))
        point = torch.randn(30, 3, dtype=torch.float64, device=device)
        turned = torch.tensor(a.apply(point.cpu().numpy()), device=device)
        torch.testing.assert_close(transforms.quaternion_apply(q, point), turned)
        torch.testing.assert_close(transforms.quaternion_apply(transforms.quaternion_invert(q), turned), point)
        broadcast = transforms.quaternion_multiply(q.reshape(5, 6, 4), r[:6])
        assert torch.equal(broadcast[2, 3], transforms.quaternion_multiply(q[15], r[3]))
        assert transforms.quaternion_apply(q[:, None], point).shape == (30, 30, 3)


class TestDerivatives:
    @pytest.mark.parametrize("vector", VECTORS, ids=str)
    def test_axis_angle(self, vector, device):
        """Twice differentiable everywhere, and the derivative of the round trip is the identity."""
        given = torch.tensor(vector, dtype=torch.float64, device=device, requires_grad=True)
        for function in (transforms.axis_angle_to_matrix, transforms.axis_angle_to_quaternion):
            assert gradcheck(function, given)
            assert gradgradcheck(function, given)
        if given.norm() < PI - 1e-3:
            jacobian = torch.autograd.functional.jacobian(
                lambda v: transforms.matrix_to_axis_angle(transforms.axis_angle_to_matrix(v)), given.detach()
            )
            torch.testing.assert_close(jacobian, torch.eye(3, dtype=torch.float64, device=device))

    @pytest.mark.parametrize(
        "quaternion", [[1, 0, 0, 0], [0, 1, 0, 0], [0.5, -0.5, 0.5, 0.5], [3, 1e-4, 0, 0], [-0.6, 0, 0.8, 0]],
        ids=str,
    )  # fmt: skip
    def test_quaternions(self, quaternion, device):
        given = torch.tensor(quaternion, dtype=torch.float64, device=device, requires_grad=True)
        for function in (transforms.quaternion_to_matrix, transforms.quaternion_to_axis_angle):
            assert gradcheck(function, given)
            assert gradgradcheck(function, given)

    def test_other_functions(self, device):
        def inputs(*shape):
            return torch.randn(*shape, dtype=torch.float64, device=device, requires_grad=True)

        matrix = torch.tensor(random_rotations(4).as_matrix(), device=device, requires_grad=True)
        assert gradcheck(transforms.matrix_to_quaternion, matrix)
        assert gradcheck(transforms.matrix_to_axis_angle, matrix)
        assert gradcheck(lambda m: transforms.matrix_to_euler_angles(m, "XYZ"), matrix)
        assert gradcheck(lambda m: transforms.matrix_to_euler_angles(m, "ZYZ"), matrix)
        assert gradcheck(transforms.so3_rotation_angle, matrix)
        assert gradcheck(transforms.rotation_6d_to_matrix, inputs(3, 6))
        assert gradgradcheck(transforms.rotation_6d_to_matrix, inputs(2, 6))
        assert gradcheck(transforms.quaternion_apply, (inputs(3, 4), inputs(3, 3)))
        assert gradcheck(transforms.quaternion_raw_multiply, (inputs(3, 4), inputs(3, 4)))

    def test_half_a_turn(self, device):
        """The logarithm is differentiable along rotations, from which finite differences would depart."""
        for axis in ([1.0, 0, 0], [0, 1.0, 0], [0, 0.6, -0.8], [0.48, 0.6, 0.64]):
            axis = torch.tensor(axis, dtype=torch.float64, device=device)
            matrix = (2 * axis[:, None] * axis - torch.eye(3, dtype=torch.float64, device=device)).requires_grad_()
            logarithm = transforms.matrix_to_axis_angle(matrix)
            torch.testing.assert_close(transforms.axis_angle_to_matrix(logarithm), matrix)
            (grad,) = torch.autograd.grad(logarithm.sum(), matrix)
            assert grad.isfinite().all()
            assert grad.abs().max() < 10


class TestDegenerateInput:
    def test_zero_and_extreme_quaternions(self, device):
        given = torch.tensor([[0, 0, 0, 0], [-1, 0, 0, 0], [1e-30, 1e-30, 0, 0], [1e30, 1e30, 0, 0]], device=device)
        given = given.float().requires_grad_()
        matrix, angle = transforms.quaternion_to_matrix(given), transforms.quaternion_to_axis_angle(given)
        expected = Rotation.from_rotvec([[0, 0, 0], [0, 0, 0], [PI / 2, 0, 0], [PI / 2, 0, 0]])
        assert abs(matrix.detach().cpu().numpy() - expected.as_matrix()).max() < 1e-6
        assert abs(angle.detach().cpu().numpy() - expected.as_rotvec()).max() < 1e-6
        (matrix.sum() + angle.sum()).backward()
        assert given.grad.isfinite().all()
        assert not transforms.quaternion_to_matrix(torch.full((4,), torch.nan, device=device)).isfinite().any()

    def test_quaternions_are_normalized(self, device):
        """The original multiplies the angle by the norm."""
        quaternion = torch.tensor([1.0, 1.0, 0.0, 0.0], device=device)
        angle = transforms.quaternion_to_axis_angle(quaternion)
        torch.testing.assert_close(angle, torch.tensor([PI / 2, 0, 0], device=device))

    def test_six_numbers_without_a_rotation(self, device):
        """The original returns matrices of zeros."""
        given = torch.tensor([[0.0] * 6, [1, 2, 3, 2, 4, 6], [0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]], device=device)
        given.requires_grad_()
        matrix = transforms.rotation_6d_to_matrix(given)
        identity = torch.eye(3, device=device).expand(4, 3, 3)
        torch.testing.assert_close(matrix @ matrix.mT, identity, atol=1e-6, rtol=0)
        torch.testing.assert_close(torch.linalg.det(matrix), torch.ones(4, device=device))
        (matrix * torch.randn(3, 3, device=device)).sum().backward()
        assert given.grad.abs().max() < 10

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_16_bits(self, dtype, device):
        given = vectors(device)[[0, 1, 3, 5]].to(dtype).requires_grad_()
        matrix = transforms.axis_angle_to_matrix(given)
        back = transforms.matrix_to_axis_angle(matrix)
        assert back.dtype == dtype
        torch.testing.assert_close(back, given, atol=0.05, rtol=0.05)
        back.sum().backward()
        assert given.grad.isfinite().all()

    def test_empty(self, device):
        for name, last in (
            ("quaternion_to_matrix", (4,)), ("axis_angle_to_matrix", (3,)), ("matrix_to_axis_angle", (3, 3)),
            ("matrix_to_quaternion", (3, 3)), ("rotation_6d_to_matrix", (6,)), ("so3_exp_map", (3,)),
            ("se3_exp_map", (6,)), ("se3_log_map", (4, 4)), ("so3_rotation_angle", (3, 3)),
        ):  # fmt: skip
            assert getattr(transforms, name)(torch.zeros(0, *last, device=device)).shape[0] == 0

    def test_arc_cosine(self, device):
        x = torch.tensor([-2.0, -0.9, -0.5, 0.3, 0.9, 1.5], dtype=torch.float64, device=device, requires_grad=True)
        found = transforms.acos_linear_extrapolation(x, (-0.7, 0.6))
        for value, given in zip(found.tolist(), x.tolist(), strict=True):
            bound = min(max(given, -0.7), 0.6)
            assert value == pytest.approx(math.acos(bound) - (given - bound) / math.sqrt(1 - bound**2))
        assert gradcheck(lambda x: transforms.acos_linear_extrapolation(x, (-0.7, 0.6)), x)
        with pytest.raises(ValueError, match=r"bounds must be ascending and within \(-1, 1\), got \(0.5, 1.0\)"):
            transforms.acos_linear_extrapolation(x, (0.5, 1.0))


class TestExponentials:
    @pytest.mark.parametrize("scale", [0.0, 1e-8, 1e-3, 0.1, 1.0])
    def test_against_the_matrix_exponential(self, scale, device):
        """At small angles the original clamps, and is off by 2e-8."""
        log = torch.randn(5, 6, dtype=torch.float64, device=device)
        log[:, 3:] *= scale / log[:, 3:].norm(dim=1, keepdim=True)
        generator = torch.zeros(5, 4, 4, dtype=torch.float64, device=device)
        generator[:, :3, :3], generator[:, :3, 3] = so3.hat(log[:, 3:]), log[:, :3]
        expected = torch.linalg.matrix_exp(generator).mT
        found = transforms.se3_exp_map(log)
        torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-13)
        torch.testing.assert_close(transforms.so3_exp_map(log[:, 3:]), expected[:, :3, :3].mT, atol=1e-14, rtol=1e-13)
        torch.testing.assert_close(transforms.se3_log_map(found), log, atol=1e-13, rtol=1e-12)
        log = log[:1].requires_grad_()
        assert gradcheck(transforms.se3_exp_map, log)
        assert gradgradcheck(transforms.se3_exp_map, log)
        if scale:  # at the identity, finite differences leave the rotations
            assert gradcheck(lambda x: transforms.se3_log_map(transforms.se3_exp_map(x)), log)

    def test_half_a_turn(self, device):
        log = torch.tensor([[1.0, 2.0, 3.0, PI, 0.0, 0.0]], dtype=torch.float64, device=device)
        torch.testing.assert_close(transforms.se3_exp_map(transforms.se3_log_map(transforms.se3_exp_map(log))),
                                   transforms.se3_exp_map(log))  # fmt: skip

    def test_hat(self, device):
        a, b = torch.randn(2, 7, 3, device=device)
        torch.testing.assert_close((so3.hat(a) @ b[:, :, None])[:, :, 0], torch.linalg.cross(a, b))
        assert torch.equal(so3.hat_inv(so3.hat(a)), a)

    def test_relative_angle(self, device):
        a, b = transforms.random_rotations(2, torch.float64, device)[:, None]
        angle = transforms.so3_relative_angle(a, b)
        expected = Rotation.from_matrix((a @ b.mT).cpu().numpy()).magnitude()
        assert angle.item() == pytest.approx(expected[0])
        with pytest.warns(PendingDeprecationWarning, match="use so3_exp_map instead"):
            transforms.so3_exponential_map(torch.zeros(1, 3, device=device))


def test_random_rotations(device):
    """Rotations are uniform: the images of an axis have mean zero and covariance one third."""
    torch.manual_seed(3)
    matrix = transforms.random_rotations(4000, torch.float64, device)
    torch.testing.assert_close(torch.linalg.det(matrix), torch.ones_like(matrix[:, 0, 0]))
    images = matrix[:, :, 0]
    assert images.mean(0).abs().max() < 0.05
    assert (images.mT @ images / 4000 - torch.eye(3, device=device) / 3).abs().max() < 0.03
    assert (transforms.random_quaternions(50, device=device)[:, 0] >= 0).all()
    assert transforms.random_rotation(torch.float64, device).shape == (3, 3)


def test_scripted_functions():
    """Programs compile rotations with torch.jit.script."""
    vector = vectors("cpu")
    for name in ("axis_angle_to_matrix", "axis_angle_to_quaternion", "so3_exp_map"):
        scripted = torch.jit.script(getattr(transforms, name))
        assert torch.equal(scripted(vector), getattr(transforms, name)(vector))
    matrix = transforms.axis_angle_to_matrix(vector)
    for name in ("matrix_to_quaternion", "matrix_to_axis_angle", "matrix_to_rotation_6d", "so3_log_map"):
        scripted = torch.jit.script(getattr(transforms, name))
        torch.testing.assert_close(scripted(matrix), getattr(transforms, name)(matrix))
    for name in ("matrix_to_euler_angles", "euler_angles_to_matrix"):
        given = matrix if name.startswith("matrix") else vector
        scripted = torch.jit.script(getattr(transforms, name))
        torch.testing.assert_close(scripted(given, "XZX"), getattr(transforms, name)(given, "XZX"))
    for name in ("quaternion_apply", "quaternion_multiply", "rotation_6d_to_matrix", "random_rotation"):
        torch.jit.script(getattr(transforms, name))


EYE = torch.eye(3)
BAD = [
    (lambda: transforms.quaternion_to_matrix(EYE), r"quaternions must be \(..., 4\), got \(3, 3\)"),
    (lambda: transforms.axis_angle_to_matrix(EYE[:, :2]), r"axis_angle must be \(..., 3\), got \(3, 2\)"),
    (lambda: transforms.matrix_to_quaternion(EYE[0]), r"matrix must be \(..., 3, 3\), got \(3\)"),
    (lambda: transforms.matrix_to_euler_angles(EYE, "XXY"), "convention must be three .* got XXY"),
    (lambda: transforms.euler_angles_to_matrix(EYE, "xyz"), "convention must be three .* got xyz"),
    (lambda: transforms.euler_angles_to_matrix(EYE, "XY"), "convention must be three .* got XY"),
    (lambda: transforms.rotation_6d_to_matrix(EYE), r"d6 must be \(..., 6\)"),
    (lambda: transforms.quaternion_apply(torch.zeros(4), torch.zeros(2)), r"point must be \(..., 3\), got \(2\)"),
    (lambda: transforms.so3_exp_map(EYE[0]), r"log_rot is \(3\): Input tensor shape has to be Nx3."),
    (lambda: transforms.so3_log_map(EYE), r"R is \(3, 3\): Input has to be a batch of 3x3 Tensors."),
    (lambda: transforms.so3_rotation_angle(-2 * EYE[None]), "the traces of R must be"),
    (lambda: so3.hat_inv(EYE[None]), "h must be skew-symmetric"),
    (lambda: so3.hat(EYE[:, :2]), r"v must be \(N, 3\), got \(3, 2\)"),
    (lambda: transforms.se3_exp_map(EYE), r"log_transform must be \(N, 6\), got \(3, 3\)"),
    (lambda: transforms.se3_log_map(EYE), r"transform must be \(N, 4, 4\), got \(3, 3\)"),
    (lambda: transforms.se3_log_map(torch.ones(1, 4, 4)), r"transform\[:, :3, 3\] must be 0"),
    (lambda: Transform3d(matrix=EYE), r"matrix must be \(4, 4\) or \(N, 4, 4\), got \(3, 3\)"),
    (lambda: Transform3d().compose(EYE), "others must be Transform3d objects, got Tensor"),
    (lambda: Transform3d().transform_points(EYE[0]), r"points must be \(P, 3\) or \(N, P, 3\), got \(3,\)"),
    (lambda: Transform3d(matrix=torch.ones(2, 4, 4)).transform_points(torch.ones(3, 1, 3)), "batch sizes must be"),
    (lambda: Translate(1, 2), "z must be a number or a tensor, got None"),
    (lambda: Translate(EYE, 1), r"y and z must be None if x is \(N, 3\)"),
    (lambda: Translate(EYE[:, :2]), r"x must be \(N, 3\), got \(3, 2\)"),
    (lambda: Scale(torch.ones(2), torch.ones(3), 1), r"sizes of x, y and z must be equal or 1, got \[2, 3, 1\]"),
    (lambda: Rotate(EYE[0]), r"R must be \(3, 3\) or \(N, 3, 3\), got \(3,\)"),
    (lambda: RotateAxisAngle(90, "W"), "axis must be X, Y or Z, got W"),
    (lambda: RotateAxisAngle(EYE), r"angle must be a number or \(N,\), got \(3, 3\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
