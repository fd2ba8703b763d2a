"""Calls of the C++ kernels of this family."""

import torch
from torch import Tensor

from .. import clouds, native
from ..sums import sum_dtype
from . import reference


def kernel_table(
    coordinates: Tensor,
    sizes: Tensor | None,
    outputs: Tensor | None,
    output_sizes: Tensor | None,
    readers: Tensor | None,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = coordinates.shape[:-1].numel()
    rows = inputs if outputs is None else outputs.shape[:-1].numel()
    volume = kernel[0] * kernel[1] * kernel[2]
    mirrored = outputs is None and reference.is_symmetric(kernel, padding, dilation)
    sources = native.empty(coordinates, (rows, volume), torch.int32)
    targets = native.empty(coordinates, (0 if mirrored else inputs, volume), torch.int32)
    source_schedule, target_schedule = (
        native.empty(coordinates, (reference.schedule_size(table.shape[0], volume),), torch.int32)
        for table in (sources, targets)
    )
    native.module.kernel_table(
        sources=sources,
        source_schedule=source_schedule,
        targets=targets,
        target_schedule=target_schedule,
        coordinates=coordinates.contiguous(),
        **clouds.kernel_arguments(coordinates, sizes),
        outputs=None if outputs is None else outputs.contiguous(),
        num_outputs=coordinates.shape[-2] if outputs is None else outputs.shape[-2],
        output_sizes=None if output_sizes is None else output_sizes.contiguous(),
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        same=outputs is None,
        mirrored=mirrored,
    )
    return sources, source_schedule, targets, target_schedule[:0] if mirrored else target_schedule


def sparse_conv(
    features: Tensor,
    weight: Tensor,
    sources: Tensor,
    source_schedule: Tensor,
    targets: Tensor | None,
    target_schedule: Tensor | None,
    flip: bool,
    groups: int,
) -> Tensor:
    return finished_conv(features, weight, sources, flip, groups)


def finished_conv(
    features: Tensor,
    weight: Tensor,
    sources: Tensor,
    flip: bool,
    groups: int,
    *,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    added: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """`relu(sparse_conv(...) * scale + shift + added)`, rounded once, for inference.

    `scale` and `shift` (D,) have the dtype of sums, `added` (M, D) that of features. `added` and `relu` require them.
    """
    rows, volume = sources.shape
    inputs, outputs = weight.shape[1], weight.shape[2] // groups
    out = native.empty(features, (rows, weight.shape[2]))
    if out.numel() == 0:
        return out
    if inputs == outputs == 1:
        weight = weight.contiguous()
    strides = weight.stride()
    features = features.contiguous()
    entries = None
    # Narrow products are as fast with zeros.
    if (
        groups == 1
        and inputs >= 16
        and outputs >= 48
        and native.module.many_zeros(features=features, dtype=features.dtype, rows=features.shape[0], channels=inputs)
    ):
        entries = native.empty(features, (features.numel(), 2), sum_dtype(features.dtype))
    native.module.sparse_conv(
        out=out,
        features=features,
        weight=weight,
        sources=sources.contiguous(),
        entries=entries,
        scale=scale,
        shift=shift,
        added=None if added is None else added.contiguous(),
        relu=relu,
        dtype=features.dtype,
        rows=rows,
        volume=volume,
        num_features=features.shape[0],
        groups=groups,
        inputs=inputs,
        outputs=outputs,
        position_stride=strides[0],
        input_stride=strides[1],
        column_stride=strides[2],
        flip=flip,
    )
    return out


def join_rows(left: Tensor, right: Tensor) -> Tensor:
    """`torch.cat([left, right], 1)` of matrices with the same dtype."""
    out = native.empty(left, (left.shape[0], left.shape[1] + right.shape[1]))
    native.module.join_rows(
        out=out,
        left=left.contiguous(),
        right=right.contiguous(),
        rows=left.shape[0],
        left_bytes=left.shape[1] * left.itemsize,
        right_bytes=right.shape[1] * right.itemsize,
    )
    return out


def sparse_conv_weight(
    features: Tensor,
    grad: Tensor,
    sources: Tensor,
    source_schedule: Tensor,
    targets: Tensor | None,
    target_schedule: Tensor | None,
    flip: bool,
    groups: int,
) -> Tensor:
    rows, volume = sources.shape
    inputs, outputs = features.shape[1] // groups, grad.shape[1] // groups
    out = native.empty(features, (volume, inputs, grad.shape[1]))
    if out.numel() == 0:
        return out
    native.module.sparse_conv_weight(
        out=out,
        features=features.contiguous(),
        grad=grad.contiguous(),
        sources=sources.contiguous(),
        dtype=features.dtype,
        rows=rows,
        volume=volume,
        num_features=features.shape[0],
        groups=groups,
        inputs=inputs,
        outputs=outputs,
        flip=flip,
    )
    return out


def sparse_max(features: Tensor, sources: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor]:
    rows, volume = sources.shape
    channels = features.shape[1]
    best = native.empty(features, (rows, channels))
    arg = native.empty(features, (rows, channels), torch.int32)
    native.module.sparse_max(
        best=best,
        arg=arg,
        features=features.contiguous(),
        sources=sources.contiguous(),
        dtype=features.dtype,
        rows=rows,
        volume=volume,
        num_features=features.shape[0],
        channels=channels,
    )
    return best, arg


def sparse_max_backward(grad: Tensor, arg: Tensor, sources: Tensor, targets: Tensor | None) -> Tensor:
    table = sources if targets is None else targets
    rows, volume = table.shape
    out = native.empty(grad, (rows, grad.shape[1]))
    native.module.sparse_max_backward(
        out=out,
        grad=grad.contiguous(),
        arg=arg.contiguous(),
        table=table.contiguous(),
        dtype=grad.dtype,
        rows=rows,
        volume=volume,
        outputs=grad.shape[0],
        channels=grad.shape[1],
        flip=targets is None,
    )
    return out
