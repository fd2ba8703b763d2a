"""The operators of this family in plain PyTorch."""

import torch
from torch import Tensor

from .. import clouds

# The number of a curve is its place here: 2 for Hilbert, plus 1 if x and y are swapped.
CURVES = ("z", "z-trans", "hilbert", "hilbert-trans")
MOST_BITS = 21  # most bits per axis, so that a code fits in 63 bits


def space_filling_curve(coordinates: Tensor, sizes: Tensor | None, orders: list[int], bits: int) -> Tensor:
    """The codes of packed coordinates (N, 3) or padded coordinates (B, N, 3) along curves, by their numbers.

    Coordinates are clamped to [0, 2^bits).

    Returns:
        codes (K, N) or (K, B, N): the cloud's number above the 3 * bits bits of the curve. -1 beyond a padded cloud.
    """
    x, y, z = coordinates.long().clamp(0, (1 << bits) - 1).unbind(-1)
    codes = torch.stack([_code((y, x, z) if order & 1 else (x, y, z), order >= 2, bits) for order in orders])
    if coordinates.dim() == 2:
        return codes | clouds.ids(coordinates, sizes) << 3 * bits
    batch, rows = coordinates.shape[:2]
    codes |= (torch.arange(batch, device=codes.device) << 3 * bits).unsqueeze(-1)
    return codes if sizes is None else torch.where(inside(rows, sizes), codes, -1)


def serialize(coordinates: Tensor, sizes: Tensor | None, orders: list[int], bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of coordinates, the rows sorted by them, and the place of each row in this order.

    Returns:
        codes, order and inverse, each (K, N) or (K, B, N). Packed: rows and places are counted through all clouds.
        Padded: within each cloud, and -1 beyond its length.
    """
    codes = space_filling_curve(coordinates, sizes, orders, bits)
    last = torch.iinfo(torch.int64).max
    order = torch.where(codes < 0, last, codes).argsort(dim=-1, stable=True)
    place = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    inverse = torch.empty_like(order).scatter_(-1, order, place)
    if coordinates.dim() == 3 and sizes is not None:
        valid = inside(coordinates.shape[1], sizes)
        order, inverse = torch.where(valid, order, -1), torch.where(valid, inverse, -1)
    return codes, order, inverse


def _code(axes: tuple[Tensor, Tensor, Tensor], hilbert: bool, bits: int) -> Tensor:
    if not hilbert:
        return _interleaved(axes, bits)
    # The interleaved bits are the Gray code of the result: each of its bits is the sum, modulo 2, of those above.
    code = _interleaved(_hilbert_axes(axes, bits), bits)
    for shift in (1, 2, 4, 8, 16, 32):
        code ^= code >> shift
    return code


def _hilbert_axes(axes: tuple[Tensor, Tensor, Tensor], bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Skilling's transform: from the highest bit down, undo the rotation of the octant that the bit selects."""
    x, *others = axes
    for bit in range(bits - 1, 0, -1):
        lower = (1 << bit) - 1
        x = torch.where((x >> bit & 1).bool(), x ^ lower, x)
        for axis, value in enumerate(others):
            upper_half = (value >> bit & 1).bool()
            exchanged = torch.where(upper_half, 0, (x ^ value) & lower)
            x = torch.where(upper_half, x ^ lower, x ^ exchanged)
            others[axis] = value ^ exchanged
    return x, others[0], others[1]


def _interleaved(axes: tuple[Tensor, Tensor, Tensor], bits: int) -> Tensor:
    """Codes in which bit i of x, y and z becomes bit 3 i + 2, 3 i + 1 and 3 i."""
    code = torch.zeros_like(axes[0])
    for bit in range(bits):
        for place, value in zip((2, 1, 0), axes, strict=True):
            code |= (value >> bit & 1) << 3 * bit + place
    return code


def inside(rows: int, lengths: Tensor) -> Tensor:
    """(B, N) which rows of padded clouds are points."""
    return torch.arange(rows, device=lengths.device) < lengths.unsqueeze(-1)
