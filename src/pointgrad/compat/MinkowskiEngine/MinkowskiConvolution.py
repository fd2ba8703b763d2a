"""Convolutions."""

import math
from typing import Any

import torch
from torch import nn

from .MinkowskiCommon import ConvolutionMode, MinkowskiModuleBase
from .MinkowskiKernelGenerator import KernelGenerator
from .MinkowskiSparseTensor import SparseTensor, output_key

__all__ = [
    "MinkowskiChannelwiseConvolution",
    "MinkowskiConvolution",
    "MinkowskiConvolutionTranspose",
    "MinkowskiGenerativeConvolutionTranspose",
]


class MinkowskiConvolutionBase(MinkowskiModuleBase):
    """Base class. `kernel` is (K, C, D), or (C, D) for a volume of 1 without stride, x fastest; `bias` is (1, D)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        is_transpose: bool = False,
        expand_coordinates: bool = False,
        convolution_mode: ConvolutionMode = ConvolutionMode.DEFAULT,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        if kernel_generator is None:
            kernel_generator = KernelGenerator(kernel_size, stride, dilation, dimension=dimension)
        kernel_generator.expand_coordinates = expand_coordinates
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_generator, self.dimension, self.is_transpose = kernel_generator, dimension, is_transpose
        self.convolution_mode = convolution_mode
        volume = kernel_generator.kernel_volume
        self.use_mm = volume == 1 and kernel_generator.requires_strided_coordinates
        shape = (in_channels, out_channels) if self.use_mm else (volume, in_channels, out_channels)
        self.kernel = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(1, out_channels)) if bias else None
        self.reset_parameters(is_transpose)

    def reset_parameters(self, is_transpose: bool = False) -> None:
        """Draw the parameters uniformly, within the inverse square root of the number of inputs."""
        channels = self.out_channels if is_transpose else self.in_channels
        bound = 1 / math.sqrt(channels * self.kernel_generator.kernel_volume)
        nn.init.uniform_(self.kernel, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, input: SparseTensor, coordinates: Any = None) -> SparseTensor:
        """Apply the layer; outputs are at `coordinates`, if given."""
        manager, key = input.coordinate_manager, input.coordinate_map_key
        if self.use_mm:
            features = input.F @ self.kernel
        else:
            generator = self.kernel_generator
            target = output_key(input, coordinates) or manager.output_key(key, generator, self.is_transpose)
            found = manager.site_map(
                key,
                target,
                generator.kernel_size,
                generator.kernel_stride,
                generator.kernel_dilation,
                self.is_transpose,
            )
            features, key = found.conv(input.F, generator.in_cube(self.kernel)), target
        if self.bias is not None:
            features = features + self.bias
        return SparseTensor(features, coordinate_map_key=key, coordinate_manager=manager)

    def extra_repr(self) -> str:
        """Describe the layer."""
        generator = self.kernel_generator
        return (
            f"in={self.in_channels}, out={self.out_channels}, kernel_size={generator.kernel_size}, "
            f"stride={generator.kernel_stride}, dilation={generator.kernel_dilation}"
        )


class MinkowskiConvolution(MinkowskiConvolutionBase):
    """Convolution. Output coordinates are floor(c / stride) * stride, in units of the tensor stride."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any = -1, stride: Any = 1, dilation: Any = 1,
        bias: bool = False, kernel_generator: KernelGenerator | None = None, expand_coordinates: bool = False,
        convolution_mode: ConvolutionMode = ConvolutionMode.DEFAULT, dimension: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, dilation, bias, kernel_generator, False,
            expand_coordinates, convolution_mode, dimension,
        )  # fmt: skip


class MinkowskiConvolutionTranspose(MinkowskiConvolutionBase):
    """Transposed convolution to the coordinates that exist at the finer tensor stride."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any = -1, stride: Any = 1, dilation: Any = 1,
        bias: bool = False, kernel_generator: KernelGenerator | None = None, expand_coordinates: bool = False,
        convolution_mode: ConvolutionMode = ConvolutionMode.DEFAULT, dimension: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, dilation, bias, kernel_generator, True,
            expand_coordinates, convolution_mode, dimension,
        )  # fmt: skip


class MinkowskiGenerativeConvolutionTranspose(MinkowskiConvolutionBase):
    """Transposed convolution to all coordinates that it reaches."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any = -1, stride: Any = 1, dilation: Any = 1,
        bias: bool = False, kernel_generator: KernelGenerator | None = None,
        convolution_mode: ConvolutionMode = ConvolutionMode.DEFAULT, dimension: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, dilation, bias, kernel_generator, True, True,
            convolution_mode, dimension,
        )  # fmt: skip


class MinkowskiChannelwiseConvolution(MinkowskiModuleBase):
    """Depthwise convolution with `kernel` (K, C) and `bias` (1, C)."""

    def __init__(
        self, in_channels: int, kernel_size: Any = -1, stride: Any = 1, dilation: Any = 1, bias: bool = False,
        kernel_generator: KernelGenerator | None = None, dimension: int = -1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_generator = kernel_generator or KernelGenerator(kernel_size, stride, dilation, dimension=dimension)
        self.in_channels, self.dimension = in_channels, dimension
        volume = self.kernel_generator.kernel_volume
        bound = 1 / math.sqrt(in_channels * volume)
        self.kernel = nn.Parameter(torch.empty(volume, in_channels).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(1, in_channels).uniform_(-bound, bound)) if bias else None

    def forward(self, input: SparseTensor, coords: Any = None) -> SparseTensor:
        """Apply the layer. `coords` has no effect, as in the original."""
        manager, generator = input.coordinate_manager, self.kernel_generator
        key = manager.stride(input.coordinate_map_key, generator.kernel_stride)
        found = manager.site_map(
            input.coordinate_map_key, key, generator.kernel_size, generator.kernel_stride, generator.kernel_dilation
        )
        features = found.conv(input.F, generator.in_cube(self.kernel.unsqueeze(1)), groups=self.in_channels)
        if self.bias is not None:
            features = features + self.bias
        return SparseTensor(features, coordinate_map_key=key, coordinate_manager=manager)
