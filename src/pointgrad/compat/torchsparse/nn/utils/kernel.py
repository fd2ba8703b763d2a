"""Positions of a kernel."""

import itertools

import torch
from torch import Tensor

from ...utils import make_ntuple

__all__ = ["get_kernel_offsets"]


def get_kernel_offsets(
    size: int | tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    dilation: int | tuple[int, ...] = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """List the distance of each kernel position from the output: (K, 3) int32.

    Distances along an axis of size k start at -((k - 1) // 2). If K is odd, x is the fastest axis, else z is. The
    matrices of a weight (K, C, D) have this order.
    """
    sizes, strides, dilations = (make_ntuple(value, 3) for value in (size, stride, dilation))
    x, y, z = (
        [(place - (count - 1) // 2) * step * spread for place in range(count)]
        for count, step, spread in zip(sizes, strides, dilations, strict=True)
    )
    if sizes[0] * sizes[1] * sizes[2] % 2 == 1:
        offsets = [(i, j, k) for k, j, i in itertools.product(z, y, x)]
    else:
        offsets = list(itertools.product(x, y, z))
    return torch.tensor(offsets, dtype=torch.int, device=device)
