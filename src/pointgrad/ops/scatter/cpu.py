"""Hands tensors to the C++ kernels of this room."""

import torch
from torch import Tensor

from .. import native


def histogram(index: Tensor, size: int) -> Tensor:
    index = index.contiguous()
    batch = index.shape[0] if index.dim() == 2 else 1
    counts = native.empty(index, (*index.shape[:-1], size))
    native.module.histogram(counts.data_ptr(), index.data_ptr(), batch, size, index.shape[-1], torch.get_num_threads())
    return counts


def scatter_extreme(values: Tensor, index: Tensor, num_rows: int, largest: bool) -> tuple[Tensor, Tensor]:
    values, index = values.contiguous(), index.contiguous()
    batch = values.shape[0] if values.dim() == 3 else 1
    picks, channels = values.shape[-2:]
    shape = (*values.shape[:-2], num_rows, channels)
    best, arg = native.empty(values, shape), native.empty(values, shape, torch.int64)
    scratch = native.empty(index, index.shape)
    native.module.scatter_extreme(
        best.data_ptr(),
        arg.data_ptr(),
        values.data_ptr(),
        index.data_ptr(),
        scratch.data_ptr(),
        native.DTYPE_CODES[values.dtype],
        batch,
        num_rows,
        picks,
        channels,
        largest,
        torch.get_num_threads(),
    )
    return best, arg


def place_elements(grad: Tensor, arg: Tensor, num_rows: int) -> Tensor:
    grad, arg = grad.contiguous(), arg.contiguous()
    groups, channels = grad.shape[-2:]
    out = native.empty(grad, (*grad.shape[:-2], num_rows, channels))
    native.module.place_elements(
        out.data_ptr(),
        grad.data_ptr(),
        arg.data_ptr(),
        grad.element_size(),
        grad.shape[0] if grad.dim() == 3 else 1,
        num_rows,
        groups,
        channels,
        torch.get_num_threads(),
    )
    return out


def segment_sum(values: Tensor, offsets: Tensor, mean: bool) -> Tensor:
    values, offsets = values.contiguous(), offsets.contiguous()
    segments, channels = offsets.shape[0] - 1, values.shape[1]
    out = native.empty(values, (segments, channels))
    native.module.segment_sum(
        out.data_ptr(),
        values.data_ptr(),
        offsets.data_ptr(),
        native.DTYPE_CODES[values.dtype],
        segments,
        channels,
        mean,
        torch.get_num_threads(),
    )
    return out


def segment_spread(grad: Tensor, offsets: Tensor, num_rows: int, mean: bool) -> Tensor:
    grad, offsets = grad.contiguous(), offsets.contiguous()
    segments, channels = grad.shape
    out = native.empty(grad, (num_rows, channels))
    native.module.segment_spread(
        out.data_ptr(),
        grad.data_ptr(),
        offsets.data_ptr(),
        native.DTYPE_CODES[grad.dtype],
        segments,
        num_rows,
        channels,
        mean,
        torch.get_num_threads(),
    )
    return out


def segment_extreme(values: Tensor, offsets: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    values, offsets = values.contiguous(), offsets.contiguous()
    segments, channels = offsets.shape[0] - 1, values.shape[1]
    best = native.empty(values, (segments, channels))
    arg = native.empty(values, (segments, channels), torch.int64)
    native.module.segment_extreme(
        best.data_ptr(),
        arg.data_ptr(),
        values.data_ptr(),
        offsets.data_ptr(),
        native.DTYPE_CODES[values.dtype],
        segments,
        channels,
        largest,
        torch.get_num_threads(),
    )
    return best, arg


def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    logits, offsets = logits.contiguous(), offsets.contiguous()
    out = native.empty(logits, logits.shape)
    native.module.segment_softmax(
        out.data_ptr(),
        logits.data_ptr(),
        offsets.data_ptr(),
        native.DTYPE_CODES[logits.dtype],
        offsets.shape[0] - 1,
        logits.shape[1],
        torch.get_num_threads(),
    )
    return out


def segment_softmax_backward(grad: Tensor, output: Tensor, offsets: Tensor) -> Tensor:
    grad, output, offsets = grad.contiguous(), output.contiguous(), offsets.contiguous()
    out = native.empty(grad, grad.shape)
    native.module.segment_softmax_backward(
        out.data_ptr(),
        grad.data_ptr(),
        output.data_ptr(),
        offsets.data_ptr(),
        native.DTYPE_CODES[grad.dtype],
        offsets.shape[0] - 1,
        grad.shape[1],
        torch.get_num_threads(),
    )
    return out
