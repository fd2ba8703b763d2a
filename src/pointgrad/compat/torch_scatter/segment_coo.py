"""Reductions by a sorted index, along its last dimension."""

from typing import Any

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._rows import check_out, leading_index
from .scatter import mean, scatter, scatter_max, scatter_min, scatter_sum


def segment_sum_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """`segment_coo` with "sum". `out`: the sums are added into it."""
    return scatter_sum(src, index, _last(index), out, dim_size)


def segment_add_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """`segment_sum_coo` under its other name."""
    return segment_sum_coo(src, index, out, dim_size)


def segment_mean_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """`segment_coo` with "mean"; integers are divided and rounded towards 0, as by the original's CPU version. `out`:
    the sums are added into it, then all of it is divided by the counts."""
    return mean(src, index, _last(index), out, dim_size, "trunc")


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`segment_coo` with "min", and where each minimum stands: as `scatter_min`."""
    return scatter_min(src, index, _last(index), out, dim_size)


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`segment_coo` with "max", and where each maximum stands: as `scatter_max`."""
    return scatter_max(src, index, _last(index), out, dim_size)


def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """`scatter` along the last dimension of `index`, whose leading dimensions are those of `src` or 1.

    reduce: "sum" or "add", "mean", "min" or "max". The rest: as for `scatter`.

    The index need not be sorted here; in the original the result is undefined if it is not. `out` is continued row by
    row (the original's CPU version begins its first group with row 0 of `out`, whichever group that is).

    >>> segment_coo(torch.tensor([[1., 2.], [4., 8.], [16., 32.]]), torch.tensor([0, 0, 2]))
    tensor([[ 5., 10.],
            [ 0.,  0.],
            [16., 32.]])
    """
    if reduce == "mean":
        return segment_mean_coo(src, index, out, dim_size)
    if reduce in ("sum", "add", "min", "max"):
        return scatter(src, index, _last(index), out, dim_size, reduce)
    raise ValueError(f'reduce must be "sum", "add", "mean", "min" or "max", got {reduce!r}')


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """The opposite of `segment_coo`: `out[i] = src[index[i]]` along the last dimension of `index`.

    src, index: as for `segment_coo`; the index need not be sorted. -1 gives zeros. out: is overwritten.

    >>> gather_coo(torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([0, 0, 1]))
    tensor([[1., 2.],
            [1., 2.],
            [3., 4.]])
    """
    index, layout = leading_index("index", src, index)
    picked = layout.unfold(pointgrad.gather(layout.fold(src), index))
    if out is None:
        return picked
    check_out(out, src, len(layout.leading), index.shape[-1])
    return out.copy_(picked)


def _last(index: Any) -> int:
    checks.tensor("index", index)
    checks.shape(index.dim() >= 1, "index", "of at least one dimension", index)
    return int(index.dim()) - 1
