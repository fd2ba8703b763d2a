"""Values minus the maximum of their group, so that no exponential overflows."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pointgrad.ops.sums import sum_dtype

from ._groups import Groups, grouped


class Shifted(NamedTuple):
    """Shifted values of groups.

    Attributes:
        values: Values in at least float32, minus the maximum of their group unless that is -inf.
        highest: Maximum of each group, 0 for an empty group.
        arg: Position of the maximum, -1 for an empty group.
        groups: The groups.
    """

    values: Tensor
    highest: Tensor
    arg: Tensor
    groups: Groups


def shifted(name: str, src: Any, index: Any, dim: int, out: Any, dim_size: int | None) -> Shifted:
    """Check the arguments of a function `name` and subtract the maximum of each group."""
    rows, groups = grouped(src, index, dim, out, dim_size)
    if not src.is_floating_point():
        raise ValueError(f"src must have a floating-point dtype for {name}, got {src.dtype}")
    wide = rows.to(sum_dtype(rows.dtype))
    # Without gradient: shifting a group does not change the result of these functions.
    highest, arg = groups.max(wide)
    shift = highest.masked_fill(highest == -torch.inf, 0)
    return Shifted(wide - groups.spread(shift), highest, arg, groups)
