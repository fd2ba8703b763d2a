"""`pointops.functions.subtraction`."""

from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._packed import check_rows

__all__ = ["Subtraction", "subtraction"]


def subtraction(input1: Tensor, input2: Tensor, idx: Tensor) -> Tensor:
    """Each row minus its neighbours: `out[n, k] = input1[n] - input2[idx[n, k]]`.

    input1: (N, C). input2: (M, C). idx: (N, K); where it is -1, nothing is subtracted, and the original reads outside
    its memory. returns: (N, K, C), gradients to both inputs.
    """
    check_rows("input2", input2, idx)
    checks.tensor("input1", input1)
    fits = input1.shape == (idx.shape[0], input2.shape[1])
    checks.shape(fits, "input1", lambda: f"(N, C) = ({idx.shape[0]}, {input2.shape[1]})", input1)
    return input1.unsqueeze(1) - pointgrad.group(input2, idx)


class Subtraction:
    apply = staticmethod(subtraction)
