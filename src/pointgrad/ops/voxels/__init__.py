"""Grouping points by voxel."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks, clouds
from ..sums import sum_dtype
from . import register

__all__ = ["Voxels", "voxelize"]


class Voxels(NamedTuple):
    """The occupied voxels of packed points (N, 3) or padded points (B, N, 3).

    Attributes:
        inverse: (N,) or (B, N) int64, the number of each point's voxel, -1 for none. Packed: counted through all
            clouds. Padded: counted within each cloud.
        coordinates: (V, 3) or (B, N, 3) int64, the position (i, j, k) of each voxel on the grid.
        count: (V,) or (B, N) int64, the number of points of each voxel.
        centers: (V, 3) or (B, N, 3), the center (i + 0.5) * size of each voxel, in the points' dtype.
        offsets: (B + 1,) int64, the voxels of each cloud, for packed points; else None.
        lengths: (B,) int64, the number of voxels of each cloud, for padded points; else None. Entries beyond are 0.
    """

    inverse: Tensor
    coordinates: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count
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
    """Group points into voxels.

    A point whose voxel is not finite or does not fit in int64 (NaN, infinity, overflow) has no voxel: -1.

    Args:
        points: (N, 3) packed, or (B, N, 3) padded. Any floating dtype; 16-bit points are divided in float32.
        size: Edge length of a voxel, or one per axis. Voxel (i, j, k) spans [i, i + 1) * size, so the grid does not
            move with the cloud. It is the grid of `voxel_sampling`.
        offsets: (B + 1,), packed only: cloud b is `points[offsets[b]:offsets[b + 1]]`. By default one cloud.
        lengths: (B,), padded only: cloud b is `points[b, :lengths[b]]`. By default all N points.

    Returns:
        `Voxels`. Voxels are numbered cloud by cloud and, within a cloud, in the order of (i, j, k), x slowest, on every
        device. Packed: the number of voxels V depends on the data, so a GPU is synchronized. Padded: there is space for
        N voxels per cloud, without synchronization.

    There is no gradient: the number of a voxel and its center are piecewise constant. Values that are reduced by
    `inverse` have gradients, as in the example.

    Example:
        >>> line = torch.tensor([[0.1, 0., 0.], [2.5, 0., 0.], [0.3, 0., 0.]])
        >>> voxels = voxelize(line, 1.0)
        >>> voxels.inverse
        tensor([0, 1, 0])
        >>> scatter(line, voxels.inverse, len(voxels.count), "mean")
        tensor([[0.2000, 0.0000, 0.0000],
                [2.5000, 0.0000, 0.0000]])
    """
    edges = checks.edges("size", size)
    checks.clouds(points, offsets, lengths)
    checks.edges_values("size", edges, points)
    points = points.detach()
    groups = register.voxel_groups(points, clouds.as_sizes(offsets, lengths), *map(float, edges))
    inverse, coordinates, count, occupied = groups
    wide = sum_dtype(points.dtype)
    centers = coordinates.to(wide) + 0.5
    if edges[0] == edges[1] == edges[2]:
        centers *= float(edges[0])
    else:
        centers *= torch.stack([points.new_full((), length, dtype=wide) for length in edges])
    if points.dim() == 3:
        centers = torch.where((count > 0).unsqueeze(-1), centers, 0)
        return Voxels(inverse, coordinates, count, centers.to(points.dtype), None, occupied)
    starts = torch.cat([occupied.new_zeros(1), occupied.cumsum(0)])
    return Voxels(inverse, coordinates, count, centers.to(points.dtype), starts, None)
