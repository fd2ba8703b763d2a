"""Cropping."""

import torch

from ...tensor import SparseTensor

__all__ = ["spcrop"]


def spcrop(
    input: SparseTensor, coords_min: tuple[int, ...] | None = None, coords_max: tuple[int, ...] | None = None
) -> SparseTensor:
    """Keep the voxels with `coords_min <= (x, y, z) < coords_max`.

    TorchSparse 2.1 compares the columns batch, x and y instead, which is right for the columns of version 1.4.
    """
    voxels = input.coords[:, 1:]
    inside = torch.ones(len(voxels), dtype=torch.bool, device=voxels.device)
    if coords_min is not None:
        inside &= (voxels >= voxels.new_tensor(coords_min)).all(1)
    if coords_max is not None:
        inside &= (voxels < voxels.new_tensor(coords_max)).all(1)
    return SparseTensor(input.feats[inside], input.coords[inside], input.stride)
