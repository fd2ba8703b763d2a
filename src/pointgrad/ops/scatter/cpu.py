"""Calls of the C++ kernels of this family."""

import torch
from torch import Tensor

from .. import native


def histogram(index: Tensor, size: int) -> Tensor:
    counts = native.empty(index, (*index.shape[:-1], size))
    native.module.histogram(
        counts=counts,
        index=index.contiguous(),
        batch=index.shape[0] if index.dim() == 2 else 1,
        rows=size,
        picks=index.shape[-1],
    )
    return counts


def scatter_extreme(values: Tensor, index: Tensor, num_rows: int, largest: bool) -> tuple[Tensor, Tensor]:
    picks, channels = values.shape[-2:]
    shape = (*values.shape[:-2], num_rows, channels)
    best, arg = native.empty(values, shape), native.empty(values, shape, torch.int64)
    native.module.scatter_extreme(
        best=best,
        arg=arg,
        values=values.contiguous(),
        index=index.contiguous(),
        scratch=native.empty(index, index.shape),
        dtype=values.dtype,
        batch=values.shape[0] if values.dim() == 3 else 1,
        rows=num_rows,
        picks=picks,
        channels=channels,
        largest=largest,
    )
    return best, arg


def place_elements(grad: Tensor, arg: Tensor, num_rows: int) -> Tensor:
    groups, channels = grad.shape[-2:]
    out = native.empty(grad, (*grad.shape[:-2], num_rows, channels))
    native.module.place_elements(
        out=out,
        grad=grad.contiguous(),
        arg=arg.contiguous(),
        value_bytes=grad.element_size(),
        batch=grad.shape[0] if grad.dim() == 3 else 1,
        rows=num_rows,
        groups=groups,
        channels=channels,
    )
    return out


def segment_sum(values: Tensor, offsets: Tensor, mean: bool) -> Tensor:
    segments, channels = offsets.shape[0] - 1, values.shape[1]
    out = native.empty(values, (segments, channels))
    native.module.segment_sum(
        out=out,
        values=values.contiguous(),
        offsets=offsets.contiguous(),
        dtype=values.dtype,
        segments=segments,
        channels=channels,
        mean=mean,
    )
    return out


def segment_spread(grad: Tensor, offsets: Tensor, num_rows: int, mean: bool) -> Tensor:
    segments, channels = grad.shape
    out = native.empty(grad, (num_rows, channels))
    native.module.segment_spread(
        out=out,
        grad=grad.contiguous(),
        offsets=offsets.contiguous(),
        dtype=grad.dtype,
        segments=segments,
        rows=num_rows,
        channels=channels,
        mean=mean,
    )
    return out


def segment_extreme(values: Tensor, offsets: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    shape = (offsets.shape[0] - 1, values.shape[1])
    best, arg = native.empty(values, shape), native.empty(values, shape, torch.int64)
    native.module.segment_extreme(
        best=best,
        arg=arg,
        values=values.contiguous(),
        offsets=offsets.contiguous(),
        dtype=values.dtype,
        segments=shape[0],
        channels=shape[1],
        largest=largest,
    )
    return best, arg


def segment_softmax(logits: Tensor, offsets: Tensor) -> Tensor:
    out = native.empty(logits, logits.shape)
    native.module.segment_softmax(
        out=out,
        logits=logits.contiguous(),
        offsets=offsets.contiguous(),
        dtype=logits.dtype,
        segments=offsets.shape[0] - 1,
        channels=logits.shape[1],
    )
    return out


def segment_softmax_backward(grad: Tensor, output: Tensor, offsets: Tensor) -> Tensor:
    out = native.empty(grad, grad.shape)
    native.module.segment_softmax_backward(
        out=out,
        grad=grad.contiguous(),
        output=output.contiguous(),
        offsets=offsets.contiguous(),
        dtype=grad.dtype,
        segments=offsets.shape[0] - 1,
        channels=grad.shape[1],
    )
    return out
