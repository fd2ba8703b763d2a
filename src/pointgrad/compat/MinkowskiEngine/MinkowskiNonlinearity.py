"""Nonlinearities, dropout, linear layers and normalization."""

from typing import Any

import torch
from torch import nn

from .MinkowskiCommon import MinkowskiModuleBase
from .MinkowskiPooling import MinkowskiBroadcast, MinkowskiGlobalAvgPooling

__all__ = [
    "MinkowskiAlphaDropout",
    "MinkowskiBatchNorm",
    "MinkowskiCELU",
    "MinkowskiDropout",
    "MinkowskiELU",
    "MinkowskiGELU",
    "MinkowskiHardshrink",
    "MinkowskiHardsigmoid",
    "MinkowskiHardswish",
    "MinkowskiHardtanh",
    "MinkowskiInstanceNorm",
    "MinkowskiLeakyReLU",
    "MinkowskiLinear",
    "MinkowskiLogSigmoid",
    "MinkowskiLogSoftmax",
    "MinkowskiPReLU",
    "MinkowskiRReLU",
    "MinkowskiReLU",
    "MinkowskiReLU6",
    "MinkowskiSELU",
    "MinkowskiSiLU",
    "MinkowskiSigmoid",
    "MinkowskiSoftmax",
    "MinkowskiSoftmin",
    "MinkowskiSoftplus",
    "MinkowskiSoftshrink",
    "MinkowskiSoftsign",
    "MinkowskiSyncBatchNorm",
    "MinkowskiTanh",
    "MinkowskiTanhshrink",
    "MinkowskiThreshold",
]


class MinkowskiNonlinearityBase(MinkowskiModuleBase):
    """A layer of torch, `MODULE`, applied to the features."""

    MODULE: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.MODULE(*args, **kwargs)

    def forward(self, input: Any) -> Any:
        """Apply the layer."""
        return input.with_features(self.module(input.F))


class MinkowskiELU(MinkowskiNonlinearityBase):
    """`torch.nn.ELU` of the features."""

    MODULE = nn.ELU


class MinkowskiHardshrink(MinkowskiNonlinearityBase):
    """`torch.nn.Hardshrink` of the features."""

    MODULE = nn.Hardshrink


class MinkowskiHardsigmoid(MinkowskiNonlinearityBase):
    """`torch.nn.Hardsigmoid` of the features."""

    MODULE = nn.Hardsigmoid


class MinkowskiHardtanh(MinkowskiNonlinearityBase):
    """`torch.nn.Hardtanh` of the features."""

    MODULE = nn.Hardtanh


class MinkowskiHardswish(MinkowskiNonlinearityBase):
    """`torch.nn.Hardswish` of the features."""

    MODULE = nn.Hardswish


class MinkowskiLeakyReLU(MinkowskiNonlinearityBase):
    """`torch.nn.LeakyReLU` of the features."""

    MODULE = nn.LeakyReLU


class MinkowskiLogSigmoid(MinkowskiNonlinearityBase):
    """`torch.nn.LogSigmoid` of the features."""

    MODULE = nn.LogSigmoid


class MinkowskiPReLU(MinkowskiNonlinearityBase):
    """`torch.nn.PReLU` of the features."""

    MODULE = nn.PReLU


class MinkowskiReLU(MinkowskiNonlinearityBase):
    """`torch.nn.ReLU` of the features."""

    MODULE = nn.ReLU


class MinkowskiReLU6(MinkowskiNonlinearityBase):
    """`torch.nn.ReLU6` of the features."""

    MODULE = nn.ReLU6


class MinkowskiRReLU(MinkowskiNonlinearityBase):
    """`torch.nn.RReLU` of the features."""

    MODULE = nn.RReLU


class MinkowskiSELU(MinkowskiNonlinearityBase):
    """`torch.nn.SELU` of the features."""

    MODULE = nn.SELU


class MinkowskiCELU(MinkowskiNonlinearityBase):
    """`torch.nn.CELU` of the features."""

    MODULE = nn.CELU


class MinkowskiGELU(MinkowskiNonlinearityBase):
    """`torch.nn.GELU` of the features."""

    MODULE = nn.GELU


class MinkowskiSigmoid(MinkowskiNonlinearityBase):
    """`torch.nn.Sigmoid` of the features."""

    MODULE = nn.Sigmoid


class MinkowskiSiLU(MinkowskiNonlinearityBase):
    """`torch.nn.SiLU` of the features."""

    MODULE = nn.SiLU


class MinkowskiSoftplus(MinkowskiNonlinearityBase):
    """`torch.nn.Softplus` of the features."""

    MODULE = nn.Softplus


class MinkowskiSoftshrink(MinkowskiNonlinearityBase):
    """`torch.nn.Softshrink` of the features."""

    MODULE = nn.Softshrink


class MinkowskiSoftsign(MinkowskiNonlinearityBase):
    """`torch.nn.Softsign` of the features."""

    MODULE = nn.Softsign


class MinkowskiTanh(MinkowskiNonlinearityBase):
    """`torch.nn.Tanh` of the features."""

    MODULE = nn.Tanh


class MinkowskiTanhshrink(MinkowskiNonlinearityBase):
    """`torch.nn.Tanhshrink` of the features."""

    MODULE = nn.Tanhshrink


class MinkowskiThreshold(MinkowskiNonlinearityBase):
    """`torch.nn.Threshold` of the features."""

    MODULE = nn.Threshold


class MinkowskiSoftmin(MinkowskiNonlinearityBase):
    """`torch.nn.Softmin` of the features."""

    MODULE = nn.Softmin


class MinkowskiSoftmax(MinkowskiNonlinearityBase):
    """`torch.nn.Softmax` of the features."""

    MODULE = nn.Softmax


class MinkowskiLogSoftmax(MinkowskiNonlinearityBase):
    """`torch.nn.LogSoftmax` of the features."""

    MODULE = nn.LogSoftmax


class MinkowskiDropout(MinkowskiNonlinearityBase):
    """`torch.nn.Dropout` of the features."""

    MODULE = nn.Dropout


class MinkowskiAlphaDropout(MinkowskiNonlinearityBase):
    """`torch.nn.AlphaDropout` of the features."""

    MODULE = nn.AlphaDropout


class MinkowskiLinear(nn.Module):
    """`torch.nn.Linear` of the features."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)

    def forward(self, input: Any) -> Any:
        """Apply the layer."""
        return input.with_features(self.linear(input.F))


class MinkowskiBatchNorm(nn.Module):
    """`torch.nn.BatchNorm1d` of the features."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.bn: Any = nn.BatchNorm1d(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input: Any) -> Any:
        """Apply the layer."""
        return input.with_features(self.bn(input.F))


class MinkowskiSyncBatchNorm(MinkowskiBatchNorm):
    """`torch.nn.SyncBatchNorm` of the features."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.bn = nn.SyncBatchNorm(num_features, eps, momentum, affine, track_running_stats, process_group)

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Replace all `MinkowskiBatchNorm` of a module."""
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        if isinstance(module, MinkowskiBatchNorm):
            module.bn = nn.SyncBatchNorm.convert_sync_batchnorm(module.bn, process_group)
        return module


class MinkowskiInstanceNorm(MinkowskiModuleBase):
    """Normalization of each channel within each cloud, with `weight` (1, C) and `bias` (1, C)."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.weight = nn.Parameter(torch.ones(1, num_features))
        self.bias = nn.Parameter(torch.zeros(1, num_features))

    def forward(self, input: Any) -> Any:
        """Apply the layer."""
        pool, copy = MinkowskiGlobalAvgPooling(), MinkowskiBroadcast()
        centered = input - copy(input, pool(input))
        variance = copy(input, pool(centered * centered))
        return input.with_features(centered.F * (variance.F + 1e-8).rsqrt() * self.weight + self.bias)
