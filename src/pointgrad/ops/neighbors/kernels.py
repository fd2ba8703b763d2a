"""Triton kernels of this family: the search through the index of `index_kernels.py`.

One program handles eight queries, a quarter of a bucket, which are consecutive along the same curve. Queries are the
last axis of every tile and a program is one warp, so four threads share the candidates of a query and keep the best in
registers. (One thread per query, 32 queries a program, took a fifth to a half longer: more programs hide
more latency, and fewer queries have a smaller box around them.) Supers, groups and buckets are visited nearest box
first, until the nearest box is farther than the worst neighbor kept by any of the queries. Box distances are computed
with the same operations in the same order as point distances, so rounding is monotone and the pruning is exact.

Candidates are ranked as one 64-bit number, distance bits above, row number below: ties go to the smallest
index. Above three dimensions, and in float64, `all_kernels.py` searches through all points instead.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import INTERPRETED, jit, power_of_2
from ..sums import sum_dtype
from .all_kernels import MOST_AT_ONCE, NO_NEIGHBOR, PER_PROGRAM, SELECTIONS, mixed_seed, random_rank, search_all
from .index_kernels import (
    BIG,
    LANES,
    NO_KEY,
    coordinate,
    find,
    in_buckets,
    is_indexed,
    layout_of,
    steps,
)
from .index_kernels import neighbor_index as neighbor_index
from .layout import BUCKET, squared

INFINITY_BITS = tl.constexpr(0x7F800000)


def neighbor_search(
    points: Tensor,
    sizes: Tensor | None,
    queries: Tensor | None,
    query_sizes: Tensor | None,
    index: Tensor | None,
    k: int,
    radius: float,
    min_radius: float,
    closed: bool,
    select: str,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = sum_dtype(points.dtype)
    points = points.to(wide).contiguous()
    own = queries is None
    if queries is None:
        queries, query_sizes = points, sizes
    queries = queries.to(wide).contiguous()
    batch, rows = clouds.batch_size(points, sizes), points.shape[:-1].numel()
    asked = queries.shape[:-1]
    found = points.new_full((*asked, k), -1, dtype=torch.int64)
    distance2 = points.new_full((*asked, k), torch.inf)
    count = points.new_zeros(asked, dtype=torch.int64)
    if not (batch and rows and count.numel()):
        return distance2, found, count
    wanted = (k, squared(radius, wide, closed), squared(min_radius, wide), select, seed)
    results = (found, distance2, count)
    if is_indexed(points):
        words = (neighbor_index(points, sizes) if index is None else index).view(torch.int32)
        asked_words = words
        if not own:
            cloud_boxes = words[layout_of(rows, batch).cloud_boxes :]
            asked_words = in_buckets(queries, query_sizes, batch, cloud_boxes)
        _search_index(results, words, asked_words, points, count.numel(), batch, wanted)
    else:
        search_all(results, points, queries, (sizes, query_sizes), batch, wanted)
    if select == "random":  # found in the order of their random ranks
        found, order = found.sort(dim=-1)
        distance2, order = distance2.gather(-1, order).sort(dim=-1, stable=True)
        found = found.gather(-1, order)
    return distance2, found, count


def _search_index(
    results: tuple[Tensor, Tensor, Tensor],
    words: Tensor,
    asked_words: Tensor,
    points: Tensor,
    num_queries: int,
    batch: int,
    wanted: tuple[int, float, float, str, Tensor | None],
) -> None:
    found, distance2, count = results
    k, radius2, min_radius2, select, seed = wanted
    layout, asked = layout_of(points.shape[:-1].numel(), batch), layout_of(num_queries, batch)
    at_once = power_of_2(k, 1, MOST_AT_ONCE)
    _search[(asked.num_buckets * (BUCKET // PER_PROGRAM),)](
        found_ptr=found,
        distance2_ptr=distance2,
        count_ptr=count,
        asked_ptr=asked_words,
        words_ptr=words,
        points_ptr=points,
        seed_ptr=found if seed is None else seed,
        asked_begin_at=asked.begin,
        begin_at=layout.begin,
        bucket_boxes_at=layout.bucket_boxes,
        group_boxes_at=layout.group_boxes,
        super_boxes_at=layout.super_boxes,
        num_clouds=batch,
        num_supers=layout.num_supers,
        k=k,
        rows_per_cloud=points.shape[-2] if points.dim() == 3 else 0,
        radius2=radius2,
        min_radius2=min_radius2,
        BALL=radius2 != torch.inf or min_radius2 > 0,
        SELECT=SELECTIONS[select],
        STEPS=steps(batch),
        DIMS=points.shape[-1],
        SUPERS=power_of_2(layout.num_supers, 1, 2**20),
        QUERIES=PER_PROGRAM,
        AT_ONCE=at_once,
        PASSES=k > at_once,
        TILE=BUCKET if INTERPRETED else 16,
        num_warps=1,
        enable_fp_fusion=False,
    )


@triton.jit
def _gap2(box_ptr, stride, mask, low_x, low_y, low_z, high_x, high_y, high_z):
    """The squared distance between each box and the box of the queries; infinite for an empty box."""
    x = tl.load(box_ptr, mask=mask, other=INFINITY_BITS).to(tl.float32, bitcast=True)
    y = tl.load(box_ptr + stride, mask=mask, other=INFINITY_BITS).to(tl.float32, bitcast=True)
    z = tl.load(box_ptr + 2 * stride, mask=mask, other=INFINITY_BITS).to(tl.float32, bitcast=True)
    to_x = tl.load(box_ptr + 3 * stride, mask=mask, other=0).to(tl.float32, bitcast=True)
    to_y = tl.load(box_ptr + 4 * stride, mask=mask, other=0).to(tl.float32, bitcast=True)
    to_z = tl.load(box_ptr + 5 * stride, mask=mask, other=0).to(tl.float32, bitcast=True)
    dx = tl.maximum(tl.maximum(x - high_x, low_x - to_x), 0.0)
    dy = tl.maximum(tl.maximum(y - high_y, low_y - to_y), 0.0)
    dz = tl.maximum(tl.maximum(z - high_z, low_z - to_z), 0.0)
    return dx * dx + dy * dy + dz * dz


@triton.jit
def _nearest_first(
    box_ptr, stride, place, first_bucket, num_buckets, begin, end,
    low_x, low_y, low_z, high_x, high_y, high_z, PLACES: tl.constexpr,
):  # fmt: skip
    """A sortable number for each box that holds buckets in [begin, end): its distance to the box of the queries, whose
    lowest bits are replaced by its position. It never exceeds the distance."""
    inside = (first_bucket < end) & (first_bucket + num_buckets > begin)
    gap2 = _gap2(box_ptr, stride, inside, low_x, low_y, low_z, high_x, high_y, high_z)
    bits = (gap2.to(tl.int32, bitcast=True) & ~(PLACES - 1)) | place
    return tl.where(inside & (gap2 < float("inf")), bits, BIG)


@triton.jit
def _largest(limit):
    """The largest of numbers that are -1 or not negative. As integers a warp compares them in one instruction."""
    return tl.max(limit.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def _within(key, reach, PLACES: tl.constexpr):
    return (key != BIG) & ((key & ~(PLACES - 1)).to(tl.float32, bitcast=True) <= reach)


@jit
def _search(
    found_ptr, distance2_ptr, count_ptr, asked_ptr, words_ptr, points_ptr, seed_ptr,
    asked_begin_at, begin_at, bucket_boxes_at, group_boxes_at, super_boxes_at,
    num_clouds, num_supers, k, rows_per_cloud, radius2, min_radius2,
    BALL: tl.constexpr, SELECT: tl.constexpr, STEPS: tl.constexpr, DIMS: tl.constexpr, SUPERS: tl.constexpr,
    QUERIES: tl.constexpr, AT_ONCE: tl.constexpr, PASSES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0) // (LANES // QUERIES)
    if block >= tl.load(asked_ptr + asked_begin_at + num_clouds):
        return
    cloud = find(block, asked_ptr + asked_begin_at, num_clouds, STEPS)
    begin = tl.load(words_ptr + begin_at + cloud)  # the cloud's buckets
    end = tl.load(words_ptr + begin_at + cloud + 1)
    lane = tl.arange(0, LANES)
    part = tl.program_id(0) % (LANES // QUERIES) * QUERIES
    ask_ptr = asked_ptr + block.to(tl.int64) * (4 * LANES) + part + tl.arange(0, QUERIES)
    qx = tl.load(ask_ptr).to(tl.float32, bitcast=True)
    qy = tl.load(ask_ptr + LANES).to(tl.float32, bitcast=True)
    qz = tl.load(ask_ptr + 2 * LANES).to(tl.float32, bitcast=True)
    query_row = tl.load(ask_ptr + 3 * LANES).to(tl.int64)
    live = query_row >= 0
    low_x, low_y, low_z = tl.min(qx), tl.min(qy), tl.min(qz)
    high_x = tl.max(tl.where(live, qx, -float("inf")))
    high_y = tl.max(tl.where(live, qy, -float("inf")))
    high_z = tl.max(tl.where(live, qz, -float("inf")))
    seeded = query_row * 0
    if SELECT == 2:
        seeded = mixed_seed(seed_ptr, query_row)
    place = tl.arange(0, AT_ONCE).to(tl.int64)[:, None]
    super_place = tl.arange(0, SUPERS)
    floor = tl.full((QUERIES,), -1, tl.int64)  # keys up to here were returned by earlier passes
    total = tl.zeros((QUERIES,), tl.int64)
    done = 0
    while done < k:
        take = tl.minimum(k - done, AT_ONCE)
        # Empty entries differ from each other, so that one at a time is replaced.
        best = tl.where(place < take, NO_NEIGHBOR + place, -1) + tl.zeros((AT_ONCE, QUERIES), tl.int64)
        worst = tl.max(best, 0)
        limit = tl.where(live, radius2, -1.0).to(tl.float32)  # the interpreter would use float64 for a denormal radius
        reach = _largest(limit)
        supers = _nearest_first(
            words_ptr + super_boxes_at + super_place, num_supers, super_place, super_place * (LANES * LANES),
            LANES * LANES, begin, end, low_x, low_y, low_z, high_x, high_y, high_z, SUPERS,
        )  # fmt: skip
        near_super = tl.min(supers)
        while _within(near_super, reach, SUPERS):
            super_ = near_super & (SUPERS - 1)
            supers = tl.where(super_place == super_, BIG, supers)
            groups = _nearest_first(
                words_ptr + group_boxes_at + super_.to(tl.int64) * (6 * LANES) + lane, LANES, lane,
                (super_ * LANES + lane) * LANES, LANES, begin, end,
                low_x, low_y, low_z, high_x, high_y, high_z, LANES,
            )  # fmt: skip
            near_group = tl.min(groups)
            while _within(near_group, reach, LANES):
                group = super_ * LANES + (near_group & (LANES - 1))
                groups = tl.where(lane == (near_group & (LANES - 1)), BIG, groups)
                boxes_ptr = words_ptr + bucket_boxes_at + group.to(tl.int64) * (6 * LANES)
                buckets = _nearest_first(
                    boxes_ptr + lane, LANES, lane, group * LANES + lane, 1,
                    begin, end, low_x, low_y, low_z, high_x, high_y, high_z, LANES,
                )  # fmt: skip
                near_bucket = tl.min(buckets)
                while _within(near_bucket, reach, LANES):
                    bucket = near_bucket & (LANES - 1)
                    buckets = tl.where(lane == bucket, BIG, buckets)
                    # The common box of the queries is larger than needed: test each query by itself.
                    gap = _gap2(boxes_ptr + bucket, LANES, True, qx, qy, qz, qx, qy, qz)
                    if tl.max((gap <= limit).to(tl.int32)) > 0:
                        slots_ptr = words_ptr + (group * LANES + bucket).to(tl.int64) * (4 * LANES)
                        for start in tl.static_range(0, LANES, TILE):
                            slot_ptr = slots_ptr + start + tl.arange(0, TILE)
                            dx = tl.load(slot_ptr).to(tl.float32, bitcast=True)[:, None] - qx[None, :]
                            dy = tl.load(slot_ptr + LANES).to(tl.float32, bitcast=True)[:, None] - qy[None, :]
                            dz = tl.load(slot_ptr + 2 * LANES).to(tl.float32, bitcast=True)[:, None] - qz[None, :]
                            d = dx * dx + dy * dy + dz * dz
                            if tl.max((tl.min(d, 0) <= limit).to(tl.int32)) > 0:
                                row = tl.load(slot_ptr + 3 * LANES)[:, None].to(tl.int64)
                                if SELECT == 0:
                                    key = (d.to(tl.int32, bitcast=True).to(tl.int64) << 32) | row
                                elif SELECT == 1:
                                    key = row + tl.zeros((TILE, QUERIES), tl.int64)
                                else:
                                    key = (random_rank(seeded[None, :], row) << 32) | row
                                eligible = d < float("inf")
                                if BALL:
                                    eligible = eligible & (d <= radius2) & (d >= min_radius2)
                                if PASSES:
                                    eligible = eligible & (key > floor[None, :])
                                key = tl.where(eligible, key, NO_KEY)
                                nearest = tl.min(key, 0)
                                # Triton 3.2 does not accept a call in the condition of a loop inside an if.
                                nearer = tl.max((nearest < worst).to(tl.int32))
                                while nearer > 0:
                                    replaced = (best == worst[None, :]) & (nearest < worst)[None, :]
                                    best = tl.where(replaced, nearest[None, :], best)
                                    worst = tl.max(best, 0)
                                    key = tl.where(key == nearest[None, :], NO_KEY, key)
                                    nearest = tl.min(key, 0)
                                    nearer = tl.max((nearest < worst).to(tl.int32))
                                if SELECT == 0:
                                    kept = (worst >> 32).to(tl.int32).to(tl.float32, bitcast=True)
                                    limit = tl.where(live, tl.minimum(kept, radius2), -1.0).to(tl.float32)
                                    reach = _largest(limit)
                    near_bucket = tl.min(buckets)
                near_group = tl.min(groups)
            near_super = tl.min(supers)
        best = tl.where(place < take, best, NO_KEY)
        total += tl.sum((best < NO_NEIGHBOR).to(tl.int64), 0)
        out = query_row * k + done
        for column in range(take):
            nearest = tl.min(best, 0)
            there = live & (nearest < NO_NEIGHBOR)
            row = nearest & BIG
            if SELECT == 0:
                d = (nearest >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            else:
                dx = coordinate(points_ptr, row, there, 0, DIMS) - qx
                dy = coordinate(points_ptr, row, there, 1, DIMS) - qy
                dz = coordinate(points_ptr, row, there, 2, DIMS) - qz
                d = dx * dx + dy * dy + dz * dz
            tl.store(found_ptr + out + column, row - cloud.to(tl.int64) * rows_per_cloud, mask=there)
            tl.store(distance2_ptr + out + column, d, mask=there)
            best = tl.where(best == nearest[None, :], NO_KEY, best)
            floor = nearest
        live = live & (floor < NO_NEIGHBOR)  # a query that found fewer than k is finished
        done += take
    tl.store(count_ptr + query_row, total, mask=query_row >= 0)
