"""Implementation of the reductions by index."""

from typing import Any, Literal

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks
from pointgrad.ops.sums import sum_dtype

from .._scalars import is_traced
from . import _small
from ._rows import by_index, check_out, extremes, group_count


def total(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> Tensor:
    """Sum of each group, added to `out`."""
    if (small := _small.total(src, index, dim, dim_size if out is None else _groups(out, dim))) is not None:
        return small if out is None else _checked(out, src, dim).add_(small)
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    summed = layout.unfold(pointgrad.scatter(values, group, size)).to(src.dtype)
    return summed if out is None else out.add_(summed)


def product(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None) -> Tensor:
    """Product of each group, multiplied by `out`."""
    if out is None and (small := _small.product(src, index, dim, dim_size)) is not None:
        return small
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    if size is None:
        size = max(int(group.max()) + 1, 0)
    if group.device.type == "cpu" and not is_traced(group):
        checks.index_values(group, size)
    if values.is_floating_point():
        values = values.to(sum_dtype(values.dtype))
    empty = 0 if out is None and src.numel() == 0 else 1  # without any value all products are 0, as in the original
    start = values.new_full((*values.shape[:-2], size + 1, values.shape[-1]), empty)
    row = torch.where((group >= 0) & (group < size), group, size).long()  # ignored entries go to an additional row
    multiplied = start.scatter_reduce(-2, row.unsqueeze(-1).expand_as(values), values, "prod")[..., :size, :]
    multiplied = layout.unfold(multiplied.contiguous()).to(src.dtype)
    return multiplied if out is None else out.mul_(multiplied)


def mean(
    src: Tensor,
    index: Tensor,
    dim: int,
    out: Tensor | None,
    dim_size: int | None,
    rounding: Literal["floor", "trunc"],
) -> Tensor:
    """Mean of groups. The rounding of integers differs between the functions of torch-scatter."""
    if out is None and (small := _small.mean(src, index, dim, dim_size)) is not None:
        return small
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    floating = src.is_floating_point()
    if floating and out is None:
        return layout.unfold(pointgrad.scatter(values, group, size, "mean"))
    total = pointgrad.scatter(values if floating else values.long(), group, size)
    count = pointgrad.histogram(group, total.shape[-2]).clamp(min=1).unsqueeze(-1).expand_as(total)
    total, count = layout.unfold(total), layout.unfold(count)
    if out is not None:
        total = total + out
    divided = torch.div(total, count, rounding_mode=None if floating else rounding).to(src.dtype)
    return divided if out is None else out.copy_(divided)


def extreme(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: Literal["max", "min"]
) -> tuple[Tensor, Tensor]:
    """Minimum or maximum of each group, and its position."""
    if out is None and (small := _small.extreme(src, index, dim, dim_size, reduce)) is not None:
        return small
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    best, arg = pointgrad.scatter(values, group, size, reduce, return_arg=True)
    best, arg = layout.unfold(best).to(src.dtype), layout.unfold(arg)
    return extremes(best, arg, out, src.shape[dim], reduce == "max")


def extreme_values(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: Literal["max", "min"]
) -> Tensor:
    """Extreme values without positions, which would double the cost."""
    if out is not None:
        return extreme(src, index, dim, out, dim_size, reduce)[0]
    if (small := _small.extreme(src, index, dim, dim_size, reduce)) is not None:
        return small[0]
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    return layout.unfold(pointgrad.scatter(values, group, size, reduce)).to(src.dtype)


def by_name(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: str) -> Tensor:
    """The reduction of this name."""
    if reduce in ("sum", "add"):
        return total(src, index, dim, out, dim_size)
    if reduce == "mul":
        return product(src, index, dim, out, dim_size)
    if reduce == "mean":
        return mean(src, index, dim, out, dim_size, "floor")
    if reduce == "min":
        return extreme_values(src, index, dim, out, dim_size, "min")
    if reduce == "max":
        return extreme_values(src, index, dim, out, dim_size, "max")
    raise ValueError(f'reduce must be "sum", "add", "mul", "mean", "min" or "max", got {reduce!r}')


def _groups(out: Any, dim: Any) -> int | None:
    """Number of groups in `out`, which is not checked yet."""
    fits = isinstance(out, Tensor) and isinstance(dim, int) and -out.dim() <= dim < out.dim()
    return out.shape[dim] if fits else None


def _checked(out: Tensor, src: Tensor, dim: int) -> Tensor:
    check_out(out, src, dim % src.dim(), None)
    return out
