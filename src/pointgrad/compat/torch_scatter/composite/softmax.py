"""Softmax of groups."""

import torch
from torch import Tensor

from ..._torchscript import operator
from ._shifted import shifted


@operator
def scatter_softmax(src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None) -> Tensor:
    """Compute the softmax over the values along `dim` that have the same index.

    16-bit values are computed in float32. The native function for sorted groups is `pointgrad.segment_softmax`.

    Args:
        src: Floating-point values of any rank.
        index, dim, dim_size: As for `scatter`.

    Returns:
        Tensor like `src`, twice differentiable. A value of -inf gives 0, also in a group of only -inf (NaN in the
        original).

    Example:
        >>> scatter_softmax(torch.tensor([0., 0., 7.]), torch.tensor([1, 1, 0]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter_softmax(src, index, dim, dim_size)
    return _softmax(src, index, dim, dim_size)


@operator
def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: int | None = None
) -> Tensor:
    """Compute the logarithm of `scatter_softmax` without underflow.

    Args:
        src, index, dim, dim_size: As for `scatter_softmax`.
        eps: Added to the sum of exponentials, which is at least 1, as in the original.

    Returns:
        Tensor like `src`, twice differentiable.

    Example:
        >>> scatter_log_softmax(torch.tensor([0., 0., 7.]), torch.tensor([1, 1, 0]))
        tensor([-0.6931, -0.6931,  0.0000])
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.scatter_log_softmax(src, index, dim, eps, dim_size)
    return _log_softmax(src, index, dim, eps, dim_size)


def _softmax(src: Tensor, index: Tensor, dim: int, dim_size: int | None) -> Tensor:
    values, _, _, groups = shifted("scatter_softmax", src, index, dim, None, dim_size)
    power = values.exp_()
    total = groups.sum(power)
    empty = total == 0  # no value, or only -inf
    scale = total.masked_fill(empty, 1).reciprocal().masked_fill(empty, 0)
    return groups.layout.unfold(power * groups.spread(scale)).to(src.dtype)


def _log_softmax(src: Tensor, index: Tensor, dim: int, eps: float, dim_size: int | None) -> Tensor:
    values, _, _, groups = shifted("scatter_log_softmax", src, index, dim, None, dim_size)
    total = groups.sum(values.exp())
    return groups.layout.unfold(values - groups.spread((total + eps).log())).to(src.dtype)
