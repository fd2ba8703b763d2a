"""Random numbers without a state: a hash of a seed and of places, in integer arithmetic, so equal on every device.

The C++ kernels have the same in `native/mixing.h`, the Triton kernels in the room that draws.
"""

from torch import Tensor

GOLDEN = -7046029254386353131  # 2^64 / the golden ratio, as a signed number


def mix(key: Tensor) -> Tensor:
    """The finaliser of splitmix64 (Stafford's variant 13) on two's-complement integers."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        key = (key ^ shift_right(key, shift)) * factor
    return key ^ shift_right(key, 31)


def shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical, where torch's own shift of negative numbers is arithmetic."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
