"""Products of quaternions, real part first, and their application to points."""

import torch
from torch import Tensor

from ._series import check_last, cross


def standardize_quaternion(quaternions: Tensor) -> Tensor:
    """Change the sign of quaternions with a negative real part.

    Args:
        quaternions: (..., 4).

    Returns:
        (..., 4), the same rotations.

    Example:
        >>> standardize_quaternion(torch.tensor([-1., 0., 2., 0.]))
        tensor([ 1., -0., -2., -0.])
    """
    return torch.where(quaternions[..., :1] < 0, -quaternions, quaternions)


def quaternion_raw_multiply(a: Tensor, b: Tensor) -> Tensor:
    """Multiply quaternions.

    Args:
        a, b: (..., 4) each, broadcast against each other.

    Returns:
        (..., 4).

    Example:
        >>> quaternion_raw_multiply(torch.tensor([0., 1., 0., 0.]), torch.tensor([0., 0., 1., 0.]))
        tensor([0., 0., 0., 1.])
    """
    check_last("a", a, 4)
    check_last("b", b, 4)
    a_real, a_vector = a[..., :1], a[..., 1:]
    b_real, b_vector = b[..., :1], b[..., 1:]
    real = a_real * b_real - (a_vector * b_vector).sum(-1, keepdim=True)
    vector = a_real * b_vector + b_real * a_vector + cross(a_vector, b_vector)
    return torch.cat([real, vector], -1)


def quaternion_multiply(a: Tensor, b: Tensor) -> Tensor:
    """Compose rotations given as quaternions: first b, then a.

    Args:
        a, b: (..., 4) each, broadcast against each other.

    Returns:
        (..., 4) with a non-negative real part.

    Example:
        >>> quaternion_multiply(torch.tensor([0., 0., 1., 0.]), torch.tensor([0., 0., 1., 0.]))
        tensor([1., -0., -0., -0.])
    """
    return standardize_quaternion(quaternion_raw_multiply(a, b))


def quaternion_invert(quaternion: Tensor) -> Tensor:
    """Invert rotations given as unit quaternions.

    Args:
        quaternion: (..., 4).

    Returns:
        (..., 4), the conjugates.

    Example:
        >>> quaternion_invert(torch.tensor([1., 2., 3., 4.]))
        tensor([ 1., -2., -3., -4.])
    """
    check_last("quaternion", quaternion, 4)
    return torch.cat([quaternion[..., :1], -quaternion[..., 1:]], -1)


def quaternion_apply(quaternion: Tensor, point: Tensor) -> Tensor:
    """Rotate points by unit quaternions.

    Args:
        quaternion: (..., 4).
        point: (..., 3), broadcast against the quaternions.

    Returns:
        (..., 3).

    Example:
        >>> quaternion_apply(torch.tensor([0., 0., 0., 1.]), torch.tensor([1., 2., 3.]))
        tensor([-1., -2.,  3.])
    """
    check_last("quaternion", quaternion, 4)
    check_last("point", point, 3)
    real, vector = quaternion[..., :1], quaternion[..., 1:]
    along = (vector * point).sum(-1, keepdim=True)
    kept = real.square() - vector.square().sum(-1, keepdim=True)
    return kept * point + 2 * (along * vector + real * cross(vector, point))
