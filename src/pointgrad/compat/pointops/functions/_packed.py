"""What all packed functions share: where clouds begin, which cloud a row is of, how arguments are checked."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pointgrad.ops import checks


def starts(name: str, offset: Any) -> Tensor:
    """(B + 1,) int64, pointgrad's offsets, from (B,) where each cloud ends."""
    checks.tensor(name, offset)
    checks.shape(offset.dim() == 1, name, "(B,)", offset)
    checks.dtype(name, offset, checks.INDICES)
    return functional.pad(offset.long(), (1, 0))


def cloud_of_rows(num_rows: int, begins: Tensor) -> Tensor:
    """(num_rows,) the number of each row's cloud."""
    rows = torch.arange(num_rows, device=begins.device)
    return torch.searchsorted(begins[1:], rows, right=True).clamp(max=max(begins.shape[0] - 2, 0))


def check_points(name: str, xyz: Any) -> None:
    checks.tensor(name, xyz)
    checks.shape(xyz.dim() == 2 and xyz.shape[1] == 3, name, "(N, 3)", xyz)
    checks.dtype(name, xyz, checks.FLOATS)


def same_precision(*tensors: Tensor) -> list[Tensor]:
    """In the widest of their dtypes, as plain PyTorch would join them."""
    wide = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    return [tensor.to(wide) for tensor in tensors]


def check_rows(name: str, features: Any, idx: Any) -> None:
    """Features (N, C), and lists of their rows."""
    checks.tensor(name, features)
    checks.tensor("idx", idx)
    checks.shape(features.dim() == 2, name, "(N, C)", features)
    checks.shape(idx.dim() == 2, "idx", "(M, K)", idx)
    checks.dtype(name, features, checks.FLOATS)
    checks.dtype("idx", idx, checks.INDICES)
    checks.device("idx", idx, name, features)
