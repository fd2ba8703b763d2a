"""Reductions within ranges along the last dimension of the range pointers."""

import torch
from torch import Tensor

from .._torchscript import operator
from ._segments import extreme, reduced, spread


@operator
def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """`segment_csr` with "sum"."""
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_sum_csr(src, indptr, out)
    return reduced(src, indptr, out, "sum")


def segment_add_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Alias of `segment_sum_csr`."""
    return segment_sum_csr(src, indptr, out)


@operator
def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """`segment_csr` with "mean"; integer results are rounded towards 0."""
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_mean_csr(src, indptr, out)
    return reduced(src, indptr, out, "mean")


@operator
def segment_min_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`segment_csr` with "min", and the position of each minimum.

    Positions are int64: the first of equal values, the size of `src` in this dimension for an empty range.
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_min_csr(src, indptr, out)
    return extreme(src, indptr, out, "min")


@operator
def segment_max_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`segment_csr` with "max", and the position of each maximum.

    Positions are int64: the first of equal values, the size of `src` in this dimension for an empty range.
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_max_csr(src, indptr, out)
    return extreme(src, indptr, out, "max")


@operator
def segment_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """Reduce ranges along the last dimension d of `indptr`.

    For a vector of pointers, `out[s]` is the reduction of `src[indptr[s]:indptr[s + 1]]`. The native function is
    `pointgrad.segment`. Pointers on a GPU are not read on the host.

    Args:
        src: Values of any rank and any real dtype.
        indptr: (..., S + 1) int64 or int32, non-decreasing, between 0 and `src.size(d)`; its leading dimensions are
            those of `src` or 1. Other values raise a ValueError on the CPU.
        out: Tensor that is overwritten with the result (unlike in `segment_coo` and `scatter`, as in the original).
        reduce: "sum" or "add", "mean", "min" or "max"; minimum and maximum as for `scatter`.

    Returns:
        Tensor like `src`, with size S in dimension d; 0 for an empty range. Twice differentiable in `src`.

    Example:
        >>> segment_csr(torch.tensor([[1., 2., 4., 8.]]), torch.tensor([[0, 3, 3, 4]]))
        tensor([[7., 0., 8.]])
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.segment_csr(src, indptr, out, reduce)
    return reduced(src, indptr, out, reduce)


@operator
def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Repeat each `src[s]` over `out[indptr[s]:indptr[s + 1]]`, the opposite of `segment_csr`.

    Args:
        src: (..., S, ...) one value per range.
        indptr: (..., S + 1) pointers, as for `segment_csr`.
        out: Tensor whose ranges are overwritten; other entries are kept. If None, a new tensor that ends with the last
            range, for whose end a GPU synchronizes, and is 0 before the first.

    Returns:
        The repeated values, or `out`.

    Example:
        >>> gather_csr(torch.tensor([1., 2., 3.]), torch.tensor([0, 2, 2, 3]))
        tensor([1., 1., 3.])
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.gather_csr(src, indptr, out)
    return spread(src, indptr, out)
