"""Exponential and logarithm of rigid transforms."""

import torch
from torch import Tensor

from pointgrad.ops import checks

from ._series import cross, stumpff
from .rotation_conversions import axis_angle_to_matrix, matrix_to_axis_angle

__all__ = ["se3_exp_map", "se3_log_map"]


def se3_exp_map(log_transform: Tensor, eps: float = 1e-4) -> Tensor:
    """Convert logarithms of rigid transforms to matrices that transform row vectors.

    Exact for small angles, and twice differentiable, also at 0 (original: angles below 0.01 are clamped, so that
    translations have relative errors of up to 2e-8, and second derivatives at 0 are NaN).

    Args:
        log_transform: (N, 6), the logarithms of translation and rotation.
        eps: Ignored.

    Returns:
        (N, 4, 4): the transposed rotation, with the translation in the last row.

    Example:
        >>> se3_exp_map(torch.tensor([[1., 2., 3., 0., 0., 0.]]))[0, 3]
        tensor([1., 2., 3., 1.])
    """
    fits = log_transform.dim() == 2 and log_transform.shape[1] == 6
    checks.shape(fits, "log_transform", "(N, 6)", log_transform)
    log_translation, log_rotation = log_transform[:, :3], log_transform[:, 3:]
    squared = log_rotation.square().sum(1, keepdim=True)
    turned = cross(log_rotation, log_translation)
    translation = log_translation + stumpff(2, squared) * turned + stumpff(3, squared) * cross(log_rotation, turned)
    rows = torch.cat([axis_angle_to_matrix(log_rotation).transpose(1, 2), translation[:, None]], 1)
    last = torch.tensor([0, 0, 0, 1], dtype=rows.dtype, device=rows.device)
    return torch.cat([rows, last.expand(rows.shape[0], 4)[:, :, None]], 2)


def se3_log_map(transform: Tensor, eps: float = 1e-4, cos_bound: float = 1e-4) -> Tensor:
    """Convert matrices of rigid transforms to their logarithms: the inverse of `se3_exp_map`.

    Args:
        transform: (N, 4, 4): the transposed rotation, with the translation in the last row. That the last column is
            (0, 0, 0, 1) is checked on the CPU only.
        eps, cos_bound: Ignored: the result is exact for small angles.

    Returns:
        (N, 6), the logarithms of translation and rotation, with angles from 0 to pi.

    Example:
        >>> se3_log_map(torch.eye(4)[None])
        tensor([[0., 0., 0., 0., 0., 0.]])
    """
    checks.shape(transform.dim() == 3 and transform.shape[1:] == (4, 4), "transform", "(N, 4, 4)", transform)
    if transform.device.type == "cpu" and not torch.compiler.is_compiling():
        column = transform[:, :3, 3]
        checks.value(bool((column.abs() <= 1e-8).all()), "transform[:, :3, 3]", "0", column.tolist())
    log_rotation = matrix_to_axis_angle(transform[:, :3, :3].transpose(1, 2))
    squared = log_rotation.square().sum(1, keepdim=True)
    translation = transform[:, 3, :3]
    turned = cross(log_rotation, translation)
    factor = (stumpff(3, squared) - 2 * stumpff(4, squared)) / (2 * stumpff(2, squared))
    log_translation = translation - turned / 2 + factor * cross(log_rotation, turned)
    return torch.cat([log_translation, log_rotation], 1)
