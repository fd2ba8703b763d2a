"""What softmax and its relatives share: values less the largest of their group, so that no exponential overflows."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import pointgrad

from .._rows import Layout, by_index, group_count


class Shifted(NamedTuple):
    """values: in at least float32, less the highest of their group (unless that is -inf). highest: of each group, 0 for
    none. arg: where it stands, -1 for none. group, layout: as `by_index` has them."""

    values: Tensor
    highest: Tensor
    arg: Tensor
    group: Tensor
    layout: Layout


def shifted(name: str, src: Any, index: Any, dim: int, out: Any, dim_size: int | None) -> Shifted:
    rows, group, layout = by_index(src, index, dim)
    if not src.is_floating_point():
        raise ValueError(f"src must be floating for {name}, got {src.dtype}")
    size = group_count(src, dim, out, dim_size)
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    # Without gradient: all these functions stay the same when a group is shifted.
    highest, arg = pointgrad.scatter(wide.detach(), group, size, "max", return_arg=True)
    shift = highest.masked_fill(highest == -torch.inf, 0)
    return Shifted(wide - pointgrad.gather(shift, group), highest, arg, group, layout)
