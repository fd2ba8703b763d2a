"""Grouping points by the voxel they lie in."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks
from . import register

__all__ = ["Voxels", "voxelize"]


class Voxels(NamedTuple):
    """The occupied voxels of packed points (N, 3), or of padded points (B, N, 3).

    inverse: (N,) or (B, N) int64, the number of each point's voxel, -1 for none. Packed: counted through all
        clouds. Padded: within each cloud.
    coordinates: (V, 3) or (B, N, 3) int64, each voxel's place (i, j, k) on the grid.
    count: (V,) or (B, N) int64, how many points each voxel has.
    centers: (V, 3) or (B, N, 3), the geometric centre (i + 0.5) * size, in the points' dtype.
    offsets: (B + 1,) int64 where each cloud's voxels begin, for packed points; else None.
    lengths: (B,) int64 how many voxels each cloud has, for padded points; else None. Beyond them all is 0.
    """

    inverse: Tensor
    coordinates: Tensor
    count: Tensor  # type: ignore[assignment]  # tuple.count is not needed here
    centers: Tensor
    offsets: Tensor | None
    lengths: Tensor | None


def voxelize(
    points: Tensor,
    size: float | Sequence[float],
    *,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Voxels:
    """Groups points into voxels: which voxel each point lies in, and where the occupied voxels are.

    points: (N, 3) packed, or (B, N, 3) padded; any floating dtype. 16-bit points are divided in float32.
    size: edge length of a voxel, or one per axis. Voxel (i, j, k) spans [i, i + 1) * size, so the grid does not
        move with the cloud; the same grid as that of `voxel_sampling`.
    offsets: (B + 1,), packed only: cloud b is `points[offsets[b]:offsets[b + 1]]`. One cloud without.
    lengths: (B,), padded only: cloud b is `points[b, :lengths[b]]`. All N points without.
    returns: `Voxels`. Voxels are numbered cloud by cloud and, in a cloud, in the order of (i, j, k), x slowest: the
        same on every device. Packed: V, how many there are, depends on the data, so a GPU waits for it. Padded: room
        for N voxels per cloud, without waiting.

    A point whose voxel is not finite or does not fit in int64 (NaN, infinity, overflow) is in none: -1. No gradient:
    the number of a voxel is piecewise constant, and so is its centre. What is reduced by `inverse` has one:

    >>> line = torch.tensor([[0.1, 0., 0.], [2.5, 0., 0.], [0.3, 0., 0.]])
    >>> voxels = voxelize(line, 1.0)
    >>> voxels.inverse
    tensor([0, 1, 0])
    >>> scatter(line, voxels.inverse, len(voxels.count), "mean")
    tensor([[0.2000, 0.0000, 0.0000],
            [2.5000, 0.0000, 0.0000]])
    """
    sizes = checks.edges("size", size)
    checks.clouds(points, offsets, lengths)
    checks.edges_values("size", sizes, points)
    offsets = None if offsets is None else offsets.long()
    lengths = None if lengths is None else lengths.long()
    points = points.detach()
    inverse, coordinates, count, occupied = register.voxel_groups(points, offsets, lengths, *map(float, sizes))
    wide = torch.promote_types(points.dtype, torch.float32)
    edge = torch.stack([points.new_full((), edge, dtype=wide) for edge in sizes])
    centers = (coordinates.to(wide) + 0.5) * edge
    if points.dim() == 3:
        centers = torch.where((count > 0).unsqueeze(-1), centers, 0)
        return Voxels(inverse, coordinates, count, centers.to(points.dtype), None, occupied)
    starts = torch.cat([occupied.new_zeros(1), occupied.cumsum(0)])
    return Voxels(inverse, coordinates, count, centers.to(points.dtype), starts, None)
