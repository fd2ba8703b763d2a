"""Triton kernel that searches through all points, above three dimensions and in float64; what both searches share."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import INTERPRETED, cdiv, jit, power_of_2
from .index_kernels import NO_KEY, cloud_of, contiguous, steps
from .layout import BUCKET

SELECTIONS = {"nearest": 0, "first": 1, "random": 2}
PER_PROGRAM = BUCKET if INTERPRETED else 8  # queries; programs are expensive in the interpreter
MOST_AT_ONCE = 32  # neighbors kept in registers; more take several passes

NO_NEIGHBOR = tl.constexpr(0x7F800000 << 32)  # keys from here on are not neighbors


def search_all(
    results: tuple[Tensor, Tensor, Tensor],
    points: Tensor,
    queries: Tensor,
    sizes: tuple[Tensor | None, Tensor | None],
    batch: int,
    wanted: tuple[int, float, float, str, Tensor | None],
) -> None:
    found, distance2, count = results
    k, radius2, min_radius2, select, seed = wanted
    at_once = power_of_2(k, 1, MOST_AT_ONCE)
    point_sizes, query_sizes = (contiguous(size) for size in sizes)
    limits = points.new_empty(2)
    limits[0].fill_(radius2)
    limits[1].fill_(min_radius2)
    _search_everything[(cdiv(count.numel(), PER_PROGRAM),)](
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
        SELECT=SELECTIONS[select],
        STEPS=steps(batch),
        DIMS=points.shape[-1],
        WIDE=tl.float64 if points.dtype == torch.float64 else tl.float32,
        QUERIES=PER_PROGRAM,
        AT_ONCE=at_once,
        TILE=16,
        num_warps=1,
        enable_fp_fusion=False,
    )


@triton.jit
def _mix(key):
    """The finalizer of splitmix64."""
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB
    return key ^ (key >> 31)


@triton.jit
def mixed_seed(seed_ptr, row):
    """The seed mixed with a query's row."""
    seed = tl.load(seed_ptr).to(tl.uint64, bitcast=True)
    return _mix(seed + (row + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def random_rank(seeded, row):
    return (_mix(seeded + (row + 1).to(tl.uint64) * 0x9E3779B97F4A7C15) >> 34).to(tl.int64)


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
        seeded = mixed_seed(seed_ptr, query_row)
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
                rank = random_rank(seeded[None, :], row).to(WIDE)
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
