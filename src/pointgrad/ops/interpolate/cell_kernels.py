"""The weights of the eight corners of a cell and their derivatives, shared by the Triton kernels of this family.

A corner has the number 4 x + 2 y + z. The weights depend on the shares x, y and z in [0, 1] of the upper corners;
tangents and slopes are in units of those shares.
"""

import triton
import triton.language as tl


@triton.jit
def load_triple(ptr, row, row_mask, WIDE: tl.constexpr):
    """The three coordinates of each row."""
    x = tl.load(ptr + row * 3, mask=row_mask, other=0).to(WIDE)
    y = tl.load(ptr + row * 3 + 1, mask=row_mask, other=0).to(WIDE)
    z = tl.load(ptr + row * 3 + 2, mask=row_mask, other=0).to(WIDE)
    return x, y, z


@triton.jit
def store_triple(ptr, row, row_mask, x, y, z):
    dtype = ptr.dtype.element_ty
    tl.store(ptr + row * 3, x.to(dtype), mask=row_mask)
    tl.store(ptr + row * 3 + 1, y.to(dtype), mask=row_mask)
    tl.store(ptr + row * 3 + 2, z.to(dtype), mask=row_mask)


@triton.jit
def weight(x, y, z, tx, ty, tz, corner: tl.constexpr, TANGENT: tl.constexpr):
    """The weight of a corner, or its derivative along the tangent."""
    if TANGENT:
        return (
            tx * _product(x, y, z, corner, 0, -1)
            + ty * _product(x, y, z, corner, 1, -1)
            + tz * _product(x, y, z, corner, 2, -1)
        )
    else:
        return _product(x, y, z, corner, -1, -1)


@triton.jit
def weight_slope(x, y, z, tx, ty, tz, corner: tl.constexpr, axis: tl.constexpr, TANGENT: tl.constexpr):
    """The derivative of `weight` along one axis. Second derivatives along the same axis are zero."""
    if TANGENT:
        first: tl.constexpr = (axis + 1) % 3
        second: tl.constexpr = (axis + 2) % 3
        t1 = tx if first == 0 else (ty if first == 1 else tz)
        t2 = tx if second == 0 else (ty if second == 1 else tz)
        return t1 * _product(x, y, z, corner, axis, first) + t2 * _product(x, y, z, corner, axis, second)
    else:
        return _product(x, y, z, corner, axis, -1)


@triton.jit
def _product(x, y, z, corner: tl.constexpr, a: tl.constexpr, b: tl.constexpr):
    """The weight of a corner, differentiated along the axes a and b (-1: not differentiated)."""
    return (
        _factor(x, corner // 4 % 2 == 1, (a == 0) | (b == 0))
        * _factor(y, corner // 2 % 2 == 1, (a == 1) | (b == 1))
        * _factor(z, corner % 2 == 1, (a == 2) | (b == 2))
    )


@triton.jit
def _factor(share, upper: tl.constexpr, slope: tl.constexpr):
    """The factor of a corner along one axis, or its derivative."""
    if slope:
        return tl.full(share.shape, 1.0 if upper else -1.0, share.dtype)
    else:
        return share if upper else 1.0 - share
