"""Activations."""

from torch.nn import functional

from ...tensor import SparseTensor
from ..utils import fapply

__all__ = ["leaky_relu", "relu", "silu"]


def relu(input: SparseTensor, inplace: bool = True) -> SparseTensor:
    """`torch.nn.functional.relu` of the features."""
    return fapply(input, functional.relu, inplace=inplace)


def silu(input: SparseTensor, inplace: bool = True) -> SparseTensor:
    """`torch.nn.functional.silu` of the features."""
    return fapply(input, functional.silu, inplace=inplace)


def leaky_relu(input: SparseTensor, negative_slope: float = 0.1, inplace: bool = True) -> SparseTensor:
    """`torch.nn.functional.leaky_relu` of the features."""
    return fapply(input, functional.leaky_relu, negative_slope=negative_slope, inplace=inplace)
