"""Blocks of residual networks."""

from typing import Any

from torch import nn

from ..MinkowskiConvolution import MinkowskiConvolution
from ..MinkowskiNonlinearity import MinkowskiBatchNorm, MinkowskiReLU

__all__ = ["BasicBlock", "Bottleneck"]


class _Block(nn.Module):
    expansion = 1

    def __init__(
        self, inplanes: int, planes: int, stride: Any = 1, dilation: Any = 1, downsample: nn.Module | None = None,
        bn_momentum: float = 0.1, dimension: int = -1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = self.plan(inplanes, planes, stride, dilation)
        for number, (channels, width, size, step, spread) in enumerate(self.layers, 1):
            conv = MinkowskiConvolution(channels, width, size, step, spread, dimension=dimension)
            self.add_module(f"conv{number}", conv)
            self.add_module(f"norm{number}", MinkowskiBatchNorm(width, momentum=bn_momentum))
        self.relu = MinkowskiReLU(inplace=True)
        self.downsample = downsample

    def plan(self, inplanes: int, planes: int, stride: Any, dilation: Any) -> list[tuple[int, int, int, Any, Any]]:
        raise NotImplementedError

    def forward(self, x: Any) -> Any:
        """Apply the block."""
        residual = x if self.downsample is None else self.downsample(x)
        for number in range(1, len(self.layers) + 1):
            x = getattr(self, f"norm{number}")(getattr(self, f"conv{number}")(x))
            if number < len(self.layers):
                x = self.relu(x)
        return self.relu(x + residual)


class BasicBlock(_Block):
    """Two convolutions of size 3."""

    def plan(self, inplanes: int, planes: int, stride: Any, dilation: Any) -> list[tuple[int, int, int, Any, Any]]:
        """Layers of the block."""
        return [(inplanes, planes, 3, stride, dilation), (planes, planes, 3, 1, dilation)]


class Bottleneck(_Block):
    """Convolutions of size 1, 3 and 1."""

    expansion = 4

    def plan(self, inplanes: int, planes: int, stride: Any, dilation: Any) -> list[tuple[int, int, int, Any, Any]]:
        """Layers of the block."""
        last = (planes, planes * self.expansion, 1, 1, 1)
        return [(inplanes, planes, 1, 1, 1), (planes, planes, 3, stride, dilation), last]
