"""Interpolation of voxels at points."""

import torch
from torch import Tensor

import pointgrad

__all__ = ["calc_ti_weights", "spdevoxelize"]


def calc_ti_weights(coords: Tensor, idx_query: Tensor, scale: float = 1) -> Tensor:
    """Compute trilinear weights.

    Args:
        coords: (N, 3) points in units of voxels; further columns are ignored.
        idx_query: (N, 8) row of each corner, z fastest, or -1.
        scale: Distance between corners.

    Returns:
        (N, 8), 0 for missing corners. The weights of each point sum to 1, or to 0 if all corners are missing.
    """
    with torch.no_grad():
        position = coords[:, :3] / scale
        upper = position - position.floor()
        x, y, z = torch.stack([1 - upper, upper], 1).unbind(2)  # (N, 2) each
        weights = (x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]).flatten(1)
        weights = torch.where(idx_query < 0, 0, weights)
        return weights / (weights.sum(1, keepdim=True) + 1e-8)


def spdevoxelize(feats: Tensor, coords: Tensor, weights: Tensor) -> Tensor:
    """Sum the features (V, C) of voxels `coords` (N, 8) with weights (N, 8): (N, C). Index -1 contributes nothing."""
    return pointgrad.interpolate_at(feats, coords, weights.to(feats.dtype))
