"""Grouping points and integer coordinates by voxel."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .. import checks, clouds
from ..gather.register import gather, gather_backward
from ..scatter.register import scatter_extreme
from ..sums import sum_dtype
from . import register

__all__ = ["UniqueVoxels", "Voxels", "unique_voxels", "voxelize"]

Reduce = Literal["mean", "sum", "max", "first"]
_REDUCE = '"mean", "sum", "max" or "first"'


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
        features: (V, C) or (B, N, C), the reduced features of each voxel, or None if none were given.
    """

    inverse: Tensor
    coordinates: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count
    centers: Tensor
    offsets: Tensor | None
    lengths: Tensor | None
    features: Tensor | None


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
    features: Tensor | None = None,
    reduce: Reduce = "mean",
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Voxels:
    """Group points into voxels, and reduce their features.

    A point whose voxel is not finite or does not fit in int64 (NaN, infinity, overflow) has no voxel: -1.

    Args:
        points: (N, 3) packed, or (B, N, 3) padded. Any floating dtype; 16-bit points are divided in float32.
        size: Edge length of a voxel, or one per axis. Voxel (i, j, k) spans [i, i + 1) * size, so the grid does not
            move with the cloud. It is the grid of `voxel_sampling`.
        features: (N, C) or (B, N, C), reduced over the points of each voxel. Any floating dtype; sums are accumulated
            in at least float32.
        reduce: "mean", "sum", "max", or "first": the features of the voxel's point with the smallest index. A NaN is
            the maximum.
        offsets: (B + 1,), packed only: cloud b is `points[offsets[b]:offsets[b + 1]]`. By default one cloud.
        lengths: (B,), padded only: cloud b is `points[b, :lengths[b]]`. By default all N points.

    Returns:
        `Voxels`. Voxels are numbered cloud by cloud and, within a cloud, in the order of (i, j, k), x slowest, on every
        device. Packed: the number of voxels V depends on the data, so a GPU is synchronized. Padded: there is space for
        N voxels per cloud, without synchronization.

    Gradients flow to `features`; for "max" to the first point that has the maximum. Points have no gradient: the number
    of a voxel and its center are piecewise constant. On a GPU the order of sums varies, as in `scatter`.

    Example:
        >>> line = torch.tensor([[0.1, 0., 0.], [2.5, 0., 0.], [0.3, 0., 0.]])
        >>> voxels = voxelize(line, 1.0, features=torch.tensor([[1.], [5.], [3.]]))
        >>> voxels.inverse
        tensor([0, 1, 0])
        >>> voxels.features
        tensor([[2.],
                [5.]])
    """
    edges = checks.edges("size", size)
    if features is not None:
        checks.tensor("features", features)
    checks.kind(isinstance(reduce, str), "reduce", _REDUCE, reduce)
    checks.clouds(points, offsets, lengths)
    if features is not None:
        _check_features(features, points)
    checks.value(reduce in ("mean", "sum", "max", "first"), "reduce", _REDUCE, repr(reduce))
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
        for axis, length in enumerate(edges):
            centers[..., axis] *= float(length)
    if points.dim() == 3:
        centers = torch.where((count > 0).unsqueeze(-1), centers, 0)
    reduced = None if features is None else _reduce(features, inverse, count, reduce)
    starts, lengths = (None, sizes) if points.dim() == 3 else (sizes, None)
    return Voxels(inverse, coordinates, count, centers.to(points.dtype), starts, lengths, reduced)


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


def _reduce(features: Tensor, inverse: Tensor, count: Tensor, reduce: Reduce) -> Tensor:
    # Registered operators, because `scatter` compares the number of voxels, which torch.compile does not know.
    size = count.shape[-1]
    if reduce == "first":
        # All rows of a voxel have the same number, so the first of them is the maximum.
        _, first = scatter_extreme(inverse.unsqueeze(-1), inverse, size, True)
        return gather(features, first.squeeze(-1))
    if reduce == "max":
        return scatter_extreme(features, inverse, size, True)[0]
    padded = features.dim() == 3
    if reduce == "sum":
        return gather_backward(features, inverse, size, padded)
    total = gather_backward(features.to(sum_dtype(features.dtype)), inverse, size, padded)
    return (total / count.clamp(min=1).unsqueeze(-1)).to(features.dtype)


def _check_features(features: Tensor, points: Tensor) -> None:
    fits = features.dim() == points.dim() and features.shape[:-1] == points.shape[:-1]
    checks.shape(fits, "features", "(N, C) with points (N, 3), or (B, N, C) with (B, N, 3)", features)
    checks.dtype("features", features, checks.FLOATS)
    checks.device("features", features, "points", points)


def _check_device(name: str, points: Tensor) -> None:
    on_device = points.dim() == 3 or not points.is_meta
    checks.value(on_device, name, "on a device that holds values if they are packed", points.device)
