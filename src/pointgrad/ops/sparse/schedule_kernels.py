"""Triton kernels of schedules: the order in which rows are processed, and the positions that their tiles use.

The key of a row has a bit for each kernel position, see `reference.schedule`. Kernels that write tables compute keys.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit
from .reference import KEY_BITS, TILE, WORD, key_bits, schedule_size


def key_dtype(volume: int, mirrored: bool) -> torch.dtype:
    """The smallest dtype for a bit of each position, and one that separates the two tables."""
    bits = min(volume, KEY_BITS) + (not mirrored)
    if bits <= 8:
        return torch.uint8
    return torch.int16 if bits <= 15 else torch.int32 if bits <= 31 else torch.int64


@functools.cache
def key_words_of(*kernel: int) -> tuple[int, ...]:
    """`reference.key_bits` in words of ten numbers with 6 bits; none if position k has bit k % KEY_BITS."""
    bits = key_bits(list(kernel))
    if len(bits) > KEY_BITS:
        return ()
    return tuple(
        sum(bit << (6 * place) for place, bit in enumerate(bits[first : first + 10]))
        for first in range(0, len(bits), 10)
    )


def schedules(
    sources: Tensor, targets: Tensor, keys: Tensor, key_words: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """The schedule of the sources, the targets, and their schedule, see `reference.schedule`. One sort orders both."""
    volume = sources.shape[1]
    out, second_out = (sources.new_empty(schedule_size(len(table), volume)) for table in (sources, targets))
    tiles = cdiv(len(sources), TILE) + cdiv(len(targets), TILE)
    if tiles:
        keys, order = torch.sort(keys, stable=True)
        _write_schedules[(tiles, cdiv(volume, WORD))](
            out_ptr=out,
            second_out_ptr=second_out,
            order_ptr=order,
            key_ptr=keys,
            table_ptr=sources,
            second_table_ptr=targets,
            rows=len(sources),
            second_rows=len(targets),
            VOLUME=volume,
            KEY_WORDS=key_words,
            KEY_BITS=KEY_BITS,
            TILE=TILE,
            WORD=WORD,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return out, targets, second_out


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def no_positions(row, key_ptr):
    """Keys of rows that use no position. Small keys are computed with 32 bits."""
    return (row * 0).to(tl.int64 if key_ptr.dtype.element_ty == tl.int64 else tl.int32)


@triton.jit
def _key_bit(position, KEY_WORDS: tl.constexpr, KEY_BITS: tl.constexpr):
    """The bit of each position, see `reference.key_bits`."""
    bit = position.to(tl.int64) % KEY_BITS
    for word in tl.static_range(len(KEY_WORDS)):
        at = position - 10 * word
        packed = tl.full(position.shape, KEY_WORDS[word], tl.int64)
        bit = tl.where((at >= 0) & (at < 10), (packed >> (6 * at).to(tl.int64)) & 63, bit)
    return bit


@triton.jit
def key_of(present, position, TYPE: tl.constexpr, KEY_WORDS: tl.constexpr, KEY_BITS: tl.constexpr):
    """The bits of the positions (K,) that each row of a mask (M, K) uses."""
    return tl.reduce(present.to(TYPE) << _key_bit(position, KEY_WORDS, KEY_BITS).to(TYPE)[None, :], 1, _or)


@triton.jit
def place_of_gray_code(code):
    """The place of each Gray code of at most 62 bits among all codes."""
    code ^= code >> 1
    code ^= code >> 2
    code ^= code >> 4
    code ^= code >> 8
    code ^= code >> 16
    if code.dtype == tl.int64:
        code ^= code >> 32
    return code


@jit(do_not_specialize=["rows", "second_rows"])
def _write_schedules(
    out_ptr, second_out_ptr, order_ptr, key_ptr, table_ptr, second_table_ptr, rows, second_rows,
    VOLUME: tl.constexpr, KEY_WORDS: tl.constexpr, KEY_BITS: tl.constexpr, TILE: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    """Both schedules, of rows that are sorted together: those of the second table follow the others."""
    tile, word = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tiles = tl.cdiv(rows, TILE)
    if tile < tiles:
        _write_schedule(
            out_ptr, order_ptr, key_ptr, table_ptr, tile, word, rows, 0, VOLUME, KEY_WORDS, KEY_BITS, TILE, WORD
        )
    else:
        _write_schedule(
            second_out_ptr, order_ptr, key_ptr, second_table_ptr, tile - tiles, word, second_rows, rows,
            VOLUME, KEY_WORDS, KEY_BITS, TILE, WORD,
        )  # fmt: skip


@triton.jit
def _write_schedule(
    out_ptr, order_ptr, key_ptr, table_ptr, tile, word, rows, first,
    VOLUME: tl.constexpr, KEY_WORDS: tl.constexpr, KEY_BITS: tl.constexpr, TILE: tl.constexpr, WORD: tl.constexpr,
):  # fmt: skip
    """A tile of the schedule of the table whose rows begin with the `first` of all."""
    place = tile * TILE + tl.arange(0, TILE)
    mask = place < rows
    if word == 0:
        row = tl.load(order_ptr + first + place, mask=mask, other=0) - first
        tl.store(out_ptr + place, row.to(tl.int32), mask=mask)
    position = word * WORD + tl.arange(0, WORD)
    if VOLUME <= KEY_BITS:
        key = tl.load(key_ptr + first + place, mask=mask, other=0).to(tl.int64) & ((1 << VOLUME) - 1)
        together = tl.reduce(key ^ (key >> 1), 0, _or)
        used = (together >> _key_bit(position, KEY_WORDS, KEY_BITS)) & 1
    else:
        used = tl.zeros((WORD,), tl.int64)
        for start in range(0, TILE, 8):
            some = tile * TILE + start + tl.arange(0, 8)
            one = tl.load(order_ptr + first + some, mask=some < rows, other=first) - first
            inside = (some < rows)[:, None] & (position < VOLUME)[None, :]
            found = tl.load(table_ptr + one[:, None] * VOLUME + position[None, :], mask=inside, other=-1)
            used |= tl.max((found >= 0).to(tl.int64), 0)
    used = tl.where(position < VOLUME, used, 0)
    bits = tl.sum(used << tl.arange(0, WORD).to(tl.int64), 0)
    words: tl.constexpr = (VOLUME + WORD - 1) // WORD
    tl.store(out_ptr + rows + tile * words + word, bits.to(tl.int32))
