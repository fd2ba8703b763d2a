"""Several reductions in one call."""

import torch
from torch import Tensor

from pointgrad.ops import checks

from ... import torch_scatter

__all__ = ["fused_scatter_reduce"]

_REDUCTIONS = ("sum", "mean", "min", "max")


def fused_scatter_reduce(inputs: Tensor, index: Tensor, dim_size: int, reduce_list: list[str]) -> Tensor:
    """Reduce rows with the same index in several ways.

    On every device and with gradients (the original: CUDA only, without gradients).

    Args:
        inputs: (N, C) floating-point rows.
        index: (N,) group of each row.
        dim_size: Number of groups.
        reduce_list: "sum", "mean", "min" or "max", one to four of them.

    Returns:
        (dim_size, len(reduce_list) * C) reductions side by side; 0 for an empty group.

    Example:
        >>> fused_scatter_reduce(torch.tensor([[1.], [3.], [5.]]), torch.tensor([0, 0, 1]), 2, ["sum", "max"])
        tensor([[4., 3.],
                [5., 5.]])
    """
    checks.tensor("inputs", inputs)
    checks.shape(inputs.dim() == 2, "inputs", "(N, C)", inputs)
    checks.dtype("inputs", inputs, checks.FLOATS)
    fits = 1 <= len(reduce_list) <= len(_REDUCTIONS) and all(reduce in _REDUCTIONS for reduce in reduce_list)
    checks.value(fits, "reduce_list", 'one to four of "sum", "mean", "min" and "max"', reduce_list)
    parts = [torch_scatter.scatter(inputs, index, 0, dim_size=dim_size, reduce=reduce) for reduce in reduce_list]
    return torch.cat(parts, dim=1)
