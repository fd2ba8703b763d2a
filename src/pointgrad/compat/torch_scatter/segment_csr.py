"""Reductions within ranges, along the last dimension of the pointers to them."""

from typing import Any, Literal

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._rows import as_number, check_out, extremes, leading_index


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """`segment_csr` with "sum"."""
    return _written(_Segments(src, indptr).reduced("sum"), out, src, indptr)


def segment_add_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """`segment_sum_csr` under its other name."""
    return segment_sum_csr(src, indptr, out)


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """`segment_csr` with "mean"; integers are divided and rounded towards 0."""
    return _written(_Segments(src, indptr).reduced("mean"), out, src, indptr)


def segment_min_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`segment_csr` with "min", and where each minimum stands: int64, the first of equals, the size of `src` in that
    dimension for an empty range."""
    best, arg = _Segments(src, indptr).extreme("min")
    return _written(best, out, src, indptr), arg


def segment_max_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`segment_csr` with "max", and where each maximum stands: int64, the first of equals, the size of `src` in that
    dimension for an empty range."""
    best, arg = _Segments(src, indptr).extreme("max")
    return _written(best, out, src, indptr), arg


def segment_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """Reduces ranges along the last dimension d of `indptr`: for one pointer vector, `out[s]` is the reduction of
    `src[indptr[s]:indptr[s + 1]]`.

    src: any rank; all real dtypes.
    indptr: (..., S + 1) int64 or int32, ascending from at least 0 to at most `src.size(d)`; its leading dimensions are
        those of `src` or 1. On the CPU anything else is a ValueError.
    out: is overwritten with the result (other than by `segment_coo` and `scatter`, as in the original).
    reduce: "sum" or "add", "mean", "min" or "max"; extremes as for `scatter`.
    returns: as `src`, with S in dimension d; 0 for an empty range.

    Gradients reach `src`, twice. On a GPU the pointers are not read on the host. Natively: `pointgrad.segment`.

    >>> segment_csr(torch.tensor([[1., 2., 4., 8.]]), torch.tensor([[0, 3, 3, 4]]))
    tensor([[7., 0., 8.]])
    """
    if reduce in ("sum", "add"):
        return segment_sum_csr(src, indptr, out)
    if reduce == "mean":
        return segment_mean_csr(src, indptr, out)
    if reduce in ("min", "max"):
        return _written(_Segments(src, indptr).reduced(reduce), out, src, indptr)
    raise ValueError(f'reduce must be "sum", "add", "mean", "min" or "max", got {reduce!r}')


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """The opposite of `segment_csr`: each `src[s]` repeated over `out[indptr[s]:indptr[s + 1]]`.

    src: (..., S, ...). indptr: (..., S + 1), as for `segment_csr`.
    out: its ranges are overwritten, the rest is left; without it, a new tensor that ends with the last range (for whose
        end a GPU waits) and is 0 before the first.

    >>> gather_csr(torch.tensor([1., 2., 3.]), torch.tensor([0, 2, 2, 3]))
    tensor([1., 1., 3.])
    """
    pointers, layout = leading_index("indptr", src, indptr)
    dim = len(layout.leading)
    segments = indptr.shape[-1] - 1
    fits = src.shape[dim] == segments
    checks.shape(fits, "src", lambda: f"of size {segments} in dimension {dim}, one for each range of indptr", src)
    if out is None:
        entries = int(pointers.flatten()[-1]) if pointers.numel() else 0
    else:
        check_out(out, src, dim, None)
        entries = out.shape[dim]
    _check_pointers(pointers, entries)
    # Each entry's range: how many pointers stand at or before it.
    index = pointgrad.histogram(pointers.clamp(0, entries), entries + 1).cumsum(-1)[..., :entries] - 1
    index = torch.where(index < segments, index, -1)
    spread = layout.unfold(pointgrad.gather(layout.fold(src), index))
    if out is None:
        return spread
    covered = (index >= 0).reshape(*layout.leading, entries, *(1 for _ in layout.trailing))
    return out.copy_(torch.where(covered, spread, out))


class _Segments:
    """The values as rows, and the ranges of all clouds as offsets one after another."""

    def __init__(self, src: Tensor, indptr: Tensor) -> None:
        pointers, self.layout = leading_index("indptr", src, indptr)
        self.dtype, self.rows = src.dtype, src.shape[len(self.layout.leading)]
        folded = as_number(self.layout.fold(src))
        self.values = folded.reshape(-1, folded.shape[-1]) if folded.dim() == 3 else folded
        pointers = pointers.long().reshape(-1, pointers.shape[-1])
        self.pointers = pointers
        self.whole = _check_pointers(pointers, self.rows)
        if not self.whole:  # what lies before the first and after the last range becomes two more, dropped later
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
        if reduce == "mean" and not self.dtype.is_floating_point:
            total = self._apart(pointgrad.segment(self.values.long(), self.offsets))
            mean = torch.div(total, self.pointers.diff(dim=1).clamp(min=1).unsqueeze(-1), rounding_mode="trunc")
            return self.layout.unfold(mean).to(self.dtype)
        return self.layout.unfold(self._apart(pointgrad.segment(self.values, self.offsets, reduce))).to(self.dtype)

    def extreme(self, reduce: Literal["max", "min"]) -> tuple[Tensor, Tensor]:
        best, arg = map(self._apart, pointgrad.segment(self.values, self.offsets, reduce, return_arg=True))
        if self.clouds > 1:
            arg = arg - torch.arange(self.clouds, device=arg.device)[:, None, None] * self.rows  # -1 stays negative
        best, arg = self.layout.unfold(best).to(self.dtype), self.layout.unfold(arg)
        return extremes(best, arg, None, self.rows, reduce == "max")

    def _apart(self, rows: Tensor) -> Tensor:
        """(B, S, C)"""
        apart = rows.reshape(self.clouds, self.segments, rows.shape[-1])
        return apart if self.whole else apart[:, 1:-1].contiguous()


def _check_pointers(pointers: Tensor, rows: int) -> bool:
    """Whether the ranges are known to cover all rows. Values are looked at on the CPU only."""
    if pointers.device.type != "cpu" or torch.compiler.is_compiling() or pointers.numel() == 0:
        return False
    values = pointers.numpy()
    first, last = values[..., 0], values[..., -1]
    checks.value(first.min() >= 0, "indptr", "at least 0", first.min())
    checks.value(last.max() <= rows, "indptr", f"at most {rows}", last.max())
    rises = (values[..., 1:] >= values[..., :-1]).all()
    checks.value(bool(rises), "indptr", "ascending", "a pointer below the one before it")
    return bool((first == 0).all() and (last == rows).all())


def _written(result: Tensor, out: Tensor | None, src: Tensor, indptr: Tensor) -> Tensor:
    if out is None:
        return result
    dim = indptr.dim() - 1
    check_out(out, src, dim, result.shape[dim])
    return out.copy_(result)
