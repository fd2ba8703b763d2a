"""Functions of several sparse tensors."""

from collections.abc import Sequence

import torch

import pointgrad

from .. import _sparse
from .tensor import SparseTensor, with_feats

__all__ = ["cat", "generative_add"]


def cat(inputs: Sequence[SparseTensor]) -> SparseTensor:
    """Concatenate the channels of tensors with the same voxels in the same order."""
    return with_feats(inputs[0], torch.cat([tensor.feats for tensor in inputs], 1))


def generative_add(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Add tensors with different voxels. The result has the voxels of both, sorted."""
    larger, smaller = (a, b) if len(a.feats) >= len(b.feats) else (b, a)
    voxels = _sparse.unique(torch.cat([larger.coords, smaller.coords]))
    feats = pointgrad.scatter(torch.cat([larger.feats, smaller.feats]), voxels.inverse, len(voxels.first))
    total = SparseTensor(feats, voxels.coordinates.to(a.coords.dtype), larger.stride, larger.spatial_range)
    total._caches = larger._caches
    return total
