"""Softmax within groups."""

from torch import Tensor

import pointgrad

from ._shifted import shifted


def scatter_softmax(src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None) -> Tensor:
    """Softmax over the values along `dim` that have the same index.

    src: floating, any rank. index, dim_size: as for `scatter`; a GPU waits for the number of groups if it is not given.
    returns: as `src`. A value of -inf gives 0; a group of nothing else is all 0 (NaN in the original).

    16-bit values are computed in float32. Gradients reach `src`, twice. Natively, for sorted groups:
    `pointgrad.segment_softmax`.

    >>> scatter_softmax(torch.tensor([0., 0., 7.]), torch.tensor([1, 1, 0]))
    tensor([0.5000, 0.5000, 1.0000])
    """
    values, highest, _, group, layout = shifted("scatter_softmax", src, index, dim, None, dim_size)
    power = values.exp_()
    total = pointgrad.scatter(power, group, highest.shape[-2])
    nothing = total == 0  # or nothing but -inf
    scale = total.masked_fill(nothing, 1).reciprocal().masked_fill(nothing, 0)
    return layout.unfold(power * pointgrad.gather(scale, group)).to(src.dtype)


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: int | None = None
) -> Tensor:
    """The logarithm of `scatter_softmax`, computed without rounding a small share to 0.

    eps: added to the sum of exponentials (which is at least 1), as in the original.

    >>> scatter_log_softmax(torch.tensor([0., 0., 7.]), torch.tensor([1, 1, 0]))
    tensor([-0.6931, -0.6931,  0.0000])
    """
    values, highest, _, group, layout = shifted("scatter_log_softmax", src, index, dim, None, dim_size)
    total = pointgrad.scatter(values.exp(), group, highest.shape[-2])
    return layout.unfold(values - pointgrad.gather((total + eps).log(), group)).to(src.dtype)
