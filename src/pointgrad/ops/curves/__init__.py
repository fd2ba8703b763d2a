"""Space-filling curves: an order of voxels in which neighbors in the order are neighbors in space."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

from .. import checks, clouds
from . import register
from .reference import CURVES, MOST_BITS

__all__ = ["Serialization", "serialize", "space_filling_curve"]

Curve = Literal["z", "z-trans", "hilbert", "hilbert-trans"]
_NAMES = '"z", "z-trans", "hilbert" or "hilbert-trans"'


class Serialization(NamedTuple):
    """The rows of packed coordinates (N, 3) or padded coordinates (B, N, 3) along K curves.

    Attributes:
        codes: (K, N) or (K, B, N) int64, the code of each row, see `space_filling_curve`.
        order: (K, N) or (K, B, N) int64, the rows in the order of their codes. Packed: counted through all clouds, so
            that the places `offsets[b]:offsets[b + 1]` hold the rows of cloud b. Padded: counted within each cloud.
        inverse: (K, N) or (K, B, N) int64, the place of each row in the order: `inverse[k, order[k, i]] = i`.

    Padded: all three are -1 beyond the length of a cloud.
    """

    codes: Tensor
    order: Tensor
    inverse: Tensor


def space_filling_curve(
    coordinates: Tensor,
    order: Curve = "z",
    *,
    bits: int = 16,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Compute the place of voxels along a z-order or Hilbert curve.

    The code of a voxel in cloud b is `b << 3 * bits | place`. The codes are those of Point Transformer V3 for its
    `depth = bits`.

    Args:
        coordinates: (N, 3) packed, or (B, N, 3) padded. int64 or int32, from 0 to 2**bits - 1. On a CPU other values
            raise an error; on a GPU they are clamped, because a check would synchronize it. Subtract the smallest
            coordinate of each axis first if there are negative ones.
        order: "z" or "hilbert"; with "-trans", x and y are swapped.
        bits: Number of bits of each axis, from 1 to 21. The number of the cloud takes the bits above, and the code
            has 63: there can be 2**(63 - 3 * bits) clouds, which is 32,768 for 16 bits, 8 for 20 and 1 for 21.
            A Hilbert curve depends on it: the first axis of the curve changes with every bit.
        offsets: (B + 1,), packed only: cloud b is `coordinates[offsets[b]:offsets[b + 1]]`. By default one cloud.
        lengths: (B,), padded only: cloud b is `coordinates[b, :lengths[b]]`. By default all N rows.

    Returns:
        (N,) or (B, N) int64 codes; -1 beyond the length of a padded cloud.

    There is no gradient: inputs and results are integers.

    Example:
        >>> space_filling_curve(torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]), "z")
        tensor([0, 1, 2, 4])
    """
    checks.kind(isinstance(order, str), "order", _NAMES, order)
    _check_bits(coordinates, bits, offsets, lengths)
    checks.value(order in CURVES, "order", _NAMES, repr(order))
    sizes = clouds.as_sizes(offsets, lengths)
    codes: Tensor = register.space_filling_curve(coordinates, sizes, [CURVES.index(order)], int(bits))
    return codes.squeeze(0)


def serialize(
    coordinates: Tensor,
    orders: Sequence[Curve] = CURVES,  # type: ignore[assignment]
    *,
    bits: int = 16,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
) -> Serialization:
    """Sort voxels along one or several space-filling curves.

    Args:
        coordinates: (N, 3) packed, or (B, N, 3) padded, as for `space_filling_curve`.
        orders: Names of K different curves, see `space_filling_curve`.
        bits: Number of bits of each axis. On a GPU the sort is faster if `3 * bits` and the bits of the cloud's
            number are at most 31 together: `bits=10` for 2 clouds.
        offsets: (B + 1,), packed only: cloud b is `coordinates[offsets[b]:offsets[b + 1]]`. By default one cloud.
        lengths: (B,), padded only: cloud b is `coordinates[b, :lengths[b]]`. By default all N rows.

    Returns:
        `Serialization`. Clouds stay one after another; rows of equal voxels are sorted by index. A GPU is not
        synchronized.

    There is no gradient: inputs and results are integers. `gather` along `order` has one for features.

    Example:
        >>> found = serialize(torch.tensor([[1, 0, 0], [0, 0, 1], [0, 1, 0]]), ["z", "z-trans"])
        >>> found.order
        tensor([[1, 2, 0],
                [1, 0, 2]])
        >>> found.inverse
        tensor([[2, 0, 1],
                [1, 0, 2]])
    """
    is_list = isinstance(orders, Sequence) and not isinstance(orders, (str, bytes))
    checks.kind(is_list and all(isinstance(order, str) for order in orders), "orders", "a list of names", orders)
    _check_bits(coordinates, bits, offsets, lengths)
    for order in orders:
        checks.value(order in CURVES, "orders", _NAMES, repr(order))
    different = 0 < len(orders) == len(set(orders))
    checks.value(different, "orders", "one or more different names", list(orders), verb="have")
    numbers = [CURVES.index(order) for order in orders]
    return Serialization(*register.serialize(coordinates, clouds.as_sizes(offsets, lengths), numbers, int(bits)))


def _check_bits(coordinates: Any, bits: Any, offsets: Any, lengths: Any) -> None:
    checks.kind(checks.is_integer(bits), "bits", "an int", bits)
    checks.clouds(coordinates, offsets, lengths, name="coordinates", dtypes=checks.INDICES)
    checks.value(1 <= bits <= MOST_BITS, "bits", f"in [1, {MOST_BITS}]", bits)
    batch = clouds.batch_size(coordinates, offsets)

    def contract() -> str:
        most = (63 - (batch - 1).bit_length()) // 3
        return f"at most {most} for B = {batch} clouds, so that codes have 63 bits"

    checks.value(batch <= register.most_clouds(bits), "bits", contract, bits)
