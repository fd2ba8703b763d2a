"""Reductions by an unsorted index."""

import torch
from torch import Tensor

from .._torchscript import operator
from . import _reduce


@operator
def scatter_sum(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "sum". The sums are added to `out`, if given."""
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter_sum(src, index, dim, out, dim_size)
    return _reduce.total(src, index, dim, out, dim_size)


def scatter_add(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Alias of `scatter_sum`."""
    return scatter_sum(src, index, dim, out, dim_size)


@operator
def scatter_mul(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "mul": the product, 1 for an empty group. `out`, if given, is multiplied by it.

    The gradient is correct where factors are 0 (in the original it is 0). Computed with `torch.scatter_reduce`. If
    `src` has no elements and `out` is not given, all products are 0, as in the original. The second derivative raises
    an error where two factors of a group are 0 (in the original it is NaN).
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter_mul(src, index, dim, out, dim_size)
    return _reduce.product(src, index, dim, out, dim_size)


@operator
def scatter_mean(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "mean"; integer results are rounded down.

    If `out` is given, the sums are added to it, and the result is divided by the counts, as in the original.
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter_mean(src, index, dim, out, dim_size)
    return _reduce.mean(src, index, dim, out, dim_size, "floor")


@operator
def scatter_min(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`scatter` with "min", and the position of each minimum along `dim`.

    Positions are int64: the first of equal values, `src.size(dim)` for an empty group. If `out` is given, only smaller
    values replace its entries and have a position.
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter_min(src, index, dim, out, dim_size)
    return _reduce.extreme(src, index, dim, out, dim_size, "min")


@operator
def scatter_max(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`scatter` with "max", and the position of each maximum along `dim`.

    Positions are int64: the first of equal values, `src.size(dim)` for an empty group. If `out` is given, only larger
    values replace its entries and have a position.
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter_max(src, index, dim, out, dim_size)
    return _reduce.extreme(src, index, dim, out, dim_size, "max")


@operator
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
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter(src, index, dim, out, dim_size, reduce)
    return _reduce.by_name(src, index, dim, out, dim_size, reduce)
