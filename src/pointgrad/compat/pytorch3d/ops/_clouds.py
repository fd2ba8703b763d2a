"""Checks of padded clouds, under the original's argument names."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks

from ..._scalars import is_traced


def check(name: str, points: Any, lengths_name: str, lengths: Any) -> None:
    """Check points (N, P, D), and lengths (N,) or None."""
    checks.tensor(name, points)
    if lengths is not None:
        checks.tensor(lengths_name, lengths)
    checks.shape(points.dim() == 3, name, "(N, P, D)", points)
    if lengths is not None:
        checks.shape(lengths.shape == points.shape[:1], lengths_name, lambda: f"(N,) = ({points.shape[0]},)", lengths)
    checks.dtype(name, points, checks.FLOATS)
    if lengths is not None:
        checks.dtype(lengths_name, lengths, checks.INDICES)
        checks.device(lengths_name, lengths, name, points)
        if points.device.type == "cpu" and not is_traced(points):
            checks.lengths_values(lengths, points.shape[1], lengths_name)


def check_pair(p1: Any, p2: Any, lengths1: Any, lengths2: Any) -> None:
    """Check that queries and points match in number of clouds and dimensions."""
    check("p1", p1, "lengths1", lengths1)
    check("p2", p2, "lengths2", lengths2)
    fits = p1.shape[0] == p2.shape[0] and p1.shape[2] == p2.shape[2]
    checks.shape(fits, "p2", lambda: f"(N, P2, D) with N = {p1.shape[0]} and D = {p1.shape[2]}, like p1", p2)
    if not checks.autocasts(p1):
        checks.same_dtype("p2", p2, "p1", p1)
    checks.device("p2", p2, "p1", p1)


def within(lengths: Tensor | None, size: int, like: Tensor) -> Tensor:
    """Mask (N, size), or (1, size) without lengths, of the positions that are within the clouds."""
    position = torch.arange(size, device=like.device).unsqueeze(0)
    return position < (like.shape[1] if lengths is None else lengths.unsqueeze(1))
