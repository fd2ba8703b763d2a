"""The index of the Triton search: buckets along a Hilbert curve, and boxes around them.

Points are sorted along the curve, cloud by cloud, and cut into buckets of 32 that lie close together. A
bucket is stored as 32 x, 32 y, 32 z and 32 row numbers. 32 buckets make a group, 32 groups a super; each has
a bounding box. Groups and supers may span clouds: a box that is too large only prunes less.
"""

import itertools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import cdiv, jit, power_of_2
from ..sums import sum_dtype
from .layout import BUCKET, index_bytes

_EMPTY = 2**31 - 1  # initial value of an atomic minimum

BIG = tl.constexpr(0x7FFFFFFF)
NO_KEY = tl.constexpr(0x7FFFFFFFFFFFFFFF)
LANES = tl.constexpr(32)


class Layout(NamedTuple):
    """Start of each part of an index, in 32-bit words. Buckets come first; those of queries have no other parts."""

    num_buckets: int  # upper bound: the last bucket of each cloud may be partly filled
    num_supers: int
    begin: int  # (B + 1,) the first bucket of each cloud
    first: int  # (B + 1,) the first row of each cloud in the sorted order
    cloud_boxes: int
    bucket_boxes: int
    group_boxes: int
    super_boxes: int
    end: int


def layout_of(rows: int, batch: int) -> Layout:
    buckets = rows // BUCKET + batch
    groups = -(-buckets // BUCKET)
    supers = -(-groups // BUCKET)
    slots, boxes = buckets * 4 * BUCKET, (groups * 6 * BUCKET, supers * 6 * BUCKET, supers * 6)
    sizes = (slots, batch + 1, batch + 1, batch * 6, *boxes)
    return Layout(buckets, supers, *itertools.accumulate(sizes))


def neighbor_index(points: Tensor, sizes: Tensor | None) -> Tensor:
    wide = sum_dtype(points.dtype)
    batch, rows = clouds.batch_size(points, sizes), points.shape[:-1].numel()
    storage = points.new_zeros(index_bytes(points, sizes), dtype=torch.uint8)
    if is_indexed(points) and rows and batch:
        _build(storage.view(torch.int32), points.to(wide).contiguous(), sizes, batch)
    return storage


def is_indexed(points: Tensor) -> bool:
    return points.shape[-1] <= 3 and points.dtype != torch.float64 and points.shape[:-1].numel() < 2**31


def _build(words: Tensor, points: Tensor, sizes: Tensor | None, batch: int) -> None:
    rows = points.shape[:-1].numel()
    layout = layout_of(rows, batch)
    sizes = contiguous(sizes)
    cloud_boxes = words[layout.cloud_boxes : layout.bucket_boxes].fill_(_EMPTY)
    block = 1024
    _cloud_boxes[(cdiv(rows, block),)](
        boxes_ptr=cloud_boxes,
        points_ptr=points,
        sizes_ptr=points if sizes is None else sizes,
        rows=rows,
        num_points=points.shape[-2],
        num_clouds=batch,
        PACKED=points.dim() == 2,
        SIZES=sizes is not None,
        STEPS=steps(batch),
        DIMS=points.shape[-1],
        BLOCK=block,
        num_warps=4,
        enable_fp_fusion=False,
    )
    _fill(words, layout, points, sizes, batch, cloud_boxes, boxes=True)
    _super_boxes[(layout.num_supers,)](
        words_ptr=words,
        group_boxes_at=layout.group_boxes,
        super_boxes_at=layout.super_boxes,
        num_supers=layout.num_supers,
        num_warps=1,
        enable_fp_fusion=False,
    )


def in_buckets(queries: Tensor, sizes: Tensor | None, batch: int, cloud_boxes: Tensor) -> Tensor:
    """The queries in buckets along the curve of the points."""
    layout = layout_of(queries.shape[:-1].numel(), batch)
    words = queries.new_empty(layout.cloud_boxes, dtype=torch.int32)
    _fill(words, layout, queries, contiguous(sizes), batch, cloud_boxes, boxes=False)
    return words


def _fill(
    words: Tensor,
    layout: Layout,
    points: Tensor,
    sizes: Tensor | None,
    batch: int,
    cloud_boxes: Tensor,
    boxes: bool,
) -> None:
    """Sort rows along the curve into buckets. With `boxes`, also compute the boxes of buckets and groups."""
    rows, dims = points.shape[:-1].numel(), points.shape[-1]
    # 32-bit keys sort twice as fast and are enough for small clouds.
    short = rows <= 2**15 * batch and batch < 2**7
    bits = (30 - batch.bit_length()) // 3 if short else min(16, (62 - batch.bit_length()) // 3)
    keys = points.new_empty(rows, dtype=torch.int32 if short else torch.int64)
    block = 256
    _codes[(cdiv(rows, block),)](
        keys_ptr=keys,
        points_ptr=points,
        sizes_ptr=points if sizes is None else sizes,
        boxes_ptr=cloud_boxes,
        rows=rows,
        num_points=points.shape[-2],
        num_clouds=batch,
        PACKED=points.dim() == 2,
        SIZES=sizes is not None,
        STEPS=steps(batch),
        DIMS=dims,
        BITS=bits,
        BLOCK=block,
        num_warps=4,
        enable_fp_fusion=False,
    )
    keys, order = torch.sort(keys)
    _begins[(1,)](
        words_ptr=words,
        keys_ptr=keys,
        first_at=layout.first,
        begin_at=layout.begin,
        rows=rows,
        num_clouds=batch,
        SHIFT=3 * bits,
        STEPS=steps(rows + 1),
        BLOCK=power_of_2(batch + 1, 32, 1024),
        num_warps=1,
        enable_fp_fusion=False,
    )
    _buckets[(layout.num_supers * BUCKET if boxes else cdiv(layout.num_buckets, BUCKET),)](
        words_ptr=words,
        points_ptr=points,
        order_ptr=order,
        first_at=layout.first,
        begin_at=layout.begin,
        bucket_boxes_at=layout.bucket_boxes,
        group_boxes_at=layout.group_boxes,
        num_buckets=layout.num_buckets,
        num_clouds=batch,
        BOXES=boxes,
        STEPS=steps(batch),
        DIMS=dims,
        num_warps=4,
        enable_fp_fusion=False,
    )


def contiguous(sizes: Tensor | None) -> Tensor | None:
    return None if sizes is None else sizes.contiguous()


def steps(count: int) -> int:
    """The number of steps of a binary search among `count` values."""
    return max(count - 1, 0).bit_length()


@triton.jit
def find(value, begin_ptr, count, STEPS: tl.constexpr):
    """The position of the last of `count` sorted entries that is at most the value."""
    place = value * 0
    for step in tl.static_range(STEPS):
        next_place = place + (1 << (STEPS - 1 - step))
        inside = next_place < count
        begin = tl.load(begin_ptr + next_place, mask=inside, other=0)
        place = tl.where(inside & (begin <= value), next_place, place)
    return place


@triton.jit
def cloud_of(row, sizes_ptr, num_points, num_clouds, PACKED: tl.constexpr, SIZES: tl.constexpr, STEPS: tl.constexpr):
    """The cloud of each row, and whether the row is inside it."""
    if PACKED:
        cloud = row * 0
        if SIZES:
            cloud = find(row, sizes_ptr, num_clouds, STEPS)
            inside = (row >= tl.load(sizes_ptr + cloud)) & (row < tl.load(sizes_ptr + cloud + 1))
        else:
            inside = row >= 0
    else:
        cloud = row // num_points
        inside = row >= 0
        if SIZES:
            cloud = tl.minimum(cloud, num_clouds - 1)
            inside = row - cloud * num_points < tl.load(sizes_ptr + cloud)
    return cloud, inside


@triton.jit
def coordinate(points_ptr, row, mask, axis: tl.constexpr, DIMS: tl.constexpr):
    """A coordinate of the points, zero along axes that they do not have."""
    if axis < DIMS:
        return tl.load(points_ptr + row * DIMS + axis, mask=mask, other=float("inf"))
    else:
        return tl.where(mask, 0.0, float("inf"))


@triton.jit
def _ordered(value):
    """Map float bits to integers that compare like the floats. The map is its own inverse."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & BIG)


@triton.jit
def _unordered(bits):
    return (bits ^ ((bits >> 31) & BIG)).to(tl.float32, bitcast=True)


@triton.jit
def _is_finite(x, y, z):
    limit = 3.4028234663852886e38
    return (tl.abs(x) <= limit) & (tl.abs(y) <= limit) & (tl.abs(z) <= limit)


@jit
def _cloud_boxes(
    boxes_ptr, points_ptr, sizes_ptr, rows, num_points, num_clouds,
    PACKED: tl.constexpr, SIZES: tl.constexpr, STEPS: tl.constexpr, DIMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The minimum of x, y, z and of -x, -y, -z of each cloud, as ordered integers."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    cloud, inside = cloud_of(tl.minimum(row, rows - 1), sizes_ptr, num_points, num_clouds, PACKED, SIZES, STEPS)
    x = coordinate(points_ptr, row, mask, 0, DIMS)
    y = coordinate(points_ptr, row, mask, 1, DIMS)
    z = coordinate(points_ptr, row, mask, 2, DIMS)
    mask = mask & inside & _is_finite(x, y, z)
    first, last = tl.min(cloud), tl.max(cloud)
    for axis in tl.static_range(6):
        value = x if axis % 3 == 0 else (y if axis % 3 == 1 else z)
        value = tl.where(mask, _ordered(-value if axis >= 3 else value), BIG)
        if first == last:
            tl.atomic_min(boxes_ptr + first * 6 + axis, tl.min(value))
        else:
            tl.atomic_min(boxes_ptr + cloud * 6 + axis, value, mask=mask)


@triton.jit
def _cell(value, low, extent, BITS: tl.constexpr):
    """The position along an axis as an integer; 0 if the extent is zero or overflows."""
    share = (value - low) / tl.where(extent > 0, extent, 1.0)
    share = tl.where(share >= 0, tl.minimum(share, 1.0), 0.0)
    return (share * ((1 << BITS) - 1)).to(tl.int32)


@triton.jit
def _hilbert(x, y, z, BITS: tl.constexpr):
    """The position along a Hilbert curve (J. Skilling, Programming the Hilbert curve, 2004)."""
    for level in tl.static_range(BITS - 1):
        bit = 1 << (BITS - 1 - level)
        below = bit - 1
        x = tl.where((x & bit) != 0, x ^ below, x)
        swap = (x ^ y) & below
        flip = (y & bit) != 0
        x = tl.where(flip, x ^ below, x ^ swap)
        y = tl.where(flip, y, y ^ swap)
        swap = (x ^ z) & below
        flip = (z & bit) != 0
        x = tl.where(flip, x ^ below, x ^ swap)
        z = tl.where(flip, z, z ^ swap)
    y = y ^ x
    z = z ^ y
    gray = x * 0
    for level in tl.static_range(BITS - 1):
        bit = 1 << (BITS - 1 - level)
        gray = tl.where((z & bit) != 0, gray ^ (bit - 1), gray)
    x, y, z = x ^ gray, y ^ gray, z ^ gray
    code = x.to(tl.int64) * 0
    for level in tl.static_range(BITS):
        shift = BITS - 1 - level
        code = (code << 3) | (((x >> shift) & 1) << 2 | ((y >> shift) & 1) << 1 | ((z >> shift) & 1)).to(tl.int64)
    return code


@jit
def _codes(
    keys_ptr, points_ptr, sizes_ptr, boxes_ptr, rows, num_points, num_clouds,
    PACKED: tl.constexpr, SIZES: tl.constexpr, STEPS: tl.constexpr, DIMS: tl.constexpr, BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Sort keys: the cloud in the upper bits, the position along the curve below. Invalid rows come last."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    cloud, inside = cloud_of(tl.minimum(row, rows - 1), sizes_ptr, num_points, num_clouds, PACKED, SIZES, STEPS)
    x = coordinate(points_ptr, row, mask, 0, DIMS)
    y = coordinate(points_ptr, row, mask, 1, DIMS)
    z = coordinate(points_ptr, row, mask, 2, DIMS)
    low_x = _unordered(tl.load(boxes_ptr + cloud * 6))
    low_y = _unordered(tl.load(boxes_ptr + cloud * 6 + 1))
    low_z = _unordered(tl.load(boxes_ptr + cloud * 6 + 2))
    extent = -_unordered(tl.load(boxes_ptr + cloud * 6 + 3)) - low_x
    extent = tl.maximum(extent, -_unordered(tl.load(boxes_ptr + cloud * 6 + 4)) - low_y)
    extent = tl.maximum(extent, -_unordered(tl.load(boxes_ptr + cloud * 6 + 5)) - low_z)
    code = _hilbert(
        _cell(x, low_x, extent, BITS), _cell(y, low_y, extent, BITS), _cell(z, low_z, extent, BITS), BITS
    )  # fmt: skip
    key = (cloud.to(tl.int64) << (3 * BITS)) | code
    last = BIG if keys_ptr.dtype.element_ty == tl.int32 else NO_KEY
    key = tl.where(inside & _is_finite(x, y, z), key, last)
    tl.store(keys_ptr + row, key.to(keys_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _lower_bound(value, keys_ptr, count, STEPS: tl.constexpr):
    """The number of sorted keys that are below the value."""
    below = tl.zeros_like(value)
    for step in tl.static_range(STEPS):
        half = 1 << (STEPS - 1 - step)
        inside = below + half <= count
        key = tl.load(keys_ptr + below + half - 1, mask=inside, other=0)
        below = tl.where(inside & (key < value), below + half, below)
    return below


@jit
def _begins(
    words_ptr, keys_ptr, first_at, begin_at, rows, num_clouds,
    SHIFT: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first row of each cloud in the sorted order, and its first bucket."""
    before = 0
    for start in range(0, num_clouds + 1, BLOCK):
        cloud = start + tl.arange(0, BLOCK)
        first = _lower_bound(cloud.to(tl.int64) << SHIFT, keys_ptr, rows, STEPS)
        after = _lower_bound((cloud + 1).to(tl.int64) << SHIFT, keys_ptr, rows, STEPS)
        buckets = tl.where(cloud < num_clouds, (after - first + LANES - 1) // LANES, 0).to(tl.int32)
        tl.store(words_ptr + first_at + cloud, first.to(tl.int32), mask=cloud <= num_clouds)
        tl.store(words_ptr + begin_at + cloud, before + tl.cumsum(buckets, 0) - buckets, mask=cloud <= num_clouds)
        before += tl.sum(buckets)


@triton.jit
def _as_word(values):
    return values.to(tl.int32, bitcast=True)


@jit
def _buckets(
    words_ptr, points_ptr, order_ptr, first_at, begin_at, bucket_boxes_at, group_boxes_at, num_buckets, num_clouds,
    BOXES: tl.constexpr, STEPS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """One program fills the 32 buckets of a group. Groups behind the last bucket only have an empty box."""
    group = tl.program_id(0).to(tl.int64)
    group_box_ptr = words_ptr + group_boxes_at + group // LANES * (6 * LANES) + group % LANES
    if group * LANES >= num_buckets:
        side = tl.arange(0, 8)
        bound = tl.where(side < 3, float("inf"), -float("inf"))
        tl.store(group_box_ptr + side * LANES, _as_word(bound), mask=side < 6)
        return
    first_ptr, begin_ptr = words_ptr + first_at, words_ptr + begin_at
    lane = tl.arange(0, LANES)
    bucket = group * LANES + lane
    filled = bucket < tl.load(begin_ptr + num_clouds)
    cloud = find(bucket, begin_ptr, num_clouds, STEPS)
    place = (bucket - tl.load(begin_ptr + cloud)) * LANES  # position of the bucket's first row within the cloud
    first = tl.load(first_ptr + cloud) + place
    left = tl.load(first_ptr + cloud + 1) - first
    live = filled[:, None] & (lane[None, :] < left[:, None])
    row = tl.load(order_ptr + first[:, None] + lane[None, :], mask=live, other=-1)
    slot_ptr = words_ptr + bucket[:, None] * (4 * LANES) + lane[None, :]
    mask = (bucket < num_buckets)[:, None] & (lane >= 0)[None, :]
    tl.store(slot_ptr + 3 * LANES, row.to(tl.int32), mask=mask)
    for axis in tl.static_range(3):
        value = coordinate(points_ptr, row, live, axis, DIMS)
        tl.store(slot_ptr + axis * LANES, _as_word(value), mask=mask)
        if BOXES:
            low = tl.min(value, 1)
            high = tl.max(tl.where(live, value, -float("inf")), 1)
            box_ptr = words_ptr + bucket_boxes_at + (group * 6 + axis) * LANES + lane
            tl.store(box_ptr, _as_word(low), mask=bucket < num_buckets)
            tl.store(box_ptr + 3 * LANES, _as_word(high), mask=bucket < num_buckets)
            tl.store(group_box_ptr + axis * LANES, _as_word(tl.min(low)))
            tl.store(group_box_ptr + (axis + 3) * LANES, _as_word(tl.max(high)))


@jit
def _super_boxes(words_ptr, group_boxes_at, super_boxes_at, num_supers):
    place = tl.program_id(0).to(tl.int64)
    for side in tl.static_range(6):
        value = tl.load(words_ptr + group_boxes_at + (place * 6 + side) * LANES + tl.arange(0, LANES)).to(
            tl.float32, bitcast=True
        )
        bound = tl.min(value) if side < 3 else tl.max(value)
        tl.store(words_ptr + super_boxes_at + side * num_supers + place, _as_word(bound))
