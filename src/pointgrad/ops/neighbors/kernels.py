"""Triton kernels of this family: the search through the index of `index_kernels.py`, and one through all points.

One program handles eight queries, a quarter of a bucket, which are consecutive along the same curve. Queries are the
last axis of every tile and a program is one warp, so four threads share the candidates of a query and keep the best in
registers. (One thread per query, 32 queries a program, took a fifth to a half longer: more programs hide
more latency, and fewer queries have a smaller box around them.) Supers, groups and buckets are visited nearest box
first, until the nearest box is farther than the worst neighbor kept by any of the queries. Box distances are computed
with the same operations in the same order as point distances, so rounding is monotone and the pruning is exact.

Candidates are ranked as one 64-bit number, distance bits above, row number below: ties go to the smallest
index. Above three dimensions, and in float64, the search goes through all points instead.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import INTERPRETED, cdiv, jit, power_of_2
from ..sums import sum_dtype
from .index_kernels import (
    BIG,
    LANES,
    NO_KEY,
    cloud_of,
    contiguous,
    coordinate,
    find,
    in_buckets,
    is_indexed,
    layout_of,
    steps,
)
from .index_kernels import neighbor_index as neighbor_index
from .layout import BUCKET, squared

_SELECT = {"nearest": 0, "first": 1, "random": 2}
_QUERIES = BUCKET if INTERPRETED else 8  # per program; in the interpreter programs are expensive
_MOST_AT_ONCE = 32  # neighbors kept in registers; more take several passes

INFINITY_BITS = tl.constexpr(0x7F800000)
NO_NEIGHBOR = tl.constexpr(0x7F800000 << 32)  # keys from here on are not neighbors


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
        _search_all(results, points, queries, (sizes, query_sizes), batch, wanted)
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
    at_once = power_of_2(k, 1, _MOST_AT_ONCE)
    _search[(asked.num_buckets * (BUCKET // _QUERIES),)](
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
        SELECT=_SELECT[select],
        STEPS=steps(batch),
        DIMS=points.shape[-1],
        SUPERS=power_of_2(layout.num_supers, 1, 2**20),
        QUERIES=_QUERIES,
        AT_ONCE=at_once,
        PASSES=k > at_once,
        TILE=BUCKET if INTERPRETED else 16,
        num_warps=1,
        enable_fp_fusion=False,
    )


def _search_all(
    results: tuple[Tensor, Tensor, Tensor],
    points: Tensor,
    queries: Tensor,
    sizes: tuple[Tensor | None, Tensor | None],
    batch: int,
    wanted: tuple[int, float, float, str, Tensor | None],
) -> None:
    found, distance2, count = results
    k, radius2, min_radius2, select, seed = wanted
    at_once = power_of_2(k, 1, _MOST_AT_ONCE)
    point_sizes, query_sizes = (contiguous(size) for size in sizes)
    limits = points.new_empty(2)
    limits[0].fill_(radius2)
    limits[1].fill_(min_radius2)
    _search_everything[(cdiv(count.numel(), _QUERIES),)](
        found_ptr=found,
        distance2_ptr=distance2,
        count_ptr=count,
        queries_ptr=queries,
        points_ptr=points,
        query_sizes_ptr=points if query_sizes is None else query_sizes,
        point_sizes_ptr=points if point_sizes is None else point_sizes,
        limits_ptr=limits,
        seed_ptr=found if seed is None else seed,
        num_clouds=batch,
        num_rows=count.numel(),
        num_queries=queries.shape[-2],
        num_points=points.shape[-2],
        k=k,
        PACKED=points.dim() == 2,
        QUERY_SIZES=query_sizes is not None,
        POINT_SIZES=point_sizes is not None,
        SELECT=_SELECT[select],
        STEPS=steps(batch),
        DIMS=points.shape[-1],
        WIDE=tl.float64 if points.dtype == torch.float64 else tl.float32,
        QUERIES=_QUERIES,
        AT_ONCE=at_once,
        TILE=16,
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


@triton.jit
def _mix(key):
    """The finalizer of splitmix64."""
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB
    return key ^ (key >> 31)


@triton.jit
def _seeded(seed_ptr, row):
    """The seed mixed with a query's row."""
    seed = tl.load(seed_ptr).to(tl.uint64, bitcast=True)
    return _mix(seed + (row + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def _random_rank(seeded, row):
    return (_mix(seeded + (row + 1).to(tl.uint64) * 0x9E3779B97F4A7C15) >> 34).to(tl.int64)


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
        seeded = _seeded(seed_ptr, query_row)
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
                                    key = (_random_rank(seeded[None, :], row) << 32) | row
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


@triton.jit
def _add_squares(d, point_ptr, query_ptr, mask, DIMS: tl.constexpr):
    """The squared distance, summed in the order of the axes; without a loop for few axes."""
    if DIMS <= 8:
        for axis in tl.static_range(DIMS):
            delta = tl.load(point_ptr + axis, mask=mask, other=0) - tl.load(query_ptr + axis)
            d += delta * delta
    else:
        for axis in range(DIMS):
            delta = tl.load(point_ptr + axis, mask=mask, other=0) - tl.load(query_ptr + axis)
            d += delta * delta
    return d


@jit
def _search_everything(
    found_ptr, distance2_ptr, count_ptr, queries_ptr, points_ptr, query_sizes_ptr, point_sizes_ptr, limits_ptr,
    seed_ptr, num_clouds, num_rows, num_queries, num_points, k,
    PACKED: tl.constexpr, QUERY_SIZES: tl.constexpr, POINT_SIZES: tl.constexpr, SELECT: tl.constexpr,
    STEPS: tl.constexpr, DIMS: tl.constexpr, WIDE: tl.constexpr, QUERIES: tl.constexpr, AT_ONCE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Each program compares some queries with all points. Distance and row are separate: float64 fills a whole key."""
    query_row = tl.program_id(0).to(tl.int64) * QUERIES + tl.arange(0, QUERIES)
    mask = query_row < num_rows
    safe_row = tl.minimum(query_row, num_rows - 1)
    cloud, inside = cloud_of(safe_row, query_sizes_ptr, num_queries, num_clouds, PACKED, QUERY_SIZES, STEPS)
    begin, end = cloud * 0, cloud * 0 + num_points
    if PACKED:
        if POINT_SIZES:
            begin = tl.maximum(tl.load(point_sizes_ptr + cloud), 0)
            end = tl.minimum(tl.load(point_sizes_ptr + cloud + 1), num_points)
    else:
        begin = cloud * num_points
        end = begin + num_points
        if POINT_SIZES:
            end = begin + tl.minimum(tl.load(point_sizes_ptr + cloud), num_points)
    live = mask & inside
    radius2, min_radius2 = tl.load(limits_ptr), tl.load(limits_ptr + 1)
    seeded = query_row * 0
    if SELECT == 2:
        seeded = _seeded(seed_ptr, query_row)
    place = tl.arange(0, AT_ONCE).to(tl.int64)[:, None]
    infinity = tl.full((), float("inf"), WIDE)
    floor = tl.full((QUERIES,), -1.0, WIDE)
    floor_row = tl.full((QUERIES,), -1, tl.int64)
    total = tl.zeros((QUERIES,), tl.int64)
    done = 0
    while done < k:
        take = tl.minimum(k - done, AT_ONCE)
        best = tl.where(place < take, infinity, -1.0) + tl.zeros((AT_ONCE, QUERIES), WIDE)
        best_row = tl.where(place < take, NO_NEIGHBOR + place, -1) + tl.zeros((AT_ONCE, QUERIES), tl.int64)
        worst = tl.max(best, 0)
        worst_row = tl.max(tl.where(best == worst[None, :], best_row, -1), 0)
        start = tl.min(tl.where(live, begin, NO_KEY))
        stop = tl.max(tl.where(live, end, 0))
        while start < stop:
            row = (start + tl.arange(0, TILE))[:, None]
            eligible = live[None, :] & (row >= begin[None, :]) & (row < end[None, :])
            d = tl.zeros((TILE, QUERIES), WIDE)
            d = _add_squares(d, points_ptr + row * DIMS, queries_ptr + (safe_row * DIMS)[None, :], row < stop, DIMS)
            eligible = eligible & (d < infinity) & (d <= radius2) & (d >= min_radius2)
            rank = d
            if SELECT == 1:
                rank = d * 0.0
            if SELECT == 2:
                rank = _random_rank(seeded[None, :], row).to(WIDE)
            after = (rank > floor[None, :]) | ((rank == floor[None, :]) & (row > floor_row[None, :]))
            rank = tl.where(eligible & after, rank, infinity)
            rows = tl.where(eligible & after, row, NO_KEY)
            nearest = tl.min(rank, 0)
            nearest_row = tl.min(tl.where(rank == nearest[None, :], rows, NO_KEY), 0)
            better = (nearest < worst) | ((nearest == worst) & (nearest_row < worst_row))
            while tl.max(better.to(tl.int32)) > 0:
                replaced = (best == worst[None, :]) & (best_row == worst_row[None, :]) & better[None, :]
                best = tl.where(replaced, nearest[None, :], best)
                best_row = tl.where(replaced, nearest_row[None, :], best_row)
                worst = tl.max(best, 0)
                worst_row = tl.max(tl.where(best == worst[None, :], best_row, -1), 0)
                used = rows == nearest_row[None, :]
                rank = tl.where(used, infinity, rank)
                rows = tl.where(used, NO_KEY, rows)
                nearest = tl.min(rank, 0)
                nearest_row = tl.min(tl.where(rank == nearest[None, :], rows, NO_KEY), 0)
                better = (nearest < worst) | ((nearest == worst) & (nearest_row < worst_row))
            start += TILE
        best = tl.where(place < take, best, infinity)
        best_row = tl.where(place < take, best_row, NO_KEY)
        total += tl.sum((best_row < NO_NEIGHBOR).to(tl.int64), 0)
        out = query_row * k + done
        for column in range(take):
            nearest = tl.min(best, 0)
            row = tl.min(tl.where(best == nearest[None, :], best_row, NO_KEY), 0)
            there = live & (row < NO_NEIGHBOR)
            d = tl.zeros((QUERIES,), WIDE)
            d = _add_squares(d, points_ptr + row * DIMS, queries_ptr + safe_row * DIMS, there, DIMS)
            local = row
            if not PACKED:
                local = row - cloud * num_points
            tl.store(found_ptr + out + column, local, mask=there)
            tl.store(distance2_ptr + out + column, d, mask=there)
            used = best_row == row[None, :]
            best = tl.where(used, infinity, best)
            best_row = tl.where(used, NO_KEY, best_row)
            floor, floor_row = nearest, row
        live = live & (floor_row < NO_NEIGHBOR)
        done += take
    tl.store(count_ptr + query_row, tl.where(mask & inside, total, 0), mask=mask)
