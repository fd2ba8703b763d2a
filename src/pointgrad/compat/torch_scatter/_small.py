"""Reductions of small CPU tensors, for which the time of a call is that of its checks.

They call torch's own operators, and C++ kernels without the dispatcher. A function returns None if it does not apply:
for other tensors, for an index that the general functions ignore or reject, and while a program is compiled or traced.
Sums have the same order and the same value as those of the general functions.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pointgrad.ops import native, registry
from pointgrad.ops.scatter import cpu, register

_MAX_ENTRIES = 2048  # size of the index
_MAX_ELEMENTS = 2**16  # size of the values
_TYPES = {Tensor, torch.nn.Parameter}
_DTYPES = {torch.float32, torch.float64, torch.int64, torch.int32}


def groups(src: Any, index: Any, dim: Any, dim_size: Any) -> int | None:
    """Number of groups of a vector index along the first dimension."""
    size = _size(src, index, dim, dim_size)
    return size if size is not None and dim % src.dim() == 0 else None


def total(src: Any, index: Any, dim: Any, dim_size: Any) -> Tensor | None:
    """Sum of each group."""
    size = _size(src, index, dim, dim_size)
    if size is None:
        return None
    return src.new_zeros(_resized(src, dim, size)).index_add_(dim, index, src)


def mean(src: Any, index: Any, dim: Any, dim_size: Any) -> Tensor | None:
    """Mean of each group of floating-point values."""
    size = _size(src, index, dim, dim_size)
    if size is None or not src.is_floating_point():
        return None
    count = torch.bincount(index, minlength=size).clamp_(min=1)
    if src.dim() > 1:
        count = count.view([-1] + [1] * (src.dim() - 1 - dim % src.dim()))
    return src.new_zeros(_resized(src, dim, size)).index_add_(dim, index, src).div_(count)


def product(src: Any, index: Any, dim: Any, dim_size: Any) -> Tensor | None:
    """Product of each group."""
    size = _size(src, index, dim, dim_size)
    if size is None:
        return None
    after = src.dim() - 1 - dim % src.dim()
    index = (index.view([-1] + [1] * after) if after else index).expand(src.shape)
    return src.new_ones(_resized(src, dim, size)).scatter_reduce(dim, index, src, "prod")


def extreme(
    src: Any, index: Any, dim: Any, dim_size: Any, reduce: Literal["max", "min"]
) -> tuple[Tensor, Tensor] | None:
    """Minimum or maximum of each group along the first dimension, and its position."""
    size = _size(src, index, dim, dim_size)
    if size is None or dim % src.dim() != 0:
        return None
    rows = _rows(src)
    return _extremes(src, rows, *cpu.scatter_extreme(rows.detach(), index, size, reduce == "max"))


def gather(src: Any, index: Any) -> Tensor | None:
    """Rows of the first dimension."""
    if not _is_plain(src, index) or index.dim() != 1 or not 0 < index.shape[0] <= _MAX_ENTRIES:
        return None
    lowest, highest = native.bounds(index)
    return src.index_select(0, index) if lowest >= 0 and highest < src.shape[0] else None


def segments(src: Any, indptr: Any, mean: bool) -> Tensor | None:
    """Sum or mean of each range of floating-point rows."""
    if not _is_segmented(src, indptr) or not src.is_floating_point():
        return None
    summed = (register if _needs_grad(src) else cpu).segment_sum(_rows(src), indptr, mean)
    return summed if src.dim() == 2 else summed.view(-1, *src.shape[1:])


def segment_extreme(src: Any, indptr: Any, reduce: Literal["max", "min"]) -> tuple[Tensor, Tensor] | None:
    """Minimum or maximum of each range of rows, and its position."""
    if not _is_segmented(src, indptr):
        return None
    rows = _rows(src)
    return _extremes(src, rows, *cpu.segment_extreme(rows.detach(), indptr, reduce == "max"))


def spread(src: Any, indptr: Any) -> Tensor | None:
    """The value of each range, repeated over the range."""
    if not _is_plain(src, indptr) or indptr.dim() != 1 or indptr.shape[0] != src.shape[0] + 1:
        return None
    entries = int(indptr[-1])
    if entries > _MAX_ENTRIES or not src.is_floating_point() or not _covers(indptr, entries):
        return None
    repeated = (register if _needs_grad(src) else cpu).segment_spread(_rows(src), indptr, entries, False)
    return repeated if src.dim() == 2 else repeated.view(-1, *src.shape[1:])


def _is_plain(src: Any, index: Any) -> bool:
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # sizes are tensors then
        and type(src) in _TYPES
        and type(index) is Tensor
        and src.is_cpu
        and index.is_cpu
        and src.dtype in _DTYPES
        and index.dtype is torch.int64
        and src.layout is index.layout is torch.strided
        and src.dim() > 0
        and 0 < src.numel() <= _MAX_ELEMENTS
        and registry.chosen(src.device) == "cpu"
        and torch._C._functorch.peek_interpreter_stack() is None
        and not torch._C._len_torch_dispatch_stack()
        and forward_ad._current_level < 0
    )


def _size(src: Any, index: Any, dim: Any, dim_size: Any) -> int | None:
    """Number of groups, if the index is a vector along `dim` with values in range."""
    if not _is_plain(src, index) or type(dim) is not int or not -src.dim() <= dim < src.dim():
        return None
    if index.dim() != 1 or index.shape[0] != src.shape[dim] or index.shape[0] > _MAX_ENTRIES:
        return None
    lowest, highest = native.bounds(index)
    if lowest < 0:
        return None
    if dim_size is None:
        return highest + 1
    return dim_size if type(dim_size) is int and highest < dim_size else None


def _resized(src: Tensor, dim: int, size: int) -> list[int]:
    shape = list(src.shape)
    shape[dim] = size
    return shape


def _rows(src: Tensor) -> Tensor:
    """Values as (E, C)."""
    return src if src.dim() == 2 else src.reshape(src.shape[0], -1)


def _needs_grad(src: Tensor) -> bool:
    return src.requires_grad and torch.is_grad_enabled()


def _extremes(src: Tensor, rows: Tensor, best: Tensor, arg: Tensor) -> tuple[Tensor, Tensor]:
    """Extremes with gradient, and positions as torch-scatter returns them, in the shape of `src`."""
    empty = arg < 0
    if _needs_grad(src):
        best = rows.gather(0, arg.clamp(min=0)).masked_fill(empty, 0)
    arg = arg.masked_fill_(empty, src.shape[0])
    if src.dim() == 2:
        return best, arg
    shape = (arg.shape[0], *src.shape[1:])
    return best.view(shape), arg.view(shape)


def _is_segmented(src: Any, indptr: Any) -> bool:
    """Whether the ranges of a vector of pointers cover all rows."""
    return (
        _is_plain(src, indptr)
        and indptr.dim() == 1
        and 0 < indptr.shape[0] <= _MAX_ENTRIES
        and _covers(indptr, src.shape[0])
    )


def _covers(indptr: Tensor, rows: int) -> bool:
    pointers = indptr.numpy()
    return bool(pointers[0] == 0 and pointers[-1] == rows and not (pointers[1:] < pointers[:-1]).any())
