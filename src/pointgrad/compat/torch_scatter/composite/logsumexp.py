"""Log-sum-exp of groups."""

import torch
from torch import Tensor

from ..._torchscript import operator
from ._shifted import shifted


@operator
def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """Compute `log(sum(exp(src)))` over the values along `dim` that have the same index.

    Infinities and NaN are handled as in `torch.logsumexp`: a group of -inf gives -inf (0 in the original).

    Args:
        src: Floating-point values of any rank.
        index, dim, dim_size: As for `scatter`.
        out: Existing result that is updated in place. An empty group keeps its value (it becomes 0 in the original).
        eps: Added to the sum of shifted exponentials, as in the original.

    Returns:
        One value per group, 0 for an empty group. Twice differentiable in `src` (and `out`).

    Example:
        >>> scatter_logsumexp(torch.tensor([0., 0., 7.]), torch.tensor([2, 2, 0]))
        tensor([7.0000, 0.0000, 0.6931])
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter_logsumexp(src, index, dim, out, dim_size, eps)
    return _logsumexp(src, index, dim, out, dim_size, eps)


def _logsumexp(src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, eps: float) -> Tensor:
    values, highest, arg, groups = shifted("scatter_logsumexp", src, index, dim, out, dim_size)
    total = (groups.sum(values.exp()) + eps).log() + highest
    total = torch.where(highest.isinf(), highest, total)
    empty = 0.0 if out is None else -torch.inf
    total = groups.layout.unfold(total.masked_fill(arg < 0, empty))
    return total.to(src.dtype) if out is None else out.copy_(torch.logaddexp(out.to(total.dtype), total))
