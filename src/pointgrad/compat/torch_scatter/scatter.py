"""Reductions by an unsorted index."""

from typing import Literal

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks
from pointgrad.ops.sums import sum_dtype

from ._rows import by_index, extremes, group_count


def scatter_sum(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "sum". The sums are added to `out`, if given."""
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    total = layout.unfold(pointgrad.scatter(values, group, size)).to(src.dtype)
    return total if out is None else out.add_(total)


def scatter_add(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Alias of `scatter_sum`."""
    return scatter_sum(src, index, dim, out, dim_size)


def scatter_mul(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "mul": the product, 1 for an empty group. `out`, if given, is multiplied by it.

    The gradient is correct where factors are 0 (in the original it is 0). Computed with `torch.scatter_reduce`.
    """
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    if size is None:
        size = int(group.max()) + 1 if group.numel() else 0
    if group.device.type == "cpu" and not torch.compiler.is_compiling():
        checks.index_values(group, size)
    if values.is_floating_point():
        values = values.to(sum_dtype(values.dtype))
    ones = values.new_ones((*values.shape[:-2], size + 1, values.shape[-1]))
    row = torch.where((group >= 0) & (group < size), group, size).long()  # ignored entries go to an additional row
    product = ones.scatter_reduce(-2, row.unsqueeze(-1).expand_as(values), values, "prod")[..., :size, :]
    product = layout.unfold(product.contiguous()).to(src.dtype)
    return product if out is None else out.mul_(product)


def scatter_mean(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "mean"; integer results are rounded down.

    If `out` is given, the sums are added to it, and the result is divided by the counts, as in the original.
    """
    return mean(src, index, dim, out, dim_size, "floor")


def scatter_min(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`scatter` with "min", and the position of each minimum along `dim`.

    Positions are int64: the first of equal values, `src.size(dim)` for an empty group. If `out` is given, only smaller
    values replace its entries and have a position.
    """
    return _extreme(src, index, dim, out, dim_size, "min")


def scatter_max(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`scatter` with "max", and the position of each maximum along `dim`.

    Positions are int64: the first of equal values, `src.size(dim)` for an empty group. If `out` is given, only larger
    values replace its entries and have a position.
    """
    return _extreme(src, index, dim, out, dim_size, "max")


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduce values with the same index along `dim`.

    For a matrix and dim 0, `out[j]` is the reduction of all rows `src[i]` with `index[i] = j`. The native function is
    `pointgrad.scatter`, for rows. `torch.compile` needs `dim_size`.

    Minimum and maximum: the gradient goes to the first of equal values; NaN is both the smallest and the largest value
    (the original skips NaN); infinities are values (the original returns 0 for a group of -inf).

    Args:
        src: Values of any rank and any real dtype. Sums are accumulated in at least float32.
        index: int64 or int32: a vector along `dim`, or any shape that broadcasts to `src` from the left. Entries of -1
            are ignored. Other values out of range raise a ValueError on the CPU and are ignored on a GPU (undefined in
            the original).
        dim: Dimension to reduce.
        out: Existing result that is updated in place; see `scatter_sum` and the other functions.
        dim_size: Number of groups if `out` is None; by default `index.max() + 1`, for which a GPU synchronizes.
        reduce: "sum" or "add", "mul", "mean", "min" or "max".

    Returns:
        Contiguous tensor like `src`, with the number of groups in `dim`. An empty group is 0 (1 for "mul"). Twice
        differentiable in `src` (and `out`).

    Example:
        >>> scatter(torch.tensor([[1., 2., 4.], [8., 16., 32.]]), torch.tensor([0, 1, 0]), dim=1)
        tensor([[ 5.,  2.],
                [40., 16.]])
    """
    if reduce in ("sum", "add"):
        return scatter_sum(src, index, dim, out, dim_size)
    if reduce == "mul":
        return scatter_mul(src, index, dim, out, dim_size)
    if reduce == "mean":
        return scatter_mean(src, index, dim, out, dim_size)
    if reduce == "min":
        return _extreme_values(src, index, dim, out, dim_size, "min")
    if reduce == "max":
        return _extreme_values(src, index, dim, out, dim_size, "max")
    raise ValueError(f'reduce must be "sum", "add", "mul", "mean", "min" or "max", got {reduce!r}')


def mean(
    src: Tensor,
    index: Tensor,
    dim: int,
    out: Tensor | None,
    dim_size: int | None,
    rounding: Literal["floor", "trunc"],
) -> Tensor:
    """Mean of groups. The rounding of integers differs between the functions of torch-scatter."""
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


def _extreme(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: Literal["max", "min"]
) -> tuple[Tensor, Tensor]:
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    best, arg = pointgrad.scatter(values, group, size, reduce, return_arg=True)
    best, arg = layout.unfold(best).to(src.dtype), layout.unfold(arg)
    return extremes(best, arg, out, src.shape[dim], reduce == "max")


def _extreme_values(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: Literal["max", "min"]
) -> Tensor:
    """Extreme values without positions, which would double the cost."""
    if out is not None:
        return _extreme(src, index, dim, out, dim_size, reduce)[0]
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    return layout.unfold(pointgrad.scatter(values, group, size, reduce)).to(src.dtype)
