"""Grouping points and integer coordinates by voxel."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import checks, clouds
from ..sums import sum_dtype
from . import register

__all__ = ["UniqueVoxels", "Voxels", "unique_voxels", "voxelize"]


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


class UniqueVoxels(NamedTuple):
    """The distinct voxels of packed coordinates (N, 3) or padded coordinates (B, N, 3).

    Attributes:
        inverse: (N,) or (B, N) int64, the number of each row's voxel, -1 for none. Packed: counted through all
            clouds. Padded: counted within each cloud.
        coordinates: (V, 3) or (B, N, 3) int64, the coordinates of each voxel.
        count: (V,) or (B, N) int64, the number of rows of each voxel.
        offsets: (B + 1,) int64, the voxels of each cloud, for packed coordinates; else None.
        lengths: (B,) int64, the number of voxels of each cloud, for padded coordinates; else None. Entries beyond
            are 0.
    """

    inverse: Tensor
    coordinates: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count
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
    _check_device("points", points)
    points = points.detach()
    groups = register.voxel_groups(points, clouds.as_sizes(offsets, lengths), *edges)
    inverse, coordinates, count, sizes = groups
    wide = sum_dtype(points.dtype)
    centers = coordinates.to(wide) + 0.5
    if edges[0] == edges[1] == edges[2]:
        centers *= float(edges[0])
    else:
        centers *= torch.stack([points.new_full((), length, dtype=wide) for length in edges])
    if points.dim() == 3:
        centers = torch.where((count > 0).unsqueeze(-1), centers, 0)
        return Voxels(inverse, coordinates, count, centers.to(points.dtype), None, sizes)
    return Voxels(inverse, coordinates, count, centers.to(points.dtype), sizes, None)


def unique_voxels(
    coordinates: Tensor,
    *,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    valid: Tensor | None = None,
) -> UniqueVoxels:
    """Find the distinct voxels among integer coordinates.

    The counterpart of `voxelize` for voxels whose coordinates are known, with the same order of voxels.

    Args:
        coordinates: (N, 3) packed, or (B, N, 3) padded. int64 or int32, any values.
        offsets: (B + 1,), packed only: cloud b is `coordinates[offsets[b]:offsets[b + 1]]`. By default one cloud.
        lengths: (B,), padded only: cloud b is `coordinates[b, :lengths[b]]`. By default all N rows.
        valid: (N,) or (B, N) bool. Rows that are False belong to no voxel: -1. By default all rows are used.

    Returns:
        `UniqueVoxels`. Voxels are numbered cloud by cloud and, within a cloud, in the order of (i, j, k), the first
        coordinate slowest, on every device. Packed: the number of voxels V depends on the data, so a GPU is
        synchronized. Padded: there is space for N voxels per cloud, without synchronization.

    There is no gradient: inputs and results are integers.

    Example:
        >>> voxels = unique_voxels(torch.tensor([[2, 0, 0], [0, 5, -1], [2, 0, 0]]))
        >>> voxels.inverse
        tensor([1, 0, 1])
        >>> voxels.coordinates
        tensor([[ 0,  5, -1],
                [ 2,  0,  0]])
    """
    if valid is not None:
        checks.tensor("valid", valid)
    checks.clouds(coordinates, offsets, lengths, name="coordinates", dtypes=checks.INDICES)
    if valid is not None:
        rows = "(N,)" if coordinates.dim() == 2 else "(B, N)"
        fits = valid.shape == coordinates.shape[:-1]
        checks.shape(fits, "valid", lambda: f"{rows} = {tuple(coordinates.shape[:-1])}", valid)
        checks.dtype("valid", valid, (torch.bool,))
        checks.device("valid", valid, "coordinates", coordinates)
    _check_device("coordinates", coordinates)
    groups = register.unique_voxels(coordinates.long(), clouds.as_sizes(offsets, lengths), valid)
    inverse, unique, count, sizes = groups
    if coordinates.dim() == 3:
        return UniqueVoxels(inverse, unique, count, None, sizes)
    return UniqueVoxels(inverse, unique, count, sizes, None)


def _check_device(name: str, points: Tensor) -> None:
    on_device = points.dim() == 3 or not points.is_meta
    checks.value(on_device, name, "on a device that holds values if they are packed", points.device)
