"""Triton kernel of farthest point sampling: exact, in rounds that yield many picks each.

README.md explains the algorithm. In short: G programs share a cloud, each holding every G-th point. In a
round each program publishes its two best points, the candidates, and its third best. Ranks only fall, so no
other point can outrank the greatest third best. Every program therefore picks from the candidates, without
communication and with the same result, as long as the best candidate outranks it.

Naming: `*_ptr` addresses, BLOCK_* tile sizes, `*_mask` lanes inside the bounds.
A rank is the squared distance to the nearest pick, its bits read as a signed integer: non-negative
floats order like their bits, and -2.0 (not finite) and -1.0 (picked) come below, in this order.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import clouds
from ..launch import INTERPRETED, can_launch_cooperatively, cdiv, jit, power_of_2
from ..sums import sum_dtype
from . import reference

_TOP = 2  # candidates of each program in a round
_MOST_PLACES = 2**24 - 4096  # points of a program: a published word has 24 bits for their number


class Plan(NamedTuple):
    """Launch parameters: programs per cloud, points per tile, warps per program."""

    programs: int
    block: int
    warps: int


def alone(num_points: int) -> Plan:
    """One program per cloud, so that programs do not wait for each other."""
    return Plan(1, power_of_2(num_points, 32, 4096), 1 if INTERPRETED else 8)


def plan(batch: int, num_points: int, dtype: torch.dtype, processors: int) -> Plan:
    """Choose how many programs share a cloud: about sqrt(N) / 2, by measurement.

    Programs of a cloud wait for each other, so all programs of a launch must be resident at once. This holds for eight
    warps per multiprocessor if a thread holds at most 32 points in registers. One warp per program needs no barriers;
    four are faster where a program holds a thousand points or more.
    """
    if dtype == torch.float64 or not can_launch_cooperatively():
        return alone(num_points)
    most = 128 if num_points <= 128 * 4096 else 256
    programs = min(most, power_of_2(int(num_points**0.5 / 2) + 1, 2, 512) // 2)
    while programs >= 1 and cdiv(num_points, programs) <= _MOST_PLACES:
        block = power_of_2(cdiv(num_points, programs), 32, 4096)
        for warps in (4 if block >= 1024 else 1, block // 1024):
            if warps and programs * batch * warps <= 8 * processors:
                streams = num_points > programs * block
                return Plan(programs, 2048 if streams else block, warps)  # in a loop, smaller tiles are faster
        programs //= 2
    return alone(num_points) if num_points > 1024 else Plan(1, power_of_2(num_points, 32, 1024), 1)


def farthest_point_sampling(
    points: Tensor,
    sizes: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    start: Tensor | None,
    radii: bool,
) -> tuple[Tensor, Tensor]:
    if points.shape[-1] > 3:
        return reference.farthest_point_sampling(points, sizes, num_samples, counts, start, radii)
    batch, num_points = clouds.batch_size(points, sizes), points.shape[-2]
    wide = sum_dtype(points.dtype)
    shape = clouds.samples_shape(points, sizes, num_samples, counts)
    index = points.new_full(shape, -1, dtype=torch.int64)
    distance2 = points.new_zeros(shape if radii else (0,), dtype=wide)
    if not index.numel() or not num_points:
        return index, distance2
    if counts is not None:
        counts = reference.fitting_counts(counts, num_samples, points.dim() == 2)
    processors = 1 if INTERPRETED else torch.cuda.get_device_properties(points.device).multi_processor_count
    chosen = plan(batch, num_points, wide, processors)
    arguments = (index, distance2, points.contiguous(), sizes, num_samples, counts, start, radii)
    try:
        _launch(chosen, *arguments)
    except RuntimeError as error:
        # The driver refuses, before anything runs, a grid that cannot be resident, e.g. on a shared GPU.
        if chosen.programs == 1 or "cooperative" not in str(error):
            raise
        _launch(alone(num_points), *arguments)
    return index, distance2


def _launch(
    plan: Plan,
    index: Tensor,
    distance2: Tensor,
    points: Tensor,
    sizes: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    start: Tensor | None,
    radii: bool,
) -> None:
    packed, num_points = points.dim() == 2, points.shape[-2]
    batch = clouds.batch_size(points, sizes)
    double = distance2.dtype == torch.float64
    streams = num_points > plan.programs * plan.block
    unused = index  # a pointer is needed even where it is never read
    options = {"launch_cooperative_grid": True} if plan.programs > 1 else {}
    _farthest[(batch * plan.programs,)](
        index_ptr=index,
        distance2_ptr=distance2,
        points_ptr=points,
        sizes_ptr=unused if sizes is None else sizes.contiguous(),
        counts_ptr=unused if counts is None else counts,
        before_ptr=unused if counts is None else counts.cumsum(0) - counts,
        start_ptr=unused if start is None else start.contiguous(),
        words_ptr=index.new_zeros(batch * 6 * plan.programs if plan.programs > 1 else 0),
        rank_ptr=index.new_empty(points.shape[:-1] if streams else (0,), dtype=torch.int64 if double else torch.int32),
        num_points=num_points,
        num_samples=num_samples,
        num_start=1 if start is None else start.shape[1],
        PACKED=packed,
        SIZES=sizes is not None,
        COUNTS=counts is not None,
        START=start is not None,
        RADII=radii,
        WIDE=tl.float64 if double else tl.float32,
        RANK=tl.int64 if double else tl.int32,
        STREAMS=streams,
        G=plan.programs,
        BLOCK=plan.block,
        LOWEST=-(2**63) if double else -(2**31),
        # A lane that streams keeps its two best, of which the second must serve as the bar.
        TOP=1 if streams else _TOP,
        num_warps=plan.warps,
        enable_fp_fusion=False,  # distances must round like every other backend's
        **options,
    )


@triton.jit
def _finite(x, y, z):
    return (x - x == 0) & (y - y == 0) & (z - z == 0)  # NaN and infinity leave NaN


@triton.jit
def _load_point(points_ptr, k, k_mask, WIDE: tl.constexpr):
    k = tl.cast(k, tl.int64)
    x = tl.load(points_ptr + k * 3, mask=k_mask, other=0).to(WIDE)
    y = tl.load(points_ptr + k * 3 + 1, mask=k_mask, other=0).to(WIDE)
    z = tl.load(points_ptr + k * 3 + 2, mask=k_mask, other=0).to(WIDE)
    return x, y, z


@triton.jit
def _load_candidate(points_ptr, k, k_mask, WIDE: tl.constexpr):
    """Points whose rank is updated. Those that are not finite are put at the origin: their rank is below all others."""
    x, y, z = _load_point(points_ptr, k, k_mask, WIDE)
    finite = _finite(x, y, z)
    return tl.where(finite, x, 0.0), tl.where(finite, y, 0.0), tl.where(finite, z, 0.0), finite


@triton.jit
def _load_pick(points_ptr, k, WIDE: tl.constexpr):
    """The point that was picked. If it is not finite, it is put at infinity, so that it changes no rank."""
    x, y, z = _load_point(points_ptr, k, True, WIDE)
    finite = _finite(x, y, z)
    far = float("inf")
    return tl.where(finite, x, far), tl.where(finite, y, far), tl.where(finite, z, far)


@triton.jit
def _bits(value: tl.constexpr, WIDE: tl.constexpr, RANK: tl.constexpr):
    return tl.full((), value, WIDE).to(RANK, bitcast=True)


@triton.jit
def _lower(rank, x, y, z, k, px, py, pz, pick, WIDE: tl.constexpr, RANK: tl.constexpr):
    """Ranks after a pick."""
    dx = x - px
    dy = y - py
    dz = z - pz
    distance2 = dx * dx + dy * dy + dz * dz
    rank = tl.minimum(rank, distance2.to(RANK, bitcast=True))
    return tl.where(k == pick, _bits(-1.0, WIDE, RANK), rank)


@triton.jit
def _best(rank, k):
    """The greatest rank and, of those that have it, the smallest index."""
    top = tl.max(rank, 0)
    return top, tl.min(tl.where(rank == top, k, 0x7FFFFFFF), 0)


@triton.jit
def _publish(word_ptr, rank, k, tag, G: tl.constexpr, BLOCK: tl.constexpr, STREAMS: tl.constexpr):
    """One 64-bit word: rank, place within the program's slice (24 bits), round (8 bits)."""
    place = k // G
    if STREAMS:
        place = k // (G * BLOCK) * BLOCK + k % BLOCK
    word = (rank.to(tl.int64) << 32) | (place.to(tl.int64) << 8) | (tag & 0xFF).to(tl.int64)
    tl.atomic_xchg(word_ptr, word, sem="relaxed")


@triton.jit
def _unpack(word, g, RANK: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr, STREAMS: tl.constexpr):
    """Unpack rank and index from a word that program g published."""
    place = ((word >> 8) & 0xFFFFFF).to(tl.int32)
    k = place * G + g
    if STREAMS:
        k = (place // BLOCK * G + g) * BLOCK + place % BLOCK
    return (word >> 32).to(RANK), k


# Sizes are not specialized: with one point and one sample as constants, Triton 3.6 fails to compile.
@jit(do_not_specialize=["num_points", "num_samples", "num_start"])
def _farthest(
    index_ptr, distance2_ptr, points_ptr, sizes_ptr, counts_ptr, before_ptr, start_ptr, words_ptr, rank_ptr,
    num_points, num_samples, num_start,
    PACKED: tl.constexpr, SIZES: tl.constexpr, COUNTS: tl.constexpr, START: tl.constexpr, RADII: tl.constexpr,
    WIDE: tl.constexpr, RANK: tl.constexpr, STREAMS: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr,
    LOWEST: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    cloud = (tl.program_id(0) // G).to(tl.int64)
    g = tl.program_id(0) % G

    # The rows of the cloud and of its samples. Sizes were not checked, so they are clamped.
    begin = cloud * num_points
    size = num_points
    if PACKED:
        begin = begin * 0
        if SIZES:
            begin = tl.minimum(tl.maximum(tl.load(sizes_ptr + cloud), 0), num_points)
            end = tl.minimum(tl.maximum(tl.load(sizes_ptr + cloud + 1), begin), num_points)
            size = (end - begin).to(tl.int32)
    elif SIZES:
        size = tl.minimum(tl.maximum(tl.load(sizes_ptr + cloud), 0), num_points).to(tl.int32)
    count = num_samples
    out = cloud * num_samples
    if COUNTS:
        count = tl.load(counts_ptr + cloud).to(tl.int32)
        if PACKED:
            out = tl.load(before_ptr + cloud)
    count = tl.minimum(count, size)
    steps = count
    if RADII:
        steps = tl.where(count > 0, count + 1, 0)  # one more, to compute the last radius
    shift = begin * 0
    if PACKED:
        shift = begin
    index_ptr += out
    distance2_ptr += out
    points_ptr += begin * 3
    rank_ptr += begin

    # The points of this program: every G-th point if they fit into registers, else every G-th tile.
    lane = tl.arange(0, BLOCK)
    k = g + G * lane
    if STREAMS:
        k = g * BLOCK + lane
    x, y, z, finite = _load_candidate(points_ptr, k, k < size, WIDE)
    absent = _bits(-1.0, WIDE, RANK)
    rank = tl.where(finite, _bits(float("inf"), WIDE, RANK), _bits(-2.0, WIDE, RANK))
    rank = tl.where(k < size, rank, absent)
    if STREAMS:
        for tile in range(0, size, G * BLOCK):
            tk = tile + k
            _, _, _, finite = _load_candidate(points_ptr, tk, tk < size, WIDE)
            first = tl.where(finite, _bits(float("inf"), WIDE, RANK), _bits(-2.0, WIDE, RANK))
            tl.store(rank_ptr + tk, first, mask=tk < size)

    step = 0
    applied = 0  # picks that were applied to the ranks in memory (only when streaming)
    forced = 1  # whether picks still come from the start set
    tag = 0
    gs = tl.arange(0, G)
    ts = tl.arange(0, TOP * G)
    if not START and steps > 0:
        px, py, pz = _load_pick(points_ptr, 0, WIDE)
        rank = _lower(rank, x, y, z, k, px, py, pz, 0, WIDE, RANK)
        tl.store(index_ptr, shift)
        step += 1
    while step < steps:
        tag += 1
        if STREAMS:
            # Apply all new picks to the points in one pass, keeping the two best of each lane. The names in these loops
            # are not used elsewhere in the outer loop: Triton 3.2 would crash.
            tl.debug_barrier()  # all threads read the picks stored below
            rank = tl.full((BLOCK,), LOWEST, RANK)
            runner = rank
            rank_k = k
            runner_k = k
            for tile in range(0, size, G * BLOCK):
                tk = tile + k
                tx, ty, tz, _unused = _load_candidate(points_ptr, tk, tk < size, WIDE)
                fresh = tl.load(rank_ptr + tk, mask=tk < size, other=0)
                fresh = tl.where(tk < size, fresh, absent)
                for past in range(applied, step):
                    old = (tl.load(index_ptr + past) - shift).to(tl.int32)
                    old_x, old_y, old_z = _load_pick(points_ptr, old, WIDE)
                    fresh = _lower(fresh, tx, ty, tz, tk, old_x, old_y, old_z, old, WIDE, RANK)
                tl.store(rank_ptr + tk, fresh, mask=tk < size)
                # Later tiles hold larger indices, so ties keep the earlier one.
                wins = fresh > rank
                second = tl.where(wins, rank, fresh)
                second_k = tl.where(wins, rank_k, tk)
                rank = tl.where(wins, fresh, rank)
                rank_k = tl.where(wins, tk, rank_k)
                better = (second > runner) | ((second == runner) & (second_k < runner_k))
                runner = tl.where(better, second, runner)
                runner_k = tl.where(better, second_k, runner_k)
            applied = step
            best, best_k = _best(rank, rank_k)
            rest = tl.where(rank_k == best_k, runner, rank)
            rest_k = tl.where(rank_k == best_k, runner_k, rank_k)
        else:
            best, best_k = _best(rank, k)
            rest = tl.where(k == best_k, LOWEST, rank)
            rest_k = k

        below, below_k = _best(rest, rest_k)
        if G == 1:
            candidate = best + tl.zeros((1,), RANK)
            candidate_k = best_k + tl.zeros((1,), tl.int32)
            bar = below
            bar_k = below_k
        else:
            # Two buffers alternate: no program can be two rounds ahead, so a word is read before it is reused. The tag
            # of the round in a word shows that it has arrived.
            slot_ptr = words_ptr + (cloud * 2 + (tag & 1)) * (TOP + 1) * G
            bar_ptr = slot_ptr + TOP * G
            _publish(slot_ptr + g, best, best_k, tag, G, BLOCK, STREAMS)
            if TOP == 2:
                _publish(slot_ptr + G + g, below, below_k, tag, G, BLOCK, STREAMS)
                below, below_k = _best(tl.where(rest_k == below_k, LOWEST, rest), rest_k)
            _publish(bar_ptr + g, below, below_k, tag, G, BLOCK, STREAMS)
            tops = tl.load(slot_ptr + ts, volatile=True)
            bars = tl.load(bar_ptr + gs, volatile=True)
            late = tl.max(((tops ^ tag) & 0xFF).to(tl.int32), 0) | tl.max(((bars ^ tag) & 0xFF).to(tl.int32), 0)
            while late != 0:
                tops = tl.load(slot_ptr + ts, volatile=True)
                bars = tl.load(bar_ptr + gs, volatile=True)
                late = tl.max(((tops ^ tag) & 0xFF).to(tl.int32), 0) | tl.max(((bars ^ tag) & 0xFF).to(tl.int32), 0)
            candidate, candidate_k = _unpack(tops, ts % G, RANK, G, BLOCK, STREAMS)
            bars, bars_k = _unpack(bars, gs, RANK, G, BLOCK, STREAMS)
            bar, bar_k = _best(bars, bars_k)

        cx, cy, cz, _ = _load_candidate(points_ptr, candidate_k, candidate_k < size, WIDE)
        top, pick = _best(candidate, candidate_k)
        while ((top > bar) | ((top == bar) & (pick < bar_k))) & (step < steps):
            if RADII:
                covering = tl.maximum(top.to(WIDE, bitcast=True), 0.0)
                tl.store(distance2_ptr + step - 1, covering, mask=(g == 0) & (step > 0))
            if START:
                asked = tl.load(start_ptr + cloud * num_start + step, mask=step < num_start, other=-1)
                named = (asked >= 0) & (asked < size)
                forced = tl.where(named, forced, 0)
                pick = tl.where(forced != 0, asked.to(tl.int32), tl.where(step == 0, 0, pick))
            tl.store(index_ptr + step, pick.to(tl.int64) + shift, mask=(step < count) & (STREAMS | (g == 0)))
            px, py, pz = _load_pick(points_ptr, tl.minimum(pick, size - 1), WIDE)
            candidate = _lower(candidate, cx, cy, cz, candidate_k, px, py, pz, pick, WIDE, RANK)
            if not STREAMS:
                rank = _lower(rank, x, y, z, k, px, py, pz, pick, WIDE, RANK)
            step += 1
            top, pick = _best(candidate, candidate_k)
