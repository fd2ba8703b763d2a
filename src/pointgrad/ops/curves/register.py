"""Registration of this family's operators: fake outputs and value checks. Integers have no gradient."""

import torch
from torch import Tensor

from .. import checks, clouds, native
from ..registry import operator
from . import reference

_CONTRACT = (
    "int64 or int32 coordinates (N, 3) with int64 offsets (B + 1,) or None, or (B, N, 3) with int64 lengths (B,) or "
    "None, different orders from 0 to 3, and bits from 1 to 21 with B at most 2^(63 - 3 bits)"
)


def _fits(coordinates: Tensor, sizes: Tensor | None, orders: list[int], bits: int) -> bool:
    if coordinates.dtype not in checks.INDICES or not clouds.layout_fits(coordinates, sizes):
        return False
    if coordinates.shape[-1] != 3 or not 1 <= bits <= reference.MOST_BITS:
        return False
    known = 0 < len(orders) == len(set(orders)) and min(orders) >= 0 and max(orders) < len(reference.CURVES)
    return known and clouds.batch_size(coordinates, sizes) <= most_clouds(bits)


def _check(coordinates: Tensor, sizes: Tensor | None, bits: int) -> None:
    clouds.check_values(coordinates, sizes)
    if coordinates.dim() == 3 and sizes is not None:
        coordinates = coordinates[reference.inside(coordinates.shape[1], sizes)]
    if coordinates.numel():
        lowest, highest = native.bounds(coordinates.long())
        contract = f"in [0, 2**bits = {1 << bits})"
        checks.value(lowest >= 0, "coordinates", contract, f"{lowest}; subtract the minimum of each axis first")
        checks.value(highest < 1 << bits, "coordinates", contract, highest)


def most_clouds(bits: int) -> int:
    """The number of clouds whose numbers fit above the bits of a curve in 63 bits."""
    return 1 << 63 - 3 * bits


def _fake_codes(coordinates: Tensor, orders: list[int]) -> Tensor:
    return coordinates.new_empty((len(orders), *coordinates.shape[:-1]), dtype=torch.int64)


def _fake_serialize(coordinates: Tensor, orders: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_codes(coordinates, orders), _fake_codes(coordinates, orders), _fake_codes(coordinates, orders)


space_filling_curve = operator(
    reference.space_filling_curve, contract=_CONTRACT, fits=_fits, fake=_fake_codes, check=_check
)

serialize = operator(reference.serialize, contract=_CONTRACT, fits=_fits, fake=_fake_serialize, check=_check)
