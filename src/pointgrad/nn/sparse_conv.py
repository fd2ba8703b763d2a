"""Sparse convolution and pooling."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from pointgrad.nn.sparse_tensor import SparseTensor, Step, Triple, submanifold_step
from pointgrad.ops import checks
from pointgrad.ops.sparse import KernelMap, sparse_conv, sparse_pool

Sizes = int | Sequence[int]


def _triple(name: str, received: Any, least: int = 1) -> Triple:
    x, y, z = checks.three_ints(name, received, least)
    return x, y, z


def _check(tensor: Any) -> None:
    checks.kind(isinstance(tensor, SparseTensor), "tensor", "a SparseTensor", tensor)


class Conv(nn.Module):
    """Weight and bias of a convolution."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, bias: bool, groups: int) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            checks.kind(checks.is_integer(value), name, "an int", value)
            checks.value(value >= 1, name, "at least 1", value)
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            checks.value(value % groups == 0, name, f"a multiple of groups = {groups}", value)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = _triple("kernel_size", kernel_size)
        volume = math.prod(self.kernel_size)
        self.weight = nn.Parameter(torch.empty(volume, in_channels // groups, out_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias as `torch.nn.Conv3d` does: uniform, with the bound 1 / sqrt(K * Cin / groups)."""
        bound = 1 / math.sqrt(self.weight.shape[0] * self.weight.shape[1])
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        map, convolved = self.step_from(tensor)
        rows = tensor.features
        checks.shape(rows.shape[-1] == self.in_channels, "features", f"(N, {self.in_channels})", rows)
        return convolved(sparse_conv(rows, self.weight, map, bias=self.bias, groups=self.groups))

    def step_from(self, tensor: SparseTensor) -> tuple[KernelMap, Callable[[torch.Tensor], SparseTensor]]:
        """The map of this layer, and a function that puts features on its outputs."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        for name, default in (("stride", (1,) * 3), ("padding", (0,) * 3), ("dilation", (1,) * 3), ("groups", 1)):
            value = getattr(self, name, default)
            parts += [f"{name}={value}"] if value != default else []
        parts += ["bias=False"] if self.bias is None else []
        return ", ".join(parts)


class SubmanifoldConv(Conv):
    """Convolution whose outputs are the input voxels. Sparsity does not change.

    Output o reads the voxels at o + (k - kernel_size // 2) * dilation for each kernel position k.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        kernel_size: Number of kernel positions, or one number per axis.
        dilation: Distance between adjacent positions, or one number per axis.
        groups: Number of groups of channels that are convolved separately.
        bias: Whether to add a bias (Cout,) to each voxel.

    Attributes:
        weight: (K, Cin / groups, Cout), a matrix for each of the K kernel positions, z fastest.

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 0], [0, 0, 1]]), torch.rand(2, 8))
        >>> SubmanifoldConv(8, 16)(tensor).features.shape
        torch.Size([2, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes = 3,
        *,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, bias, groups)
        self.dilation = _triple("dilation", dilation)
        self.step = submanifold_step(self.kernel_size, self.dilation)

    def step_from(self, tensor: SparseTensor) -> tuple[KernelMap, Callable[[torch.Tensor], SparseTensor]]:
        _check(tensor)
        return tensor.kernel_map(self.step), tensor.with_features


class SparseConv(Conv):
    """Convolution whose outputs are all voxels that read at least one input; transposed: that an input reaches.

    Output o reads the voxels at o * stride - padding + k * dilation for each kernel position k, as in
    `torch.nn.Conv3d`. With `transposed`, input i is read by the outputs at i * stride - padding + k * dilation, as in
    `torch.nn.ConvTranspose3d`; this generates voxels. `InverseConv` returns to known voxels.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        kernel_size: Number of kernel positions, or one number per axis.
        stride: Distance between the windows of adjacent outputs (transposed: inputs), or one number per axis.
        padding: Distance of the first window from voxel 0, or one number per axis. There is no border: it only shifts
            the windows.
        dilation: Distance between adjacent positions, or one number per axis.
        transposed: Whether inputs and outputs are exchanged.
        groups: Number of groups of channels that are convolved separately.
        bias: Whether to add a bias (Cout,) to each voxel.

    Attributes:
        weight: (K, Cin / groups, Cout), a matrix for each of the K kernel positions, z fastest.

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 5]]), torch.rand(3, 8))
        >>> SparseConv(8, 16, 2, stride=2)(tensor).coordinates
        tensor([[0, 0, 0],
                [0, 0, 2]])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        transposed: bool = False,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, bias, groups)
        self.stride, self.dilation = _triple("stride", stride), _triple("dilation", dilation)
        self.padding, self.transposed = _triple("padding", padding, least=-(2**15) + 1), transposed
        kind: Literal["transposed", "strided"] = "transposed" if transposed else "strided"
        self.step: Step = (kind, self.kernel_size, self.stride, self.padding, self.dilation)

    def step_from(self, tensor: SparseTensor) -> tuple[KernelMap, Callable[[torch.Tensor], SparseTensor]]:
        _check(tensor)
        map = tensor.kernel_map(self.step)
        return map, lambda rows: tensor.along(map, rows, (*tensor.level, self.step))

    def extra_repr(self) -> str:
        return super().extra_repr() + (", transposed=True" if self.transposed else "")


class InverseConv(Conv):
    """Convolution from the voxels of a strided layer back to those before it.

    It reverses the map of the last `SparseConv` or `SparsePool` that its input passed through (the last entry of
    `tensor.level`), whose kernel must have the same size: voxel i reads output o at kernel position k if o read i at k.
    In a U-Net, each `InverseConv` therefore belongs to the strided layer of its level.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        kernel_size: Kernel size of the strided layer.
        groups: Number of groups of channels that are convolved separately.
        bias: Whether to add a bias (Cout,) to each voxel.

    Attributes:
        weight: (K, Cin / groups, Cout), a matrix for each of the K kernel positions, z fastest.

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 5]]), torch.rand(3, 8))
        >>> network = nn.Sequential(SparseConv(8, 16, 2, stride=2), InverseConv(16, 8, 2))
        >>> network(tensor).coordinates is tensor.coordinates
        True
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, *, groups: int = 1, bias: bool = True
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, bias, groups)

    def step_from(self, tensor: SparseTensor) -> tuple[KernelMap, Callable[[torch.Tensor], SparseTensor]]:
        _check(tensor)
        map = tensor.inverse_map()
        same = map.kernel_size == self.kernel_size
        checks.value(same, "kernel_size", lambda: f"that of the strided layer, {map.kernel_size}", self.kernel_size)
        return map, lambda rows: tensor.along(map, rows, tensor.level[:-1])


class SparsePool(nn.Module):
    """Maximum, mean or sum of the voxels in each window. Windows without a voxel have no output.

    Args:
        kernel_size: Number of voxels of a window, or one number per axis.
        stride: Distance between adjacent windows, or one number per axis. By default `kernel_size`.
        padding: Distance of the first window from voxel 0, or one number per axis.
        dilation: Distance between the voxels of a window, or one number per axis.
        reduce: "max", "mean" or "sum" of the voxels that exist.

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 5]]), torch.tensor([[1.], [2.], [3.]]))
        >>> SparsePool(2)(tensor).features
        tensor([[2.],
                [3.]])
    """

    def __init__(
        self,
        kernel_size: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        reduce: Literal["max", "mean", "sum"] = "max",
    ) -> None:
        super().__init__()
        self.kernel_size = _triple("kernel_size", kernel_size)
        self.stride = self.kernel_size if stride is None else _triple("stride", stride)
        self.padding = _triple("padding", padding, least=-(2**15) + 1)
        self.dilation = _triple("dilation", dilation)
        checks.value(reduce in ("max", "mean", "sum"), "reduce", "'max', 'mean' or 'sum'", repr(reduce))
        self.reduce: Literal["max", "mean", "sum"] = reduce
        self.step: Step = ("strided", self.kernel_size, self.stride, self.padding, self.dilation)

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        _check(tensor)
        map = tensor.kernel_map(self.step)
        return tensor.along(map, sparse_pool(tensor.features, map, self.reduce), (*tensor.level, self.step))

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, reduce={self.reduce!r}"


class OnFeatures(nn.Sequential):
    """Modules of torch, applied one after the other to the features (N, C) of a sparse tensor.

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 0], [0, 0, 1]]), torch.rand(2, 8))
        >>> layers = nn.Sequential(SubmanifoldConv(8, 16, bias=False), OnFeatures(nn.BatchNorm1d(16), nn.ReLU()))
        >>> layers(tensor).features.shape
        torch.Size([2, 16])
    """

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        _check(tensor)
        return tensor.with_features(super().forward(tensor.features))
