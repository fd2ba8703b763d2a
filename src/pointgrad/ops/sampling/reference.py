"""The operators of this family in plain PyTorch."""

import functools
import itertools

import torch
from torch import Tensor

from .. import clouds
from ..mixing import GOLDEN, mix
from ..sums import sum_dtype

# Ranks below every distance: a non-finite point is picked after all others, a picked point never again.
_NOT_FINITE, _PICKED = -1.0, -2.0


def farthest_point_sampling(
    points: Tensor,
    sizes: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    start: Tensor | None,
    radii: bool,
) -> tuple[Tensor, Tensor]:
    packed = points.dim() == 2
    wide = points.to(sum_dtype(points.dtype))
    begins, available = (bound.tolist() for bound in clouds.bounds(points, sizes))
    wanted = [num_samples] * len(available) if counts is None else counts.tolist()
    parts = []
    for cloud, (begin, size, count) in enumerate(zip(begins, available, wanted, strict=True)):
        first = [0] if start is None else _valid_start(start[cloud].tolist(), size)
        index, distance2 = _farthest(
            wide.reshape(-1, wide.shape[-1])[begin : begin + size], first, min(count, size), radii
        )
        short = (count if packed else num_samples) - len(index)  # padded with -1
        index = index + begin if packed else index
        parts.append(
            (
                torch.nn.functional.pad(index, (0, short), value=-1),
                torch.nn.functional.pad(distance2, (0, short)),
            )
        )
    join = torch.cat if packed else torch.stack
    if not parts:
        shape = (0,) if packed else (0, num_samples)
        return wide.new_empty(shape, dtype=torch.int64), wide.new_empty(shape if radii else (0,))
    index, distance2 = (join(part) for part in zip(*parts, strict=True))
    return index, distance2 if radii else wide.new_empty(0)


def _valid_start(start: list[int], size: int) -> list[int]:
    """A start set up to its end, or up to an index out of range, which is not checked on a GPU."""
    valid = list(itertools.takewhile(lambda index: 0 <= index < size, start))
    return valid or [0]


def _farthest(points: Tensor, start: list[int], count: int, radii: bool) -> tuple[Tensor, Tensor]:
    """One cloud, (n, D): `count` picks and the squared covering radius after each."""
    finite = points.isfinite().all(1)
    axes = torch.where(finite[:, None], points, 0).unbind(1)
    rank = torch.where(finite, torch.inf, _NOT_FINITE).to(points.dtype)
    picks, covering = [], []
    for step in range(count):
        # argmax returns the first of equal maxima.
        pick = points.new_full((), start[step], dtype=torch.int64) if step < len(start) else rank.argmax()
        deltas = (axis - at for axis, at in zip(axes, torch.where(finite[pick], points[pick], torch.inf), strict=True))
        rank = torch.minimum(rank, functools.reduce(torch.add, (delta * delta for delta in deltas)))
        rank = rank.index_fill(0, pick, _PICKED)
        picks.append(pick)
        if radii:
            covering.append(rank.max().clamp(min=0))
    empty = points.new_empty(0)
    index = torch.stack(picks) if picks else empty.long()
    return index, torch.stack(covering) if covering else points.new_zeros(len(picks))


def fitting_counts(counts: Tensor, num_samples: int, packed: bool) -> Tensor:
    """Counts whose sum (packed) or maximum (padded) is at most `num_samples`. On a GPU they were not checked."""
    inside = counts.clamp(0, num_samples)
    return inside.cumsum(0).clamp(max=num_samples).diff(prepend=inside.new_zeros(1)) if packed else inside


def random_sampling(
    points: Tensor,
    sizes: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    seed: Tensor,
) -> Tensor:
    begin, size = clouds.bounds(points, sizes)
    wanted = torch.full_like(size, num_samples)
    if counts is not None:
        wanted = fitting_counts(counts, num_samples, points.dim() == 2)
    if points.dim() == 3:
        places = torch.arange(points.shape[1], device=points.device)
        keys = _shuffle_keys(seed, points.shape[:2].numel()).reshape(points.shape[:2])
        keys = torch.where(places < size[:, None], keys, torch.iinfo(torch.int64).max)
        order = torch.nn.functional.pad(
            keys.argsort(dim=1, stable=True), (0, max(0, num_samples - points.shape[1])), value=-1
        )
        order = order[:, :num_samples]
        return torch.where(
            torch.arange(num_samples, device=points.device) < torch.minimum(size, wanted)[:, None], order, -1
        )
    # Shuffle all points, then sort them by cloud, which keeps the order inside each cloud.
    shuffled = _shuffle_keys(seed, points.shape[0]).argsort(stable=True)
    shuffled = shuffled[clouds.ids(points, sizes)[shuffled].argsort(stable=True)]
    cloud, place = _places(wanted, num_samples, counts)
    # The entry after the last point is -1.
    shuffled = torch.cat([shuffled, shuffled.new_full((1,), -1)])
    return shuffled[torch.where(place < size[cloud], begin[cloud] + place, points.shape[0])]


def _places(wanted: Tensor, num_samples: int, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """For every packed sample, its cloud and its place among the cloud's samples."""
    batch = wanted.shape[0]
    if counts is None:
        place = torch.arange(num_samples, device=wanted.device)
        return torch.arange(batch, device=wanted.device).repeat_interleave(num_samples), place.repeat(batch)
    place, ends = torch.arange(num_samples, device=wanted.device), wanted.cumsum(0)
    cloud = torch.searchsorted(ends, place, right=True).clamp(max=batch - 1)
    return cloud, place - (ends - wanted)[cloud]


def _shuffle_keys(seed: Tensor, count: int) -> Tensor:
    """One well-mixed 63-bit number per place."""
    return mix(seed + torch.arange(1, count + 1, device=seed.device) * GOLDEN) & torch.iinfo(torch.int64).max


def voxel_representatives(points: Tensor, sizes: Tensor | None, x: float, y: float, z: float) -> Tensor:
    """(N,) or (B, N) bool: the points nearest to the center of their voxel."""
    wide = points.to(sum_dtype(points.dtype)).reshape(-1, 3)
    # As a tensor: torch divides by a plain number through its reciprocal on a GPU, which rounds differently.
    edge = torch.stack([wide.new_full((), size) for size in (x, y, z)])
    voxel = (wide / edge).floor()
    center = (voxel + 0.5) * edge
    dx, dy, dz = (wide - center).unbind(1)
    distance2 = dx * dx + dy * dy + dz * dz
    if points.dim() == 2:
        cloud, inside = clouds.ids(points, sizes), torch.ones_like(distance2, dtype=torch.bool)
    else:
        cloud = torch.arange(points.shape[0], device=points.device).repeat_interleave(points.shape[1])
        place = torch.arange(points.shape[1], device=points.device).repeat(points.shape[0])
        inside = place < clouds.num_points(points, sizes)[cloud]
    valid = inside & voxel.isfinite().all(1)
    # Sort by cloud, voxel, distance and index, invalid points last; the least significant key first.
    order = torch.arange(len(wide), device=points.device)
    for key in (distance2, voxel[:, 2], voxel[:, 1], voxel[:, 0], cloud, ~valid):
        order = order[key[order].argsort(stable=True)]
    voxel, cloud = voxel[order], cloud[order]
    first = torch.ones_like(valid)
    first[1:] = (voxel[1:] != voxel[:-1]).any(1) | (cloud[1:] != cloud[:-1])
    return torch.zeros_like(valid).scatter(0, order, first & valid[order]).reshape(points.shape[:-1])
