"""Pooling of whole clouds."""

from torch import Tensor, nn

from ...tensor import SparseTensor
from .. import functional

__all__ = ["GlobalAvgPool", "GlobalMaxPool"]


class GlobalAvgPool(nn.Module):
    """Mean of the features of each cloud: (B, C)."""

    def forward(self, input: SparseTensor) -> Tensor:
        """Apply the layer."""
        return functional.global_avg_pool(input)


class GlobalMaxPool(nn.Module):
    """Maximum of the features of each cloud: (B, C)."""

    def forward(self, input: SparseTensor) -> Tensor:
        """Apply the layer."""
        return functional.global_max_pool(input)
