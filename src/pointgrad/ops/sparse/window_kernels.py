"""Triton kernels of strided maps whose outputs are computed: the candidates, and the tables without a search."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, jit, power_of_2
from .reference import most_ways

NOTHING = tl.constexpr(2147483647)  # initial value of tables that are written with atomic minima


def sparse_readers(
    coordinates: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> tuple[Tensor, Tensor]:
    *batch, inputs, _ = coordinates.shape
    ways, block = most_ways(kernel, stride, dilation), 256
    voxels = coordinates.new_empty((*batch, inputs * ways**3, 3))
    reads = coordinates.new_empty(voxels.shape[:-1], dtype=torch.bool)
    if reads.numel():
        _list_readers[(cdiv(reads.numel(), block),)](
            voxels_ptr=voxels,
            reads_ptr=reads,
            coordinates_ptr=coordinates.contiguous(),
            rows=reads.numel(),
            **geometry_of(kernel, stride, padding, dilation),
            WAYS=ways,
            BLOCK=block,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return voxels, reads


def read(
    sources: Tensor,
    targets: Tensor,
    coordinates: Tensor,
    readers: Tensor,
    cloud_outputs: int,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> None:
    """Write both tables from the numbers of the candidates. The sources must be filled with NOTHING."""
    inputs, volume = targets.shape
    if inputs:
        block_k = min(32, power_of_2(volume))
        block_m = 128 // block_k
        _read[(cdiv(inputs, block_m),)](
            sources_ptr=sources,
            targets_ptr=targets,
            coordinates_ptr=coordinates.contiguous(),
            readers_ptr=readers.contiguous(),
            inputs=inputs,
            cloud_inputs=coordinates.shape[-2],
            cloud_outputs=cloud_outputs,
            **geometry_of(kernel, stride, padding, dilation),
            PACKED=coordinates.dim() == 2,
            WAYS=most_ways(kernel, stride, dilation),
            VOLUME=volume,
            BLOCK_M=block_m,
            BLOCK_K=block_k,
            num_warps=1,
            enable_fp_fusion=False,
        )


def geometry_of(kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> dict[str, int]:
    return {
        f"{name}_{axis}": number
        for name, numbers in (("kernel", kernel), ("stride", stride), ("padding", padding), ("dilation", dilation))
        for axis, number in zip("xyz", numbers, strict=True)
    }


@triton.jit
def in_32_bits(value):
    return value == value.to(tl.int32).to(tl.int64)


@triton.jit
def _floor_divided(value, divisor: tl.constexpr):
    quotient = value // divisor
    return quotient - (quotient * divisor > value).to(value.dtype)


@jit(do_not_specialize=["rows"])
def _list_readers(
    voxels_ptr, reads_ptr, coordinates_ptr, rows,
    kernel_x: tl.constexpr, kernel_y: tl.constexpr, kernel_z: tl.constexpr, stride_x: tl.constexpr,
    stride_y: tl.constexpr, stride_z: tl.constexpr, padding_x: tl.constexpr, padding_y: tl.constexpr,
    padding_z: tl.constexpr, dilation_x: tl.constexpr, dilation_y: tl.constexpr, dilation_z: tl.constexpr,
    WAYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row for each candidate of each input, see `reference.sparse_readers`."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_mask = row < rows
    source = row // (WAYS * WAYS * WAYS)
    way = row % (WAYS * WAYS * WAYS)
    at_x = tl.load(coordinates_ptr + 3 * source, mask=row_mask, other=0) + padding_x
    at_y = tl.load(coordinates_ptr + 3 * source + 1, mask=row_mask, other=0) + padding_y
    at_z = tl.load(coordinates_ptr + 3 * source + 2, mask=row_mask, other=0) + padding_z
    x = _floor_divided(at_x, stride_x) - way // (WAYS * WAYS)
    y = _floor_divided(at_y, stride_y) - way // WAYS % WAYS
    z = _floor_divided(at_z, stride_z) - way % WAYS
    reads = _reaches(at_x - x * stride_x, kernel_x, dilation_x)
    reads = reads & _reaches(at_y - y * stride_y, kernel_y, dilation_y)
    reads = reads & _reaches(at_z - z * stride_z, kernel_z, dilation_z)
    tl.store(voxels_ptr + 3 * row, x, mask=row_mask)
    tl.store(voxels_ptr + 3 * row + 1, y, mask=row_mask)
    tl.store(voxels_ptr + 3 * row + 2, z, mask=row_mask)
    tl.store(reads_ptr + row, reads, mask=row_mask)


@triton.jit
def _reaches(distance, kernel: tl.constexpr, dilation: tl.constexpr):
    """Whether a kernel has a position at a distance, at least 0, from its first."""
    return (distance <= (kernel - 1) * dilation) & (distance % dilation == 0)


@jit(do_not_specialize=["inputs", "cloud_inputs", "cloud_outputs"])
def _read(
    sources_ptr, targets_ptr, coordinates_ptr, readers_ptr, inputs, cloud_inputs, cloud_outputs,
    kernel_x: tl.constexpr, kernel_y: tl.constexpr, kernel_z: tl.constexpr, stride_x: tl.constexpr,
    stride_y: tl.constexpr, stride_z: tl.constexpr, padding_x: tl.constexpr, padding_y: tl.constexpr,
    padding_z: tl.constexpr, dilation_x: tl.constexpr, dilation_y: tl.constexpr, dilation_z: tl.constexpr,
    PACKED: tl.constexpr, WAYS: tl.constexpr, VOLUME: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write both tables, if the numbers of the candidates of `_list_readers` are known."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask = row < inputs
    x = tl.load(coordinates_ptr + 3 * row, mask=row_mask, other=0)
    y = tl.load(coordinates_ptr + 3 * row + 1, mask=row_mask, other=0)
    z = tl.load(coordinates_ptr + 3 * row + 2, mask=row_mask, other=0)
    valid = row_mask & in_32_bits(x) & in_32_bits(y) & in_32_bits(z)
    shift = row * 0 if PACKED else row // cloud_inputs * cloud_outputs
    for start in tl.static_range(0, VOLUME, BLOCK_K):
        position = start + tl.arange(0, BLOCK_K)
        rest = position // kernel_z
        reads_x, way_x = _reader(x, (rest // kernel_y) * dilation_x, stride_x, padding_x)
        reads_y, way_y = _reader(y, (rest % kernel_y) * dilation_y, stride_y, padding_y)
        reads_z, way_z = _reader(z, (position % kernel_z) * dilation_z, stride_z, padding_z)
        reads = reads_x & reads_y & reads_z & valid[:, None] & (position < VOLUME)[None, :]
        way = (way_x * WAYS + way_y) * WAYS + way_z
        place = row[:, None] * (WAYS * WAYS * WAYS) + way
        reader = tl.load(readers_ptr + place, mask=reads, other=-1)
        reads = reads & (reader >= 0) & (reader < cloud_outputs)
        reader = tl.where(reads, reader + shift[:, None], -1)
        mask = row_mask[:, None] & (position < VOLUME)[None, :]
        tl.store(targets_ptr + row[:, None] * VOLUME + position[None, :], reader.to(tl.int32), mask=mask)
        value = tl.broadcast_to(row.to(tl.int32)[:, None], (BLOCK_M, BLOCK_K))
        tl.atomic_min(sources_ptr + reader * VOLUME + position[None, :], value, mask=reads, sem="relaxed")


@triton.jit
def _reader(at, step, stride: tl.constexpr, padding: tl.constexpr):
    """Along an axis, whether an output reads each coordinate (M,) at each step (K,) of its window, and its number."""
    moved = at + padding
    begin = moved[:, None] - step[None, :]
    output = _floor_divided(begin, stride)
    return (output * stride == begin) & in_32_bits(output), _floor_divided(moved, stride)[:, None] - output
