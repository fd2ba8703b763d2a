"""Reductions by an index in any order."""

from typing import Literal

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._rows import by_index, extremes, group_count


def scatter_sum(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "sum". `out`: the sums are added into it."""
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    total = layout.unfold(pointgrad.scatter(values, group, size)).to(src.dtype)
    return total if out is None else out.add_(total)


def scatter_add(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter_sum` under its other name."""
    return scatter_sum(src, index, dim, out, dim_size)


def scatter_mul(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "mul": the product, 1 in an empty group. `out`: is multiplied by it.

    The gradient is right where factors are 0 (the original's is 0 there). Computed by torch's own `scatter_reduce`.
    """
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    if size is None:
        size = int(group.max()) + 1 if group.numel() else 0
    if group.device.type == "cpu" and not torch.compiler.is_compiling():
        checks.index_values(group, size)
    if values.is_floating_point():
        values = values.to(torch.promote_types(values.dtype, torch.float32))
    ones = values.new_ones((*values.shape[:-2], size + 1, values.shape[-1]))
    row = torch.where((group >= 0) & (group < size), group, size).long()  # what goes nowhere ends in one row more
    product = ones.scatter_reduce(-2, row.unsqueeze(-1).expand_as(values), values, "prod")[..., :size, :]
    product = layout.unfold(product.contiguous()).to(src.dtype)
    return product if out is None else out.mul_(product)


def scatter_mean(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "mean"; integers are divided and rounded down. `out`: the sums are added into it, then all of it
    is divided by the counts, as in the original."""
    return mean(src, index, dim, out, dim_size, "floor")


def scatter_min(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`scatter` with "min", and where each minimum stands along `dim`: int64, the first of equals, `src.size(dim)` in
    an empty group. `out`: only what is smaller than its values replaces them, and has a place."""
    return _extreme(src, index, dim, out, dim_size, "min")


def scatter_max(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`scatter` with "max", and where each maximum stands along `dim`: int64, the first of equals, `src.size(dim)` in
    an empty group. `out`: only what is larger than its values replaces them, and has a place."""
    return _extreme(src, index, dim, out, dim_size, "max")


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduces values with the same index along `dim`: for a matrix and dim 0, `out[j]` is the reduction of all rows
    `src[i]` with `index[i] = j`.

    src: any rank; all real dtypes. Sums are kept in at least float32.
    index: of the size of `src` along `dim`, for all other positions alike; or of any shape that broadcasts to `src`
        from the left. int64 or int32. -1 goes nowhere; anything else out of range is a ValueError on the CPU (in the
        original undefined) and goes nowhere on a GPU.
    out: an existing result that is continued, in place; see `scatter_sum` and the others.
    dim_size: the number of groups if there is no `out`; without it `index.max() + 1`, for which a GPU waits.
    reduce: "sum" or "add", "mul", "mean", "min" or "max".
    returns: as `src`, with the number of groups in `dim`; contiguous. An empty group is 0 (for "mul" 1).

    Gradients reach `src` (and `out`), twice. Extremes: the gradient goes to the first of equals, a NaN is larger and
    smaller than everything (the original skips it), infinities count (the original gives 0 for a group of -inf).
    `torch.compile` needs `dim_size`. Natively: `pointgrad.scatter`, for rows.

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
        return _best(src, index, dim, out, dim_size, "min")
    if reduce == "max":
        return _best(src, index, dim, out, dim_size, "max")
    raise ValueError(f'reduce must be "sum", "add", "mul", "mean", "min" or "max", got {reduce!r}')


def mean(
    src: Tensor,
    index: Tensor,
    dim: int,
    out: Tensor | None,
    dim_size: int | None,
    rounding: Literal["floor", "trunc"],
) -> Tensor:
    """rounding: how integers are divided, which differs between the functions of torch-scatter."""
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


def _best(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: Literal["max", "min"]
) -> Tensor:
    """Without its places, which cost as much again."""
    if out is not None:
        return _extreme(src, index, dim, out, dim_size, reduce)[0]
    values, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    return layout.unfold(pointgrad.scatter(values, group, size, reduce)).to(src.dtype)
