"""Implementation of the reductions within ranges."""

from typing import Any, Literal

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from .._scalars import is_traced
from . import _small
from ._rows import as_number, check_out, extremes, leading_index


def reduced(src: Tensor, indptr: Tensor, out: Tensor | None, reduce: str) -> Tensor:
    """Reduction of each range, written to `out`."""
    if reduce not in ("sum", "add", "mean", "min", "max"):
        raise ValueError(f'reduce must be "sum", "add", "mean", "min" or "max", got {reduce!r}')
    if out is None:
        if reduce in ("min", "max"):
            found = _small.segment_extreme(src, indptr, "min" if reduce == "min" else "max")
            small = None if found is None else found[0]
        else:
            small = _small.segments(src, indptr, reduce == "mean")
        if small is not None:
            return small
    return _write_out(_Segments(src, indptr).reduced("sum" if reduce == "add" else reduce), out, src, indptr)


def extreme(src: Tensor, indptr: Tensor, out: Tensor | None, reduce: Literal["max", "min"]) -> tuple[Tensor, Tensor]:
    """Minimum or maximum of each range, written to `out`, and its position."""
    if out is None and (small := _small.segment_extreme(src, indptr, reduce)) is not None:
        return small
    best, arg = _Segments(src, indptr).extreme(reduce)
    return _write_out(best, out, src, indptr), arg


def spread(src: Tensor, indptr: Tensor, out: Tensor | None) -> Tensor:
    """The value of each range, repeated over the range."""
    if out is None and (small := _small.spread(src, indptr)) is not None:
        return small
    pointers, layout = leading_index("indptr", src, indptr)
    dim = len(layout.leading)
    rows, segments = src.shape[dim], max(indptr.shape[-1] - 1, 0)
    fits = rows in (0, segments)
    checks.shape(fits, "src", lambda: f"of size {segments}, the number of ranges, in dimension {dim}", src)
    if out is not None:
        check_out(out, src, dim, None)
        entries = out.shape[dim]
    elif src.numel() == 0:
        pointers, entries = pointers[..., :0], 0  # an empty result, as in the original
    else:
        entries = int(pointers.flatten()[-1])
    _check_pointers(pointers, entries)
    # The range of an entry is the number of pointers at or before it, minus 1.
    index = pointgrad.histogram(pointers.clamp(0, entries), entries + 1).cumsum(-1)[..., :entries] - 1
    index = torch.where(index < rows, index, -1)
    repeated = layout.unfold(pointgrad.gather(layout.fold(src), index))
    if out is None:
        return repeated
    covered = (index >= 0).reshape(*layout.leading, entries, *(1 for _ in layout.trailing))
    return out.copy_(torch.where(covered, repeated, out))


class _Segments:
    """Values as rows, and the ranges of all clouds as consecutive offsets."""

    def __init__(self, src: Tensor, indptr: Tensor) -> None:
        pointers, self.layout = leading_index("indptr", src, indptr)
        self.dtype, self.rows = src.dtype, src.shape[len(self.layout.leading)]
        folded = as_number(self.layout.fold(src))
        clouds, channels = (1, *folded.shape)[-3], folded.shape[-1]
        self.values = folded.reshape(clouds * self.rows, channels)
        pointers = pointers.long().reshape(clouds, pointers.shape[-1])
        if pointers.shape[1] == 0:  # no range
            pointers = pointers.new_zeros(clouds, 1)
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
    if pointers.device.type != "cpu" or is_traced(pointers) or pointers.numel() == 0:
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
