"""Kernel maps: the input that each output reads at each position of the kernel."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import checks, clouds
from ..voxels import unique_voxels
from . import reference, register

Sizes = int | Sequence[int]
Clouds = tuple[Tensor, Tensor | None, Tensor | None]  # coordinates, offsets, lengths


class KernelMap(NamedTuple):
    """The input that each output of a sparse convolution reads at each position of the kernel.

    A map is built once by `submanifold_map`, `strided_map` or `transposed_map`, and used by all convolutions and pools
    with the same coordinates and kernel. It has no gradient.

    Attributes:
        coordinates: (M, 3) or (B, M, 3) int64, the voxels of the outputs.
        offsets: (B + 1,) int64, the outputs of each cloud, if packed; None for one cloud.
        lengths: (B,) int64, the number of outputs of each cloud, if padded; None if all are full.
        input_coordinates: (N, 3) or (B, N, 3) int64, the voxels of the inputs.
        input_offsets: (B + 1,) int64 or None.
        input_lengths: (B,) int64 or None.
        kernel_size: Number of kernel positions along x, y and z. Position (i, j, k) has the number
            (i * kernel_size[1] + j) * kernel_size[2] + k.
        sources: (M, K) int32, the row of the input that each output reads at each position, or -1. In a padded batch
            (B * M, K), with rows numbered through all clouds.
        source_schedule: int32, the order in which kernels process the outputs.
        targets: (N, K) int32, the row of the output that reads each input at each position, or -1. None for a
            submanifold map with odd kernel sizes, where it would be `sources` with the positions reversed.
        target_schedule: int32, the order in which kernels process the inputs, or None.
        flipped: Whether column k of `sources` belongs to position K - 1 - k, as in the inverse of a map without
            `targets`.
    """

    coordinates: Tensor
    offsets: Tensor | None
    lengths: Tensor | None
    input_coordinates: Tensor
    input_offsets: Tensor | None
    input_lengths: Tensor | None
    kernel_size: tuple[int, int, int]
    sources: Tensor
    source_schedule: Tensor
    targets: Tensor | None
    target_schedule: Tensor | None
    flipped: bool

    def inverse(self) -> "KernelMap":
        """Return the map from the outputs back to the inputs.

        If an output of this map reads an input at position k, the inverse reads that output at position k to compute
        that input. A decoder uses it to return to the voxels before a strided convolution. Nothing is copied.
        """
        mirrored = self.targets is None or self.target_schedule is None
        return KernelMap(
            self.input_coordinates,
            self.input_offsets,
            self.input_lengths,
            self.coordinates,
            self.offsets,
            self.lengths,
            self.kernel_size,
            self.sources if mirrored else self.targets,  # type: ignore[arg-type]
            self.source_schedule if mirrored else self.target_schedule,  # type: ignore[arg-type]
            None if mirrored else self.sources,
            None if mirrored else self.source_schedule,
            not self.flipped if mirrored else self.flipped,
        )


def submanifold_map(
    coordinates: Tensor,
    kernel_size: Sizes,
    *,
    dilation: Sizes = 1,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    unique: bool = False,
) -> KernelMap:
    """Build the map of a submanifold convolution, whose outputs are the input voxels.

    Output o reads the inputs at o + (k - kernel_size // 2) * dilation for every kernel position k.

    Args:
        coordinates: (N, 3) packed, or (B, N, 3) padded, int64 or int32: the voxels, which may be negative.
        kernel_size: Number of kernel positions along every axis, or one number per axis. May be even; size 2 reads the
            inputs at o - 1 and o.
        dilation: Distance between adjacent positions, or one number per axis.
        offsets: (B + 1,), packed only: the voxels of each cloud. By default one cloud.
        lengths: (B,), padded only: the number of voxels of each cloud. By default all N.
        unique: Raise if a cloud contains a voxel twice. This synchronizes a GPU. Without it, the first of equal voxels
            counts; the others are missing, both as inputs and as outputs.

    Returns:
        `KernelMap` from the voxels to themselves.

    Raises:
        ValueError: A coordinate is not in the range of int32, on the CPU. On a GPU such a voxel counts as
            missing.

    Example:
        >>> line = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 3]])
        >>> submanifold_map(line, (1, 1, 3)).sources
        tensor([[-1,  0,  1],
                [ 0,  1, -1],
                [-1,  2, -1]], dtype=torch.int32)
    """
    _check_coordinates("coordinates", coordinates, offsets, lengths, "")
    kernel, steps = checks.three_ints("kernel_size", kernel_size, 1), checks.three_ints("dilation", dilation, 1)
    _check_volume(kernel)
    checks.boolean("unique", unique)
    coordinates, sizes = coordinates.long(), clouds.as_sizes(offsets, lengths)
    if unique:
        _refuse_duplicates("coordinates", coordinates, offsets, lengths)
    padding = [size // 2 * step for size, step in zip(kernel, steps, strict=True)]
    table = register.kernel_table(coordinates, sizes, None, None, None, kernel, [1, 1, 1], padding, steps)
    clouds_of = (coordinates, *_as_int64(offsets, lengths))
    return _map(clouds_of, clouds_of, kernel, table, mirrored=reference.is_symmetric(kernel, padding, steps))


def strided_map(
    coordinates: Tensor,
    kernel_size: Sizes,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    shape: Sequence[int] | None = None,
    outputs: Tensor | None = None,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    output_offsets: Tensor | None = None,
    output_lengths: Tensor | None = None,
    unique: bool = False,
) -> KernelMap:
    """Build the map of a convolution whose outputs are all voxels that read at least one input.

    Output o reads the inputs at o * stride - padding + k * dilation for every kernel position k, as in
    `torch.nn.functional.conv3d`.

    Args:
        coordinates: (N, 3) packed, or (B, N, 3) padded, int64 or int32: the input voxels.
        kernel_size: Number of kernel positions along every axis, or one number per axis.
        stride: Distance between the windows of adjacent outputs, or one number per axis.
        padding: The window of output 0 starts at -padding; one number, or one per axis. May be negative.
        dilation: Distance between adjacent positions, or one number per axis.
        shape: Keep only outputs from 0 to below this size along each axis, as on a dense grid. By default all outputs.
        outputs: (M, 3) or (B, M, 3), the output voxels, instead of all that read an input.
        offsets: (B + 1,), packed only: the inputs of each cloud. By default one cloud.
        lengths: (B,), padded only: the number of inputs of each cloud. By default all N.
        output_offsets: (B + 1,), packed `outputs` only.
        output_lengths: (B,), padded `outputs` only.
        unique: Raise if a cloud contains a voxel twice; see `submanifold_map`.

    Returns:
        `KernelMap`. Outputs are sorted by cloud, x, y, z. Packed: their number depends on the data, so a GPU is
        synchronized. Padded: there is space for all outputs that N inputs can have.

    Raises:
        ValueError: A coordinate is not in the range of int32, on the CPU. On a GPU such a voxel counts as missing.

    Example:
        >>> line = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 5]])
        >>> halved = strided_map(line, (1, 1, 2), stride=(1, 1, 2))
        >>> halved.coordinates[:, 2], halved.sources
        (tensor([0, 2]), tensor([[ 0,  1],
                [-1,  2]], dtype=torch.int32))
    """
    return _build(
        False, coordinates, kernel_size, stride, padding, dilation, shape, outputs,
        (offsets, lengths), (output_offsets, output_lengths), unique,
    )  # fmt: skip


def transposed_map(
    coordinates: Tensor,
    kernel_size: Sizes,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    shape: Sequence[int] | None = None,
    outputs: Tensor | None = None,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    output_offsets: Tensor | None = None,
    output_lengths: Tensor | None = None,
    unique: bool = False,
) -> KernelMap:
    """Build the map of a transposed convolution, whose outputs are all voxels that an input reaches.

    Input i is read by the outputs at i * stride - padding + k * dilation for every kernel position k, as in
    `torch.nn.functional.conv_transpose3d`. To return to the voxels of an earlier `strided_map`, use its `inverse()`.

    Args:
        coordinates: As for `strided_map`.
        kernel_size: As for `strided_map`.
        stride: Distance between the windows of adjacent inputs, or one number per axis.
        padding: As for `strided_map`.
        dilation: As for `strided_map`.
        shape: As for `strided_map`.
        outputs: As for `strided_map`.
        offsets: As for `strided_map`.
        lengths: As for `strided_map`.
        output_offsets: As for `strided_map`.
        output_lengths: As for `strided_map`.
        unique: As for `strided_map`.

    Returns:
        `KernelMap`, as `strided_map` returns it.

    Raises:
        ValueError: A coordinate is not in the range of int32, on the CPU. On a GPU such a voxel counts as missing.

    Example:
        >>> line = torch.tensor([[0, 0, 0], [0, 0, 2]])
        >>> doubled = transposed_map(line, (1, 1, 2), stride=(1, 1, 2))
        >>> doubled.coordinates[:, 2].tolist(), doubled.sources.tolist()
        ([0, 1, 4, 5], [[0, -1], [-1, 0], [1, -1], [-1, 1]])
    """
    return _build(
        True, coordinates, kernel_size, stride, padding, dilation, shape, outputs,
        (offsets, lengths), (output_offsets, output_lengths), unique,
    )  # fmt: skip


def _build(
    transposed: bool,
    coordinates: Any,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    shape: Sequence[int] | None,
    outputs: Any,
    sizes: tuple[Any, Any],
    output_sizes: tuple[Any, Any],
    unique: bool,
) -> KernelMap:
    _check_coordinates("coordinates", coordinates, *sizes, "")
    if outputs is None:
        for name, value in zip(("output_offsets", "output_lengths"), output_sizes, strict=True):
            checks.value(value is None, name, "None without outputs", "a tensor")
    else:
        _check_coordinates("outputs", outputs, *output_sizes, "output_")
        matches = outputs.dim() == coordinates.dim()
        checks.shape(matches, "outputs", "(M, 3) with coordinates (N, 3), or (B, M, 3) with (B, N, 3)", outputs)
        batch = clouds.batch_size(coordinates, sizes[0])
        other = clouds.batch_size(outputs, output_sizes[0])
        contract, received = (lambda: f"as many clouds as coordinates, B = {batch}"), (lambda: f"B = {other}")
        checks.value(other == batch, "outputs", contract, received, verb="have")
        checks.device("outputs", outputs, "coordinates", coordinates)
        checks.value(shape is None, "shape", "None with outputs", lambda: shape)
    kernel, strides = checks.three_ints("kernel_size", kernel_size, 1), checks.three_ints("stride", stride, 1)
    pads, steps = checks.three_ints("padding", padding, -(2**15) + 1), checks.three_ints("dilation", dilation, 1)
    bounds = None if shape is None else checks.three_ints("shape", shape, 0, 2**31)
    _check_volume(kernel)
    checks.boolean("unique", unique)
    coordinates = coordinates.long()
    outputs = None if outputs is None else outputs.long()
    checks_values = coordinates.device.type == "cpu" and not torch.compiler.is_compiling()
    if checks_values:
        # Errors of the operators would name their own arguments.
        register.check_voxels("coordinates", coordinates, clouds.as_sizes(*sizes), "")
        if outputs is not None:
            register.check_voxels("outputs", outputs, clouds.as_sizes(*output_sizes), "output_")
    if unique:
        _refuse_duplicates("coordinates", coordinates, *sizes)
        if outputs is not None:
            _refuse_duplicates("outputs", outputs, *output_sizes)
    inputs: Clouds = (coordinates, *_as_int64(*sizes))
    readers: Tensor | None = None
    if outputs is None:
        on_device = coordinates.dim() == 3 or not coordinates.is_meta
        checks.value(on_device, "coordinates", "on a device that holds values if they are packed", coordinates.device)
        if transposed:
            found = _reached(coordinates, kernel, strides, pads, steps)
            results, _ = _unique(inputs, math.prod(kernel), found, None, bounds)
            if checks_values:
                register.check_voxels("outputs", results[0], clouds.as_sizes(*results[1:]), "output_")
        else:
            found, reads = register.sparse_readers(coordinates, kernel, strides, pads, steps)
            ways = reference.most_ways(kernel, strides, steps)
            results, readers = _unique(inputs, ways**3, found, reads, bounds)
    else:
        results = (outputs, *_as_int64(*output_sizes))
    # A transposed map is the inverse of a strided one.
    fine, coarse = (results, inputs) if transposed else (inputs, results)
    sizes_of = [clouds.as_sizes(*part[1:]) for part in (fine, coarse)]
    table = register.kernel_table(fine[0], sizes_of[0], coarse[0], sizes_of[1], readers, kernel, strides, pads, steps)
    made = _map(coarse, fine, kernel, table)
    return made.inverse() if transposed else made


def _map(
    outputs: Clouds, inputs: Clouds, kernel: list[int], table: tuple[Tensor, ...], mirrored: bool = False
) -> KernelMap:
    sources, source_schedule, targets, target_schedule = table
    size = (kernel[0], kernel[1], kernel[2])
    return KernelMap(
        *outputs,
        *inputs,
        size,
        sources,
        source_schedule,
        None if mirrored else targets,
        None if mirrored else target_schedule,
        False,
    )


def _reached(
    coordinates: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """(N * K, 3) or (B, N * K, 3), the outputs that each input reaches."""
    steps = reference.positions(kernel, padding, dilation, coordinates.device)
    # Along each axis, because a tensor of three numbers would have to be copied to a GPU, which synchronizes it.
    moved = torch.stack([coordinates[..., axis] * step for axis, step in enumerate(stride)], -1)
    return (moved.unsqueeze(-2) + steps).flatten(-3, -2)


def _unique(
    inputs: Clouds, ways: int, found: Tensor, valid: Tensor | None, shape: list[int] | None
) -> tuple[Clouds, Tensor]:
    """The different voxels among the candidates of the inputs, and the number of each candidate's voxel.

    Args:
        inputs: Coordinates, offsets and lengths.
        ways: Number of candidates of each input.
        found: (N * ways, 3) or (B, N * ways, 3), the candidates.
        valid: (N * ways,) or (B, N * ways), which of them count.
        shape: Only voxels from 0 to below this size count.
    """
    if shape is not None:
        places = found.unbind(-1)
        inside = functools.reduce(
            torch.logical_and, [(place >= 0) & (place < size) for place, size in zip(places, shape, strict=True)]
        )
        valid = inside if valid is None else valid & inside
    _, offsets, lengths = inputs
    offsets = None if offsets is None else offsets * ways
    lengths = None if lengths is None else lengths * ways
    voxels = unique_voxels(found, offsets=offsets, lengths=lengths, valid=valid)
    return (voxels.coordinates, None if offsets is None else voxels.offsets, voxels.lengths), voxels.inverse


def _as_int64(offsets: Tensor | None, lengths: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return None if offsets is None else offsets.long(), None if lengths is None else lengths.long()


def _refuse_duplicates(name: str, coordinates: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> None:
    voxels = unique_voxels(coordinates, offsets=offsets, lengths=lengths)
    most = int(voxels.count.max()) if voxels.count.numel() else 0
    checks.value(most <= 1, name, "different within each cloud", f"a voxel that occurs {most} times")


def _check_coordinates(name: str, coordinates: Any, offsets: Any, lengths: Any, prefix: str) -> None:
    checks.clouds(coordinates, offsets, lengths, name=name, prefix=prefix, dtypes=checks.INDICES)
    rows = math.prod(coordinates.shape[:-1])  # torch.Size.numel() fails for sizes that depend on data
    checks.value(rows < 2**31, name, "fewer than 2^31 rows", lambda: rows, verb="have")


def _check_volume(kernel: list[int]) -> None:
    volume = kernel[0] * kernel[1] * kernel[2]
    checks.value(volume < 2**15, "kernel_size", "fewer than 32768 positions in all", volume, verb="have")
