"""Matrix products of groups of rows, and B-spline kernels."""

import torch
from torch import Tensor


def grouped_matmul(inputs: list[Tensor], others: list[Tensor], biases: list[Tensor] | None = None) -> list[Tensor]:
    """Multiply pairs of matrices.

    Args:
        inputs: Matrices (N_i, K_i).
        others: Matrices (K_i, M_i).
        biases: Vectors (M_i,) to add.

    Returns:
        Matrices (N_i, M_i).

    Example:
        >>> outs = grouped_matmul([torch.ones(5, 2), torch.ones(3, 4)], [torch.ones(2, 6), torch.ones(4, 1)])
        >>> [tuple(out.shape) for out in outs]
        [(5, 6), (3, 1)]
    """
    outs: list[Tensor] = torch.ops.pyg.grouped_matmul(inputs, others)
    if biases is not None:
        outs = [outs[i] + biases[i] for i in range(len(outs))]
    return outs


def segment_matmul(inputs: Tensor, ptr: Tensor, other: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply segments of rows by one matrix each.

    Args:
        inputs: (N, K) rows.
        ptr: (B + 1,) bounds of the segments, from 0 to N. Read on the host.
        other: (B, K, M) one matrix per segment.
        bias: (B, M) one vector per segment to add.

    Returns:
        (N, M) rows. Twice differentiable.

    Example:
        >>> segment_matmul(torch.ones(3, 1), torch.tensor([0, 1, 3]), torch.tensor([[[5.]], [[7.]]]))
        tensor([[5.],
                [7.],
                [7.]])
    """
    result: Tensor = torch.ops.pyg.segment_matmul(inputs, ptr, other)
    if bias is not None:
        sizes = ptr.to(bias.device).diff()
        result = result + bias.repeat_interleave(sizes, 0, output_size=inputs.size(0))
    return result


def spline_basis(pseudo: Tensor, kernel_size: Tensor, is_open_spline: Tensor, degree: int = 1) -> tuple[Tensor, Tensor]:
    """Compute products of uniform B-splines at pseudo-coordinates in [0, 1].

    Args:
        pseudo: (E, D) pseudo-coordinates.
        kernel_size: (D,) int64 number of knots along each axis.
        is_open_spline: (D,) uint8, 1 for an open and 0 for a periodic axis.
        degree: 1, 2 or 3.

    Returns:
        (E, S) values and (E, S) kernel weights that they belong to, where S = (degree + 1)**D.
    """
    result: tuple[Tensor, Tensor] = torch.ops.pyg.spline_basis(pseudo, kernel_size, is_open_spline, degree)
    return result


def spline_weighting(x: Tensor, weight: Tensor, basis: Tensor, weight_index: Tensor) -> Tensor:
    """Multiply each row by the matrices of its kernel weights, and add the products with the values of the basis.

    Args:
        x: (E, M_in) rows.
        weight: (K, M_in, M_out) matrices.
        basis, weight_index: (E, S) results of `spline_basis`.

    Returns:
        (E, M_out) sums.
    """
    result: Tensor = torch.ops.pyg.spline_weighting(x, weight, basis, weight_index)
    return result
