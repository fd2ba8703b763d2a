"""Calls of the C++ kernels of this family."""

import torch
from torch import Tensor

from .. import clouds, native


def space_filling_curve(coordinates: Tensor, sizes: Tensor | None, orders: list[int], bits: int) -> Tensor:
    coordinates = coordinates.long().contiguous()
    codes = native.empty(coordinates, (len(orders), *coordinates.shape[:-1]))
    native.module.space_filling_curve(
        codes=codes,
        coordinates=coordinates,
        orders=torch.tensor(orders),
        curves=len(orders),
        bits=bits,
        **clouds.kernel_arguments(coordinates, sizes),
    )
    return codes


def serialize(coordinates: Tensor, sizes: Tensor | None, orders: list[int], bits: int) -> tuple[Tensor, Tensor, Tensor]:
    codes = space_filling_curve(coordinates, sizes, orders, bits)
    order, inverse = (native.empty(codes, codes.shape) for _ in range(2))
    native.module.serialize(
        order=order,
        inverse=inverse,
        codes=codes,
        curves=len(orders),
        **clouds.kernel_arguments(coordinates, sizes),
    )
    return codes, order, inverse
