"""Shared code of the packed functions: offsets, cloud numbers of rows, argument checks."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pointgrad.ops import checks


def to_offsets(name: str, offset: Any) -> Tensor:
    """Convert the ends of clouds (B,) to pointgrad's offsets (B + 1,) int64."""
    checks.tensor(name, offset)
    checks.shape(offset.dim() == 1, name, "(B,)", offset)
    checks.dtype(name, offset, checks.INDICES)
    return functional.pad(offset.long(), (1, 0))


def cloud_of_rows(num_rows: int, offsets: Tensor) -> Tensor:
    """(num_rows,) cloud number of each row."""
    rows = torch.arange(num_rows, device=offsets.device)
    return torch.searchsorted(offsets[1:], rows, right=True).clamp(max=max(offsets.shape[0] - 2, 0))


def check_points(name: str, xyz: Any) -> None:
    """Check points (N, 3)."""
    checks.tensor(name, xyz)
    checks.shape(xyz.dim() == 2 and xyz.shape[1] == 3, name, "(N, 3)", xyz)
    checks.dtype(name, xyz, checks.FLOATS)


def promote(*tensors: Tensor) -> list[Tensor]:
    """Convert tensors to their common dtype under PyTorch's type promotion."""
    wide = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return [tensor.to(wide) for tensor in tensors]


def check_rows(name: str, features: Any, idx: Any) -> None:
    """Check features (N, C) and row indices (M, K)."""
    checks.tensor(name, features)
    checks.tensor("idx", idx)
    checks.shape(features.dim() == 2, name, "(N, C)", features)
    checks.shape(idx.dim() == 2, "idx", "(M, K)", idx)
    checks.dtype(name, features, checks.FLOATS)
    checks.dtype("idx", idx, checks.INDICES)
    checks.device("idx", idx, name, features)
