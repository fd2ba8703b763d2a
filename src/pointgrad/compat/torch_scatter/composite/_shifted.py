"""Values minus the maximum of their group, so that no exponential overflows."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops.sums import sum_dtype

from .._rows import Layout, by_index, group_count


class Shifted(NamedTuple):
    """Shifted values of groups.

    Attributes:
        values: Values in at least float32, minus the maximum of their group unless that is -inf.
        highest: Maximum of each group, 0 for an empty group.
        arg: Position of the maximum, -1 for an empty group.
        group, layout: Groups and layout, as returned by `by_index`.
    """

    values: Tensor
    highest: Tensor
    arg: Tensor
    group: Tensor
    layout: Layout


def shifted(name: str, src: Any, index: Any, dim: int, out: Any, dim_size: int | None) -> Shifted:
    """Check the arguments of a function `name` and subtract the maximum of each group."""
    rows, group, layout = by_index(src, index, dim)
    if not src.is_floating_point():
        raise ValueError(f"src must have a floating-point dtype for {name}, got {src.dtype}")
    size = group_count(src, dim, out, dim_size)
    wide = rows.to(sum_dtype(rows.dtype))
    # Without gradient: shifting a group does not change the result of these functions.
    highest, arg = pointgrad.scatter(wide.detach(), group, size, "max", return_arg=True)
    shift = highest.masked_fill(highest == -torch.inf, 0)
    return Shifted(wide - pointgrad.gather(shift, group), highest, arg, group, layout)
