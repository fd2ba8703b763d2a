"""Reductions, gathering, softmax and sorting of values in groups."""

import torch
from torch import Tensor

from ... import torch_scatter


def scatter_sum(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "sum". The sums are added to `out`, if given."""
    result: Tensor = torch.ops.pyg.scatter_sum(src, index, dim, out, dim_size)
    return result


scatter_add = scatter_sum


def scatter_mul(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "mul". `out`, if given, is multiplied by the products."""
    result: Tensor = torch.ops.pyg.scatter_mul(src, index, dim, out, dim_size)
    return result


def scatter_mean(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """`scatter` with "mean"; integer results are rounded down.

    If `out` is given, the sums are added to it, and the result is divided by the counts.
    """
    result: Tensor = torch.ops.pyg.scatter_mean(src, index, dim, out, dim_size)
    return result


def scatter_min(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`scatter` with "min", and the position of each minimum along `dim`.

    Positions are int64: the first of equal values, `src.size(dim)` for an empty group. If `out` is given, only smaller
    values replace its entries and have a position.
    """
    result: tuple[Tensor, Tensor] = torch.ops.pyg.scatter_min(src, index, dim, out, dim_size)
    return result


def scatter_max(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`scatter` with "max", and the position of each maximum along `dim`, as for `scatter_min`."""
    result: tuple[Tensor, Tensor] = torch.ops.pyg.scatter_max(src, index, dim, out, dim_size)
    return result


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduce values with the same index along `dim`. The native function is `pointgrad.scatter`, for rows.

    Args:
        src: Values of any rank and any real dtype.
        index: int64 or int32: a vector along `dim`, or any shape that broadcasts to `src` from the left.
        dim: Dimension to reduce.
        out: Existing result that is updated in place; see `scatter_sum` and the other functions.
        dim_size: Number of groups if `out` is None; by default `index.max() + 1`.
        reduce: "sum" or "add", "mul", "mean", "min" or "max".

    Returns:
        Tensor like `src`, with the number of groups in `dim`. Twice differentiable in `src` (and `out`).

    Example:
        >>> scatter(torch.tensor([[1., 2., 4.], [8., 16., 32.]]), torch.tensor([0, 1, 0]), dim=1)
        tensor([[ 5.,  2.],
                [40., 16.]])
    """
    return torch_scatter.scatter(src, index, dim, out, dim_size, reduce)


def segment_sum_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """`segment_coo` with "sum". The sums are added to `out`, if given."""
    result: Tensor = torch.ops.pyg.segment_sum_coo(src, index, out, dim_size)
    return result


segment_add_coo = segment_sum_coo


def segment_mean_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """`segment_coo` with "mean".

    If `out` is given, the sums are added to it, and the result is divided by the counts.
    """
    result: Tensor = torch.ops.pyg.segment_mean_coo(src, index, out, dim_size)
    return result


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`segment_coo` with "min", and the position of each minimum, as for `scatter_min`."""
    result: tuple[Tensor, Tensor] = torch.ops.pyg.segment_min_coo(src, index, out, dim_size)
    return result


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """`segment_coo` with "max", and the position of each maximum, as for `scatter_min`."""
    result: tuple[Tensor, Tensor] = torch.ops.pyg.segment_max_coo(src, index, out, dim_size)
    return result


def segment_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None, reduce: str = "sum"
) -> Tensor:
    """Reduce values with the same index along the last dimension of `index`.

    Args:
        src: Values of any rank and any real dtype.
        index: int64 or int32; its leading dimensions are those of `src` or 1. It need not be sorted.
        out, dim_size: As for `scatter`.
        reduce: "sum" or "add", "mean", "min" or "max".

    Returns:
        As for `scatter`.

    Example:
        >>> segment_coo(torch.tensor([[1., 2.], [4., 8.], [16., 32.]]), torch.tensor([0, 0, 1]))
        tensor([[ 5., 10.],
                [16., 32.]])
    """
    return torch_scatter.segment_coo(src, index, out, dim_size, reduce)


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """Gather values along the last dimension of `index`: `out[i] = src[index[i]]`.

    Args:
        src: One value per group.
        index: As for `segment_coo`.
        out: Tensor that is overwritten with the result.

    Returns:
        The gathered values, or `out`.
    """
    result: Tensor = torch.ops.pyg.gather_coo(src, index, out)
    return result


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """`segment_csr` with "sum"."""
    result: Tensor = torch.ops.pyg.segment_sum_csr(src, indptr, out)
    return result


segment_add_csr = segment_sum_csr


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """`segment_csr` with "mean"."""
    result: Tensor = torch.ops.pyg.segment_mean_csr(src, indptr, out)
    return result


def segment_min_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`segment_csr` with "min", and the position of each minimum, as for `scatter_min`."""
    result: tuple[Tensor, Tensor] = torch.ops.pyg.segment_min_csr(src, indptr, out)
    return result


def segment_max_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`segment_csr` with "max", and the position of each maximum, as for `scatter_min`."""
    result: tuple[Tensor, Tensor] = torch.ops.pyg.segment_max_csr(src, indptr, out)
    return result


def segment_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """Reduce ranges along the last dimension of `indptr`. The native function is `pointgrad.segment`.

    Args:
        src: Values of any rank and any real dtype.
        indptr: (..., S + 1) non-decreasing pointers; range s is from `indptr[s]` to `indptr[s + 1]`.
        out: Tensor that is overwritten with the result.
        reduce: "sum" or "add", "mean", "min" or "max".

    Returns:
        Tensor like `src`, with one value per range; 0 for an empty range. Twice differentiable in `src`.

    Example:
        >>> segment_csr(torch.tensor([1., 2., 4., 8.]), torch.tensor([0, 3, 3, 4]))
        tensor([7., 0., 8.])
    """
    return torch_scatter.segment_csr(src, indptr, out, reduce)


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Repeat each `src[s]` over `out[indptr[s]:indptr[s + 1]]`, the opposite of `segment_csr`.

    Args:
        src: One value per range.
        indptr: As for `segment_csr`.
        out: Tensor whose ranges are overwritten.

    Returns:
        The repeated values, or `out`.
    """
    result: Tensor = torch.ops.pyg.gather_csr(src, indptr, out)
    return result


def scatter_softmax(src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None) -> Tensor:
    """Compute the softmax over the values along `dim` that have the same index."""
    return torch_scatter.scatter_softmax(src, index, dim, dim_size)


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None, eps: float = 1e-12
) -> Tensor:
    """Compute the logarithm of `scatter_softmax` without underflow. `dim_size` comes before `eps`, as in pyg-lib."""
    return torch_scatter.scatter_log_softmax(src, index, dim, eps, dim_size)


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:
    """Compute the standard deviation of the values along `dim` that have the same index.

    As in torch-scatter, except that integers raise a ValueError.
    """
    if not src.is_floating_point():
        raise ValueError(f"src must have a floating-point dtype for scatter_std, got {src.dtype}")
    return torch_scatter.scatter_std(src, index, dim, out, dim_size, unbiased)


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """Compute `log(sum(exp(src)))` over the values along `dim` that have the same index.

    If `out` is given, finite results replace its entries.
    """
    if out is None:
        return torch_scatter.scatter_logsumexp(src, index, dim, None, dim_size, eps)
    new = torch_scatter.scatter_logsumexp(src, index, dim, torch.full_like(out, -torch.inf), dim_size, eps)
    return out.copy_(torch.where(new.isfinite(), new, out))


def softmax_csr(src: Tensor, ptr: Tensor, dim: int = 0) -> Tensor:
    """Compute the softmax over ranges along `dim`. The native function is `pointgrad.segment_softmax`.

    Args:
        src: Floating-point values of any rank.
        ptr: (S + 1,) bounds of the ranges, from 0 to `src.size(dim)`.
        dim: Dimension of the ranges.

    Returns:
        Tensor like `src`, twice differentiable.

    Example:
        >>> softmax_csr(torch.tensor([0., 0., 7.]), torch.tensor([0, 2, 3]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    result: Tensor = torch.ops.pyg.softmax_csr(src, ptr, dim)
    return result


def index_sort(inputs: Tensor, max_value: int | None = None) -> tuple[Tensor, Tensor]:
    """Sort integers; equal ones keep their order.

    Args:
        inputs: (N,) integers.
        max_value: Ignored.

    Returns:
        The sorted integers, and their positions in `inputs`.
    """
    result: tuple[Tensor, Tensor] = torch.ops.pyg.index_sort(inputs, max_value)
    return result


def sampled_add(
    left: Tensor, right: Tensor, left_index: Tensor | None = None, right_index: Tensor | None = None
) -> Tensor:
    """Compute `left[left_index] + right[right_index]`.

    Args:
        left: (N, C) rows.
        right: (M, C) rows.
        left_index, right_index: (E,) rows to use; all if None.

    Returns:
        (E, C) results. Twice differentiable in `left` and `right`.

    Example:
        >>> sampled_add(torch.tensor([[1.], [2.]]), torch.tensor([[10.]]), torch.tensor([1, 0]), torch.tensor([0, 0]))
        tensor([[12.],
                [11.]])
    """
    result: Tensor = torch.ops.pyg.sampled_op(left, right, left_index, right_index, "add")
    return result


def sampled_sub(
    left: Tensor, right: Tensor, left_index: Tensor | None = None, right_index: Tensor | None = None
) -> Tensor:
    """Compute `left[left_index] - right[right_index]`, as `sampled_add`."""
    result: Tensor = torch.ops.pyg.sampled_op(left, right, left_index, right_index, "sub")
    return result


def sampled_mul(
    left: Tensor, right: Tensor, left_index: Tensor | None = None, right_index: Tensor | None = None
) -> Tensor:
    """Compute `left[left_index] * right[right_index]`, as `sampled_add`."""
    result: Tensor = torch.ops.pyg.sampled_op(left, right, left_index, right_index, "mul")
    return result


def sampled_div(
    left: Tensor, right: Tensor, left_index: Tensor | None = None, right_index: Tensor | None = None
) -> Tensor:
    """Compute `left[left_index] / right[right_index]`, as `sampled_add`."""
    result: Tensor = torch.ops.pyg.sampled_op(left, right, left_index, right_index, "div")
    return result
