"""Hands tensors to the C++ kernels of this room."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import native
from .reference import hit_and_base


def cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(logits.dtype, torch.float32)
    loss, top, total = (native.empty(logits, (logits.shape[0], logits.shape[2]), wide) for _ in range(3))
    _call(native.module.cross_entropy, [loss, top, total], logits, target, weight, ignore_index, smoothing)
    return loss, top, total


def cross_entropy_backward(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    smoothing: float,
    top: Tensor,
    total: Tensor,
) -> Tensor:
    out = native.empty(logits, logits.shape)
    tensors = [out, grad.contiguous(), top.contiguous(), total.contiguous()]
    _call(native.module.cross_entropy_backward, tensors, logits, target, weight, ignore_index, smoothing)
    return out


def _call(
    kernel: Callable[..., None],
    tensors: list[Tensor],
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    smoothing: float,
) -> None:
    logits, target = logits.contiguous(), target.contiguous()
    hit, base = hit_and_base(logits, target, weight, smoothing)
    kernel(
        *(tensor.data_ptr() for tensor in tensors),
        logits.data_ptr(),
        0 if target.is_floating_point() else target.data_ptr(),
        native.address(hit),
        native.address(base),
        base is not None and base.dtype != logits.dtype,
        ignore_index,
        native.DTYPE_CODES[logits.dtype],
        *logits.shape,
        torch.get_num_threads(),
    )
