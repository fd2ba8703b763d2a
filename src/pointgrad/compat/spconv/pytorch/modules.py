"""Containers of layers, and torch's layers on the features of sparse tensors."""

from collections import OrderedDict
from typing import Any

from torch import nn

from .core import SparseConvTensor

__all__ = [
    "SparseBatchNorm",
    "SparseIdentity",
    "SparseModule",
    "SparseReLU",
    "SparseSequential",
    "SparseSyncBatchNorm",
    "assign_name_for_sparse_modules",
    "is_sparse_conv",
    "is_spconv_module",
]


class SparseModule(nn.Module):
    """Base class of modules that `SparseSequential` calls with sparse tensors instead of features.

    Args:
        name: Kept as an attribute, not used.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self._sparse_unique_name = ""


class SparseSequential(SparseModule):
    """Modules in a sequence; modules of torch receive the features of the sparse tensor.

    Args:
        args: Modules, or one OrderedDict of modules by name.
        kwargs: Further modules by name.
    """

    def __init__(self, *args: Any, **kwargs: nn.Module) -> None:
        super().__init__()
        named = args[0] if len(args) == 1 and isinstance(args[0], OrderedDict) else OrderedDict(enumerate(args))
        for key, module in named.items():
            self.add_module(str(key), module)
        for key, module in kwargs.items():
            if key in self._modules:
                raise ValueError(f"names of modules must be different, got {key!r} twice")
            self.add_module(key, module)

    def __getitem__(self, idx: int) -> nn.Module | None:
        if not -len(self) <= idx < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {idx}")
        return list(self._modules.values())[idx]

    def __len__(self) -> int:
        return len(self._modules)

    def add(self, module: nn.Module, name: str | None = None) -> None:
        """Append a module."""
        self.add_module(str(len(self)) if name is None else name, module)

    def forward(self, input: Any) -> Any:
        """Apply the modules. Modules of torch are skipped if the sparse tensor has no voxels."""
        for module in self._modules.values():
            assert module is not None
            if is_spconv_module(module) or not isinstance(input, SparseConvTensor):
                input = module(input)
            elif len(input.indices):
                input = input.replace_feature(module(input.features))
        return input


class _OnFeatures:
    """A layer of torch that also takes sparse tensors."""

    def forward(self, input: Any) -> Any:
        if isinstance(input, SparseConvTensor):
            return input.replace_feature(super().forward(input.features))  # type: ignore[misc]
        return super().forward(input)  # type: ignore[misc]


class SparseBatchNorm(_OnFeatures, nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` that also takes sparse tensors."""


class SparseSyncBatchNorm(_OnFeatures, nn.SyncBatchNorm):
    """`torch.nn.SyncBatchNorm` that also takes sparse tensors."""


class SparseReLU(_OnFeatures, nn.ReLU):
    """`torch.nn.ReLU` that also takes sparse tensors."""


class SparseIdentity(_OnFeatures, nn.Identity):
    """`torch.nn.Identity` that also takes sparse tensors."""


def is_spconv_module(module: Any) -> bool:
    """Return whether `SparseSequential` calls this module with a sparse tensor."""
    return isinstance(module, (SparseModule, _OnFeatures))


def is_sparse_conv(module: Any) -> bool:
    """Return whether this module is a sparse convolution."""
    from .conv import SparseConvolution

    return isinstance(module, SparseConvolution)


def assign_name_for_sparse_modules(module: nn.Module) -> None:
    """Store the name of each sparse module below `module` in it."""
    for name, below in module.named_modules():
        if isinstance(below, SparseModule):
            below._sparse_unique_name = name
