"""Kernel maps of sparse tensors: batch indices in any order, and one to three axes."""

import torch
from torch import Tensor
from torch.nn import functional

import pointgrad
from pointgrad import KernelMap
from pointgrad.ops import checks

from ..core import ConvAlgo
from . import ops
from .core import IndiceData, SparseConvTensor


def build(
    input: SparseConvTensor,
    algo: ConvAlgo,
    ksize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    subm: bool,
    transposed: bool = False,
) -> IndiceData:
    """Build the kernel map of a layer for the voxels of `input`."""
    shape, indices = input.spatial_shape, input.indices
    axes = len(shape)
    coordinates, offsets, order = _clouds(indices.to(input.features.device), int(input.batch_size))
    missing = 3 - axes
    kernel, steps = [1] * missing + ksize, [1] * missing + dilation
    if subm:
        map = pointgrad.submanifold_map(coordinates, kernel, dilation=steps, offsets=offsets)
        out_shape, out_indices = shape, indices
    else:
        if transposed:
            out_shape = ops.get_deconv_output_size(shape, ksize, stride, padding, dilation, output_padding)
        else:
            out_shape = ops.get_conv_output_size(shape, ksize, stride, padding, dilation)
        contract = f"large enough for a kernel of size {ksize} with padding {padding}"
        checks.value(min(out_shape) > 0, "spatial_shape", contract, shape)
        map = (pointgrad.transposed_map if transposed else pointgrad.strided_map)(
            coordinates,
            kernel,
            stride=[1] * missing + stride,
            padding=[0] * missing + padding,
            dilation=steps,
            shape=[1] * missing + out_shape,
            offsets=offsets,
        )
        out_indices = _indices(map, axes)
    return IndiceData(
        out_indices, indices, map, order, shape, out_shape, subm, algo, ksize, stride, padding, dilation
    )  # fmt: skip


def _clouds(indices: Tensor, batch_size: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Coordinates (N, 3) sorted by batch index, their offsets, and the order; None for one cloud or their own order."""
    coordinates = functional.pad(indices[:, 1:].long(), (4 - indices.shape[1], 0))
    if batch_size == 1:
        return coordinates, None, None
    batch = indices[:, 0].contiguous()
    order = None
    if len(batch):
        unsorted = (batch[1:] < batch[:-1]).any()
        lowest, highest, is_unsorted = torch.stack([batch.min(), batch.max(), unsorted.int()]).tolist()
        worst = lowest if lowest < 0 else highest
        checks.value(0 <= worst < batch_size, "indices[:, 0]", f"in [0, batch_size = {batch_size})", worst)
        if is_unsorted:
            order = batch.argsort(stable=True)
            batch, coordinates = batch[order], coordinates[order]
    bounds = torch.arange(batch_size + 1, dtype=batch.dtype, device=batch.device)
    return coordinates, torch.searchsorted(batch, bounds), order


def _indices(map: KernelMap, axes: int) -> Tensor:
    """The outputs of a map as (M, 1 + axes) int32."""
    count = map.coordinates.shape[0]
    if map.offsets is None:
        batch = map.coordinates.new_zeros(count)
    else:
        number = torch.arange(len(map.offsets) - 1, device=map.offsets.device)
        batch = number.repeat_interleave(map.offsets.diff(), output_size=count)
    return torch.cat([batch[:, None], map.coordinates[:, 3 - axes :]], 1).int()
