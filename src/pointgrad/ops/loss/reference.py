"""The operators of this family in plain PyTorch. The formulas are derived in docs/operators/loss.md.

Logits are (N, C, S): N clouds or rows, C classes, S positions within each. A target is (N, S) classes, or (N, C, S)
coefficients. A position whose class is `ignore_index` or out of range has no loss.
"""

import torch
from torch import Tensor

from ..sums import sum_dtype


def cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    x = logits.to(sum_dtype(logits.dtype))
    a = coefficients(x, target, weight, ignore_index, smoothing)
    lowest = x.new_full((x.shape[0], 1, x.shape[2]), -torch.inf)
    top = (
        torch.cat([x, lowest], 1).nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(1)
    )  # the total becomes NaN if needed
    top = torch.where(top == -torch.inf, 0, top)
    total = (x - top.unsqueeze(1)).exp().sum(1)
    log_total = torch.where(total == 0, 0, total.log())  # 0 if all are -inf: the differences below are infinite
    loss = _times(a, top.unsqueeze(1) - x).sum(1) + _times(a.sum(1), log_total)
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
    x = logits.to(sum_dtype(logits.dtype))
    a = coefficients(x, target, weight, ignore_index, smoothing)
    p = (x - top.unsqueeze(1)).exp() / total.unsqueeze(1)
    slopes = grad.unsqueeze(1) * (_times(a.sum(1, keepdim=True), p) - a)
    flat = total == 0
    if not target.is_floating_point():
        flat = flat | ~counted(target, x.shape[1], ignore_index)
    return torch.where(flat.unsqueeze(1), 0, slopes).to(logits.dtype)


def nll(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    if input.shape[1] == 0:
        return input.new_zeros(target.shape, dtype=sum_dtype(input.dtype))
    kept, chosen, factor = _chosen(input, target, weight, ignore_index)
    return torch.where(kept, _times(factor, -input.gather(1, chosen).squeeze(1).to(factor.dtype)), 0)


def nll_backward(
    grad: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, classes: int, dtype: torch.dtype
) -> Tensor:
    out = grad.new_zeros((grad.shape[0], classes, grad.shape[1]), dtype=dtype)
    if classes == 0:
        return out
    kept, chosen, factor = _chosen(out, target, weight, ignore_index)
    slopes = torch.where(kept, -factor * grad, 0).to(dtype)
    return out.scatter_(1, chosen, slopes.unsqueeze(1))


def coefficients(x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, smoothing: float) -> Tensor:
    """(N, C, S) the coefficient of minus the logarithm of each probability in the loss of a position."""
    hit, base = hit_and_base(x, target, weight, smoothing)
    if hit is None:
        return target.to(x.dtype)
    classes = x.shape[1]
    number = torch.arange(classes, device=x.device).view(1, classes, 1)
    a = torch.where(number == target.unsqueeze(1), hit.view(1, classes, 1), 0)
    a = a if base is None else a + base.view(1, classes, 1)
    return torch.where(counted(target, classes, ignore_index).unsqueeze(1), a, 0)


def hit_and_base(
    x: Tensor, target: Tensor, weight: Tensor | None, smoothing: float
) -> tuple[Tensor | None, Tensor | None]:
    """The two parts of the coefficients, where None means zero.

    `hit` (C,) is added for the target class. `base` is (C,) if all positions share it, else (N, C, S).
    """
    if target.is_floating_point():
        return None, target
    weight = x.new_ones(x.shape[1], dtype=sum_dtype(x.dtype)) if weight is None else weight
    base = (smoothing / max(x.shape[1], 1)) * weight if smoothing > 0 else None
    return (1 - smoothing) * weight, base


def counted(target: Tensor, classes: int, ignore_index: int) -> Tensor:
    """Whether targets are valid classes that are not ignored."""
    return (target != ignore_index) & (target >= 0) & (target < classes)


def _chosen(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """(N, S) whether positions are counted, (N, 1, S) their classes, (N, S) the weights of these classes."""
    kept = counted(target, input.shape[1], ignore_index)
    chosen = torch.where(kept, target, 0)
    factor = kept.to(sum_dtype(input.dtype))
    if weight is not None:
        factor = factor * weight.to(factor.dtype)[chosen]
    return kept, chosen.unsqueeze(1), factor


def _times(factor: Tensor, value: Tensor) -> Tensor:
    """A product that is zero if the factor is zero, even if the value is infinite."""
    return torch.where(factor == 0, 0, factor * value)
