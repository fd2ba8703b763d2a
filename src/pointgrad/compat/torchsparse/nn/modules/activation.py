"""Activations."""

from torch import nn

from ...tensor import SparseTensor
from ..utils import fapply

__all__ = ["LeakyReLU", "ReLU", "SiLU"]


class ReLU(nn.ReLU):
    """`torch.nn.ReLU` of the features."""

    def forward(self, input: SparseTensor) -> SparseTensor:  # type: ignore[override]
        """Apply the layer."""
        return fapply(input, super().forward)


class LeakyReLU(nn.LeakyReLU):
    """`torch.nn.LeakyReLU` of the features."""

    def forward(self, input: SparseTensor) -> SparseTensor:  # type: ignore[override]
        """Apply the layer."""
        return fapply(input, super().forward)


class SiLU(nn.SiLU):
    """`torch.nn.SiLU` of the features."""

    def forward(self, input: SparseTensor) -> SparseTensor:  # type: ignore[override]
        """Apply the layer."""
        return fapply(input, super().forward)
