"""Hash values of voxels."""

import torch
from torch import Tensor

from pointgrad.ops import checks

__all__ = ["sphash"]

_START, _FACTOR = 14695981039346656037 - 2**64, 1099511628211  # 64-bit FNV


def sphash(coords: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Compute a hash value of each row.

    Args:
        coords: (N, 4) int32.
        offsets: (K, 3) int32, added to the first three columns.

    Returns:
        (N,) int64, or (K, N) with offsets. The values are the original's.
    """
    checks.tensor("coords", coords)
    checks.dtype("coords", coords, (torch.int32,))
    checks.shape(coords.dim() == 2 and coords.shape[1] == 4, "coords", "(N, 4)", coords)
    if offsets is None:
        return _fnv(coords)
    checks.tensor("offsets", offsets)
    checks.dtype("offsets", offsets, (torch.int32,))
    checks.shape(offsets.dim() == 2 and offsets.shape[1] == 3, "offsets", "(K, 3)", offsets)
    return _fnv(coords + torch.nn.functional.pad(offsets, (0, 1)).unsqueeze(1))


def _fnv(rows: Tensor) -> Tensor:
    value = rows.new_full(rows.shape[:-1], _START, dtype=torch.int64)
    for column in rows.unbind(-1):
        value = (value ^ (column.long() & 0xFFFFFFFF)) * _FACTOR
    return ((value >> 60) & 0xF) ^ (value & 0xFFFFFFFFFFFFFFF)
