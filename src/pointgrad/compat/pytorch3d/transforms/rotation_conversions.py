"""Conversions between matrices, quaternions, axis-angle vectors, Euler angles and six numbers.

Matrices rotate column vectors. Quaternions have the real part first. The functions can be compiled by torch.jit.script.
"""

from typing import Optional

import torch
from torch import Tensor

from ._quaternions import (
    quaternion_apply,
    quaternion_invert,
    quaternion_multiply,
    quaternion_raw_multiply,
    standardize_quaternion,
)
from ._series import check_last, cross, cross_matrix, positive_root, shape_text

__all__ = [
    "axis_angle_to_matrix",
    "axis_angle_to_quaternion",
    "euler_angles_to_matrix",
    "matrix_to_axis_angle",
    "matrix_to_euler_angles",
    "matrix_to_quaternion",
    "matrix_to_rotation_6d",
    "quaternion_apply",
    "quaternion_invert",
    "quaternion_multiply",
    "quaternion_raw_multiply",
    "quaternion_to_axis_angle",
    "quaternion_to_matrix",
    "random_quaternions",
    "random_rotation",
    "random_rotations",
    "rotation_6d_to_matrix",
    "standardize_quaternion",
]


def quaternion_to_matrix(quaternions: Tensor) -> Tensor:
    """Convert quaternions to rotation matrices.

    Quaternions are normalized, whatever their magnitude. The zero quaternion gives the identity without a gradient
    (original: NaN).

    Args:
        quaternions: (..., 4).

    Returns:
        (..., 3, 3).

    Example:
        >>> quaternion_to_matrix(torch.tensor([1., 0., 0., 1.]))
        tensor([[ 0., -1.,  0.],
                [ 1.,  0.,  0.],
                [ 0.,  0.,  1.]])
    """
    check_last("quaternions", quaternions, 4)
    # The result does not depend on the scale, so it is a constant for derivatives of any order.
    scale = quaternions.detach().abs().amax(-1, keepdim=True)
    scaled = quaternions / torch.where(scale > 0, scale, 1.0)
    real, vector = scaled[..., :1, None], scaled[..., 1:]
    norm2 = scaled.square().sum(-1)[..., None, None]
    factor = 2 / torch.where(norm2 == 0, 1.0, norm2)
    outer = vector[..., :, None] * vector[..., None, :]
    diagonal = 1 - factor * vector.square().sum(-1)[..., None, None]
    identity = torch.eye(3, dtype=scaled.dtype, device=scaled.device)
    return diagonal * identity + factor * (outer + real * cross_matrix(vector))


def matrix_to_quaternion(matrix: Tensor) -> Tensor:
    """Convert rotation matrices to quaternions with a non-negative real part.

    Args:
        matrix: (..., 3, 3).

    Returns:
        (..., 4).

    Example:
        >>> matrix_to_quaternion(torch.eye(3))
        tensor([1., 0., 0., 0.])
    """
    _check_matrix("matrix", matrix)
    trace = matrix.diagonal(0, -2, -1).sum(-1)[..., None, None]
    twist = matrix - matrix.transpose(-1, -2)
    vector = torch.stack([twist[..., 2, 1], twist[..., 0, 2], twist[..., 1, 0]], -1)
    identity = torch.eye(3, dtype=matrix.dtype, device=matrix.device)
    block = matrix + matrix.transpose(-1, -2) + (1 - trace) * identity
    # Four times the product of each pair of components. Its diagonal sums to 4, so the largest is at least 1.
    top = torch.cat([1 + trace, vector[..., None, :]], -1)
    products = torch.cat([top, torch.cat([vector[..., :, None], block], -1)], -2)
    pivots = products.diagonal(0, -2, -1)
    best = pivots.argmax(-1, keepdim=True)
    row = torch.take_along_dim(products, best[..., None], -2).squeeze(-2)
    return standardize_quaternion(row / (2 * pivots.gather(-1, best).sqrt()))


def axis_angle_to_quaternion(axis_angle: Tensor) -> Tensor:
    """Convert axis-angle vectors, whose length is the angle in radians, to quaternions.

    Twice differentiable, also at the zero vector.

    Args:
        axis_angle: (..., 3).

    Returns:
        (..., 4).

    Example:
        >>> axis_angle_to_quaternion(torch.zeros(3))
        tensor([1., 0., 0., 0.])
    """
    check_last("axis_angle", axis_angle, 3)
    half = axis_angle / 2
    angle = positive_root(half.square().sum(-1, keepdim=True))
    return torch.cat([angle.cos(), angle.sin() / angle * half], -1)


def quaternion_to_axis_angle(quaternions: Tensor) -> Tensor:
    """Convert quaternions to axis-angle vectors with angles from 0 to 2 pi.

    Quaternions are normalized (original: the angle is wrong unless the norm is 1). Angles are greater than pi if the
    real part is negative. (-1, 0, 0, 0), for which the axis is not defined, gives the zero vector with gradients of
    magnitude 2 (original: 7e7).

    Args:
        quaternions: (..., 4).

    Returns:
        (..., 3).

    Example:
        >>> quaternion_to_axis_angle(torch.tensor([1., 1., 0., 0.]))
        tensor([1.5708, 0.0000, 0.0000])
    """
    check_last("quaternions", quaternions, 4)
    scale = quaternions.detach().abs().amax(-1, keepdim=True)
    scaled = quaternions / torch.where(scale > 0, scale, 1.0)
    real, vector = scaled[..., :1], scaled[..., 1:]
    squared = vector.square().sum(-1, keepdim=True)
    sine = positive_root(squared)
    return 2 * torch.where((squared == 0) & (real <= 0), -1.0, torch.atan2(sine, real) / sine) * vector


def axis_angle_to_matrix(axis_angle: Tensor, fast: bool = False) -> Tensor:
    """Convert axis-angle vectors, whose length is the angle in radians, to rotation matrices.

    Twice differentiable, also at the zero vector.

    Args:
        axis_angle: (..., 3).
        fast: Ignored: the original has two formulas, of which the faster one is always used here.

    Returns:
        (..., 3, 3).

    Example:
        >>> axis_angle_to_matrix(torch.zeros(3))
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """
    check_last("axis_angle", axis_angle, 3)
    angle = positive_root(axis_angle.square().sum(-1))[..., None, None]
    identity = torch.eye(3, dtype=axis_angle.dtype, device=axis_angle.device)
    # 1 - cos(angle) would lose digits.
    half_sine = (angle / 2).sin() / angle
    outer = axis_angle[..., :, None] * axis_angle[..., None, :]
    return angle.cos() * identity + angle.sin() / angle * cross_matrix(axis_angle) + 2 * half_sine.square() * outer


def matrix_to_axis_angle(matrix: Tensor, fast: bool = False) -> Tensor:
    """Convert rotation matrices to axis-angle vectors with angles from 0 to pi.

    Args:
        matrix: (..., 3, 3).
        fast: Ignored: the original's faster formula is wrong for some rotations by pi.

    Returns:
        (..., 3).

    Example:
        >>> matrix_to_axis_angle(torch.tensor([[1., 0., 0.], [0., -1., 0.], [0., 0., -1.]]))
        tensor([3.1416, 0.0000, 0.0000])
    """
    return quaternion_to_axis_angle(matrix_to_quaternion(matrix))


def euler_angles_to_matrix(euler_angles: Tensor, convention: str) -> Tensor:
    """Convert Euler angles in radians to rotation matrices.

    Args:
        euler_angles: (..., 3).
        convention: Three of the letters X, Y and Z, in which neighbors differ. "XYZ" is the product of the rotations
            about x, y and z, in this order.

    Returns:
        (..., 3, 3).

    Example:
        >>> euler_angles_to_matrix(torch.tensor([0., 0., torch.pi]), "XYZ").round().diagonal()
        tensor([-1., -1.,  1.])
    """
    check_last("euler_angles", euler_angles, 3)
    _check_convention(convention)
    first, second, third = euler_angles.unbind(-1)
    return (
        _axis_angle_rotation(convention[0], first)
        @ _axis_angle_rotation(convention[1], second)
        @ _axis_angle_rotation(convention[2], third)
    )


def matrix_to_euler_angles(matrix: Tensor, convention: str) -> Tensor:
    """Convert rotation matrices to Euler angles in radians.

    In gimbal lock, where only the sum or the difference of the outer angles is defined, the first angle is 0. The
    angles still give the matrix, and gradients are finite (original: not always, and not).

    Args:
        matrix: (..., 3, 3).
        convention: Three of the letters X, Y and Z, in which neighbors differ.

    Returns:
        (..., 3). The second angle is from -pi / 2 to pi / 2 if the first and last letters differ, otherwise from 0 to
        pi.

    Example:
        >>> matrix_to_euler_angles(euler_angles_to_matrix(torch.tensor([0.5, 1., 1.5]), "XYZ"), "XYZ")
        tensor([0.5000, 1.0000, 1.5000])
    """
    _check_matrix("matrix", matrix)
    _check_convention(convention)
    i, j = "XYZ".find(convention[0]), "XYZ".find(convention[1])
    k = 3 - i - j
    sign = 1.0 if (j - i) % 3 == 1 else -1.0
    different = convention[0] != convention[2]
    if different:
        sine, cosine = -sign * matrix[..., j, k], matrix[..., k, k]
    else:
        sine, cosine = matrix[..., j, i], -sign * matrix[..., k, i]
    limit = 1e-28 if matrix.dtype == torch.float64 else 1e-12
    locked = (sine.square() + cosine.square() < limit).detach()
    first = torch.atan2(torch.where(locked, 0.0, sine), torch.where(locked, 1.0, cosine))
    # Without the first rotation, the other two angles are well defined.
    turn, keep = (sign * first.sin())[..., None], first.cos()[..., None]
    row_j = keep * matrix[..., j, :] + turn * matrix[..., k, :]
    row_k = keep * matrix[..., k, :] - turn * matrix[..., j, :]
    if different:
        second = torch.atan2(sign * matrix[..., i, k], row_k[..., k])
        third = torch.atan2(sign * row_j[..., i], row_j[..., j])
    else:
        second = torch.atan2(-sign * row_k[..., i], matrix[..., i, i])
        third = torch.atan2(-sign * row_j[..., k], row_j[..., j])
    return torch.stack([first, second, third], -1)


def random_quaternions(n: int, dtype: Optional[torch.dtype] = None, device: Optional[torch.device] = None) -> Tensor:  # noqa: UP045
    """Draw unit quaternions with a non-negative real part from the uniform distribution of rotations.

    Args:
        n: Number of quaternions.
        dtype: Floating-point dtype; by default torch's.
        device: Device; by default torch's.

    Returns:
        (n, 4).

    Example:
        >>> random_quaternions(2).shape
        torch.Size([2, 4])
    """
    drawn = torch.randn([n, 4], dtype=dtype, device=device)
    length = drawn.square().sum(-1, keepdim=True).sqrt()
    return standardize_quaternion(drawn / length)


def random_rotations(n: int, dtype: Optional[torch.dtype] = None, device: Optional[torch.device] = None) -> Tensor:  # noqa: UP045
    """Draw rotation matrices from the uniform distribution.

    Args:
        n: Number of matrices.
        dtype: Floating-point dtype; by default torch's.
        device: Device; by default torch's.

    Returns:
        (n, 3, 3).

    Example:
        >>> random_rotations(2).shape
        torch.Size([2, 3, 3])
    """
    return quaternion_to_matrix(random_quaternions(n, dtype=dtype, device=device))


def random_rotation(dtype: Optional[torch.dtype] = None, device: Optional[torch.device] = None) -> Tensor:  # noqa: UP045
    """Draw one rotation matrix from the uniform distribution.

    Args:
        dtype: Floating-point dtype; by default torch's.
        device: Device; by default torch's.

    Returns:
        (3, 3).

    Example:
        >>> random_rotation().shape
        torch.Size([3, 3])
    """
    return random_rotations(1, dtype, device)[0]


def rotation_6d_to_matrix(d6: Tensor) -> Tensor:
    """Convert six numbers to rotation matrices: the first two rows before Gram-Schmidt orthogonalization (Zhou et al.).

    The result is always a rotation: where the first three numbers are zero, or parallel to the others, the missing
    direction is a constant (original: zeros, and gradients of up to 1e12).

    Args:
        d6: (..., 6).

    Returns:
        (..., 3, 3).

    Example:
        >>> rotation_6d_to_matrix(torch.tensor([2., 0., 0., 1., 3., 0.]))
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """
    check_last("d6", d6, 6)
    a, b = d6[..., :3], d6[..., 3:]
    axes = torch.eye(3, dtype=d6.dtype, device=d6.device)
    x = _unit(torch.where(a.square().sum(-1, keepdim=True) == 0, axes[0], a))
    rest = b - (b * x).sum(-1, keepdim=True) * x
    limit = 1e-28 if d6.dtype == torch.float64 else 1e-12
    parallel = rest.square().sum(-1, keepdim=True) <= limit * b.square().sum(-1, keepdim=True)
    rest = torch.where(parallel, axes[x.abs().argmin(-1)], rest)
    y = _unit(rest - (rest * x).sum(-1, keepdim=True) * x)
    return torch.stack([x, y, cross(x, y)], -2)


def matrix_to_rotation_6d(matrix: Tensor) -> Tensor:
    """Convert rotation matrices to six numbers: their first two rows.

    Args:
        matrix: (..., 3, 3).

    Returns:
        (..., 6).

    Example:
        >>> matrix_to_rotation_6d(torch.eye(3))
        tensor([1., 0., 0., 0., 1., 0.])
    """
    _check_matrix("matrix", matrix)
    return torch.cat([matrix[..., 0, :], matrix[..., 1, :]], -1)


def _axis_angle_rotation(axis: str, angle: Tensor) -> Tensor:
    """Rotations (..., 3, 3) about one of the axes X, Y and Z."""
    if axis not in ["X", "Y", "Z"]:
        raise ValueError(f"axis must be X, Y or Z, got {axis}")
    sin, cos, zero, one = angle.sin(), angle.cos(), torch.zeros_like(angle), torch.ones_like(angle)
    if axis == "X":
        entries = [one, zero, zero, zero, cos, -sin, zero, sin, cos]
    elif axis == "Y":
        entries = [cos, zero, sin, zero, one, zero, -sin, zero, cos]
    else:
        entries = [cos, -sin, zero, sin, cos, zero, zero, zero, one]
    return torch.stack(entries, -1).unflatten(-1, [3, 3])


def _unit(vector: Tensor) -> Tensor:
    """Nonzero vectors divided by their lengths."""
    return vector * vector.square().sum(-1, keepdim=True).rsqrt()


def _check_matrix(name: str, value: Tensor) -> None:
    if value.dim() < 2 or value.shape[-1] != 3 or value.shape[-2] != 3:
        raise ValueError(f"{name} must be (..., 3, 3), got {shape_text(value)}")


def _check_convention(convention: str) -> None:
    valid = len(convention) == 3
    for letter in convention:
        valid = valid and letter in ["X", "Y", "Z"]
    if not valid or convention[0] == convention[1] or convention[1] == convention[2]:
        raise ValueError(f"convention must be three of the letters X, Y and Z, neighbors different, got {convention}")
