"""Building blocks of local layers: pairs of a center and a neighbor, an MLP on pairs, and the maximum per center."""

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
    """E pairs of a center and a neighbor, ordered by center. Rows are counted over the whole batch in both layouts.

    Attributes:
        neighbors: (E,) rows of the neighbors.
        centers: (E,) rows of the centers.
        ends: (M + 1,). Center m has the pairs from `ends[m]` to `ends[m + 1]`.
        weights: (E,) multiplicity of each pair in batch statistics; None if all are 1.
        shape: (M,) or (B, M), shape of the centers.
    """

    neighbors: Tensor
    centers: Tensor
    ends: Tensor
    weights: Tensor | None
    shape: torch.Size


def nearest_pairs(index: Tensor, level: Level, centers: Level) -> Pairs:
    """Pairs from the indices (M, k) or (B, M, k) of the k nearest points of each center.

    Centers in a cloud of fewer than k points have fewer pairs. The number of pairs follows from the sizes, so that
    nothing waits for a GPU.
    """
    rows, k = _batch_rows(index, level).flatten(0, -2), index.shape[-1]
    sizes = level.with_sizes().sizes
    if sizes is None or min(sizes) >= k:
        return _full_pairs(rows, index.shape[:-1])
    counted = centers.with_sizes().sizes
    assert counted is not None
    real = torch.tensor([min(size, k) for size in sizes], device=rows.device)
    count = torch.repeat_interleave(real, torch.tensor(counted, device=rows.device), output_size=len(rows))
    total = sum(m * min(size, k) for m, size in zip(counted, sizes, strict=True))
    ends = functional.pad(count.cumsum(0), (1, 0))
    owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), count, output_size=total)
    column = torch.arange(total, device=rows.device) - ends[owner]
    return Pairs(rows[owner, column], owner, ends, None, index.shape[:-1])


def ball_pairs(index: Tensor, level: Level, mlp: SharedMLP) -> Pairs:
    """Pairs from the indices (M, k) or (B, M, k) of the points of balls, -1 where a ball has fewer than k.

    Such a ball is treated as if its first point were repeated, as in the published networks: the maximum is that of the
    real points, and batch statistics are over M * k rows.
    """
    rows = _batch_rows(index, level).flatten(0, -2)
    if not _skips_repeated(mlp, rows):
        return _full_pairs(torch.where(rows < 0, rows[:, :1], rows), index.shape[:-1])
    valid = rows >= 0
    count = valid.sum(1)
    ends = functional.pad(count.cumsum(0), (1, 0))
    owner = torch.repeat_interleave(torch.arange(len(rows)), count)
    neighbors, weights = rows[valid], None
    if mlp.uses_batch_statistics and len(neighbors) < rows.numel():
        weights = torch.ones(len(neighbors), dtype=level.points.dtype)
        found = count > 0
        weights[ends[:-1][found]] += rows.shape[1] - count[found]
    return Pairs(neighbors, owner, ends, weights, index.shape[:-1])


def _skips_repeated(mlp: SharedMLP, rows: Tensor) -> bool:
    """Whether to compute each point of a ball once instead of repeating the first.

    The number of pairs then depends on the data, which would wait for a GPU, and batch statistics need weights.
    """
    if rows.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return applies(mlp) or not mlp.uses_batch_statistics


def _batch_rows(index: Tensor, level: Level) -> Tensor:
    """Indices within the batch, from indices within clouds in the padded layout."""
    if level.packed():
        return index
    first = torch.arange(index.shape[0], device=index.device) * level.points.shape[1]
    return torch.where(index < 0, -1, index + first[:, None, None])


def _full_pairs(rows: Tensor, shape: torch.Size) -> Pairs:
    """Pairs of centers that all have k neighbors (M, k)."""
    count, k = rows.shape
    owner = torch.arange(count, device=rows.device).unsqueeze(1).expand(-1, k).reshape(-1)
    return Pairs(rows.reshape(-1), owner, torch.arange(count + 1, device=rows.device) * k, None, shape)


def relative_positions(level: Level, centers: Level, pairs: Pairs, radius: float = 1.0) -> Tensor:
    """Positions (E, 3) of the neighbors relative to their centers, divided by a radius."""
    relative = gather(flat(level.points), pairs.neighbors) - gather(flat(centers.points), pairs.centers)
    return relative if radius == 1 else relative / radius


def first_layer(mlp: SharedMLP, relative: Tensor, features: Tensor | None, pairs: Pairs) -> Tensor:
    """The first linear layer of an MLP (E, widths[0]) on relative positions (E, 3) and features (N, C) or (B, N, C).

    The layer is applied to features before they are copied to pairs, since there are fewer points than pairs. It is
    applied to positions after the subtraction: products of large coordinates would lose precision.
    """
    first = mlp.linears[0]
    if features is None:
        return first(relative)
    if not is_plain(first, nn.Linear):
        return first(torch.cat([relative.to(features.dtype), gather(flat(features), pairs.neighbors)], -1))
    rows = gather(flat(functional.linear(features, first.weight[:, 3:], first.bias)), pairs.neighbors)
    return rows.addmm_(relative.to(rows.dtype), first.weight[:, :3].t().to(rows.dtype))


def pair_max(mlp: SharedMLP, rows: Tensor, pairs: Pairs) -> Tensor:
    """The maximum (M, C) or (B, M, C) of `mlp` over the pairs of each center; rows are its first linear layer."""
    return list_max(mlp, rows, pairs.ends, pairs.weights).unflatten(0, pairs.shape)


def list_max(mlp: SharedMLP, rows: Tensor, ends: Tensor, weights: Tensor | None = None) -> Tensor:
    """The maximum (S, C) of `mlp` over lists of rows (E, C1); list s is rows `ends[s]` to `ends[s + 1]`."""
    if rows.device.type == "cpu" and applies(mlp):
        return pooled_mlp(mlp, rows, ends, weights)
    eager = rows.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if not eager or mlp.uses_batch_statistics:
        return segment(mlp.finish(rows), ends, "max")
    # In blocks that fit into the cache.
    parts = blocks_of(ends, mlp.widest)
    return torch.cat([segment(mlp.finish(rows[part.rows]), part.offsets, "max") for part in parts])


def cloud_ends(level: Level) -> Tensor:
    """The first row (B + 1,) of each cloud within the batch, in either layout."""
    if level.offsets is not None:
        return level.offsets
    batch, size = (1, level.points.shape[0]) if level.packed() else level.points.shape[:2]
    return torch.arange(batch + 1, device=level.points.device) * size


def cloud_pool(level: Level, reduce: str) -> Tensor:
    """The "max", "mean" or "sum" (B, C) of the features of each cloud."""
    assert level.features is not None
    return segment(flat(level.features), cloud_ends(level), reduce)  # type: ignore[call-overload]


def per_point(level: Level, values: Tensor) -> Tensor:
    """Values (B, C) of clouds, copied to their points: (N, C) or (B, N, C)."""
    return values[level.cloud_ids()] if level.packed() else values.unsqueeze(1).expand(-1, level.points.shape[1], -1)


def flat(rows: Tensor) -> Tensor:
    """Rows (N, C) unchanged, or (B, N, C) as (B * N, C)."""
    return rows.flatten(0, -2)
