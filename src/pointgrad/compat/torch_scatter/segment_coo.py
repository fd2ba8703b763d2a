"""Reductions by a sorted index along its last dimension."""

from typing import Any

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._rows import check_out, leading_index
from .scatter import mean, scatter, scatter_max, scatter_min, scatter_sum


def segment_sum_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """`segment_coo` with "sum". The sums are added to `out`, if given."""
    return scatter_sum(src, index, _last(index), out, dim_size)


def segment_add_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Alias of `segment_sum_coo`."""
    return segment_sum_coo(src, index, out, dim_size)


def segment_mean_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """`segment_coo` with "mean"; integer results are rounded towards 0, as in the original's CPU version.

    If `out` is given, the sums are added to it, and the result is divided by the counts.
    """
    return mean(src, index, _last(index), out, dim_size, "trunc")


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`segment_coo` with "min", and the position of each minimum, as for `scatter_min`."""
    return scatter_min(src, index, _last(index), out, dim_size)


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`segment_coo` with "max", and the position of each maximum, as for `scatter_max`."""
    return scatter_max(src, index, _last(index), out, dim_size)


def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduce values with the same index along the last dimension of `index`.

    The index need not be sorted; in the original the result is then undefined. Each group updates its own row of `out`
    (in the original's CPU version the first group starts with row 0 of `out`, whatever its number).

    Args:
        src: Values of any rank and any real dtype.
        index: int64 or int32; its leading dimensions are those of `src` or 1.
        out, dim_size: As for `scatter`.
        reduce: "sum" or "add", "mean", "min" or "max".

    Returns:
        As for `scatter`.

    Example:
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
    """Gather values along the last dimension of `index`: `out[i] = src[index[i]]`, the opposite of `segment_coo`.

    Args:
        src: One value per group.
        index: As for `segment_coo`; need not be sorted. -1 gives zeros.
        out: Tensor that is overwritten with the result.

    Returns:
        The gathered values, or `out`.

    Example:
        >>> gather_coo(torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([0, 0, 1]))
        tensor([[1., 2.],
                [1., 2.],
                [3., 4.]])
    """
    index, layout = leading_index("index", src, index)
    gathered = layout.unfold(pointgrad.gather(layout.fold(src), index))
    if out is None:
        return gathered
    check_out(out, src, len(layout.leading), index.shape[-1])
    return out.copy_(gathered)


def _last(index: Any) -> int:
    checks.tensor("index", index)
    checks.shape(index.dim() >= 1, "index", "a tensor of at least one dimension", index)
    return int(index.dim()) - 1
