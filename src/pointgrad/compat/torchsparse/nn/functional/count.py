"""Counting."""

from torch import Tensor

import pointgrad

__all__ = ["spcount"]


def spcount(coords: Tensor, num: int | Tensor) -> Tensor:
    """Count how often each number below `num` occurs in `coords` (N,): (num,) int32. Negative entries are ignored."""
    return pointgrad.histogram(coords.clamp(min=-1), int(num)).int()
