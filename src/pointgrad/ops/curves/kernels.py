"""Triton kernels of this family: the codes of all curves in one launch, and the inverse of sorted orders.

Naming in all kernels: `*_ptr` is an address, BLOCK a tile size, and `*_mask` marks the lanes in range. A place is a
position in the sorted order; rows are those of the input, counted through all clouds.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import cdiv, jit

_BLOCK = 512
_NUMBERS = ("rows", "num_points", "batch", "bits")

MOST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


def space_filling_curve(coordinates: Tensor, sizes: Tensor | None, orders: list[int], bits: int) -> Tensor:
    return _encode(coordinates, sizes, orders, bits, None)


def serialize(coordinates: Tensor, sizes: Tensor | None, orders: list[int], bits: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, batch = coordinates.numel() // 3, clouds.batch_size(coordinates, sizes)
    # torch sorts all bits of a key, so that one of 32 bits takes half the passes. Padding rows need a key of their own.
    short = 3 * bits + (batch - 1).bit_length() <= 31
    separate = short or (coordinates.dim() == 3 and sizes is not None)
    dtype = torch.int32 if short else torch.int64
    keys = coordinates.new_empty((len(orders), rows), dtype=dtype) if separate else None
    codes = _encode(coordinates, sizes, orders, bits, keys)
    keys = codes.view(len(orders), rows) if keys is None else keys
    order = keys.sort(dim=1, stable=True).indices
    inverse = torch.empty_like(order)
    if rows:
        _invert[(cdiv(rows, _BLOCK), len(orders))](
            order_ptr=order, inverse_ptr=inverse, **_clouds(coordinates, sizes), BLOCK=_BLOCK, num_warps=4
        )
    return codes, order.view(codes.shape), inverse.view(codes.shape)


def _encode(coordinates: Tensor, sizes: Tensor | None, orders: list[int], bits: int, keys: Tensor | None) -> Tensor:
    """The codes of each curve, and the keys to sort by, if they differ from the codes."""
    codes = coordinates.new_empty((len(orders), *coordinates.shape[:-1]), dtype=torch.int64)
    rows = coordinates.numel() // 3
    if rows:
        batch = clouds.batch_size(coordinates, sizes)
        _codes[(cdiv(rows, _BLOCK),)](
            codes_ptr=codes,
            keys_ptr=codes if keys is None else keys,
            coordinates_ptr=coordinates.contiguous(),
            **_clouds(coordinates, sizes),
            batch=batch,
            bits=bits,
            CURVES=len(orders),
            ORDERS=sum(order << 2 * k for k, order in enumerate(orders)),
            KEYS=keys is not None,
            STEPS=(batch - 1).bit_length() if batch else 0,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return codes


def _clouds(coordinates: Tensor, sizes: Tensor | None) -> dict[str, Any]:
    return {
        "sizes_ptr": coordinates if sizes is None else sizes.contiguous(),
        "rows": coordinates.numel() // 3,
        "num_points": coordinates.shape[-2],
        "PACKED": coordinates.dim() == 2,
        "SIZES": sizes is not None,
        "enable_fp_fusion": False,
    }


@triton.jit
def _axis(coordinates_ptr, row, row_mask, axis: tl.constexpr, bits):
    """A coordinate of each row, clamped to the range of the curve."""
    value = tl.load(coordinates_ptr + row * 3 + axis, mask=row_mask, other=0)
    return tl.minimum(tl.maximum(value, 0), (1 << bits) - 1).to(tl.int32)


@triton.jit
def _mirror(x, value, bit, lower):
    """A step of Skilling's transform: mirror x where the value is in the upper half, else exchange their lower bits."""
    upper = -((value >> bit) & 1)
    exchanged = (x ^ value) & lower & ~upper
    return x ^ (exchanged | (upper & lower)), value ^ exchanged


@triton.jit
def _spread(value):
    """Bit i becomes bit 3 i, for 21 bits."""
    value = value.to(tl.int64)
    value = (value | (value << 32)) & 0x001F00000000FFFF
    value = (value | (value << 16)) & 0x001F0000FF0000FF
    value = (value | (value << 8)) & 0x100F00F00F00F00F
    value = (value | (value << 4)) & 0x10C30C30C30C30C3
    return (value | (value << 2)) & 0x1249249249249249


@triton.jit
def _code(x, y, z, HILBERT: tl.constexpr, bits):
    if HILBERT:
        for step in range(1, bits):
            bit = bits - step
            lower = (1 << bit) - 1
            x ^= -((x >> bit) & 1) & lower
            x, y = _mirror(x, y, bit, lower)
            x, z = _mirror(x, z, bit, lower)
    code = (_spread(x) << 2) | (_spread(y) << 1) | _spread(z)
    if HILBERT:
        for step in tl.static_range(6):
            code ^= code >> (1 << step)
    return code


@jit(do_not_specialize=_NUMBERS)
def _codes(
    codes_ptr, keys_ptr, coordinates_ptr, sizes_ptr, rows, num_points, batch, bits,
    PACKED: tl.constexpr, SIZES: tl.constexpr, CURVES: tl.constexpr, ORDERS: tl.constexpr, KEYS: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The code of each row along each curve; ORDERS has two bits for the number of each curve."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    cloud = row * 0
    inside = row_mask
    if PACKED:
        if SIZES:
            for step in tl.static_range(STEPS):
                place = cloud + (1 << (STEPS - 1 - step))
                begin = tl.load(sizes_ptr + place, mask=place < batch, other=MOST)
                cloud = tl.where(begin <= row, place, cloud)
    else:
        cloud = row // num_points
        if SIZES:
            inside = row - cloud * num_points < tl.load(sizes_ptr + cloud, mask=row_mask, other=0)
    x = _axis(coordinates_ptr, row, row_mask, 0, bits)
    y = _axis(coordinates_ptr, row, row_mask, 1, bits)
    z = _axis(coordinates_ptr, row, row_mask, 2, bits)
    for k in tl.static_range(CURVES):
        if (ORDERS >> (2 * k)) & 1:
            code = _code(y, x, z, (ORDERS >> (2 * k + 1)) & 1, bits)
        else:
            code = _code(x, y, z, (ORDERS >> (2 * k + 1)) & 1, bits)
        code |= cloud << (3 * bits)
        at = row + k * tl.cast(rows, tl.int64)
        tl.store(codes_ptr + at, tl.where(inside, code, -1), mask=row_mask)
        if KEYS:
            # Padding rows have the last code of their cloud: a stable sort puts them after its other rows.
            last = ((cloud + 1) << (3 * bits)) - 1
            tl.store(keys_ptr + at, tl.where(inside, code, last).to(keys_ptr.dtype.element_ty), mask=row_mask)


@jit(do_not_specialize=["rows", "num_points"])
def _invert(
    order_ptr, inverse_ptr, sizes_ptr, rows, num_points, PACKED: tl.constexpr, SIZES: tl.constexpr, BLOCK: tl.constexpr
):
    """The place of each row, from the rows in order. Padded: both are then counted within each cloud."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place_mask = place < rows
    first = tl.program_id(1) * tl.cast(rows, tl.int64)  # first row of this curve
    row = tl.load(order_ptr + first + place, mask=place_mask, other=0)
    if PACKED:
        tl.store(inverse_ptr + first + row, place, mask=place_mask)
    else:
        cloud = place // num_points
        begin = cloud * num_points
        inside = place_mask
        if SIZES:
            inside = place - begin < tl.load(sizes_ptr + cloud, mask=place_mask, other=0)
        tl.store(order_ptr + first + place, tl.where(inside, row - begin, -1), mask=place_mask)
        tl.store(inverse_ptr + first + row, tl.where(inside, place - begin, -1), mask=place_mask)
