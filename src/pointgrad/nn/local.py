"""What the layers have in common that look at the neighbours of a point: pairs of a centre and a neighbour, an MLP on
each, and the maximum over each centre's."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.level import Level
from pointgrad.nn.pooled import applies, blocks_of, pooled_mlp
from pointgrad.nn.shared_mlp import SharedMLP, is_plain
from pointgrad.ops.gather import gather
from pointgrad.ops.scatter import segment


class Pairs(NamedTuple):
    """E pairs of a centre and a neighbour, one centre after another, counted through all clouds in both layouts.

    neighbors, centers: (E,) rows. ends: (M + 1,) centre m has the pairs from `ends[m]` to `ends[m + 1]`.
    weights: (E,) for how many pairs each stands in batch statistics; None: for itself.
    shape: (M,) or (B, M), of the centres.
    """

    neighbors: Tensor
    centers: Tensor
    ends: Tensor
    weights: Tensor | None
    shape: torch.Size


def nearest_pairs(index: Tensor, level: Level, centers: Level) -> Pairs:
    """Pairs from the k nearest of each centre, (M, k) or (B, M, k). Centres in a cloud of fewer than k points have
    fewer pairs; how many there are is known from the sizes, so that a GPU need not wait."""
    rows, k = _through_all_clouds(index, level).flatten(0, -2), index.shape[-1]
    sizes = level.with_sizes().sizes
    if sizes is None or min(sizes) >= k:
        return _lists(rows, index.shape[:-1])
    counted = centers.with_sizes().sizes
    assert counted is not None
    real = torch.tensor([min(size, k) for size in sizes], device=rows.device)
    count = torch.repeat_interleave(real, torch.tensor(counted, device=rows.device), output_size=len(rows))
    total = sum(m * min(size, k) for m, size in zip(counted, sizes, strict=True))
    ends = functional.pad(count.cumsum(0), (1, 0))
    owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), count, output_size=total)
    place = torch.arange(total, device=rows.device) - ends[owner]
    return Pairs(rows[owner, place], owner, ends, None, index.shape[:-1])


def ball_pairs(index: Tensor, level: Level, mlp: SharedMLP) -> Pairs:
    """Pairs from the points of balls, (M, k) or (B, M, k), -1 where a ball has fewer. Such a ball counts as if it
    repeated its first point, as published networks do it: a maximum over it is that of its real points, and batch
    statistics are over M * k rows, all of them of real points."""
    rows = _through_all_clouds(index, level).flatten(0, -2)
    if not _real_only(mlp, rows):
        return _lists(torch.where(rows < 0, rows[:, :1], rows), index.shape[:-1])
    there = rows >= 0
    count = there.sum(1)
    ends = functional.pad(count.cumsum(0), (1, 0))
    owner = torch.repeat_interleave(torch.arange(len(rows)), count)
    neighbors, weights = rows[there], None
    if mlp.uses_batch_statistics and len(neighbors) < rows.numel():
        weights = torch.ones(len(neighbors), dtype=level.points.dtype)
        found = count > 0
        weights[ends[:-1][found]] += rows.shape[1] - count[found]
    return Pairs(neighbors, owner, ends, weights, index.shape[:-1])


def _real_only(mlp: SharedMLP, rows: Tensor) -> bool:
    """Whether to compute the real points of balls only. How many there are depends on the data, for which a GPU would
    wait; and one that stands for several must have its weight in batch statistics."""
    if rows.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return applies(mlp) or not mlp.uses_batch_statistics


def _through_all_clouds(index: Tensor, level: Level) -> Tensor:
    if level.packed():
        return index
    first = torch.arange(index.shape[0], device=index.device) * level.points.shape[1]
    return torch.where(index < 0, -1, index + first[:, None, None])


def _lists(rows: Tensor, shape: torch.Size) -> Pairs:
    count, k = rows.shape
    owner = torch.arange(count, device=rows.device).unsqueeze(1).expand(-1, k).reshape(-1)
    return Pairs(rows.reshape(-1), owner, torch.arange(count + 1, device=rows.device) * k, None, shape)


def relative_positions(level: Level, centers: Level, pairs: Pairs, radius: float = 1.0) -> Tensor:
    """(E, 3) from each centre to its neighbour, divided by a radius."""
    relative = gather(flat(level.points), pairs.neighbors) - gather(flat(centers.points), pairs.centers)
    return relative if radius == 1 else relative / radius


def first_layer(mlp: SharedMLP, relative: Tensor, features: Tensor | None, pairs: Pairs) -> Tensor:
    """(E, widths[0]) the first linear layer of an MLP on relative positions (E, 3) and features (N, C) or (B, N, C).

    Features are multiplied before they are copied to every pair: the layer is linear, so the order does not matter,
    and there are fewer points than pairs. Positions enter as differences: products of coordinates that are large
    against a neighbourhood would lose them.
    """
    first = mlp.linears[0]
    if features is None:
        return first(relative)
    if not is_plain(first, nn.Linear):
        return first(torch.cat([relative.to(features.dtype), gather(flat(features), pairs.neighbors)], -1))
    rows = gather(flat(functional.linear(features, first.weight[:, 3:], first.bias)), pairs.neighbors)
    return rows.addmm_(relative.to(rows.dtype), first.weight[:, :3].t().to(rows.dtype))


def pair_max(mlp: SharedMLP, rows: Tensor, pairs: Pairs) -> Tensor:
    """(M, C) or (B, M, C) the maximum over each centre of all of `mlp` after its first linear layer."""
    return list_max(mlp, rows, pairs.ends, pairs.weights).unflatten(0, pairs.shape)


def list_max(mlp: SharedMLP, rows: Tensor, ends: Tensor, weights: Tensor | None = None) -> Tensor:
    """(S, C) the same for lists of rows (E, C1), list s from `ends[s]` to `ends[s + 1]`."""
    if rows.device.type == "cpu" and applies(mlp):
        return pooled_mlp(mlp, rows, ends, weights)
    eager = rows.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if not eager or mlp.uses_batch_statistics:
        return segment(mlp.finish(rows), ends, "max")
    # In blocks that stay in the cache.
    parts = blocks_of(ends, mlp.widest)
    return torch.cat([segment(mlp.finish(rows[part.rows]), part.offsets, "max") for part in parts])


def cloud_ends(level: Level) -> Tensor:
    """(B + 1,) where each cloud begins, counted through all of them, in either layout."""
    if level.offsets is not None:
        return level.offsets
    batch, size = (1, level.points.shape[0]) if level.packed() else level.points.shape[:2]
    return torch.arange(batch + 1, device=level.points.device) * size


def cloud_pool(level: Level, reduce: str) -> Tensor:
    """(B, C) the "max" or "mean" of each cloud's features."""
    assert level.features is not None
    return segment(flat(level.features), cloud_ends(level), reduce)  # type: ignore[call-overload]


def per_point(level: Level, values: Tensor) -> Tensor:
    """(N, C) or (B, N, C): to each point what belongs to its cloud, (B, C)."""
    return values[level.cloud_ids()] if level.packed() else values.unsqueeze(1).expand(-1, level.points.shape[1], -1)


def flat(rows: Tensor) -> Tensor:
    """(N, C) as it is, (B, N, C) as (B * N, C)."""
    return rows.flatten(0, -2)
