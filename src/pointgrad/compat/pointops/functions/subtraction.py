"""`pointops.functions.subtraction`."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._packed import check_rows

__all__ = ["Subtraction", "subtraction"]


def subtraction(input1: Tensor, input2: Tensor, idx: Tensor) -> Tensor:
    """Subtract neighbors from each row: `out[n, k] = input1[n] - input2[idx[n, k]]`.

    Args:
        input1: (N, C) features.
        input2: (M, C) features of the neighbors.
        idx: (N, K) rows of `input2`; -1 subtracts nothing, where the original reads out of bounds.

    Returns:
        (N, K, C) differences, differentiable in both inputs.
    """
    check_rows("input2", input2, idx)
    checks.tensor("input1", input1)
    fits = input1.shape == (idx.shape[0], input2.shape[1])
    checks.shape(fits, "input1", lambda: f"(N, C) = ({idx.shape[0]}, {input2.shape[1]})", input1)
    return input1.unsqueeze(1) - pointgrad.group(input2, idx)


class Subtraction:
    apply = staticmethod(subtraction)
