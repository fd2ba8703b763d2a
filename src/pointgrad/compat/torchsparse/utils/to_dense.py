"""Sparse to dense."""

from torch import Tensor

__all__ = ["to_dense"]


def to_dense(feats: Tensor, coords: Tensor, spatial_range: tuple[int, ...]) -> Tensor:
    """Write features (N, C) at coords (N, 4) on a grid of size `spatial_range` = (B, X, Y, Z): (B, X, Y, Z, C).

    Also on the CPU, in contrast to the original.
    """
    grid = feats.new_zeros((*spatial_range, feats.shape[1]))
    return grid.index_put(tuple(coords.long().unbind(1)), feats)
