"""Calls of the C++ kernels of this family."""

from torch import Tensor

from .. import native
from ..sums import sum_dtype


def gather(features: Tensor, index: Tensor) -> Tensor:
    batch = features.shape[0] if features.dim() == 3 else 1
    rows, channels = features.shape[-2:]
    out = native.empty(features, (*index.shape, channels))
    native.module.gather(
        out=out,
        features=features.contiguous(),
        index=index.contiguous(),
        batch=batch,
        rows=rows,
        picks=index.numel() // max(batch, 1),
        row_bytes=channels * features.element_size(),
    )
    return out


def gather_backward(grad: Tensor, index: Tensor, num_rows: int, padded: bool) -> Tensor:
    batch, channels = grad.shape[0] if padded else 1, grad.shape[-1]
    shape = (batch, num_rows, channels) if padded else (num_rows, channels)
    total = native.empty(grad, shape, sum_dtype(grad.dtype))
    native.module.gather_backward(
        total=total,
        grad=grad.contiguous(),
        index=index.contiguous(),
        scratch=native.empty(index, index.shape),
        dtype=grad.dtype,
        batch=batch,
        rows=num_rows,
        picks=index.numel() // max(batch, 1),
        channels=channels,
    )
    return total.to(grad.dtype)
