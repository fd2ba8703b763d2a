"""Conversion of tensors of any rank to the rows that pointgrad reduces: (E, C) or (B, E, C), with one index per row."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pointgrad.ops import checks

from .._scalars import number
from .utils import broadcast

_NUMBERS = (*checks.FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Layout(NamedTuple):
    """Folds `(*leading, n, *trailing)` into rows.

    Leading dimensions become clouds and trailing dimensions channels; if each element has its own index (`single`),
    both become clouds.
    """

    leading: tuple[int, ...]
    trailing: tuple[int, ...]
    single: bool = False

    def fold(self, tensor: Tensor) -> Tensor:
        """Rows (n, C) or (B, n, C) of a tensor."""
        clouds, channels = math.prod(self.leading), math.prod(self.trailing)
        rows = tensor.shape[len(self.leading)]
        if self.single:
            return tensor.movedim(len(self.leading), -1).reshape(clouds * channels, rows, 1)
        folded = tensor.reshape(clouds, rows, channels)
        return folded.squeeze(0) if clouds == 1 else folded

    def unfold(self, rows: Tensor) -> Tensor:
        """Inverse of `fold`; n may differ."""
        count = rows.shape[-2]
        if self.single:
            separate = rows.reshape(*self.leading, *self.trailing, count)
            return separate.movedim(-1, len(self.leading)).contiguous()
        return rows.reshape(*self.leading, count, *self.trailing)


class Rows(NamedTuple):
    """Values as rows.

    Attributes:
        values: (E, C) or (B, E, C) values.
        index: (E,) or (B, E) group of each row.
        layout: Layout of the tensor that the rows come from.
    """

    values: Tensor
    index: Tensor  # type: ignore[assignment]  # hides tuple.index
    layout: Layout


def by_index(src: Any, index: Any, dim: Any) -> Rows:
    """Values along `dim` and the group of each. Nothing is copied unless every element has its own index."""
    checks.tensor("src", src)
    checks.tensor("index", index)
    checks.shape(src.dim() >= 1, "src", "a tensor of at least one dimension", src)
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
    if src.numel() == 0:
        index = torch.full_like(index, -1)  # without elements there are no groups, as in the original
    leading, entries, trailing = src.shape[:dim], src.shape[dim], src.shape[dim + 1 :]
    index = index.reshape(shape + (1,) * (dim + 1 - len(shape)))
    single = any(index.shape[d] != 1 and not _repeats(index, d) for d in range(dim + 1, index.dim()))
    if single:
        layout = Layout(leading, trailing, single=True)
        return Rows(as_number(layout.fold(src)), layout.fold(broadcast(index, src, dim)).squeeze(-1), layout)
    for d in range(index.dim() - 1, dim, -1):
        index = index.select(d, 0)
    layout = Layout(leading, trailing)
    index = index.expand(*leading, entries)
    index = index.reshape(entries) if math.prod(leading) == 1 else index.reshape(math.prod(leading), entries)
    return Rows(as_number(layout.fold(src)), index, layout)


def leading_index(name: str, src: Any, index: Any) -> tuple[Tensor, Layout]:
    """Index or pointers along their last dimension, (n,) or (B, n), expanded to the leading dimensions of `src`; and
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
    """Number of groups: the size of `out`, `dim_size`, or None if it follows from the index."""
    if out is None:
        dim_size = number(dim_size)
        checks.kind(dim_size is None or checks.is_integer(dim_size), "dim_size", "an int or None", dim_size)
        checks.value(dim_size is None or dim_size >= 0, "dim_size", "at least 0", dim_size)
        return 0 if dim_size is None and src.numel() == 0 else dim_size
    check_out(out, src, dim % src.dim(), None)
    return int(out.shape[dim])


def check_out(out: Any, src: Tensor, dim: int, size: int | None) -> None:
    """Check that `out` has the shape of `src` except for `size` (if known) along `dim`."""
    checks.tensor("out", out)
    expected = out.shape[dim : dim + 1] if size is None else (size,)
    fits = out.shape == (*src.shape[:dim], *expected, *src.shape[dim + 1 :])
    end = "any size" if size is None else f"size {size}"
    checks.shape(fits, "out", lambda: f"like src {tuple(src.shape)}, with {end} in dimension {dim}", out)
    checks.same_dtype("out", out, "src", src)
    checks.device("out", out, "src", src)


def extremes(values: Tensor, arg: Tensor, out: Tensor | None, rows: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Extreme values and their positions as torch-scatter returns them.

    The position is `rows` for empty groups, and where no value is better than that of `out`.
    """
    if out is None:
        return values, arg.masked_fill(arg < 0, rows)
    beats = values > out if largest else values < out
    better = (arg >= 0) & (beats | (values != values))  # NaN replaces any value
    return out.copy_(torch.where(better, values, out)), arg.masked_fill(~better, rows)


def _repeats(index: Tensor, dim: int) -> bool:
    """Whether all entries along this dimension share memory, as after `expand`."""
    return index.stride(dim) == 0 and index.shape[dim] > 0


def as_number(values: Tensor) -> Tensor:
    """Convert to a dtype that the operators support: small integers become int32, and the result wraps around."""
    native = values.is_floating_point() or values.dtype in checks.INDICES
    return values if native else values.int()
