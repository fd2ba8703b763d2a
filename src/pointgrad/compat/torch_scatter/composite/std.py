"""Standard deviation of groups."""

import torch
from torch import Tensor

from pointgrad.ops.sums import sum_dtype

from ..._torchscript import operator
from ._groups import grouped


@operator
def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:
    """Compute the standard deviation of the values along `dim` that have the same index.

    Args:
        src: Values of any rank; integers are computed in the default dtype.
        index, dim, dim_size: As for `scatter`.
        out: Existing sums of squared deviations, to which those of `src` are added, as in the original.
        unbiased: Divide by n - 1 instead of n (plus 1e-6, as in the original).

    Returns:
        A new tensor with one value per group, 0 for groups of at most one value. Twice differentiable in `src`; the
        gradient of a deviation of 0 is 0 (NaN in the original).

    Example:
        >>> scatter_std(torch.tensor([1., 3., 5.]), torch.tensor([0, 0, 1]), unbiased=False)
        tensor([1.0000, 0.0000])
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter_std(src, index, dim, out, dim_size, unbiased)
    return _std(src, index, dim, out, dim_size, unbiased)


def _std(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, unbiased: bool) -> Tensor:
    rows, groups = grouped(src, index, dim, out, dim_size)
    wide = sum_dtype(src.dtype if src.is_floating_point() else torch.get_default_dtype())
    rows = rows.to(wide)
    total = groups.sum(rows)
    count = groups.counts()
    deviation = rows - groups.spread(total / count)
    total = groups.sum(deviation * deviation)
    if unbiased:
        count = (count - 1).clamp(min=1)
    layout = groups.layout
    total, divisor = layout.unfold(total), layout.unfold((count.to(wide) + 1e-6).expand_as(total))
    if out is not None:
        total = out.add_(total.to(out.dtype))
    variance = total / divisor
    zero = variance <= 0  # the derivative of the root is infinite there
    root = variance.masked_fill(zero, 1).sqrt().masked_fill(zero, 0)
    return root.to(src.dtype if src.is_floating_point() else wide)
