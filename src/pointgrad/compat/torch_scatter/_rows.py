"""From tensors of any rank to the rows that pointgrad reduces: (E, C) or (B, E, C), one index each."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pointgrad.ops import checks

from .._scalars import number
from .utils import broadcast

_NUMBERS = (*checks.FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Layout(NamedTuple):
    """Folds `(*leading, n, *trailing)`: the leading dimensions are clouds, the trailing ones channels; if each element
    has an index of its own (`single`), both are clouds."""

    leading: tuple[int, ...]
    trailing: tuple[int, ...]
    single: bool = False

    def fold(self, tensor: Tensor) -> Tensor:
        clouds, channels = math.prod(self.leading), math.prod(self.trailing)
        rows = tensor.shape[len(self.leading)]
        if self.single:
            return tensor.movedim(len(self.leading), -1).reshape(clouds * channels, rows, 1)
        folded = tensor.reshape(clouds, rows, channels)
        return folded.squeeze(0) if clouds == 1 else folded

    def unfold(self, rows: Tensor) -> Tensor:
        count = rows.shape[-2]
        if self.single:
            apart = rows.reshape(*self.leading, *self.trailing, count)
            return apart.movedim(-1, len(self.leading)).contiguous()
        return rows.reshape(*self.leading, count, *self.trailing)


class Rows(NamedTuple):
    """values: (E, C) or (B, E, C). index: (E,) or (B, E), the group of each."""

    values: Tensor
    index: Tensor  # type: ignore[assignment]  # tuple.index is not needed here
    layout: Layout


def by_index(src: Any, index: Any, dim: Any) -> Rows:
    """The values along `dim`, and the group of each. Nothing is copied unless every element has an index of its own."""
    checks.tensor("src", src)
    checks.tensor("index", index)
    checks.shape(src.dim() >= 1, "src", "of at least one dimension", src)
    checks.dim("dim", dim, src.dim())
    dim = dim % src.dim()
    one = index.dim() == 1
    shape = (*(1 for _ in range(dim)), *index.shape) if one else tuple(index.shape)
    fits = 1 <= len(shape) <= src.dim()
    fits = fits and all(a in (1, b) for a, b in zip(shape, src.shape[: len(shape)], strict=True))
    checks.shape(fits, "index", lambda: f"({src.shape[dim]},) or broadcastable to src {tuple(src.shape)}", index)
    checks.dtype("src", src, _NUMBERS)
    checks.dtype("index", index, checks.INDICES)
    checks.device("index", index, "src", src)
    leading, entries, trailing = src.shape[:dim], src.shape[dim], src.shape[dim + 1 :]
    index = index.reshape(shape + (1,) * (dim + 1 - len(shape)))
    own = any(index.shape[d] != 1 and not _repeats(index, d) for d in range(dim + 1, index.dim()))
    if own:
        layout = Layout(leading, trailing, single=True)
        return Rows(as_number(layout.fold(src)), layout.fold(broadcast(index, src, dim)).squeeze(-1), layout)
    for d in range(index.dim() - 1, dim, -1):
        index = index.select(d, 0)
    layout = Layout(leading, trailing)
    index = index.expand(*leading, entries)
    index = index.reshape(entries) if math.prod(leading) == 1 else index.reshape(math.prod(leading), entries)
    return Rows(as_number(layout.fold(src)), index, layout)


def leading_index(name: str, src: Any, index: Any) -> tuple[Tensor, Layout]:
    """An index, or pointers, along its last dimension: (n,) or (B, n), expanded to the leading dimensions of `src`; and
    the layout of `src` around that dimension."""
    checks.tensor("src", src)
    checks.tensor(name, index)
    dim = index.dim() - 1
    leading = src.shape[: max(dim, 0)]
    fits = 1 <= index.dim() <= src.dim()
    fits = fits and all(a in (1, b) for a, b in zip(index.shape[:-1], leading, strict=True))
    checks.shape(fits, name, lambda: f"(n,), or with the leading dimensions of src {tuple(src.shape)}", index)
    checks.dtype("src", src, _NUMBERS)
    checks.dtype(name, index, checks.INDICES)
    checks.device(name, index, "src", src)
    clouds, entries = math.prod(leading), index.shape[-1]
    index = index.expand(*leading, entries)
    index = index.reshape(entries) if clouds == 1 else index.reshape(clouds, entries)
    return index, Layout(leading, src.shape[dim + 1 :])


def group_count(src: Tensor, dim: int, out: Any, dim_size: Any) -> int | None:
    """How many groups the caller wants: as many as `out` has room for, `dim_size`, or as the index tells (None)."""
    if out is None:
        dim_size = number(dim_size)
        checks.kind(dim_size is None or checks.is_integer(dim_size), "dim_size", "an int or None", dim_size)
        checks.value(dim_size is None or dim_size >= 0, "dim_size", "at least 0", dim_size)
        return dim_size
    check_out(out, src, dim % src.dim(), None)
    return int(out.shape[dim])


def check_out(out: Any, src: Tensor, dim: int, size: int | None) -> None:
    """size: along `dim`, where it is known."""
    checks.tensor("out", out)
    there = out.shape[dim : dim + 1] if size is None else (size,)
    fits = out.shape == (*src.shape[:dim], *there, *src.shape[dim + 1 :])
    end = "any size" if size is None else f"size {size}"
    checks.shape(fits, "out", lambda: f"like src {tuple(src.shape)}, with {end} in dimension {dim}", out)
    checks.same_dtype("out", out, "src", src)
    checks.device("out", out, "src", src)


def extremes(values: Tensor, arg: Tensor, out: Tensor | None, rows: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The values and where they stand, as torch-scatter returns them: `rows` where there is nothing, or nothing better
    than what `out` has."""
    if out is None:
        return values, arg.masked_fill(arg < 0, rows)
    beats = values > out if largest else values < out
    better = (arg >= 0) & (beats | (values != values))  # a NaN wins
    return out.copy_(torch.where(better, values, out)), arg.masked_fill(~better, rows)


def _repeats(index: Tensor, dim: int) -> bool:
    """All entries along this dimension are one entry in memory, as after `expand`."""
    return index.stride(dim) == 0 and index.shape[dim] > 0


def as_number(values: Tensor) -> Tensor:
    """In a dtype that the operators know: small integers are reduced in int32, and wrap around as they would."""
    native = values.is_floating_point() or values.dtype in checks.INDICES
    return values if native else values.int()
