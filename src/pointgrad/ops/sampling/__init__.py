"""Sampling: farthest points, random points, one point per voxel.

Sampling stops gradients: an index is an integer, so no gradient flows through it to the coordinates. Features and
points that are selected by the index, with `gather(features, index)`, have gradients.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from .. import checks, clouds
from . import register

__all__ = ["FarthestSamples", "VoxelSamples", "farthest_point_sampling", "random_sampling", "voxel_sampling"]


class FarthestSamples(NamedTuple):
    """Result of `farthest_point_sampling(..., return_radius=True)`.

    Attributes:
        index: The samples, as returned without radii.
        radius: Same shape, the covering radius after each pick.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index
    radius: Tensor


class VoxelSamples(NamedTuple):
    """Result of `voxel_sampling`.

    Attributes:
        index: (M,) packed, or (B, N) padded with -1.
        count: (B,) the number of points that each cloud keeps.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index
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
    any_dims: bool = False,
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
    any_dims: bool = False,
) -> FarthestSamples: ...
def farthest_point_sampling(
    points: Tensor,
    num_samples: Counts,
    *,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    start: Start = 0,
    return_radius: bool = False,
    any_dims: bool = False,
) -> Tensor | FarthestSamples:
    """Sample points one after another, each the farthest from all samples before it.

    Ties go to the smallest index, no point is picked twice (unless `start` contains it twice), and a point with a NaN
    or infinite coordinate is picked only after all others. Every backend returns the same index.

    Args:
        points: (N, D) packed, or (B, N, D) padded. Any floating dtype; 16-bit points are compared in float32. More than
            three dimensions are sampled in plain PyTorch, step by step.
        num_samples: Samples per cloud, or one count for each cloud: ints, or an integer tensor (B,), which is read on
            the host (so not under `torch.compile`).
        offsets: (B + 1,), packed only: cloud b is `points[offsets[b]:offsets[b + 1]]`. By default one cloud.
        lengths: (B,), padded only: cloud b is `points[b, :lengths[b]]`. By default all N points.
        start: First pick of every cloud, counted from the cloud's first point in both layouts: an int, one per cloud
            (B,), a start set per cloud (B, S) whose rows may end in -1, or "random", drawn from torch's default CPU
            generator, so that a seed gives the same picks on every device.
        return_radius: Whether to return the covering radius after each pick: the distance from the farthest point of
            the cloud to its nearest pick.
        any_dims: Accept clouds of exactly 3 points with more than 3 dimensions. Their shape, (..., 3, D), is refused by
            default, because it is almost always that of transposed points (B, 3, N).

    Returns:
        int64 index. Packed: (M,) global, cloud after cloud, where M is the sum of all counts. Padded: (B, m) local,
        where m is the largest count, with -1 where a cloud has fewer points or a smaller count. With `return_radius`,
        `FarthestSamples(index, radius)`; the radius is 0 where the index is -1.

    Raises:
        ValueError: A packed cloud has fewer points than requested, on the CPU. On a GPU the values of offsets, lengths
            and start are not read on the host: they are clamped, and picks past a cloud's end are -1.

    There is no gradient: an index is an integer.

    Example:
        >>> corners = torch.tensor([[0., 0., 0.], [1., 0., 0.], [0., 3., 0.], [1., 3., 0.]])
        >>> farthest_point_sampling(corners, 2)
        tensor([0, 3])
    """
    wanted, first = _numbers(num_samples), _start(start)
    checks.boolean("return_radius", return_radius)
    checks.clouds(points, offsets, lengths, most_dims=checks.ANY, any_dims=any_dims)
    if points.shape[-1] < 3:  # zeros along an axis change no distance
        points = torch.nn.functional.pad(points, (0, 3 - points.shape[-1]))
    batch = clouds.batch_size(points, offsets)
    total, counts = _counts(wanted, points, batch)
    sizes = clouds.as_sizes(offsets, lengths)
    first = _first_picks(first, points, sizes, batch)
    if first is not None and counts is None:
        fits = first.shape[1] <= total
        checks.value(
            fits, "start", lambda: f"at most num_samples = {total} indices per cloud", first.shape[1], verb="have"
        )
    index, distance2 = register.farthest_point_sampling(points.detach(), sizes, total, counts, first, return_radius)
    return FarthestSamples(index, distance2.sqrt()) if return_radius else index


def random_sampling(
    points: Tensor, num_samples: Counts, *, offsets: Tensor | None = None, lengths: Tensor | None = None
) -> Tensor:
    """Sample points of each cloud at random, without repetition, in random order.

    One number is drawn from torch's default CPU generator, so a seed gives the same samples on every device.

    Args:
        points: See `farthest_point_sampling`.
        num_samples: See `farthest_point_sampling`.
        offsets: See `farthest_point_sampling`.
        lengths: See `farthest_point_sampling`.

    Returns:
        int64 index, as `farthest_point_sampling` returns it.

    Example:
        >>> random_sampling(torch.rand(5, 3), 5).sort().values
        tensor([0, 1, 2, 3, 4])
    """
    wanted = _numbers(num_samples)
    checks.clouds(points, offsets, lengths)
    total, counts = _counts(wanted, points, clouds.batch_size(points, offsets))
    seed = torch.randint(0, 2**62, (), device="cpu").to(points.device)
    return register.random_sampling(points.detach(), clouds.as_sizes(offsets, lengths), total, counts, seed)


def voxel_sampling(
    points: Tensor,
    voxel_size: float | Sequence[float],
    *,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
) -> VoxelSamples:
    """Keep one point per occupied voxel: the one nearest to the voxel's center, ties to the smallest index.

    A point whose voxel is not finite (NaN, infinity, overflow) is never kept.

    Args:
        points: See `farthest_point_sampling`.
        voxel_size: Edge length of a voxel, or one per axis. Voxel (i, j, k) spans [i, i + 1) * size, so the grid does
            not move with the cloud.
        offsets: See `farthest_point_sampling`.
        lengths: See `farthest_point_sampling`.

    Returns:
        `VoxelSamples(index, count)`; the index is ascending within each cloud. Packed: (M,) global, cloud after cloud,
        where M depends on the data, so a GPU is synchronized. Padded: (B, N) local, -1 after `count[b]` entries,
        without synchronization.

    Example:
        >>> line = torch.tensor([[0.1, 0., 0.], [0.6, 0., 0.], [1.4, 0., 0.]])
        >>> voxel_sampling(line, 1.0).index
        tensor([1, 2])
    """
    edges = checks.edges("voxel_size", voxel_size)
    checks.clouds(points, offsets, lengths)
    checks.edges_values("voxel_size", edges, points)
    sizes = clouds.as_sizes(offsets, lengths)
    kept = register.voxel_representatives(points.detach(), sizes, *edges)
    if points.dim() == 3:
        # A stable sort: kept points first, both parts ascending.
        order = kept.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        count = kept.sum(1)
        place = torch.arange(points.shape[1], device=points.device)
        return VoxelSamples(torch.where(place < count[:, None], order, -1), count)
    index = kept.nonzero().squeeze(1)
    bounds = sizes if sizes is not None else torch.tensor([0, points.shape[0]], device=points.device)
    return VoxelSamples(index, torch.searchsorted(index, bounds.contiguous()).diff())


def _numbers(num_samples: Any) -> Any:
    """The number of samples as an int or a list of ints."""
    if checks.is_integer(num_samples):
        checks.value(1 <= num_samples < 2**63, "num_samples", "at least 1", num_samples)
        return num_samples
    if isinstance(num_samples, Tensor):
        checks.tensor("num_samples", num_samples)
        checks.shape(num_samples.dim() == 1, "num_samples", "an int or (B,)", num_samples)
        checks.dtype("num_samples", num_samples, checks.INDICES)
        checks.value(not num_samples.is_meta, "num_samples", "on a device that holds values", num_samples.device)
        return num_samples.tolist()
    is_list = isinstance(num_samples, Sequence) and not isinstance(num_samples, (str, bytes))
    checks.kind(is_list, "num_samples", "an int or one int per cloud", num_samples)
    for count in num_samples:
        checks.kind(checks.is_integer(count), "num_samples", "an int or one int per cloud", count)
        checks.value(0 <= count < 2**63, "num_samples", "at least 0 for each cloud", count)
    return list(num_samples)


def _counts(wanted: Any, points: Tensor, batch: int) -> tuple[Any, Tensor | None]:
    """(m, None) for one count; for a list its sum (packed) or maximum (padded), and the list as a tensor."""
    if not isinstance(wanted, list):
        return wanted, None
    checks.value(
        len(wanted) == batch, "num_samples", lambda: f"one count per cloud, B = {batch}", len(wanted), verb="have"
    )
    for count in wanted:
        checks.value(count >= 0, "num_samples", "at least 0 for each cloud", count)
    total = sum(wanted) if points.dim() == 2 else max([0, *wanted])
    return total, torch.tensor(wanted, dtype=torch.int64, device=points.device)


_START = 'an index, one index per cloud, a set of indices per cloud, or "random"'


def _start(start: Any) -> Any:
    """An int, a tensor or "random"."""
    if isinstance(start, str):
        checks.value(start == "random", "start", _START, repr(start))
    elif checks.is_integer(start):
        checks.value(0 <= start < 2**63, "start", "at least 0", start)
    elif isinstance(start, Sequence) and not isinstance(start, bytes):
        try:
            return torch.tensor(start, device="cpu") if len(start) else torch.empty(0, dtype=torch.int64, device="cpu")
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise TypeError(f"start must be {_START}, got {checks.shown(start)}") from None
    else:
        checks.kind(isinstance(start, Tensor), "start", _START, start)
        checks.tensor("start", start)
    return start


def _first_picks(start: Any, points: Tensor, sizes: Tensor | None, batch: int) -> Tensor | None:
    """(B, S) first picks, counted within each cloud; None stands for the first point."""
    if isinstance(start, str):
        size = clouds.num_points(points, sizes)
        share = torch.rand(batch, dtype=torch.float64, device="cpu").to(points.device)
        return (share * size).long().clamp(max=size - 1).clamp(min=0).unsqueeze(1)
    if not isinstance(start, Tensor):
        return None if start == 0 else torch.full((batch, 1), int(start), device=points.device)
    fits = start.dim() in (1, 2) and start.shape[0] == batch and (start.dim() == 1 or start.shape[1] >= 1)
    checks.shape(fits, "start", lambda: f"(B,) or (B, S) with B = {batch}", start)
    checks.dtype("start", start, checks.INDICES)
    if start.device.type != "cpu":  # a list becomes a CPU tensor
        checks.device("start", start, "points", points)
    return start.to(points.device, torch.int64).reshape(batch, -1)
