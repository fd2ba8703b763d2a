"""Ways to call cross_entropy and nll_loss, right and wrong."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pointgrad.functional import cross_entropy, nll_loss

from .base import Case, Make


def targets(m: Make, classes: int, *shape: int) -> Tensor:
    """Classes, some of them -1, which the calls below ignore."""
    return m.index(classes, *shape)


def classes(m: Make, *shape: int, weight: bool = False, **others: Any) -> dict[str, Any]:
    arguments = {"input": m.floats(*shape), "target": targets(m, shape[1], shape[0], *shape[2:]), "ignore_index": -1}
    return {**arguments, **({"weight": m.floats(shape[1]).abs()} if weight else {}), **others}


def probabilities(m: Make, *shape: int, **others: Any) -> dict[str, Any]:
    return {"input": m.floats(*shape), "target": m.floats(*shape).softmax(1), **others}


CASES = [
    Case(
        "cross-entropy/rows", cross_entropy, lambda m: {**classes(m, 7, 5), "target": m.ints(0, 4, -1, 2, 2, -1, 3)},
        large=lambda m: classes(m, 3001, 203, weight=True, label_smoothing=0.1),
    ),
    Case(
        "cross-entropy/positions", cross_entropy,
        lambda m: classes(m, 2, 5, 3, weight=True, label_smoothing=0.1, reduction="none"),
        large=lambda m: classes(m, 3, 37, 5003, reduction="none"),
    ),
    Case(
        "cross-entropy/weights", cross_entropy,
        lambda m: {**classes(m, 6, 4, weight=True), "target": m.ints(0, 1, 2, 3, -1, 1)},
        large=lambda m: classes(m, 3, 37, 2003, weight=True, label_smoothing=0.2, reduction="sum"),
    ),
    Case(
        "cross-entropy/many-classes", cross_entropy,
        lambda m: classes(m, 3, 2501, label_smoothing=0.1, weight=True, reduction="none"),
        smooth=False,  # smooth, but 7503 finite differences take long
    ),
    Case("cross-entropy/one", cross_entropy, lambda m: {"input": m.floats(6), "target": m.ints(3)[0]}),
    Case("cross-entropy/empty", cross_entropy, lambda m: classes(m, 0, 4, reduction="sum")),
    Case(
        "cross-entropy/probabilities", cross_entropy, lambda m: probabilities(m, 4, 5),
        large=lambda m: probabilities(m, 3001, 203, reduction="none"),
    ),
    Case(
        "cross-entropy/smoothed-probabilities", cross_entropy,
        lambda m: {**probabilities(m, 2, 3, 4, label_smoothing=0.1, reduction="none"), "weight": m.floats(3).abs()},
        large=lambda m: {**probabilities(m, 3, 37, 2003, label_smoothing=0.1), "weight": m.floats(37).abs()},
    ),
    Case("nll/positions", nll_loss, lambda m: classes(m, 2, 3, 4, weight=True, reduction="none")),
    Case("nll/rows", nll_loss, lambda m: {**classes(m, 5, 4), "target": m.ints(0, 3, -1, 2, 1)}),
]  # fmt: skip
CASES = [
    replace(
        case,
        differentiable=("input", "target", "weight")
        if "smoothed" in case.name
        else ("input", "target")
        if "probabilities" in case.name
        else ("input",),
    )
    for case in CASES
]

logits, target = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
weight = torch.ones(3)

# What metadata shows: the same on every device.
BAD_METADATA = [
    (lambda: cross_entropy(None, target), TypeError, "input must be a torch.Tensor, got NoneType None"),
    (lambda: cross_entropy(logits, [0]), TypeError, "target must be a torch.Tensor, got list"),
    (lambda: cross_entropy(logits, target, [1.0]), TypeError, "weight must be a torch.Tensor, got list"),
    (lambda: cross_entropy(logits, target, ignore_index=0.5), TypeError, "ignore_index must be an int, got float 0.5"),
    (lambda: cross_entropy(logits, target, label_smoothing="0"), TypeError, "label_smoothing must be a number, got str '0'"),
    (lambda: cross_entropy(logits[0, 0], target), ValueError, "input must be (C,), (N, C) or (N, C, d1, ...), got ()"),
    (lambda: cross_entropy(logits, target[:3]), ValueError, "target must be (4,) classes or (4, 3) probabilities to match input, got (3,)"),
    (lambda: cross_entropy(torch.zeros(2, 3, 5), target), ValueError, "target must be (2, 5) classes or (2, 3, 5) probabilities to match input, got (4,)"),
    (lambda: cross_entropy(logits[0], target), ValueError, "target must be () classes or (3,) probabilities to match input, got (4,)"),
    (lambda: nll_loss(logits, logits), ValueError, "target must be (4,) classes to match input, got (4, 3)"),
    (lambda: cross_entropy(logits, target, weight[:2]), ValueError, "weight must be (C,) = (3,), got (2,)"),
    (lambda: cross_entropy(logits.long(), target), TypeError, "input must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: cross_entropy(logits, target.float()), TypeError, "target must be int64, int32 or uint8, got float32"),
    (lambda: cross_entropy(logits, logits.long()), TypeError, "target must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: cross_entropy(logits, target, weight.double()), TypeError, "weight must have the dtype of input, float32, got float64"),
    (lambda: cross_entropy(logits, target.to("meta")), ValueError, "target must be on the device of input, cpu, got meta"),
    (lambda: cross_entropy(logits, target, weight.clone().requires_grad_()), ValueError, "weight must not require a gradient when target holds class indices, got requires_grad=True"),
    (lambda: cross_entropy(logits, logits, ignore_index=2), ValueError, "ignore_index must be negative when target holds probabilities, got 2"),
    (lambda: cross_entropy(logits, target, label_smoothing=1.5), ValueError, "label_smoothing must be in [0, 1], got 1.5"),
    (lambda: cross_entropy(logits, target, reduction="max"), ValueError, "reduction must be 'none', 'mean' or 'sum', got 'max'"),
]  # fmt: skip

# What only values show: on CPU tensors.
BAD_VALUES = [
    (lambda: cross_entropy(logits, target + 3), "target must be in [0, C = 3), or ignore_index = -100, got 3"),
    (lambda: cross_entropy(logits, target - 1), "target must be in [0, C = 3), or ignore_index = -100, got -1"),
    (lambda: nll_loss(logits, target + 3, ignore_index=1), "target must be in [0, C = 3), or ignore_index = 1, got 3"),
]  # fmt: skip
