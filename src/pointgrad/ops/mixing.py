"""Stateless random numbers: a hash of a seed and of indices, in integer arithmetic, so it is equal on every device.

The C++ version is in `native/mixing.h`. The Triton version is in the family that draws random numbers.
"""

from torch import Tensor

GOLDEN = -7046029254386353131  # 2^64 divided by the golden ratio, as a signed number


def mix(key: Tensor) -> Tensor:
    """The finalizer of splitmix64 (Stafford's variant 13) on two's-complement integers."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        key = (key ^ shift_right(key, shift)) * factor
    return key ^ shift_right(key, 31)


def shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's own right shift of negative numbers is arithmetic."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
