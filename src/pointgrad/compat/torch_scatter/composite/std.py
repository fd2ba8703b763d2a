"""The deviation within groups."""

import torch
from torch import Tensor

import pointgrad

from .._rows import by_index, group_count


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:
    """The standard deviation of the values along `dim` that have the same index; 0 for one value or none.

    src: any rank; integers are computed in the default dtype. index, dim_size: as for `scatter`.
    out: earlier sums of squared deviations; those of `src` are added into it, as in the original. The result is a new
        tensor.
    unbiased: divide by n - 1 instead of n (plus 1e-6, as in the original).

    The gradient of a deviation of 0 is 0 (NaN in the original). Gradients reach `src`, twice.

    >>> scatter_std(torch.tensor([1., 3., 5.]), torch.tensor([0, 0, 1]), unbiased=False)
    tensor([1.0000, 0.0000])
    """
    rows, group, layout = by_index(src, index, dim)
    size = group_count(src, dim, out, dim_size)
    wide = torch.promote_types(src.dtype if src.is_floating_point() else torch.get_default_dtype(), torch.float32)
    rows = rows.to(wide)
    mean = pointgrad.scatter(rows, group, size, "mean")
    deviation = rows - pointgrad.gather(mean, group)
    total = pointgrad.scatter(deviation * deviation, group, mean.shape[-2])
    count = pointgrad.histogram(group, mean.shape[-2]).clamp(min=1).unsqueeze(-1)
    if unbiased:
        count = (count - 1).clamp(min=1)
    total, divisor = layout.unfold(total), layout.unfold((count + 1e-6).to(wide).expand_as(total))
    if out is not None:
        total = out.add_(total.to(out.dtype))
    variance = total / divisor
    flat = variance <= 0  # the slope of the root is infinite there
    root = variance.masked_fill(flat, 1).sqrt().masked_fill(flat, 0)
    return root.to(src.dtype if src.is_floating_point() else wide)
