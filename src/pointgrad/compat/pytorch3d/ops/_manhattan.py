"""Nearest neighbors under norm 1, for which there is no native operator: all pairs, block by block."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops.sums import sum_dtype

from . import _clouds

# Pairs per block: slightly more than fits into the caches of a CPU; about 300 MB on a GPU.
CPU_PAIRS, GPU_PAIRS = 2**20, 2**24


def nearest(p1: Tensor, p2: Tensor, lengths1: Tensor | None, lengths2: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Distances (N, P1, k), ascending, in at least float32, and indices (N, P1, k), padded with -1."""
    index = _search(p1.detach(), p2.detach(), lengths2, k)
    if lengths1 is not None:
        index = torch.where(_clouds.within(lengths1, p1.shape[1], p1).unsqueeze(2), index, -1)
    wide = sum_dtype(p1.dtype)
    distance = (p1.unsqueeze(2).to(wide) - pointgrad.group(p2, index).to(wide)).abs().sum(3)
    # The sum has a different order than in the search, so neighbors whose distances differ by rounding may swap.
    distance, order = torch.where(index >= 0, distance, torch.inf).sort(dim=2, stable=True)
    return distance, index.gather(2, order)


def _search(p1: Tensor, p2: Tensor, lengths2: Tensor | None, k: int) -> Tensor:
    """Indices (N, P1, k), sorted by distance, then by index."""
    (batch, queries, _), size = p1.shape, p2.shape[1]
    wide = sum_dtype(p1.dtype)
    p1, p2 = p1.to(wide), p2.to(wide)
    if lengths2 is not None:
        p2 = torch.where(_clouds.within(lengths2, size, p2).unsqueeze(2), p2, torch.inf)
    index = torch.full((batch, queries, k), -1, device=p1.device)
    kept = min(k, size)
    pairs = CPU_PAIRS if p1.device.type == "cpu" else GPU_PAIRS
    rows = max(pairs // max(batch * size, 1), 1)
    for first in range(0, queries if kept else 0, rows):
        distance = torch.cdist(p1[:, first : first + rows], p2, p=1.0)
        distance.nan_to_num_(nan=torch.inf, posinf=torch.inf)
        if wide == torch.float64:
            distance, position = distance.sort(dim=2, stable=True)
            distance, position = distance[..., :kept], position[..., :kept]
        else:
            # The bits of positive floats have the same order as the floats; the index in the low bits breaks ties.
            key = distance.view(torch.int32).long()
            key.bitwise_left_shift_(32).bitwise_or_(torch.arange(size, device=p1.device))
            key = key.topk(kept, dim=2, largest=False).values
            distance, position = (key >> 32).int().view(torch.float32), key & 0xFFFFFFFF
        index[:, first : first + rows, :kept] = torch.where(distance.isfinite(), position, -1)
    return index
