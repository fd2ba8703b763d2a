"""The logarithm of sums of exponentials."""

import torch
from torch import Tensor

import pointgrad

from ._shifted import shifted


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """`log(sum(exp(src)))` over the values along `dim` that have the same index; 0 in an empty group.

    src: floating, any rank. index, dim_size: as for `scatter`.
    out: earlier results of the same kind, continued in place. A group that gets nothing keeps its value (in the
        original it becomes 0).
    eps: added to the sum after the largest value was taken out of it, as in the original.

    Infinities and NaN are as in `torch.logsumexp`: a group of -inf gives -inf (in the original 0). Gradients reach
    `src` (and `out`), twice.

    >>> scatter_logsumexp(torch.tensor([0., 0., 7.]), torch.tensor([2, 2, 0]))
    tensor([7.0000, 0.0000, 0.6931])
    """
    values, highest, arg, group, layout = shifted("scatter_logsumexp", src, index, dim, out, dim_size)
    total = (pointgrad.scatter(values.exp(), group, highest.shape[-2]) + eps).log() + highest
    total = torch.where(highest.isinf(), highest, total)
    empty = 0.0 if out is None else -torch.inf
    total = layout.unfold(total.masked_fill(arg < 0, empty))
    return total.to(src.dtype) if out is None else out.copy_(torch.logaddexp(out.to(total.dtype), total))
