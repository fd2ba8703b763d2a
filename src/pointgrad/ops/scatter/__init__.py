"""Reductions of rows: by an index in any order, or over segments of consecutive rows."""

from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from .. import checks, native
from ..gather.register import gather_backward
from ..sums import sum_dtype
from . import register

__all__ = ["Extremes", "histogram", "scatter", "segment", "segment_softmax"]

Reduce = Literal["sum", "mean", "max", "min"]


class Extremes(NamedTuple):
    """The extreme values of groups of rows, and where they are.

    Attributes:
        values: The largest or smallest value of each group and channel; 0 for an empty group.
        arg: The row of the input that holds it, int64, same shape as `values`; -1 for an empty group.
    """

    values: Tensor
    arg: Tensor


@overload
def scatter(
    values: Tensor,
    index: Tensor,
    size: int | None = None,
    reduce: Reduce = "sum",
    *,
    return_arg: Literal[False] = False,
) -> Tensor: ...
@overload
def scatter(
    values: Tensor, index: Tensor, size: int | None = None, reduce: Reduce = "sum", *, return_arg: Literal[True]
) -> Extremes: ...
def scatter(
    values: Tensor, index: Tensor, size: int | None = None, reduce: Reduce = "sum", *, return_arg: bool = False
) -> Tensor | Extremes:
    """Reduce the rows of `values` that have the same index.

    `out[j]` is the reduction of all rows with `index == j`. Gradients flow to `values`; for "max" and "min" to the
    first row that has the extreme value. On the CPU a sum is in the order of the index. On a GPU the order varies,
    unless `torch.use_deterministic_algorithms(True)` is set.

    Args:
        values: (E, C) packed, or (B, E, C) padded. float64 to bfloat16; except for "mean" also int64 and int32.
        index: (E,) packed, or (B, E) padded, where each cloud has groups of its own. int64 or int32. Rows with index
            -1 are left out and get no gradient. Any other index out of range raises a ValueError on the CPU and
            counts as -1 on a GPU.
        size: The number of groups. The default, `index.max() + 1`, is read on the host, so a GPU must synchronize,
            and `torch.compile` requires `size`.
        reduce: "sum", "mean", "max" or "min". A NaN is both the maximum and the minimum.
        return_arg: For "max" and "min", also return the row of each extreme value.

    Returns:
        (size, C) or (B, size, C) in the dtype of `values`, 0 for an empty group; or `Extremes(values, arg)` if
        `return_arg` is set. Sums are accumulated in at least float32; integers wrap around.

    Example:
        >>> scatter(torch.tensor([[1.], [2.], [4.], [8.]]), torch.tensor([2, 0, 2, -1]), 3).flatten()
        tensor([2., 0., 5.])
        >>> scatter(torch.tensor([[1.], [2.], [4.], [8.]]), torch.tensor([2, 0, 2, -1]), 3, "max", return_arg=True).arg
        tensor([[ 1],
                [-1],
                [ 2]])
    """
    checks.tensor("values", values)
    checks.tensor("index", index)
    checks.kind(size is None or checks.is_integer(size), "size", "an int or None", size)
    _check_reduce(reduce, return_arg)
    checks.shape(values.dim() in (2, 3), "values", "(E, C) or (B, E, C)", values)
    fits = index.shape == values.shape[:-1]
    checks.shape(fits, "index", "(E,) with values (E, C), or (B, E) with (B, E, C)", index)
    checks.dtype("values", values, checks.FLOATS if reduce == "mean" else checks.NUMBERS)
    checks.dtype("index", index, checks.INDICES)
    checks.device("index", index, "values", values)
    index = index.long()
    size = _size(size, index)
    if reduce in ("max", "min"):
        extremes = Extremes(*register.scatter_extreme(values, index, size, reduce == "max"))
        return extremes if return_arg else extremes.values
    padded = values.dim() == 3
    if reduce == "sum":
        return gather_backward(values, index, size, padded)
    # Divided before rounding to 16 bits, in which the sum could overflow.
    wide = values.to(sum_dtype(values.dtype))
    count = register.histogram(index, size).clamp(min=1).unsqueeze(-1)
    return (gather_backward(wide, index, size, padded) / count).to(values.dtype)


@overload
def segment(
    values: Tensor, offsets: Tensor, reduce: Reduce = "sum", *, return_arg: Literal[False] = False
) -> Tensor: ...
@overload
def segment(values: Tensor, offsets: Tensor, reduce: Reduce = "sum", *, return_arg: Literal[True]) -> Extremes: ...
def segment(values: Tensor, offsets: Tensor, reduce: Reduce = "sum", *, return_arg: bool = False) -> Tensor | Extremes:
    """Reduce segments of consecutive rows.

    `out[s]` is the reduction of `values[offsets[s]:offsets[s + 1]]`. Gradients flow to `values`; for "max" and "min"
    to the first row that has the extreme value. Results are the same from run to run, on every device.

    Args:
        values: (E, C); dtypes as for `scatter`.
        offsets: (S + 1,) non-decreasing from 0 to E, int64 or int32, like the offsets of packed clouds. Their values
            are checked on the CPU and clamped on a GPU.
        reduce: "sum", "mean", "max" or "min", as for `scatter`.
        return_arg: For "max" and "min", also return the row of `values` that holds each extreme value.

    Returns:
        (S, C) in the dtype of `values`, 0 for an empty segment; or `Extremes(values, arg)` if `return_arg` is set.

    Example:
        >>> segment(torch.tensor([[1.], [2.], [4.]]), torch.tensor([0, 2, 2, 3])).flatten()
        tensor([3., 0., 4.])
    """
    checks.tensor("values", values)
    _check_reduce(reduce, return_arg)
    _check_segments("values", values, offsets, checks.FLOATS if reduce == "mean" else checks.NUMBERS)
    offsets = offsets.long()
    if reduce in ("max", "min"):
        extremes = Extremes(*register.segment_extreme(values, offsets, reduce == "max"))
        return extremes if return_arg else extremes.values
    return register.segment_sum(values, offsets, reduce == "mean")


def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    """Apply softmax over the rows of each segment, separately for each channel.

    Gradients flow to `logits`, to any order.

    Args:
        logits: (E, C), for example with one channel per attention head. float64 to bfloat16, computed in at least
            float32.
        offsets: (S + 1,) as for `segment`.

    Returns:
        (E, C), which sums to 1 over each segment. A logit of -inf gives 0; if all logits of a segment are -inf, all
        results are 0. NaN or +inf makes the channel of its segment NaN, as in `torch.softmax`.

    Example:
        >>> segment_softmax(torch.tensor([[0.], [0.], [7.]]), torch.tensor([0, 2, 3])).flatten()
        tensor([0.5000, 0.5000, 1.0000])
    """
    checks.tensor("logits", logits)
    _check_segments("logits", logits, offsets, checks.FLOATS)
    return register.segment_softmax(logits, offsets.long())


def histogram(index: Tensor, size: int, weights: Tensor | None = None) -> Tensor:
    """Count how often each number occurs in `index`, or sum its weights.

    Gradients flow to floating-point `weights`. The order of sums is that of `scatter`.

    Args:
        index: (E,), or (B, E) for one histogram per cloud. int64 or int32, in [0, size). -1 is not counted; any other
            index out of range is treated as in `scatter`.
        size: The number of bins.
        weights: Same shape as `index`; float64 to bfloat16, int64 or int32.

    Returns:
        (size,) or (B, size). int64 counts, or sums in the dtype of `weights`, accumulated in at least float32.

    Example:
        >>> histogram(torch.tensor([0, 0, 1, 2, 2, 4]), 5, torch.tensor([1, 3, 1, 4, 20, 2]))
        tensor([ 4,  1, 24,  0,  2])
    """
    checks.tensor("index", index)
    checks.kind(checks.is_integer(size), "size", "an int", size)
    if weights is not None:
        checks.tensor("weights", weights)
    checks.shape(index.dim() in (1, 2), "index", "(E,) or (B, E)", index)
    if weights is not None:
        checks.shape(weights.shape == index.shape, "weights", lambda: f"{tuple(index.shape)} like index", weights)
    checks.dtype("index", index, checks.INDICES)
    if weights is not None:
        checks.dtype("weights", weights, checks.NUMBERS)
        checks.device("weights", weights, "index", index)
    index = index.long()
    size = _size(size, index)
    if weights is None:
        return register.histogram(index, size)
    return gather_backward(weights.unsqueeze(-1), index, size, index.dim() == 2).squeeze(-1)


def _check_reduce(reduce: Any, return_arg: bool) -> None:
    contract = '"sum", "mean", "max" or "min"'
    checks.kind(isinstance(reduce, str), "reduce", contract, reduce)
    checks.value(reduce in ("sum", "mean", "max", "min"), "reduce", contract, repr(reduce))
    extreme = reduce in ("max", "min")
    checks.value(extreme or not return_arg, "return_arg", 'False unless reduce is "max" or "min"', return_arg)


def _check_segments(name: str, values: Tensor, offsets: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    checks.tensor("offsets", offsets)
    checks.shape(values.dim() == 2, name, "(E, C)", values)
    checks.shape(offsets.dim() == 1 and offsets.shape[0] >= 1, "offsets", "(S + 1,)", offsets)
    checks.dtype(name, values, dtypes)
    checks.dtype("offsets", offsets, checks.INDICES)
    checks.device("offsets", offsets, name, values)


def _size(size: int | None, index: Tensor) -> int:
    if size is None:
        if index.numel() == 0:
            return 0
        highest = native.bounds(index)[1] if index.device.type == "cpu" else int(index.max())
        return max(highest + 1, 0)
    checks.value(0 <= size < 2**63, "size", "at least 0", size)
    return size
