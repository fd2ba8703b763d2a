"""Convolution."""

import math
from typing import Any

import torch
from torch import nn

from ...tensor import SparseTensor
from ...utils import make_ntuple
from .. import functional

__all__ = ["Conv3d"]


class Conv3d(nn.Module):
    """Sparse convolution; see `torchsparse.nn.functional.conv3d`.

    Args:
        in_channels: C, the channels of the input.
        out_channels: D, the channels of the output.
        kernel_size: Size of the kernel, or one for each axis.
        stride: Stride, or one for each axis.
        padding: Used along axes with a stride or an even kernel size; otherwise the kernel is centered.
        dilation: Distance between positions of the kernel.
        bias: Whether to add a bias.
        transposed: Return to the voxels of the layer with the same kernel size, stride and dilation.
        generative: Create all voxels that the transposed convolution reaches.
        config: Configuration with a `kmap_mode`; see `conv_config`.

    The parameter `kernel` is (K, C, D), or (C, D) for a kernel of size 1 without stride, and has the order of
    `get_kernel_offsets`. `bias` is (D,).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | list[int] | tuple[int, ...] = 3,
        stride: int | list[int] | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        dilation: int = 1,
        bias: bool = False,
        transposed: bool = False,
        generative: bool = False,
        config: Any = None,
    ) -> None:
        super().__init__()
        if generative and not transposed:
            raise ValueError("transposed must be True if generative is True, got False")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride = make_ntuple(kernel_size, 3), make_ntuple(stride, 3)
        self.dilation = dilation
        self.padding = tuple(
            (k - 1) // 2 if k % 2 == 1 and s == 1 else p
            for k, s, p in zip(self.kernel_size, self.stride, make_ntuple(padding, 3), strict=True)
        )
        self.transposed, self.generative = transposed, generative
        self._config = config
        self.kernel_volume = math.prod(self.kernel_size)
        is_matrix = self.kernel_volume == 1 and self.stride == (1, 1, 1)
        shape = (in_channels, out_channels) if is_matrix else (self.kernel_volume, in_channels, out_channels)
        self.kernel = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.reset_parameters()

    def extra_repr(self) -> str:
        """Describe the layer."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        if self.stride != (1, 1, 1):
            text += f", stride={self.stride}"
        if self.dilation != 1:
            text += f", dilation={self.dilation}"
        if self.bias is None:
            text += ", bias=False"
        if self.transposed:
            text += ", transposed=True"
        if self.generative:
            text += ", generative=True"
        return text

    def reset_parameters(self) -> None:
        """Draw the parameters uniformly, within the inverse square root of the number of inputs."""
        channels = self.out_channels if self.transposed else self.in_channels
        bound = 1 / math.sqrt(channels * self.kernel_volume)
        nn.init.uniform_(self.kernel, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Apply the layer."""
        return functional.conv3d(
            input,
            self.kernel,
            self.kernel_size,
            bias=self.bias,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            config=self._config,
            transposed=self.transposed,
            generative=self.generative,
            training=self.training,
        )
