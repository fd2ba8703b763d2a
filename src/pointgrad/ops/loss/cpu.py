"""Calls of the C++ kernels of this family."""

from typing import Any

from torch import Tensor

from .. import native
from ..sums import sum_dtype
from .reference import hit_and_base


def cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    shape, wide = (logits.shape[0], logits.shape[2]), sum_dtype(logits.dtype)
    loss, top, total = (native.empty(logits, shape, wide) for _ in range(3))
    native.module.cross_entropy(
        loss=loss, top=top, total=total, **_problem(logits, target, weight, ignore_index, smoothing)
    )
    return loss, top, total


def cross_entropy_backward(
    grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    smoothing: float,
    top: Tensor,
    total: Tensor,
) -> Tensor:
    out = native.empty(logits, logits.shape)
    native.module.cross_entropy_backward(
        out=out,
        grad=grad.contiguous(),
        top=top.contiguous(),
        total=total.contiguous(),
        **_problem(logits, target, weight, ignore_index, smoothing),
    )
    return out


def _problem(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float
) -> dict[str, Any]:
    """The arguments that both kernels share."""
    target = target.contiguous()
    hit, base = hit_and_base(logits, target, weight, smoothing)
    clouds, classes, positions = logits.shape
    return {
        "logits": logits.contiguous(),
        "target": None if target.is_floating_point() else target,
        "hit": hit,
        "base": base,
        "wide_base": base is not None and base.dtype != logits.dtype,
        "ignore_index": ignore_index,
        "dtype": logits.dtype,
        "clouds": clouds,
        "classes": classes,
        "positions": positions,
    }
