"""Conversion between packed and padded layouts."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of

__all__ = ["packed_to_padded", "padded_to_packed"]


def packed_to_padded(inputs: Tensor, first_idxs: Tensor, max_size: int) -> Tensor:
    """Convert packed clouds to padded clouds, filled with zeros.

    Rows of a cloud beyond `max_size` are dropped; the original writes them out of bounds.

    Args:
        inputs: (F,) or (F, ...) rows of any dtype.
        first_idxs: (N,) first row of each cloud, ascending. The last cloud ends at F.
        max_size: Number of rows of each padded cloud.

    Returns:
        (N, max_size) or (N, max_size, ...), differentiable in `inputs`.

    Example:
        >>> packed_to_padded(torch.tensor([1., 2., 3.]), torch.tensor([0, 1]), 2)
        tensor([[1., 0.],
                [2., 3.]])
    """
    checks.tensor("inputs", inputs)
    checks.shape(inputs.dim() >= 1, "inputs", "(F,) or (F, ...)", inputs)
    _check_first(first_idxs, inputs)
    max_size = count_of("max_size", max_size, 0)
    first = first_idxs.long()
    end = torch.cat([first[1:], first.new_full((min(1, first.shape[0]),), inputs.shape[0])])
    row = first.unsqueeze(1) + torch.arange(max_size, device=inputs.device)
    row = torch.where(row < end.unsqueeze(1), row, -1)
    rows = inputs.reshape(inputs.shape[0], inputs.shape[1:].numel())
    return pointgrad.group(rows, row).view(*row.shape, *inputs.shape[1:])


def padded_to_packed(inputs: Tensor, first_idxs: Tensor, num_inputs: int, max_size_dim: int = 1) -> Tensor:
    """Convert padded clouds to packed clouds: the inverse of `packed_to_padded`.

    Args:
        inputs: (N, ..., max_size, ...) rows of any dtype.
        first_idxs: (N,) first row of each cloud in the result, ascending.
        num_inputs: Number of rows F of the result, where the last cloud ends.
        max_size_dim: Dimension of `inputs` that has size max_size.

    Returns:
        (F,) or (F, ...), differentiable in `inputs`. Rows of a cloud beyond max_size are 0.

    Example:
        >>> padded_to_packed(torch.tensor([[1., 0.], [2., 3.]]), torch.tensor([0, 1]), 3)
        tensor([1., 2., 3.])
    """
    checks.tensor("inputs", inputs)
    checks.shape(inputs.dim() >= 2, "inputs", "(N, max_size) or (N, ..., max_size, ...)", inputs)
    _check_first(first_idxs, inputs)
    fits = first_idxs.shape[0] == inputs.shape[0]
    checks.shape(fits, "first_idxs", lambda: f"(N,) = ({inputs.shape[0]},)", first_idxs)
    num_inputs = count_of("num_inputs", num_inputs, 0)
    checks.dim("max_size_dim", max_size_dim, inputs.dim())
    inputs = inputs.movedim(max_size_dim, 1)
    batch, size, *rest = inputs.shape
    first = first_idxs.long().contiguous()
    row = torch.arange(num_inputs, device=inputs.device)
    if batch == 0 or size == 0:
        return inputs.new_zeros(num_inputs, *rest)
    cloud = torch.searchsorted(first, row, right=True) - 1
    position = row - first[cloud.clamp(min=0)]
    row = torch.where((cloud >= 0) & (position < size), cloud * size + position, -1)
    rows = inputs.reshape(batch * size, inputs.shape[2:].numel())
    return pointgrad.gather(rows, row).view(num_inputs, *rest)


def _check_first(first_idxs: Tensor, inputs: Tensor) -> None:
    checks.tensor("first_idxs", first_idxs)
    checks.shape(first_idxs.dim() == 1, "first_idxs", "(N,)", first_idxs)
    checks.dtype("first_idxs", first_idxs, checks.INDICES)
    checks.device("first_idxs", first_idxs, "inputs", inputs)
