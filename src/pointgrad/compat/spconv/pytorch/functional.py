"""Sums of sparse tensors with different voxels."""

import torch

import pointgrad
from pointgrad.ops import checks

from .core import SparseConvTensor

__all__ = ["sparse_add", "sparse_add_hash_based"]


def sparse_add(*tens: SparseConvTensor) -> SparseConvTensor:
    """Add sparse tensors whose voxels differ; a missing voxel counts as zeros.

    Args:
        tens: Tensors with equal grids and numbers of channels, each without duplicate voxels.

    Returns:
        Sparse tensor with all voxels, sorted. If one operand has all of them, the result has its rows and kernel maps.

    Example:
        >>> one, two = (torch.tensor([[0, place]], dtype=torch.int32) for place in (3, 5))
        >>> a, b = SparseConvTensor(torch.ones(1, 1), one, [8], 1), SparseConvTensor(torch.ones(1, 1), two, [8], 1)
        >>> sparse_add(a, b, a).features.tolist()
        [[2.0], [1.0]]
    """
    first = tens[0]
    for ten in tens:
        grids = first.batch_size, first.spatial_shape, first.features.shape[1]
        received = ten.batch_size, ten.spatial_shape, ten.features.shape[1]
        contract = f"the batch size, grid and channels {grids} of the first"
        checks.value(received == grids, "tens", contract, received, verb="have")
    indices, row = torch.unique(torch.cat([ten.indices for ten in tens]), dim=0, return_inverse=True)
    features = pointgrad.scatter(torch.cat([ten.features for ten in tens]), row, len(indices))
    begin = 0
    for ten in tens:
        if len(ten.indices) == len(indices):
            return ten.replace_feature(features[row[begin : begin + len(indices)]])
        begin += len(ten.indices)
    out = first.replace_feature(features)
    out.indices, out.indice_dict = indices, {}
    return out


sparse_add_hash_based = sparse_add
