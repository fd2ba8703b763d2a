"""The operators of this family in plain PyTorch: the distances of all pairs are computed and sorted."""

import torch
from torch import Tensor

from .. import clouds
from ..mixing import GOLDEN, mix, shift_right
from ..sums import sum_dtype
from .layout import index_bytes, squared

_PAIRS_AT_ONCE = 2**22


def neighbor_index(points: Tensor, sizes: Tensor | None) -> Tensor:
    """Zeros of the size of an index, which this backend does not use."""
    return points.new_zeros(index_bytes(points, sizes), dtype=torch.uint8)


def neighbor_search(
    points: Tensor,
    sizes: Tensor | None,
    queries: Tensor | None,
    query_sizes: Tensor | None,
    index: Tensor | None,
    k: int,
    radius: float,
    min_radius: float,
    closed: bool,
    select: str,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    if queries is None:
        queries, query_sizes = points, sizes
    wide = sum_dtype(points.dtype)
    point_cloud, query_cloud = _clouds(points, sizes), _clouds(queries, query_sizes)
    # Packed clouds are treated as one cloud, in which pairs from different clouds are not eligible.
    p, q = (x.to(wide) if x.dim() == 3 else x.to(wide).unsqueeze(0) for x in (points, queries))
    batch, num_points, num_queries = p.shape[0], p.shape[1], q.shape[1]
    radius2, min_radius2 = p.new_full((), squared(radius, wide, closed)), p.new_full((), squared(min_radius, wide))
    point_row = torch.arange(batch * num_points, device=p.device).reshape(batch, 1, num_points)
    query_row = torch.arange(batch * num_queries, device=p.device).reshape(batch, num_queries, 1)
    out_index = query_row.new_full((batch, num_queries, k), -1)
    out_distance2 = p.new_full((batch, num_queries, k), torch.inf)
    count = query_row.new_zeros((batch, num_queries))
    taken = min(k, num_points)
    step = max(1, _PAIRS_AT_ONCE // max(batch * num_points, 1))
    for begin in range(0, num_queries, step):
        part = slice(begin, begin + step)
        distance2 = _distance2(q[:, part], p)
        eligible = (point_cloud[:, None, :] == query_cloud[:, part, None]) & (query_cloud[:, part, None] >= 0)
        eligible = eligible & distance2.isfinite() & (distance2 <= radius2) & (distance2 >= min_radius2)
        if select == "nearest":
            order = torch.where(eligible, distance2, torch.inf).argsort(dim=-1, stable=True)[..., :taken]
        elif select == "first":
            order = (~eligible).to(torch.int8).argsort(dim=-1, stable=True)[..., :taken]
        else:
            assert seed is not None
            rank = torch.where(eligible, _rank(seed, query_row[:, part], point_row), 2**31)
            order = rank.argsort(dim=-1, stable=True)[..., :taken].sort(dim=-1).values
            picked = torch.where(eligible.gather(-1, order), distance2.gather(-1, order), torch.inf)
            order = order.gather(-1, picked.argsort(dim=-1, stable=True))
        valid = eligible.gather(-1, order)
        out_index[:, part, :taken] = torch.where(valid, order, -1)
        out_distance2[:, part, :taken] = torch.where(valid, distance2.gather(-1, order), torch.inf)
        count[:, part] = eligible.sum(-1).clamp(max=k)
    shape = queries.shape[:-1]
    return out_distance2.reshape(*shape, k), out_index.reshape(*shape, k), count.reshape(shape)


def _distance2(q: Tensor, p: Tensor) -> Tensor:
    """(B, M, N), summed axis by axis in the order that all backends use, so that they round alike."""
    total = q.new_zeros(q.shape[0], q.shape[1], p.shape[1])
    for axis in range(q.shape[-1]):
        delta = p[:, None, :, axis] - q[:, :, None, axis]
        total = total + delta * delta
    return total


def _clouds(points: Tensor, sizes: Tensor | None) -> Tensor:
    """(1, N) the cloud of each packed row, or (B, N) zeros, with -1 in rows beyond the length of a padded cloud."""
    if points.dim() == 2:
        return clouds.ids(points, sizes).unsqueeze(0)
    place = torch.arange(points.shape[1], device=points.device)
    return (place < clouds.num_points(points, sizes).unsqueeze(1)).long() - 1


def _rank(seed: Tensor, query_row: Tensor, point_row: Tensor) -> Tensor:
    """A well-mixed 30-bit number per pair."""
    return shift_right(mix(mix(seed + (query_row + 1) * GOLDEN) + (point_row + 1) * GOLDEN), 34)
