"""Hands tensors to the C++ kernels of this room."""

import torch
from torch import Tensor

from .. import native


def gather(features: Tensor, index: Tensor) -> Tensor:
    features, index = features.contiguous(), index.contiguous()
    batch = features.shape[0] if features.dim() == 3 else 1
    rows, channels = features.shape[-2:]
    out = native.empty(features, (*index.shape, channels))
    native.module.gather(
        out.data_ptr(),
        features.data_ptr(),
        index.data_ptr(),
        batch,
        rows,
        index.numel() // max(batch, 1),
        channels * features.element_size(),
        torch.get_num_threads(),
    )
    return out


def gather_backward(grad: Tensor, index: Tensor, num_rows: int, padded: bool) -> Tensor:
    grad, index = grad.contiguous(), index.contiguous()
    batch, channels = grad.shape[0] if padded else 1, grad.shape[-1]
    summed_in = torch.promote_types(grad.dtype, torch.float32) if grad.is_floating_point() else grad.dtype
    total = native.empty(grad, (batch, num_rows, channels) if padded else (num_rows, channels), summed_in)
    scratch = native.empty(index, index.shape)
    native.module.gather_backward(
        total.data_ptr(),
        grad.data_ptr(),
        index.data_ptr(),
        scratch.data_ptr(),
        native.DTYPE_CODES[grad.dtype],
        batch,
        num_rows,
        index.numel() // max(batch, 1),
        channels,
        torch.get_num_threads(),
    )
    return total.to(grad.dtype)
