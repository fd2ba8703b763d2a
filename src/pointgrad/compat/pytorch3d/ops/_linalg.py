"""Matrix factorizations whose derivatives are finite for equal eigenvalues and singular values."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Context without autocast, which would compute matrix products in 16 bits."""
    return torch.autocast(like.device.type, enabled=False) if checks.autocasts(like) else nullcontext()


def symmetric_eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (..., n), ascending, and eigenvectors (..., n, n) in columns; NaN for non-finite matrices.

    The derivative leaves out rotations among eigenvectors with equal eigenvalues, which are not defined.
    """
    finite = matrix.detach().isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    values, vectors = _SymmetricEigen.apply(torch.where(finite, matrix, 0))
    return torch.where(finite[..., 0], values, torch.nan), torch.where(finite, vectors, torch.nan)


def nearest_rotation(matrix: Tensor, allow_reflection: bool) -> tuple[Tensor, Tensor]:
    """Rotations R (..., n, n) with the largest trace of R^T M, and singular values (..., n) without a derivative.

    The derivative exists unless the two smallest singular values add up to zero; then it leaves out rotations that are
    not defined. NaN for non-finite matrices.
    """
    finite = matrix.detach().isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    rotation, values = _NearestRotation.apply(torch.where(finite, matrix, 0), allow_reflection)
    return torch.where(finite, rotation, torch.nan), values


def _reciprocal(value: Tensor, scale: Tensor) -> Tensor:
    """1 / value, or 0 where the value is zero up to rounding."""
    tolerance = 8 * torch.finfo(value.dtype).eps * scale.detach().abs().amax(-1)[..., None, None]
    zero = value.abs() <= tolerance
    return torch.where(zero, 0, 1 / torch.where(zero, 1, value))


class _SymmetricEigen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        ctx.save_for_backward(values, vectors)
        return values, vectors

    @staticmethod
    def backward(ctx: Any, grad_values: Tensor, grad_vectors: Tensor) -> Tensor:
        values, vectors = ctx.saved_tensors
        gaps = values[..., None, :] - values[..., :, None]
        inner = _reciprocal(gaps, values) * (vectors.mT @ grad_vectors) + grad_values.diag_embed()
        grad = vectors @ inner @ vectors.mT
        return (grad + grad.mT) / 2


class _NearestRotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, allow_reflection: bool) -> tuple[Tensor, Tensor]:
        left, values, right = torch.linalg.svd(matrix)
        if not allow_reflection:
            sign = torch.linalg.det(left @ right).sign()[..., None]
            left = torch.cat([left[..., :-1], left[..., -1:] * sign[..., None]], -1)
        rotation = left @ right
        ctx.save_for_backward(matrix, rotation)
        ctx.mark_non_differentiable(values)
        return rotation, values

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        matrix, rotation = ctx.saved_tensors
        # R^T M stays symmetric, so the change R W of R solves W P + P W = R^T dM - dM^T R with P = R^T M.
        product = rotation.mT @ matrix
        values, vectors = symmetric_eigen((product + product.mT) / 2)
        turn = rotation.mT @ grad
        inner = vectors.mT @ (turn - turn.mT) @ vectors
        inner = inner * _reciprocal(values[..., None, :] + values[..., :, None], values)
        return rotation @ vectors @ inner @ vectors.mT, None
