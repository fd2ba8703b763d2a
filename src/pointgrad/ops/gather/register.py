"""Schema, fake and autograd of this room's operators."""

from typing import Any

from torch import Tensor

from .. import checks
from ..registry import operator


def _check_gather(features: Tensor, index: Tensor) -> None:
    checks.index_values(index, features.shape[-2])


def _check_backward(grad: Tensor, index: Tensor, num_rows: int, padded: bool) -> None:
    checks.index_values(index, num_rows)


def _fake_gather(features: Tensor, index: Tensor) -> Tensor:
    return features.new_empty((*index.shape, features.shape[-1]))


def _fake_backward(grad: Tensor, index: Tensor, num_rows: int, padded: bool) -> Tensor:
    batch = grad.shape[:1] if padded else ()
    return grad.new_empty((*batch, num_rows, grad.shape[-1]))


def _save_gather(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, index = inputs
    ctx.save_for_backward(index)
    ctx.num_rows, ctx.padded = features.shape[-2], features.dim() == 3


def _grad_gather(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (index,) = ctx.saved_tensors
    return gather_backward(grad, index, ctx.num_rows, ctx.padded), None  # index: integers


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _grad_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    (index,) = ctx.saved_tensors
    return gather(grad, index), None, None, None  # index, num_rows, padded: integers


gather = operator(
    "gather(Tensor features, Tensor index) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_gather,
    check=_check_gather,
    save=_save_gather,
    backward=_grad_gather,
)

gather_backward = operator(
    "gather_backward(Tensor grad, Tensor index, SymInt num_rows, bool padded) -> Tensor",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_backward,
    check=_check_backward,
    save=_save_backward,
    backward=_grad_backward,
)
