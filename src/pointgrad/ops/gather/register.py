"""Registration of this family's operators: fake outputs, value checks and gradients."""

from typing import Any

import torch
from torch import Tensor

from .. import checks
from ..registry import operator
from . import reference


def _fits_gather(features: Tensor, index: Tensor) -> bool:
    shape, picks = features.shape, index.shape
    if index.dtype != torch.int64 or len(picks) < 1:
        return False
    return len(shape) == 2 or (len(shape) == 3 and len(picks) >= 2 and picks[0] == shape[0])


def _check_gather(features: Tensor, index: Tensor) -> None:
    checks.index_values(index, features.shape[-2])


def _fake_gather(features: Tensor, index: Tensor) -> Tensor:
    return features.new_empty((*index.shape, features.shape[-1]))


def _save_gather(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.index)
    ctx.num_rows, ctx.padded = inputs.features.shape[-2], inputs.features.dim() == 3


def _grad_gather(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    (index,) = ctx.saved_tensors
    return {"features": gather_backward(grad, index, ctx.num_rows, ctx.padded)}


gather = operator(
    reference.gather,
    contract="features (N, C) and int64 index (M, ...), or (B, N, C) and (B, M, ...)",
    fits=_fits_gather,
    fake=_fake_gather,
    check=_check_gather,
    save=_save_gather,
    backward=_grad_gather,
)


def _fits_backward(grad: Tensor, index: Tensor, num_rows: int, padded: bool) -> bool:
    shape, picks = grad.shape, index.shape
    return (
        len(picks) > padded
        and len(shape) > 1
        and shape == (*picks, shape[-1])
        and num_rows >= 0
        and index.dtype == torch.int64
        and grad.dtype in checks.NUMBERS
    )


def _check_backward(index: Tensor, num_rows: int) -> None:
    checks.index_values(index, num_rows)


def _fake_backward(grad: Tensor, num_rows: int, padded: bool) -> Tensor:
    batch = grad.shape[:1] if padded else ()
    return grad.new_empty((*batch, num_rows, grad.shape[-1]))


def _save_backward(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(inputs.index)


def _grad_backward(ctx: Any, grad: Tensor) -> dict[str, Tensor | None]:
    (index,) = ctx.saved_tensors
    return {"grad": gather(grad, index)}


gather_backward = operator(
    reference.gather_backward,
    contract="grad (*M, C) of floats, int64 or int32, int64 index (*M) that begins with B if padded, and num_rows >= 0",
    fits=_fits_backward,
    fake=_fake_backward,
    check=_check_backward,
    save=_save_backward,
    backward=_grad_backward,
)
