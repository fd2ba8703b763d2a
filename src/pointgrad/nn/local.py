"""What the layers have in common that look at the neighbours of a point: an MLP on each, and the maximum."""

import torch
from torch import Tensor
from torch.nn import functional

from pointgrad.nn.level import Level
from pointgrad.nn.pooled import applies, blocks_of, pooled_mlp
from pointgrad.nn.shared_mlp import SharedMLP
from pointgrad.ops.gather import gather, group
from pointgrad.ops.scatter import segment


def neighborhood_max(mlp: SharedMLP, level: Level, centers: Level, index: Tensor, radius: float = 1.0) -> Tensor:
    """The maximum over each centre's neighbours of an MLP on their relative positions and features.

    mlp: of 3 + C channels. index: (M, K) or (B, M, K) rows of `level`, -1 where there is no neighbour.
    radius: relative positions are divided by it.
    returns: (M, out_channels) or (B, M, out_channels).

    A list with fewer than K neighbours counts as if it repeated its first one, as published networks do: the maximum
    is that of the real neighbours, and batch statistics are over M * K rows, all of them of real neighbours.
    """
    if _by_pairs(mlp, level.points):
        return _over_pairs(mlp, level, centers, index, radius)
    index = torch.where(index < 0, index[..., :1], index)
    relative = (group(level.points, index) - centers.points.unsqueeze(-2)) / radius
    features = None if level.features is None else _first_layer(mlp, level.features)
    rows = _combine(mlp, relative.flatten(0, -2), None if features is None else group(features, index).flatten(0, -2))
    return row_max(mlp.finish(rows), index.shape[-1]).unflatten(0, index.shape[:-1])


def whole_max(mlp: SharedMLP, level: Level, rows: Tensor) -> Tensor:
    """(B, out_channels) the maximum over each cloud of an MLP on rows (N, C) or (B, N, C)."""
    if level.packed:
        ends = level.offsets if level.offsets is not None else torch.tensor([0, len(rows)], device=rows.device)
    else:
        ends = torch.arange(rows.shape[0] + 1, device=rows.device) * rows.shape[1]
    first = mlp.linears[0](rows.reshape(-1, rows.shape[-1]))
    return _finish(mlp, first, ends, None) if _by_pairs(mlp, rows) else segment(mlp.finish(first), ends, "max")


def row_max(rows: Tensor, k: int) -> Tensor:
    """(M, C) the maximum of every k of (M * k, C) rows; the gradient goes to the first that has it."""
    return segment(rows, torch.arange(0, rows.shape[0] + 1, k, device=rows.device), "max")


def _by_pairs(mlp: SharedMLP, points: Tensor) -> bool:
    """Whether to compute real neighbours only. Their number depends on the data, for which a GPU would wait; and a
    repeated one must have its weight in batch statistics."""
    if points.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return applies(mlp, points) or not mlp.uses_batch_statistics


def _over_pairs(mlp: SharedMLP, level: Level, centers: Level, index: Tensor, radius: float) -> Tensor:
    there = index >= 0
    count = there.sum(-1).flatten()
    ends = functional.pad(count.cumsum(0), (1, 0))
    if not level.packed:
        index = index + torch.arange(0, level.points[..., 0].numel(), level.points.shape[1])[:, None, None]
    pairs = index[there]
    owner = torch.repeat_interleave(torch.arange(len(count)), count)
    relative = (gather(level.points.flatten(0, -2), pairs) - gather(centers.points.flatten(0, -2), owner)) / radius
    features = None if level.features is None else gather(_first_layer(mlp, level.features).flatten(0, -2), pairs)
    rows = _combine(mlp, relative, features)
    weights = None
    if mlp.uses_batch_statistics and len(pairs) < there.numel():
        # The first neighbour of each list stands for all that are missing.
        weights = torch.ones_like(rows[:, 0]).index_put_(
            (ends[:-1][count > 0],), 1.0 + (index.shape[-1] - count[count > 0])
        )
    return _finish(mlp, rows, ends, weights).unflatten(0, index.shape[:-1])


def _finish(mlp: SharedMLP, rows: Tensor, ends: Tensor, weights: Tensor | None) -> Tensor:
    if mlp.uses_batch_statistics:
        return pooled_mlp(mlp, rows, ends, weights)
    if torch.is_grad_enabled():
        return segment(mlp.finish(rows), ends, "max")
    # In blocks that stay in the cache.
    parts = blocks_of(ends, max(linear.out_features for linear in mlp.linears))
    return torch.cat([segment(mlp.finish(rows[part.rows]), part.offsets, "max") for part in parts])


def _first_layer(mlp: SharedMLP, features: Tensor) -> Tensor:
    """The first linear layer on features, before they are copied to every neighbourhood: it is linear, so the order
    does not matter, and there are fewer points than pairs."""
    return functional.linear(features, mlp.linears[0].weight[:, 3:])


def _combine(mlp: SharedMLP, relative: Tensor, features: Tensor | None) -> Tensor:
    """The first linear layer's output (E, C). Positions enter as differences: products of coordinates that are large
    against a neighbourhood would lose them."""
    first = mlp.linears[0]
    if features is None:
        return first(relative)
    rows = features.addmm_(relative.to(features.dtype), first.weight[:, :3].t().to(features.dtype))
    return rows if first.bias is None else rows + first.bias
