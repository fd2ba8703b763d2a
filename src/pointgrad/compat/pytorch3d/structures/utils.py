"""Conversion between lists of tensors, padded tensors and packed tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["list_to_packed", "list_to_padded", "packed_to_list", "padded_to_list", "padded_to_packed"]


def list_to_padded(
    x: Sequence[Tensor], pad_size: Sequence[int] | None = None, pad_value: float = 0.0, equisized: bool = False
) -> Tensor:
    """Stack tensors of different sizes, filled up to the same size.

    Args:
        x: N tensors with the same number of dimensions. Empty tensors of shape (0,) are allowed.
        pad_size: Size of each filled tensor; by default the largest size along each dimension.
        pad_value: Value of the filling.
        equisized: Whether all tensors have the same size, so that they need only be stacked.

    Returns:
        (N, *pad_size), differentiable in the tensors.

    Example:
        >>> list_to_padded([torch.tensor([1., 2.]), torch.tensor([3.])])
        tensor([[1., 2.],
                [3., 0.]])
    """
    if not all(isinstance(item, Tensor) for item in x):
        raise ValueError("x must be a list of tensors, got other objects")
    if not x:
        raise ValueError("x must be a list of at least one tensor, got an empty list")
    if equisized:
        return torch.stack(tuple(x))
    rank = max(item.dim() for item in x)
    filled = [item for item in x if item.numel() > 0 or (item.dim() == rank and rank != 1)]
    if any(item.dim() != rank for item in filled) or any(item.dim() not in (1, rank) for item in x):
        raise ValueError(f"x must be tensors with the same number of dimensions, got {[item.dim() for item in x]}")
    size = list(pad_size) if pad_size is not None else _largest(filled, rank)
    if len(size) != rank:
        raise ValueError(f"Pad size must contain a number for each of {rank} dimensions, got {tuple(size)}")
    if any(extent > limit for item in filled for extent, limit in zip(item.shape, size, strict=True)):
        raise ValueError(f"Pad size must be at least the size of each tensor, got {tuple(size)}")
    padded = []
    for item in x:
        if item.dim() != rank:
            item = item.new_zeros([0] * rank)
        margins = [margin for extent, limit in zip(item.shape, size, strict=True) for margin in (limit - extent, 0)]
        padded.append(torch.nn.functional.pad(item, margins[::-1], value=pad_value))
    return torch.stack(padded)


def padded_to_list(x: Tensor, split_size: Sequence[int] | Sequence[Sequence[int]] | None = None) -> list[Tensor]:
    """Split a padded tensor into views without the filling.

    Args:
        x: (N, ...).
        split_size: For each tensor its size, or its size along the first dimension. None keeps the filling.

    Returns:
        N tensors.

    Example:
        >>> padded_to_list(torch.tensor([[1., 2.], [3., 0.]]), [2, 1])
        [tensor([1., 2.]), tensor([3.])]
    """
    items = list(x.unbind(0))
    if split_size is None:
        return items
    _check_count(x, split_size)
    sizes: list[Any] = [[size] if isinstance(size, int) else size for size in split_size]
    return [item[tuple(slice(extent) for extent in size)] for item, size in zip(items, sizes, strict=True)]


def list_to_packed(x: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Concatenate tensors along the first dimension.

    Args:
        x: N tensors (M_i, ...).

    Returns:
        The rows (sum(M_i), ...); the number of rows M_i of each tensor (N,); the first row of each tensor (N,); and the
        tensor of each row (sum(M_i),).

    Example:
        >>> list_to_packed([torch.tensor([1., 2.]), torch.tensor([3.])])
        (tensor([1., 2., 3.]), tensor([2, 1]), tensor([0, 2]), tensor([0, 0, 1]))
    """
    if not x:
        raise ValueError("x must be a list of at least one tensor, got an empty list")
    return (torch.cat(x), *packed_index([item.shape[0] for item in x], x[0].device))


def packed_index(sizes: list[int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes (N,), first rows (N,), and the number of the tensor of each row, all int64."""
    count = torch.tensor(sizes, dtype=torch.int64, device=device)
    number = torch.arange(len(sizes), device=device)
    return count, count.cumsum(0) - count, number.repeat_interleave(count, output_size=sum(sizes))


def packed_to_list(x: Tensor, split_size: list[int] | int) -> tuple[Tensor, ...]:
    """Split rows into views.

    Args:
        x: (M, ...).
        split_size: Number of rows of each tensor, or of all tensors.

    Returns:
        The tensors.

    Example:
        >>> packed_to_list(torch.tensor([1., 2., 3.]), [2, 1])
        (tensor([1., 2.]), tensor([3.]))
    """
    return x.split(split_size)


def padded_to_packed(
    x: Tensor, split_size: Sequence[int] | None = None, pad_value: float | int | None = None
) -> Tensor:
    """Concatenate the rows of a padded tensor, without the filling.

    Args:
        x: (N, M, K).
        split_size: Number of rows of each of the N tensors.
        pad_value: Alternatively, drop rows that contain only this value.

    Returns:
        (sum(split_size), K), or (N * M, K) if neither is given.

    Example:
        >>> padded_to_packed(torch.tensor([[[1.], [2.]], [[3.], [0.]]]), [2, 1]).tolist()
        [[1.0], [2.0], [3.0]]
    """
    if x.dim() != 3:
        raise ValueError(f"Supports only x of shape (N, M, K), got {tuple(x.shape)}")
    if split_size is not None and pad_value is not None:
        raise ValueError("Only one of split_size and pad_value can be given, got both")
    rows = x.reshape(-1, x.shape[2])
    if pad_value is not None:
        return rows[(rows != pad_value).any(1)]
    if split_size is None:
        return rows
    _check_count(x, split_size)
    if not all(isinstance(size, int) for size in split_size):
        raise ValueError(f"split_size must be a 1-dimensional list of ints, got {split_size}")
    return torch.cat(padded_to_list(x, split_size)) if split_size else rows


def _largest(items: list[Tensor], rank: int) -> list[int]:
    """Largest size along each dimension."""
    return [max((item.shape[dim] for item in items), default=0) for dim in range(rank)]


def _check_count(x: Tensor, split_size: Sequence[Any]) -> None:
    if len(split_size) != x.shape[0]:
        contract = f"of the same length as inputs first dimension, N = {x.shape[0]}"
        raise ValueError(f"split_size must be {contract}, got {len(split_size)}")
