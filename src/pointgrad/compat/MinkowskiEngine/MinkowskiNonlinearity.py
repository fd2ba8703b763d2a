"""Nonlinearities, dropout, linear layers and normalization."""

from typing import Any

import torch
from torch import nn

from .MinkowskiCommon import MinkowskiModuleBase
from .MinkowskiPooling import MinkowskiBroadcast, MinkowskiGlobalAvgPooling

_NAMES = (
    "ELU", "Hardshrink", "Hardsigmoid", "Hardtanh", "Hardswish", "LeakyReLU", "LogSigmoid", "PReLU", "ReLU", "ReLU6",
    "RReLU", "SELU", "CELU", "GELU", "Sigmoid", "SiLU", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
    "Threshold", "Softmin", "Softmax", "LogSoftmax", "Dropout", "AlphaDropout",
)  # fmt: skip


class MinkowskiNonlinearityBase(MinkowskiModuleBase):
    """A layer of torch, `MODULE`, applied to the features."""

    MODULE: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.MODULE(*args, **kwargs)

    def forward(self, input: Any) -> Any:
        """Apply the layer."""
        return input.with_features(self.module(input.F))


for _name in _NAMES:
    _text = {"MODULE": getattr(nn, _name), "__doc__": f"`torch.nn.{_name}` of the features.", "__module__": __name__}
    globals()[f"Minkowski{_name}"] = type(f"Minkowski{_name}", (MinkowskiNonlinearityBase,), _text)

__all__ = [
    *(f"Minkowski{name}" for name in _NAMES),
    "MinkowskiBatchNorm",
    "MinkowskiInstanceNorm",
    "MinkowskiLinear",
    "MinkowskiSyncBatchNorm",
]


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
