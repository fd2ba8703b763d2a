"""Exponential and logarithm of rotations."""

import warnings

import torch
from torch import Tensor

from ._series import cross_matrix, shape_text
from .math import acos_linear_extrapolation
from .rotation_conversions import axis_angle_to_matrix, matrix_to_axis_angle

__all__ = [
    "hat",
    "hat_inv",
    "so3_exp_map",
    "so3_exponential_map",
    "so3_log_map",
    "so3_relative_angle",
    "so3_rotation_angle",
]


def so3_relative_angle(
    R1: Tensor, R2: Tensor, cos_angle: bool = False, cos_bound: float = 1e-4, eps: float = 1e-4
) -> Tensor:
    """Compute the angles between rotations, those of the matrices R1 @ R2^T.

    Args:
        R1, R2: (N, 3, 3) rotation matrices.
        cos_angle: Return the cosines of the angles.
        cos_bound, eps: See `so3_rotation_angle`.

    Returns:
        (N,).

    Example:
        >>> so3_relative_angle(torch.eye(3)[None], torch.eye(3)[None], cos_angle=True)
        tensor([1.])
    """
    _check_matrices(R1)
    _check_matrices(R2)
    return so3_rotation_angle(R1 @ R2.transpose(1, 2), eps, cos_angle, cos_bound)


def so3_rotation_angle(R: Tensor, eps: float = 1e-4, cos_angle: bool = False, cos_bound: float = 1e-4) -> Tensor:
    """Compute the angles of rotations, the arc cosines of (trace - 1) / 2.

    Args:
        R: (N, 3, 3) rotation matrices.
        eps: Tolerance of the check that traces are from -1 to 3, which is made on the CPU only, because it would
            synchronize a GPU.
        cos_angle: Return the cosines of the angles.
        cos_bound: Cosines beyond 1 - cos_bound in magnitude use the tangent of the arc cosine, whose derivative is
            finite. The angle of the identity is then 0.007 for the default. With 0, derivatives can be infinite.

    Returns:
        (N,).

    Example:
        >>> so3_rotation_angle(torch.tensor([[[0., -1., 0.], [1., 0., 0.], [0., 0., 1.]]]))
        tensor([1.5708])
    """
    _check_matrices(R)
    trace = R.diagonal(0, -2, -1).sum(-1)
    if R.device.type == "cpu" and bool(((trace < -1 - eps) | (trace > 3 + eps)).any()):
        raise ValueError(f"the traces of R must be from -1 - eps to 3 + eps, got {trace.tolist()}")
    cosine = (trace - 1) / 2
    if cos_angle:
        return cosine
    if cos_bound > 0:
        return acos_linear_extrapolation(cosine, (cos_bound - 1, 1 - cos_bound))
    return torch.acos(cosine)


def so3_exp_map(log_rot: Tensor, eps: float = 0.0001) -> Tensor:
    """Convert logarithms of rotations (axis-angle vectors) to rotation matrices.

    Args:
        log_rot: (N, 3).
        eps: Ignored: all derivatives are finite at 0.

    Returns:
        (N, 3, 3).

    Example:
        >>> so3_exp_map(torch.tensor([[0., 0., torch.pi]])).round().diagonal(dim1=1, dim2=2)
        tensor([[-1., -1.,  1.]])
    """
    if log_rot.dim() != 2 or log_rot.shape[1] != 3:
        raise ValueError(f"log_rot is {shape_text(log_rot)}: Input tensor shape has to be Nx3.")
    return axis_angle_to_matrix(log_rot)


def so3_exponential_map(log_rot: Tensor, eps: float = 0.0001) -> Tensor:
    """Call `so3_exp_map`. Deprecated in the original.

    Args:
        log_rot: (N, 3).
        eps: Ignored.

    Returns:
        (N, 3, 3).

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     so3_exponential_map(torch.zeros(2, 3)).shape
        torch.Size([2, 3, 3])
    """
    warnings.warn("so3_exponential_map is deprecated, use so3_exp_map instead", PendingDeprecationWarning, stacklevel=2)
    return so3_exp_map(log_rot, eps)


def so3_log_map(R: Tensor, eps: float = 0.0001, cos_bound: float = 1e-4) -> Tensor:
    """Convert rotation matrices to their logarithms (axis-angle vectors with angles from 0 to pi).

    Args:
        R: (N, 3, 3).
        eps, cos_bound: Ignored, as in the original.

    Returns:
        (N, 3).

    Example:
        >>> so3_log_map(torch.eye(3)[None])
        tensor([[0., 0., 0.]])
    """
    _check_matrices(R)
    return matrix_to_axis_angle(R)


def hat_inv(h: Tensor) -> Tensor:
    """Convert skew-symmetric matrices to vectors: the inverse of `hat`.

    Args:
        h: (N, 3, 3). That it is skew-symmetric is checked on the CPU only.

    Returns:
        (N, 3).

    Example:
        >>> hat_inv(hat(torch.tensor([[1., 2., 3.]])))
        tensor([[1., 2., 3.]])
    """
    _check_matrices(h)
    if h.device.type == "cpu" and bool(((h + h.transpose(1, 2)).abs() > 1e-5).any()):
        raise ValueError("h must be skew-symmetric, got a matrix that is not skew-symmetric")
    return torch.stack([h[:, 2, 1], h[:, 0, 2], h[:, 1, 0]], 1)


def hat(v: Tensor) -> Tensor:
    """Convert vectors to skew-symmetric matrices, whose product with a vector is the cross product.

    Args:
        v: (N, 3).

    Returns:
        (N, 3, 3).

    Example:
        >>> hat(torch.tensor([[1., 2., 3.]]))
        tensor([[[ 0., -3.,  2.],
                 [ 3.,  0., -1.],
                 [-2.,  1.,  0.]]])
    """
    if v.dim() != 2 or v.shape[1] != 3:
        raise ValueError(f"v must be (N, 3), got {shape_text(v)}")
    return cross_matrix(v)


def _check_matrices(matrix: Tensor) -> None:
    if matrix.dim() != 3 or matrix.shape[1] != 3 or matrix.shape[2] != 3:
        raise ValueError(f"R is {shape_text(matrix)}: Input has to be a batch of 3x3 Tensors.")
