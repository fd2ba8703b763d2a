"""Choosing a subset of each cloud: farthest points, random points, one point per voxel.

Sampling is a stop-gradient: an index is an integer, so nothing flows back to the coordinates through
it. What is picked with it, `gather(features, index)` or `gather(points, index)`, has gradients.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from .. import checks, clouds
from . import register

__all__ = ["FarthestSamples", "VoxelSamples", "farthest_point_sampling", "random_sampling", "voxel_sampling"]


class FarthestSamples(NamedTuple):
    """index: as returned without radii. radius: same shape, the covering radius after each pick."""

    index: Tensor  # type: ignore[assignment]  # tuple.index is not needed here
    radius: Tensor


class VoxelSamples(NamedTuple):
    """index: (M,) packed or (B, N) padded with -1. count: (B,) how many points each cloud kept."""

    index: Tensor  # type: ignore[assignment]  # nor here
    count: Tensor  # type: ignore[assignment]


Counts = int | Sequence[int] | Tensor
Start = int | Sequence[int] | Tensor | Literal["random"]


@overload
def farthest_point_sampling(
    points: Tensor,
    num_samples: Counts,
    *,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    start: Start = 0,
    return_radius: Literal[False] = False,
) -> Tensor: ...
@overload
def farthest_point_sampling(
    points: Tensor,
    num_samples: Counts,
    *,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    start: Start = 0,
    return_radius: Literal[True],
) -> FarthestSamples: ...
def farthest_point_sampling(
    points: Tensor,
    num_samples: Counts,
    *,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    start: Start = 0,
    return_radius: bool = False,
) -> Tensor | FarthestSamples:
    """Picks points one after another, each the farthest from all picks before it.

    points: (N, 3) packed, or (B, N, 3) padded; any floating dtype. 16-bit points are compared in float32.
    num_samples: m picks per cloud, or one count per cloud: ints, or an integer tensor (B,), which is
        read on the host.
    offsets: (B + 1,), packed only: cloud b is `points[offsets[b]:offsets[b + 1]]`. One cloud without.
    lengths: (B,), padded only: cloud b is `points[b, :lengths[b]]`. All N points without.
    start: the first pick of every cloud, counted from the cloud's first point (in both layouts): an int,
        one per cloud (B,), a start set per cloud (B, S) whose rows may end in -1, or "random", drawn
        from torch's default CPU generator so that a seed gives the same picks on every device.
    return_radius: also return, for each pick, the covering radius after it: the distance from the
        farthest point of the cloud to its nearest pick.
    returns: int64 index. Packed: (M,) global, cloud after cloud, M the sum of all counts. Padded:
        (B, m) local, m the largest count, -1 where a cloud has fewer points or a smaller count. With
        `return_radius`, `FarthestSamples(index, radius)`, the radius 0 where the index is -1.

    Ties go to the smallest index, no point is picked twice, and a point with a NaN or infinite
    coordinate is picked only after all others. Every backend returns the same index. No gradient: see
    the module. Asking a packed cloud for more points than it has is a ValueError on the CPU. On a GPU
    the values of offsets, lengths and start are not read on the host: they are kept in range, and
    picks past a cloud's end are -1.

    >>> corners = torch.tensor([[0., 0., 0.], [1., 0., 0.], [0., 3., 0.], [1., 3., 0.]])
    >>> farthest_point_sampling(corners, 2)
    tensor([0, 3])
    """
    checks.clouds(points, offsets, lengths)
    batch = clouds.batch_size(points, offsets)
    total, counts = _counts(num_samples, points, batch)
    offsets, lengths = _long(offsets), _long(lengths)
    first = _start(start, points, offsets, lengths, batch)
    if first is not None and counts is None:
        checks.value(
            first.shape[1] <= total,
            "start",
            f"at most num_samples = {total} indices per cloud",
            first.shape[1],
        )
    index, distance2 = register.farthest_point_sampling(
        points.detach(), offsets, lengths, total, counts, first, return_radius
    )
    return FarthestSamples(index, distance2.sqrt()) if return_radius else index


def random_sampling(
    points: Tensor, num_samples: Counts, *, offsets: Tensor | None = None, lengths: Tensor | None = None
) -> Tensor:
    """Picks points of each cloud at random, without repetition, in random order.

    Arguments and result as for `farthest_point_sampling`. One number is drawn from torch's default CPU
    generator, so a seed gives the same picks on every device and backend.
    """
    checks.clouds(points, offsets, lengths)
    total, counts = _counts(num_samples, points, clouds.batch_size(points, offsets))
    seed = torch.randint(0, 2**62, ()).to(points.device)
    return register.random_sampling(points.detach(), _long(offsets), _long(lengths), total, counts, seed)


def voxel_sampling(
    points: Tensor,
    voxel_size: float | Sequence[float],
    *,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
) -> VoxelSamples:
    """Keeps one point per occupied voxel: the one nearest the voxel's centre, ties to the smallest index.

    points, offsets, lengths: as for `farthest_point_sampling`.
    voxel_size: edge length of a voxel, or one per axis. Voxel (i, j, k) spans [i, i + 1) * size, so the
        grid does not move with the cloud.
    returns: `VoxelSamples(index, count)`; the index is ascending within each cloud. Packed: (M,) global,
        cloud after cloud; M depends on the data, so a GPU waits for it. Padded: (B, N) local, -1 after
        `count[b]` entries, without waiting.

    A point whose voxel is not finite (NaN, infinity, overflow) is never kept. No gradient: see the module.
    """
    checks.clouds(points, offsets, lengths)
    sizes = [voxel_size] * 3 if isinstance(voxel_size, (int, float)) else voxel_size
    checks.kind(
        isinstance(sizes, Sequence) and all(isinstance(size, (int, float)) for size in sizes),
        "voxel_size",
        "a number or three numbers",
        voxel_size,
    )
    checks.value(len(sizes) == 3, "voxel_size", "one number or three", f"{len(sizes)} numbers")
    for size in sizes:
        checks.value(math.isfinite(size) and size > 0, "voxel_size", "finite and positive", size)
    offsets, lengths = _long(offsets), _long(lengths)
    kept = register.voxel_representatives(points.detach(), offsets, lengths, *map(float, sizes))
    if points.dim() == 3:
        # Stable: kept points first, both parts ascending.
        order = kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        count = kept.sum(1)
        place = torch.arange(points.shape[1], device=points.device)
        return VoxelSamples(torch.where(place < count[:, None], order, -1), count)
    index = kept.nonzero().squeeze(1)
    bounds = offsets if offsets is not None else torch.tensor([0, points.shape[0]], device=points.device)
    return VoxelSamples(index, torch.searchsorted(index, bounds.contiguous()).diff())


def _long(sizes: Tensor | None) -> Tensor | None:
    return None if sizes is None else sizes.long()


def _counts(num_samples: Any, points: Tensor, batch: int) -> tuple[Any, Tensor | None]:
    """(m, None) for one count; for counts per cloud their sum (packed) or maximum (padded), and themselves."""
    if isinstance(num_samples, (int, torch.SymInt)) and not isinstance(num_samples, bool):
        checks.value(num_samples >= 1, "num_samples", "at least 1", num_samples)
        return num_samples, None
    if isinstance(num_samples, Tensor):
        checks.shape(num_samples.dim() == 1, "num_samples", "an int or (B,)", num_samples)
        checks.dtype("num_samples", num_samples, checks.INDICES)
        num_samples = num_samples.tolist()
    elif not isinstance(num_samples, Sequence) or isinstance(num_samples, str):
        checks.integer("num_samples", num_samples)
    for count in num_samples:
        checks.integer("num_samples", count)
        checks.value(count >= 0, "num_samples", "at least 0 for each cloud", count)
    checks.value(
        len(num_samples) == batch,
        "num_samples",
        f"one count for each of {batch} clouds",
        f"{len(num_samples)}",
    )
    total = sum(num_samples) if points.dim() == 2 else max(num_samples, default=0)
    return total, torch.tensor(num_samples, dtype=torch.int64, device=points.device)


def _start(start: Any, points: Tensor, offsets: Tensor | None, lengths: Tensor | None, batch: int) -> Tensor | None:
    """(B, S) first picks, counted within each cloud; None for the first point."""
    if isinstance(start, str):
        checks.value(start == "random", "start", 'an index, one per cloud, or "random"', repr(start))
        size = clouds.sizes(points, offsets, lengths)
        share = torch.rand(batch, dtype=torch.float64).to(points.device)
        return (share * size).long().clamp(max=size - 1).clamp(min=0).unsqueeze(1)
    if isinstance(start, (int, torch.SymInt)) and not isinstance(start, bool):
        checks.value(start >= 0, "start", "at least 0", start)
        return None if start == 0 else torch.full((batch, 1), int(start), device=points.device)
    if isinstance(start, Sequence):
        start = torch.tensor(start, device=points.device) if len(start) else points.new_empty(0, dtype=torch.int64)
    checks.tensor("start", start)
    checks.shape(
        start.dim() in (1, 2) and start.shape[0] == batch and (start.dim() == 1 or start.shape[1] >= 1),
        "start",
        f"(B,) or (B, S) with B = {batch}",
        start,
    )
    checks.dtype("start", start, checks.INDICES)
    checks.device("start", start, "points", points)
    return start.long().reshape(batch, -1)
