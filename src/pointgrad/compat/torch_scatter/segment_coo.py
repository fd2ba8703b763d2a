"""Reductions by a sorted index along its last dimension."""

from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from .._torchscript import operator
from . import _reduce, _small
from ._rows import check_out, leading_index


@operator
def segment_sum_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """`segment_coo` with "sum". The sums are added to `out`, if given."""
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_sum_coo(src, index, out, dim_size)
    return _reduce.total(src, index, _last(index), out, _size(src, index, out, dim_size))


def segment_add_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Alias of `segment_sum_coo`."""
    return segment_sum_coo(src, index, out, dim_size)


@operator
def segment_mean_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """`segment_coo` with "mean"; integer results are rounded towards 0, as in the original's CPU version.

    If `out` is given, the sums are added to it, and the result is divided by the counts.
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_mean_coo(src, index, out, dim_size)
    return _reduce.mean(src, index, _last(index), out, _size(src, index, out, dim_size), "trunc")


@operator
def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`segment_coo` with "min", and the position of each minimum, as for `scatter_min`."""
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_min_coo(src, index, out, dim_size)
    return _reduce.extreme(src, index, _last(index), out, _size(src, index, out, dim_size), "min")


@operator
def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`segment_coo` with "max", and the position of each maximum, as for `scatter_max`."""
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_max_coo(src, index, out, dim_size)
    return _reduce.extreme(src, index, _last(index), out, _size(src, index, out, dim_size), "max")


@operator
def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduce values with the same index along the last dimension of `index`.

    The index need not be sorted; in the original the result is then undefined. Each group updates its own row of `out`
    (in the original's CPU version the first group starts with row 0 of `out`, whatever its number).

    Args:
        src: Values of any rank and any real dtype.
        index: int64 or int32; its leading dimensions are those of `src` or 1.
        out, dim_size: As for `scatter`.
        reduce: "sum" or "add", "mean", "min" or "max".

    Returns:
        As for `scatter`.

    Example:
        >>> segment_coo(torch.tensor([[1., 2.], [4., 8.], [16., 32.]]), torch.tensor([0, 0, 2]))
        tensor([[ 5., 10.],
                [ 0.,  0.],
                [16., 32.]])
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_coo(src, index, out, dim_size, reduce)
    return _by_name(src, index, out, dim_size, reduce)


@operator
def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """Gather values along the last dimension of `index`: `out[i] = src[index[i]]`, the opposite of `segment_coo`.

    Args:
        src: One value per group.
        index: As for `segment_coo`; need not be sorted. -1 gives zeros.
        out: Tensor that is overwritten with the result.

    Returns:
        The gathered values, or `out`.

    Example:
        >>> gather_coo(torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([0, 0, 1]))
        tensor([[1., 2.],
                [1., 2.],
                [3., 4.]])
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.gather_coo(src, index, out)
    return _gather(src, index, out)


def _by_name(src: Tensor, index: Tensor, out: Tensor | None, dim_size: int | None, reduce: str) -> Tensor:
    if reduce == "mean":
        return segment_mean_coo(src, index, out, dim_size)
    if reduce in ("sum", "add", "min", "max"):
        return _reduce.by_name(src, index, _last(index), out, _size(src, index, out, dim_size), reduce)
    raise ValueError(f'reduce must be "sum", "add", "mean", "min" or "max", got {reduce!r}')


def _gather(src: Tensor, index: Tensor, out: Tensor | None) -> Tensor:
    if out is None and (small := _small.gather(src, index)) is not None:
        return small
    index, layout = leading_index("index", src, index)
    gathered = layout.unfold(pointgrad.gather(layout.fold(src), index))
    if out is None:
        return gathered
    check_out(out, src, len(layout.leading), index.shape[-1])
    return out.copy_(gathered)


def _last(index: Any) -> int:
    checks.tensor("index", index)
    checks.shape(index.dim() >= 1, "index", "a tensor of at least one dimension", index)
    return int(index.dim()) - 1


def _size(src: Any, index: Tensor, out: Tensor | None, dim_size: int | None) -> int | None:
    """`dim_size`, or the number of groups of an index without values, for which `scatter` has none."""
    if dim_size is None and out is None and isinstance(src, Tensor) and src.numel() == 0 and index.numel() > 0:
        return int(index.max()) + 1
    return dim_size
