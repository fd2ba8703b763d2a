"""Modules that combine several sparse tensors, or apply several modules to one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pointgrad.ops import checks

from . import functional
from .core import SparseConvTensor
from .modules import SparseModule

__all__ = ["AddTable", "AddTableMisaligned", "ConcatTable", "JoinTable"]


class _Table(SparseModule):
    def input_spatial_size(self, out_size: Any) -> Any:
        """Return `out_size`."""
        return out_size


class JoinTable(_Table):
    """Concatenates the channels of sparse tensors with equal voxels."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        """Return a tensor with the channels of all tensors."""
        _check_voxels(input)
        return input[0].replace_feature(torch.cat([part.features for part in input], 1))


class AddTable(_Table):
    """Adds the features of sparse tensors with equal voxels."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        """Return a tensor with the sum of the features."""
        _check_voxels(input)
        return input[0].replace_feature(torch.stack([part.features for part in input]).sum(0))


class AddTableMisaligned(_Table):
    """Adds sparse tensors whose voxels differ; see `functional.sparse_add`."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        """Return the sum."""
        return functional.sparse_add(*input)


class ConcatTable(SparseModule):
    """Applies several modules to the same input."""

    def forward(self, input: Any) -> list[Any]:
        """Return the list of results."""
        return [module(input) for module in self.children()]

    def add(self, module: nn.Module) -> "ConcatTable":
        """Append a module."""
        self.add_module(str(len(self._modules)), module)
        return self

    def input_spatial_size(self, out_size: Any) -> Any:
        """Return the result of the first module's method of this name."""
        return next(self.children()).input_spatial_size(out_size)  # type: ignore[operator]


def _check_voxels(parts: Sequence[SparseConvTensor]) -> None:
    first = parts[0]
    expected = first.batch_size, first.spatial_shape, len(first.indices)
    for part in parts:
        received = part.batch_size, part.spatial_shape, len(part.indices)
        contract = f"the batch size, grid and number of voxels {expected} of the first"
        checks.value(received == expected, "input", contract, received, verb="have")
