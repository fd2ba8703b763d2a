"""Reducing rows that belong together: by an index in any order, or by segments that stand next to each other."""

from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from .. import checks, native
from ..gather.register import gather_backward
from . import register

__all__ = ["Extremes", "histogram", "scatter", "segment", "segment_softmax"]

_NUMBERS = (*checks.FLOATS, torch.int64, torch.int32)

Reduce = Literal["sum", "mean", "max", "min"]


class Extremes(NamedTuple):
    """values: the largest or smallest of each group, 0 in an empty one. arg: same shape, int64, which row of the
    input it came from, -1 in an empty group."""

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
    """Reduces the rows of `values` that have the same index: `out[j]` is the reduction of all rows with `index = j`.

    values: (E, C) packed, or (B, E, C) padded; float64 to bfloat16, for all but "mean" also int64 and int32.
    index: (E,) packed, or (B, E) padded (the groups of each cloud are its own); int64 or int32. A row whose index
        is -1 goes nowhere and gets no gradient.
    size: how many groups; without it `index.max() + 1`, which is read on the host: a GPU waits for it, and
        `torch.compile` needs it given.
    reduce: "sum", "mean" (over the rows that arrived), "max" or "min". A NaN is the maximum and the minimum.
    return_arg: for "max" and "min", also return which row each one is: `Extremes(values, arg)`.
    returns: (size, C) or (B, size, C), in the dtype of `values`; 0 in an empty group. Sums are kept in at least
        float32; integers wrap around.

    Gradients reach `values`; for "max" and "min" each goes to the first row that has the extreme value. Any other
    index out of range is a ValueError on the CPU; on a GPU it counts as -1. The order of a sum is that of the index
    on the CPU; on a GPU any, unless `torch.use_deterministic_algorithms` is on.

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
    checks.dtype("values", values, checks.FLOATS if reduce == "mean" else _NUMBERS)
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
    # Divided before it is rounded to 16 bits, where a sum may not fit.
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    count = register.histogram(index, size).clamp(min=1).unsqueeze(-1)
    return (gather_backward(wide, index, size, padded) / count).to(values.dtype)


@overload
def segment(
    values: Tensor, offsets: Tensor, reduce: Reduce = "sum", *, return_arg: Literal[False] = False
) -> Tensor: ...
@overload
def segment(values: Tensor, offsets: Tensor, reduce: Reduce = "sum", *, return_arg: Literal[True]) -> Extremes: ...
def segment(values: Tensor, offsets: Tensor, reduce: Reduce = "sum", *, return_arg: bool = False) -> Tensor | Extremes:
    """Reduces consecutive rows: `out[s]` is the reduction of `values[offsets[s]:offsets[s + 1]]`.

    values: (E, C); dtypes as for `scatter`.
    offsets: (S + 1,) int64 or int32, from 0 to E, never falling: as the offsets of packed clouds.
    reduce, return_arg: as for `scatter`; `arg` counts through all rows.
    returns: (S, C), in the dtype of `values`; 0 for an empty segment.

    Gradients reach `values`: each row gets its segment's (a share of it for "mean"), or, for "max" and "min", the
    first row that has the extreme value gets it. Nothing depends on the order in which threads finish. On a GPU
    the values of offsets are not read on the host: they are kept in range.

    >>> segment(torch.tensor([[1.], [2.], [4.]]), torch.tensor([0, 2, 2, 3])).flatten()
    tensor([3., 0., 4.])
    """
    checks.tensor("values", values)
    _check_reduce(reduce, return_arg)
    _check_segments("values", values, offsets, checks.FLOATS if reduce == "mean" else _NUMBERS)
    offsets = offsets.long()
    if reduce in ("max", "min"):
        extremes = Extremes(*register.segment_extreme(values, offsets, reduce == "max"))
        return extremes if return_arg else extremes.values
    return register.segment_sum(values, offsets, reduce == "mean")


def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    """Softmax over the rows of each segment, channel by channel.

    logits: (E, C), for instance one channel per attention head; float64 to bfloat16, computed in at least float32.
    offsets: (S + 1,) as for `segment`.
    returns: (E, C), positive and adding up to 1 over each segment; a logit of -inf gives 0, and if a segment has
        no other, all of it is 0. A NaN or +inf makes its segment's channel NaN, as in `torch.softmax`.

    Gradients reach `logits`, to any order.

    >>> segment_softmax(torch.tensor([[0.], [0.], [7.]]), torch.tensor([0, 2, 3])).flatten()
    tensor([0.5000, 0.5000, 1.0000])
    """
    checks.tensor("logits", logits)
    _check_segments("logits", logits, offsets, checks.FLOATS)
    return register.segment_softmax(logits, offsets.long())


def histogram(index: Tensor, size: int, weights: Tensor | None = None) -> Tensor:
    """How often each number occurs in `index`, or the sum of its weights.

    index: (E,), or (B, E) for one histogram per cloud; int64 or int32, in [0, size). -1 is not counted.
    size: the number of bins.
    weights: same shape as `index`; float64 to bfloat16, int64 or int32.
    returns: (size,) or (B, size): int64 counts, or sums in the dtype of the weights (kept in at least float32).

    Gradients reach floating `weights`: each gets that of its bin. Indices out of range and the order of sums: as
    for `scatter`.

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
        checks.dtype("weights", weights, _NUMBERS)
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
