"""Reductions within ranges along the last dimension of the range pointers."""

from typing import Any, Literal

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._rows import as_number, check_out, extremes, leading_index


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """`segment_csr` with "sum"."""
    return _write_out(_Segments(src, indptr).reduced("sum"), out, src, indptr)


def segment_add_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Alias of `segment_sum_csr`."""
    return segment_sum_csr(src, indptr, out)


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """`segment_csr` with "mean"; integer results are rounded towards 0."""
    return _write_out(_Segments(src, indptr).reduced("mean"), out, src, indptr)


def segment_min_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`segment_csr` with "min", and the position of each minimum.

    Positions are int64: the first of equal values, the size of `src` in this dimension for an empty range.
    """
    best, arg = _Segments(src, indptr).extreme("min")
    return _write_out(best, out, src, indptr), arg


def segment_max_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`segment_csr` with "max", and the position of each maximum.

    Positions are int64: the first of equal values, the size of `src` in this dimension for an empty range.
    """
    best, arg = _Segments(src, indptr).extreme("max")
    return _write_out(best, out, src, indptr), arg


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
    if reduce in ("sum", "add"):
        return segment_sum_csr(src, indptr, out)
    if reduce == "mean":
        return segment_mean_csr(src, indptr, out)
    if reduce in ("min", "max"):
        return _write_out(_Segments(src, indptr).reduced(reduce), out, src, indptr)
    raise ValueError(f'reduce must be "sum", "add", "mean", "min" or "max", got {reduce!r}')


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
    pointers, layout = leading_index("indptr", src, indptr)
    dim = len(layout.leading)
    segments = indptr.shape[-1] - 1
    fits = src.shape[dim] == segments
    checks.shape(fits, "src", lambda: f"of size {segments}, the number of ranges, in dimension {dim}", src)
    if out is None:
        entries = int(pointers.flatten()[-1]) if pointers.numel() else 0
    else:
        check_out(out, src, dim, None)
        entries = out.shape[dim]
    _check_pointers(pointers, entries)
    # The range of an entry is the number of pointers at or before it, minus 1.
    index = pointgrad.histogram(pointers.clamp(0, entries), entries + 1).cumsum(-1)[..., :entries] - 1
    index = torch.where(index < segments, index, -1)
    spread = layout.unfold(pointgrad.gather(layout.fold(src), index))
    if out is None:
        return spread
    covered = (index >= 0).reshape(*layout.leading, entries, *(1 for _ in layout.trailing))
    return out.copy_(torch.where(covered, spread, out))


class _Segments:
    """Values as rows, and the ranges of all clouds as consecutive offsets."""

    def __init__(self, src: Tensor, indptr: Tensor) -> None:
        pointers, self.layout = leading_index("indptr", src, indptr)
        self.dtype, self.rows = src.dtype, src.shape[len(self.layout.leading)]
        folded = as_number(self.layout.fold(src))
        self.values = folded.reshape(-1, folded.shape[-1]) if folded.dim() == 3 else folded
        pointers = pointers.long().reshape(-1, pointers.shape[-1])
        self.pointers = pointers
        self.whole = _check_pointers(pointers, self.rows)
        if not self.whole:  # entries before the first and after the last range form two more ranges, dropped later
            first = torch.zeros_like(pointers[:, :1])
            pointers = torch.cat([first, pointers, first + self.rows], dim=1)
        self.clouds, self.segments = pointers.shape[0], pointers.shape[1] - 1
        if self.clouds == 1:
            self.offsets = pointers.squeeze(0)
        else:
            first = torch.arange(self.clouds + 1, device=pointers.device) * self.rows
            inner = (pointers[:, :-1] + first[:-1, None]).flatten()
            self.offsets = torch.cat([inner, first[-1:]])

    def reduced(self, reduce: Any) -> Tensor:
        """Reduction of each range."""
        if reduce == "mean" and not self.dtype.is_floating_point:
            total = self._by_cloud(pointgrad.segment(self.values.long(), self.offsets))
            mean = torch.div(total, self.pointers.diff(dim=1).clamp(min=1).unsqueeze(-1), rounding_mode="trunc")
            return self.layout.unfold(mean).to(self.dtype)
        return self.layout.unfold(self._by_cloud(pointgrad.segment(self.values, self.offsets, reduce))).to(self.dtype)

    def extreme(self, reduce: Literal["max", "min"]) -> tuple[Tensor, Tensor]:
        """Minimum or maximum of each range, and its position."""
        best, arg = map(self._by_cloud, pointgrad.segment(self.values, self.offsets, reduce, return_arg=True))
        if self.clouds > 1:
            arg = arg - torch.arange(self.clouds, device=arg.device)[:, None, None] * self.rows  # -1 stays negative
        best, arg = self.layout.unfold(best).to(self.dtype), self.layout.unfold(arg)
        return extremes(best, arg, None, self.rows, reduce == "max")

    def _by_cloud(self, rows: Tensor) -> Tensor:
        """Reshape to (B, S, C) and drop the additional ranges."""
        by_cloud = rows.reshape(self.clouds, self.segments, rows.shape[-1])
        return by_cloud if self.whole else by_cloud[:, 1:-1].contiguous()


def _check_pointers(pointers: Tensor, rows: int) -> bool:
    """Whether the ranges are known to cover all rows. Values are read on the CPU only."""
    if pointers.device.type != "cpu" or torch.compiler.is_compiling() or pointers.numel() == 0:
        return False
    values = pointers.numpy()
    first, last = values[..., 0], values[..., -1]
    checks.value(first.min() >= 0, "indptr", "at least 0", first.min())
    checks.value(last.max() <= rows, "indptr", f"at most {rows}", last.max())
    sorted_ = bool((values[..., 1:] >= values[..., :-1]).all())
    checks.value(sorted_, "indptr", "non-decreasing", "a pointer that is smaller than the previous one")
    return bool((first == 0).all() and (last == rows).all())


def _write_out(result: Tensor, out: Tensor | None, src: Tensor, indptr: Tensor) -> Tensor:
    if out is None:
        return result
    dim = indptr.dim() - 1
    check_out(out, src, dim, result.shape[dim])
    return out.copy_(result)
