"""The operators of this family in plain PyTorch.

`features` is (N, C) or (B, N, C); `index` has the same leading B, then any shape: (M,), (M, K), ...
"""

import torch
from torch import Tensor

from ..sums import sum_dtype


def gather(features: Tensor, index: Tensor) -> Tensor:
    batch, (rows, channels) = features.shape[:-2], features.shape[-2:]
    nothing = features.new_zeros((*batch, 1, channels))
    picked = torch.cat([features, nothing], dim=-2).gather(-2, _positions(index, batch, rows, channels))
    return picked.reshape(*index.shape, channels).clone()  # autograd forbids in-place changes of a view


def gather_backward(grad: Tensor, index: Tensor, num_rows: int, padded: bool) -> Tensor:
    batch, channels = grad.shape[:1] if padded else grad.shape[:0], grad.shape[-1]
    total = grad.new_zeros((*batch, num_rows + 1, channels), dtype=sum_dtype(grad.dtype))
    positions = _positions(index, batch, num_rows, channels)
    total.scatter_add_(-2, positions, grad.to(total.dtype).reshape(positions.shape))
    return total[..., :num_rows, :].to(grad.dtype, copy=True)


def _positions(index: Tensor, batch: torch.Size, rows: int, channels: int) -> Tensor:
    """(B, M, C) positions for torch.gather. -1 and indices out of range become row `rows`, which is zero."""
    inside = (index >= 0) & (index < rows)
    per_cloud = index.numel() // max(batch.numel(), 1)
    return torch.where(inside, index, rows).reshape(*batch, per_cloud, 1).expand(*batch, per_cloud, channels)
