"""Means of the points in voxels."""

from torch import Tensor

import pointgrad

__all__ = ["spvoxelize"]


def spvoxelize(feats: Tensor, coords: Tensor, counts: Tensor) -> Tensor:
    """Sum the features (N, C) of the points in each voxel and divide by `counts` (V,): (V, C).

    `coords` (N,) is the voxel of each point. Points of voxel -1 are ignored. A voxel with count 0 gets 0.
    """
    total = pointgrad.scatter(feats, coords.long(), len(counts))
    share = counts.to(feats.dtype).clamp(min=1).reciprocal() * (counts > 0)
    return total * share.unsqueeze(1)
