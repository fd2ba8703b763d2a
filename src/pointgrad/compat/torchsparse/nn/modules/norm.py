"""Normalization."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...tensor import SparseTensor, with_feats
from ..utils import fapply

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm"]


class BatchNorm(nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` of the features."""

    def forward(self, input: SparseTensor) -> SparseTensor:  # type: ignore[override]
        """Apply the layer."""
        return fapply(input, super().forward)


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm` of the features of each cloud."""

    def forward(self, input: SparseTensor) -> SparseTensor:  # type: ignore[override]
        """Apply the layer."""
        return _for_each_cloud(input, super().forward)


class InstanceNorm(nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d` of the features of each cloud. The original normalizes each voxel over its channels."""

    def forward(self, input: SparseTensor) -> SparseTensor:  # type: ignore[override]
        """Apply the layer."""
        return _for_each_cloud(input, super().forward)


def _for_each_cloud(input: SparseTensor, norm: Callable[[Tensor], Tensor]) -> SparseTensor:
    cloud = input.coords[:, 0]
    feats = torch.empty_like(input.feats)
    for number in cloud.unique():
        rows = (cloud == number).nonzero().squeeze(1)
        feats = feats.index_copy(0, rows, norm(input.feats[rows].t().unsqueeze(0)).squeeze(0).t().to(feats.dtype))
    return with_feats(input, feats)
