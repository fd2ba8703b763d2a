"""Rows and their groups."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops.scatter import cpu

from .. import _small
from .._rows import Layout, by_index, group_count


class Groups(NamedTuple):
    """Groups of rows.

    Attributes:
        index: Group of each row.
        size: Number of groups.
        layout: Layout of the tensor that the rows come from.
        is_small: Whether to call torch's operators, which need fewer checks.
    """

    index: Tensor  # type: ignore[assignment]  # hides tuple.index
    size: int
    layout: Layout
    is_small: bool

    def sum(self, rows: Tensor) -> Tensor:
        """Sum of the rows of each group."""
        if self.is_small:
            return rows.new_zeros((self.size, rows.shape[-1])).index_add_(0, self.index, rows)
        return pointgrad.scatter(rows, self.index, self.size)

    def counts(self) -> Tensor:
        """Number of rows of each group, at least 1, with one channel."""
        if self.is_small:
            count = torch.bincount(self.index, minlength=self.size)
        else:
            count = pointgrad.histogram(self.index, self.size)
        return count.clamp_(min=1).unsqueeze(-1)

    def max(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Maximum of each group without gradient, and its row, -1 for an empty group."""
        if self.is_small:
            return cpu.scatter_extreme(rows.detach(), self.index, self.size, True)
        return pointgrad.scatter(rows.detach(), self.index, self.size, "max", return_arg=True)

    def spread(self, values: Tensor) -> Tensor:
        """The value of the group of each row."""
        return values.index_select(0, self.index) if self.is_small else pointgrad.gather(values, self.index)


def grouped(src: Any, index: Any, dim: int, out: Any, dim_size: int | None) -> tuple[Tensor, Groups]:
    """Rows of `src` and their groups."""
    small = None if out is not None else _small.groups(src, index, dim, dim_size)
    if small is not None:
        layout = Layout((), src.shape[1:])
        return layout.fold(src), Groups(index, small, layout, True)
    rows, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    if size is None:
        size = max(int(group.max()) + 1, 0)
    return rows, Groups(group, size, layout, False)
