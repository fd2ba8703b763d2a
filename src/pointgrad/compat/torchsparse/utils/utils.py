"""Conversion of sizes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["make_divisible", "make_ntuple", "make_tensor"]


def make_ntuple(x: int | Sequence[int] | Tensor, ndim: int) -> tuple[int, ...]:
    """Convert a number or a sequence to `ndim` numbers."""
    if isinstance(x, int):
        return (x,) * ndim
    sizes = tuple(x.reshape(-1).tolist()) if isinstance(x, Tensor) else tuple(x)
    if len(sizes) != ndim:
        raise ValueError(f"x must be one number or {ndim}, got {sizes}")
    return sizes


def make_tensor(x: Sequence[Any], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Create a tensor. The original returns the same tensor for the same arguments."""
    return torch.tensor(x, dtype=dtype, device=device)


def make_divisible(x: int, divisor: int) -> int:
    """Round up to a multiple of `divisor`."""
    return -(-x // divisor) * divisor
