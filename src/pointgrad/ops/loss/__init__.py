"""Classification losses: from logits, and from logarithms of probabilities."""

import warnings

import torch
from torch import Tensor

from .. import checks
from ..sums import fixed_sum, sum_dtype
from . import register
from .reference import counted

__all__ = ["cross_entropy", "nll_loss"]

_CLASSES = (torch.int64, torch.int32, torch.uint8)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute minus the logarithm of the softmax of `input` at the target, like `torch.nn.functional.cross_entropy`.

    Gradients flow to `input` and, if the target holds probabilities, to `target` and `weight`. Only the logits and two
    numbers per position are saved for the backward, not the softmax.

    In two cases the result differs from PyTorch, which returns NaN: a position whose logits are all -inf has an
    infinite loss and no gradient, and a class whose coefficient is 0 does not contribute, even if its logit is -inf.

    Args:
        input: (C,), (N, C) or (N, C, d1, ...) logits.
        target: Classes (), (N,) or (N, d1, ...) in [0, C) or equal to `ignore_index`, int64, int32 or uint8; or
            floating-point probabilities in the shape of `input`. A class out of range raises a ValueError on the CPU
            and is ignored on a GPU, where checking it would require synchronization.
        weight: (C,), the weight of each class.
        size_average: Deprecated in PyTorch; use `reduction`.
        ignore_index: A class that has no loss and no gradient. Not supported for probabilities.
        reduce: Deprecated in PyTorch; use `reduction`.
        reduction: "none", "sum" or "mean". The mean is weighted by class and leaves out ignored positions; for
            probabilities it is taken over all positions.
        label_smoothing: In [0, 1], the part of the target that is distributed evenly over all classes.

    Returns:
        A scalar, or for reduction "none" a tensor in the shape of a class target. It has the dtype of `input`, or
        float32 under autocast, and is computed in at least float32.

    Example:
        >>> cross_entropy(torch.tensor([[0.0, 0.0], [1e20, 0.0]]), torch.tensor([1, 0]), reduction="none")
        tensor([0.6931, 0.0000])
    """
    reduction = _reduction(size_average, reduce, reduction)
    soft = _check(input, target, weight, ignore_index, probabilities=True)
    checks.kind(isinstance(label_smoothing, (int, float)), "label_smoothing", "a number", label_smoothing)
    checks.value(0.0 <= label_smoothing <= 1.0, "label_smoothing", "in [0, 1]", label_smoothing)
    if soft:
        logits, coefficients, dtype = _with_probabilities(input, target, weight, label_smoothing)
        rows, _, _ = register.cross_entropy(logits, coefficients, None, ignore_index, 0.0)
        counts = None
    else:
        logits, classes, weight = _with_classes(input, target, weight)
        rows, _, _ = register.cross_entropy(logits, classes, weight, ignore_index, float(label_smoothing))
        counts, dtype = _counts(classes, logits.shape[1], weight, ignore_index), input.dtype
    return _reduced(rows, counts, input, dtype, reduction)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Compute the negative log-likelihood of the target classes, like `torch.nn.functional.nll_loss`.

    Gradients flow to `input`. Only the target is saved for the backward, not the input.

    Args:
        input: (C,), (N, C) or (N, C, d1, ...) logarithms of probabilities.
        target: Classes (), (N,) or (N, d1, ...), int64, int32 or uint8, as for `cross_entropy`.
        weight: (C,), the weight of each class.
        size_average: Deprecated in PyTorch; use `reduction`.
        ignore_index: A class that has no loss and no gradient.
        reduce: Deprecated in PyTorch; use `reduction`.
        reduction: "none", "sum" or "mean", as for `cross_entropy`.

    Returns:
        A scalar, or for reduction "none" a tensor in the shape of `target`. It has the dtype of `input`, or float32
        under autocast, and is summed in at least float32.

    Example:
        >>> nll_loss(torch.tensor([[-0.5, -1.0], [-2.0, -0.1]]), torch.tensor([1, 0]))
        tensor(1.5000)
    """
    reduction = _reduction(size_average, reduce, reduction)
    _check(input, target, weight, ignore_index, probabilities=False)
    logits, classes, weight = _with_classes(input, target, weight)
    rows = register.nll(logits, classes, weight, ignore_index)
    counts = _counts(classes, logits.shape[1], weight, ignore_index)
    return _reduced(rows, counts, input, input.dtype, reduction)


def _reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    if size_average is not None or reduce is not None:
        every, mean = reduce is False, size_average is not False
        reduction = "none" if every else "mean" if mean else "sum"
        warnings.warn(f"size_average and reduce are deprecated; use reduction='{reduction}'", stacklevel=3)
    checks.value(reduction in ("none", "mean", "sum"), "reduction", "'none', 'mean' or 'sum'", repr(reduction))
    return reduction


def _check(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, probabilities: bool) -> bool:
    """Check the arguments, and return whether the target holds probabilities, which only some losses accept."""
    checks.tensor("input", input)
    checks.tensor("target", target)
    if weight is not None:
        checks.tensor("weight", weight)
    checks.kind(checks.is_integer(ignore_index), "ignore_index", "an int", ignore_index)
    checks.shape(input.dim() >= 1, "input", "(C,), (N, C) or (N, C, d1, ...)", input)
    soft = probabilities and target.shape == input.shape
    if not soft:
        expected = _position_shape(input)
        fits = target.shape == expected or (input.dim() == 1 and target.shape == (1,))
        checks.shape(fits, "target", lambda: f"{_targets(input, probabilities)} to match input", target)
    if weight is not None:
        classes = input.shape[min(1, input.dim() - 1)]
        checks.shape(weight.shape == (classes,), "weight", lambda: f"(C,) = ({classes},)", weight)
    checks.dtype("input", input, checks.FLOATS)
    checks.dtype("target", target, checks.FLOATS if soft else _CLASSES)
    if weight is not None:
        checks.dtype("weight", weight, checks.FLOATS)
        if not soft and not checks.autocasts(input):
            checks.same_dtype("weight", weight, "input", input)
    for name, value in (("target", target), ("weight", weight)):
        if value is not None:
            checks.device(name, value, "input", input)
    if weight is not None and not soft:
        needs_grad = weight.requires_grad and torch.is_grad_enabled()
        contract = "a gradient when target holds class indices"
        checks.value(not needs_grad, "weight", contract, "requires_grad=True", verb="not require")
    checks.value(not soft or ignore_index < 0, "ignore_index", "negative when target holds probabilities", ignore_index)
    return soft


def _targets(input: Tensor, probabilities: bool) -> str:
    classes = f"{_position_shape(input)} classes"
    return f"{classes} or {tuple(input.shape)} probabilities" if probabilities else classes


def _position_shape(input: Tensor) -> tuple[int, ...]:
    return (*input.shape[:1], *input.shape[2:]) if input.dim() > 1 else ()


def _with_classes(input: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits (N, C, S), classes (N, S), and the weight in the dtype of the computation."""
    wide = sum_dtype(input.dtype)
    logits = _flat(input, _classes_last(input))
    classes = target.long().reshape(logits.shape[0], logits.shape[2])
    return logits, classes, None if weight is None else weight.detach().to(wide)


def _with_probabilities(
    input: Tensor, target: Tensor, weight: Tensor | None, label_smoothing: float
) -> tuple[Tensor, Tensor, torch.dtype]:
    """Logits and coefficients (N, C, S), and the dtype of the result."""
    dtype = torch.promote_types(input.dtype, target.dtype)
    dtype = dtype if weight is None else torch.promote_types(dtype, weight.dtype)
    if dtype == torch.float64:
        input = input.double()
    if label_smoothing > 0 or weight is not None or target.dtype != input.dtype:
        target = target.to(sum_dtype(input.dtype))
    axis = _class_axis(input)
    if label_smoothing > 0:
        target = target * (1 - label_smoothing) + label_smoothing / max(input.shape[axis], 1)
    if weight is not None:
        target = target * weight.to(target.dtype).reshape(-1, *(1,) * (input.dim() - axis - 1))
    last = _classes_last(input)
    return _flat(input, last), _flat(target, last), dtype


def _class_axis(input: Tensor) -> int:
    return min(1, input.dim() - 1)


def _classes_last(input: Tensor) -> bool:
    return input.movedim(_class_axis(input), -1).is_contiguous()


def _flat(input: Tensor, classes_last: bool) -> Tensor:
    """(N, C, S). If the classes are last in memory, each position becomes a row, which needs no copy."""
    rows = input.movedim(_class_axis(input), -1)
    if classes_last or input.dim() == 1:
        return rows.reshape(rows.shape[:-1].numel(), rows.shape[-1], 1)
    return input.reshape(*input.shape[:2], input.shape[2:].numel())


def _counts(target: Tensor, classes: int, weight: Tensor | None, ignore_index: int) -> Tensor:
    """The weight of each position in a mean."""
    kept = counted(target, classes, ignore_index)
    if weight is None or classes == 0:  # without classes there is no weight to look up
        return kept
    return torch.where(kept, weight[torch.where(kept, target, 0)], 0)


def _reduced(rows: Tensor, counts: Tensor | None, input: Tensor, dtype: torch.dtype, reduction: str) -> Tensor:
    """Reduce `rows`, the losses of positions. `counts` are their weights in a mean; None means equal weights."""
    dtype = rows.dtype if checks.autocasts(input) else dtype
    if reduction == "none":
        return rows.reshape(_position_shape(input)).to(dtype)
    total = fixed_sum(rows)
    if reduction == "mean":
        total = total / (rows.numel() if counts is None else fixed_sum(counts))
    return total.to(dtype)
