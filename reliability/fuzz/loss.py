"""cross_entropy and nll_loss."""

import torch
from torch import Tensor

from pointgrad.functional import cross_entropy, nll_loss

from .draw import Draw
from .operators import Arguments, Operator, doubled

# What classes count is finite, and positive: the contract says nothing of others.
POSITIVE = ("normal", "normal", "lattice", "equal", "zeros", "scales")


def _shape(draw: Draw) -> list[int]:
    """(C,), (N, C) or (N, C, d1, ...): a CPU sums 32 classes side by side, in blocks of 512 positions."""
    rank = draw.number("rank", 1, 4)
    classes = draw.size("classes", most=129)
    if rank == 1:
        return [classes]
    rows = draw.size("rows", most=513 if rank == 2 else 3)
    edges = (511, 512, 513)
    return [rows, classes, *(draw.size(f"positions {axis}", most=513 if rank == 3 and classes < 9 else 9, edges=edges)
                             for axis in range(rank - 2))]  # fmt: skip


def _losses(draw: Draw, soft: bool) -> Arguments:
    shape, dtype = _shape(draw), draw.dtype()
    axis = min(1, len(shape) - 1)
    classes, places = shape[axis], [*shape[:1], *shape[2:]] if len(shape) > 1 else []
    arguments: Arguments = {"input": draw.floats("input", dtype, *shape)}
    if draw.flag("classes last", 4) and len(shape) > 2:
        arguments["input"] = arguments["input"].movedim(1, -1).contiguous().movedim(-1, 1)
    if soft:
        kind = draw.dtype((dtype, dtype, torch.float32), "target dtype")
        target = draw.floats("target", kind, *shape, kinds=POSITIVE).abs().clamp(max=1e4)
        arguments["target"] = target
    else:
        ignore = draw.pick("ignore", (None, -1, 0, 7))
        if ignore is not None:
            arguments["ignore_index"] = ignore
        target = draw.index("target", classes, *places, holes=False)
        if not classes:
            target = torch.full_like(target, -100)
            arguments.pop("ignore_index", None)
        elif ignore == -1 and target.numel():
            target = torch.where(torch.rand(places, generator=draw.generator).to(draw.device) < 0.3, -1, target)
        arguments["target"] = target.to(torch.uint8) if ignore != -1 and classes and draw.flag("bytes", 6) else target
    if draw.flag("weighed"):
        weight = draw.floats("weight", dtype, classes, kinds=POSITIVE).abs().clamp(max=1e4)
        arguments["weight"] = weight
    arguments["reduction"] = draw.pick("reduction", ("none", "mean", "sum"))
    return arguments


def _smoothed(draw: Draw, soft: bool) -> Arguments:
    arguments = _losses(draw, soft)
    if draw.flag("smoothed", 3):
        arguments["label_smoothing"] = draw.pick("smoothing", (0.1, 1.0, 0.5))
    return arguments


def _coefficients(given: Arguments) -> tuple[Tensor, Tensor]:
    """How much each class of each position counts, and how much each position counts in a mean."""
    x, target = given["input"], given["target"]
    axis, smoothing = min(1, x.dim() - 1), given.get("label_smoothing", 0.0)
    classes = x.shape[axis]
    weight = given.get("weight", x.new_ones(classes)).reshape(-1, *(1,) * (x.dim() - axis - 1))
    if target.is_floating_point():
        shares = target * (1 - smoothing) + smoothing / max(classes, 1)
        return weight * shares, torch.ones_like(x.sum(axis))
    number = torch.arange(classes, device=x.device).reshape(weight.shape)
    target = target.long().reshape(x.sum(axis).shape)
    kept = (target != given.get("ignore_index", -100)) & (target >= 0) & (target < classes)
    hit = (number == target.unsqueeze(axis)).double()
    a = weight * (hit * (1 - smoothing) + smoothing / max(classes, 1))
    return torch.where(kept.unsqueeze(axis), a, 0), torch.where(kept, (weight * hit).sum(axis), 0)


def _entropy_magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """-a log p = a (top - x + log(sum of exp(x - top))): each part errs relatively to itself."""
    given = doubled(arguments)
    x = given["input"]
    axis, smoothing = min(1, x.dim() - 1), given.get("label_smoothing", 0.0)
    a, counts = _coefficients(given)
    if not x.shape[axis]:
        return [torch.zeros_like(outputs[0], dtype=torch.float64)], {
            name: torch.zeros_like(given[name]) for name in GRADS if name in given and given[name].is_floating_point()
        }
    top = x.nan_to_num(-torch.inf, torch.inf, -torch.inf).amax(axis, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    total = (x - top).exp().sum(axis, keepdim=True)
    depth = (top - x) + 1 + torch.where(total > 0, total, 1).log().abs()
    rows = torch.where(a == 0, 0, a * depth).sum(axis)
    mean, none = arguments["reduction"] == "mean", arguments["reduction"] == "none"
    count = (rows.numel() if given["target"].is_floating_point() else counts.sum()) if mean else 1
    forward = rows if none else rows.sum() / count
    if not upstream:
        return [forward], {}
    grad = (upstream[0].abs() if none else (upstream[0].abs() / count).expand(rows.shape)).unsqueeze(axis)
    p = (x - top).exp() / total
    steep = torch.where(p > 0, 1 + (top - x), 1)
    grads = {
        "input": torch.where(total == 0, 0, grad * (torch.where(p > 0, a.sum(axis, keepdim=True) * p * steep, 0) + a))
    }
    if given["target"].is_floating_point():
        weight = given.get("weight", x.new_ones(x.shape[axis])).reshape(-1, *(1,) * (x.dim() - axis - 1))
        grads["target"] = grad * depth * weight * (1 - smoothing)
        shares = given["target"] * (1 - smoothing) + smoothing / x.shape[axis]
        others = [d for d in range(x.dim()) if d != axis]
        each = grad * depth * shares
        grads["weight"] = each.sum(others) if others else each
    return [forward], grads


def _nll_magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    given = doubled(arguments)
    x = given["input"]
    axis = min(1, x.dim() - 1)
    a, counts = _coefficients(given)
    rows = torch.where(a == 0, 0, a * x.abs()).sum(axis)
    mean, none = arguments["reduction"] == "mean", arguments["reduction"] == "none"
    count = counts.sum() if mean else 1
    if not upstream:
        return [rows if none else rows.sum() / count], {}
    grad = upstream[0].abs() if none else (upstream[0].abs() / count).expand(rows.shape)
    return [rows if none else rows.sum() / count], {"input": grad.unsqueeze(axis) * a}


GRADS = ("input", "target", "weight")
BAD = {
    "reduction": ["max", None, 3], "ignore_index": [0.5, None, True], "target": [None, 0], "input": [None],
    "weight": [1.0],
}  # fmt: skip
BAD_SMOOTHED = {**BAD, "label_smoothing": [-0.1, 1.5, float("nan"), "0", None]}
OPERATORS = [
    Operator(
        "cross_entropy/classes", cross_entropy, lambda draw: _smoothed(draw, False), GRADS[:1], _entropy_magnitudes,
        bad_arguments=BAD_SMOOTHED,
    ),
    Operator(
        "cross_entropy/probabilities", cross_entropy, lambda draw: _smoothed(draw, True), GRADS, _entropy_magnitudes,
        rounds=True, bad_arguments=BAD_SMOOTHED,
    ),
    Operator("nll_loss", nll_loss, lambda draw: _losses(draw, False), GRADS[:1], _nll_magnitudes, bad_arguments=BAD),
]  # fmt: skip
