"""cross_entropy and nll_loss."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pointgrad.functional import cross_entropy, nll_loss

from .base import BOTH_PASSES, Benchmark, OpInfo, Precision, Sample, any_index
from .errors import bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments, Sums, doubled

GRADS = ("input", "target", "weight")
POSITIVE = ("normal", "normal", "lattice", "equal", "zeros", "scales")  # the contract covers finite weights only
BAD: dict[str, Sequence[Any]] = {
    "reduction": ["max", None, 3], "ignore_index": [0.5, None, True], "target": [None, 0], "input": [None],
    "weight": [1.0],
}  # fmt: skip
BAD_SMOOTHED: dict[str, Sequence[Any]] = {**BAD, "label_smoothing": [-0.1, 1.5, float("nan"), "0", None]}


def classes(m: Make, *shape: int, weight: bool = False, **others: Any) -> Arguments:
    """Logits and classes, some of which are ignored."""
    arguments = {"input": m.floats(*shape), "target": m.index(shape[1], shape[0], *shape[2:]), "ignore_index": -1}
    return {**arguments, **({"weight": m.floats(shape[1]).abs()} if weight else {}), **others}


def probabilities(m: Make, *shape: int, weight: bool = False, **others: Any) -> Arguments:
    arguments = {"input": m.floats(*shape), "target": m.floats(*shape).softmax(1), **others}
    return {**arguments, **({"weight": m.floats(shape[1]).abs()} if weight else {})}


def entropy_benchmark(
    name: str,
    sizes: tuple[int, ...],
    classes: int,
    dtype: torch.dtype = torch.float32,
    batch: int = 0,
    cuda: tuple[int, ...] | None = None,
) -> Benchmark:
    """Loss and gradient of logits (N, C), or (batch, C, N)."""

    def build(m: Make, rows: int) -> Arguments:
        shape = (batch, classes, rows) if batch else (rows, classes)
        return {"input": m.floats(*shape).to(dtype), "target": m.below(classes, shape[0], *shape[2:])}

    return Benchmark(
        f"cross entropy {name}", build, sizes, {"PyTorch": F.cross_entropy}, BOTH_PASSES, ("input",),
        tolerance=1e-5 if dtype == torch.float32 else 1e-2, floor=True, cuda=cuda,
    )  # fmt: skip


def draw_shape(d: Draw) -> list[int]:
    """(C,), (N, C) or (N, C, d1, ...): a CPU sums 32 classes side by side, in blocks of 512 positions."""
    rank, num_classes = d.number("rank", 1, 4), d.size(129)
    if rank == 1:
        return [num_classes]
    rows, most = d.size(513 if rank == 2 else 3), 513 if rank == 3 and num_classes < 9 else 9
    return [rows, num_classes, *(d.size(most, (511, 512, 513)) for _ in range(rank - 2))]


def draw_loss(d: Draw, soft: bool, smoothed: bool = False) -> Arguments:
    shape = draw_shape(d)
    num_classes, places = shape[min(1, len(shape) - 1)], [*shape[:1], *shape[2:]] if len(shape) > 1 else []
    arguments: Arguments = {"input": d.floats(*shape)}
    if d.flag("classes last", 4) and len(shape) > 2:
        arguments["input"] = arguments["input"].movedim(1, -1).contiguous().movedim(-1, 1)
    if soft:
        target = d.floats(*shape, kinds=POSITIVE).abs().clamp(max=1e4)
        arguments["target"] = target.float() if d.flag("float32 target", 3) else target
    else:
        ignore = d.pick("ignore", (None, -1, 0, 7))
        if ignore is not None:
            arguments["ignore_index"] = ignore
        target = d.below(num_classes, *places)
        if not num_classes:
            target = torch.full_like(target, -100)
            arguments.pop("ignore_index", None)
        elif ignore == -1 and target.numel():
            target = torch.where(torch.rand(places, generator=d.generator).to(d.device) < 0.3, -1, target)
        arguments["target"] = target.to(torch.uint8) if ignore != -1 and num_classes and d.flag("bytes", 6) else target
    if d.flag("weighted"):
        arguments["weight"] = d.floats(num_classes, kinds=POSITIVE).abs().clamp(max=1e4)
    arguments["reduction"] = d.pick("reduction", ("none", "mean", "sum"))
    if smoothed and d.flag("smoothed", 3):
        arguments["label_smoothing"] = d.pick("smoothing", (0.1, 1.0, 0.5))
    return arguments


def coefficients(given: Arguments) -> tuple[Tensor, Tensor]:
    """The weight of each class at each position, and the weight of each position in a mean."""
    x, target = given["input"], given["target"]
    axis, smoothing = min(1, x.dim() - 1), given.get("label_smoothing", 0.0)
    num_classes = x.shape[axis]
    weight = given.get("weight", x.new_ones(num_classes)).reshape(-1, *(1,) * (x.dim() - axis - 1))
    if target.is_floating_point():
        shares = target * (1 - smoothing) + smoothing / max(num_classes, 1)
        return weight * shares, torch.ones_like(x.sum(axis))
    number = torch.arange(num_classes, device=x.device).reshape(weight.shape)
    target = target.long().reshape(x.sum(axis).shape)
    kept = (target != given.get("ignore_index", -100)) & (target >= 0) & (target < num_classes)
    hit = (number == target.unsqueeze(axis)).double()
    a = weight * (hit * (1 - smoothing) + smoothing / max(num_classes, 1))
    return torch.where(kept.unsqueeze(axis), a, 0), torch.where(kept, (weight * hit).sum(axis), 0)


def entropy_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """-a log p = a (top - x + log(sum of exp(x - top))): the error of each part is relative to the part."""
    given = doubled(arguments)
    x = given["input"]
    axis, smoothing = min(1, x.dim() - 1), given.get("label_smoothing", 0.0)
    a, counts = coefficients(given)
    if not x.shape[axis]:
        floating = [name for name in GRADS if name in given and given[name].is_floating_point()]
        zero = torch.zeros_like(outputs[0], dtype=torch.float64)
        return [zero], {name: torch.zeros_like(given[name]) for name in floating}
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
    by_input = grad * (torch.where(p > 0, a.sum(axis, keepdim=True) * p * steep, 0) + a)
    grads = {"input": torch.where(total == 0, 0, by_input)}
    if given["target"].is_floating_point():
        weight = given.get("weight", x.new_ones(x.shape[axis])).reshape(-1, *(1,) * (x.dim() - axis - 1))
        grads["target"] = grad * depth * weight * (1 - smoothing)
        others = [d for d in range(x.dim()) if d != axis]
        each = grad * depth * (given["target"] * (1 - smoothing) + smoothing / x.shape[axis])
        grads["weight"] = each.sum(others) if others else each
    return [forward], grads


def nll_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    given = doubled(arguments)
    x = given["input"]
    axis = min(1, x.dim() - 1)
    a, counts = coefficients(given)
    rows = torch.where(a == 0, 0, a * x.abs()).sum(axis)
    none, count = arguments["reduction"] == "none", counts.sum() if arguments["reduction"] == "mean" else 1
    forward = rows if none else rows.sum() / count
    if not upstream:
        return [forward], {}
    grad = upstream[0].abs() if none else (upstream[0].abs() / count).expand(rows.shape)
    return [forward], {"input": grad.unsqueeze(axis) * a}


def plain_rows(m: Make, rows: int, num_classes: int) -> Arguments:
    return {"input": m.floats(rows, num_classes), "target": m.below(num_classes, rows)}


logits, target, weight = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), torch.ones(3)

OPERATORS = [
    OpInfo(
        "cross_entropy", cross_entropy, differentiable=("input",), plain=F.cross_entropy,
        samples=[
            Sample("rows", lambda m: {**classes(m, 7, 5), "target": m.ints(0, 4, -1, 2, 2, -1, 3)}, large=lambda m: classes(m, 3001, 203, weight=True, label_smoothing=0.1)),
            Sample("positions", lambda m: classes(m, 2, 5, 3, weight=True, label_smoothing=0.1, reduction="none"), large=lambda m: classes(m, 3, 37, 5003, reduction="none")),
            Sample("weights", lambda m: {**classes(m, 6, 4, weight=True), "target": m.ints(0, 1, 2, 3, -1, 1)}, large=lambda m: classes(m, 3, 37, 2003, weight=True, label_smoothing=0.2, reduction="sum")),
            # Smooth, but 7503 finite differences would take long.
            Sample("many-classes", lambda m: classes(m, 3, 2501, label_smoothing=0.1, weight=True, reduction="none"), smooth=False),
            Sample("one", lambda m: {"input": m.floats(6), "target": m.ints(3)[0]}),
            Sample("empty", lambda m: classes(m, 0, 4, reduction="sum")),
        ],
        errors=[
            *tensor_errors({"input": logits, "target": target}, input=[None, logits.long()], target=[[0], target.to("meta")], weight=[[1.0], weight.double()]),
            type_error("ignore_index must be an int, got float 0.5", logits, target, ignore_index=0.5),
            type_error("label_smoothing must be a number, got str '0'", logits, target, label_smoothing="0"),
            value_error("input must be (C,), (N, C) or (N, C, d1, ...), got ()", logits[0, 0], target),
            value_error("target must be (4,) classes or (4, 3) probabilities to match input, got (3,)", logits, target[:3]),
            value_error("target must be (2, 5) classes or (2, 3, 5) probabilities to match input, got (4,)", torch.zeros(2, 3, 5), target),
            value_error("target must be () classes or (3,) probabilities to match input, got (4,)", logits[0], target),
            value_error("weight must be (C,) = (3,), got (2,)", logits, target, weight[:2]),
            type_error("target must be int64, int32 or uint8, got float32", logits, target.float()),
            value_error("weight must not require a gradient when target holds class indices, got requires_grad=True", logits, target, weight.clone().requires_grad_()),
            value_error("label_smoothing must be in [0, 1], got 1.5", logits, target, label_smoothing=1.5),
            value_error("reduction must be 'none', 'mean' or 'sum', got 'max'", logits, target, reduction="max"),
            *each(bad_values, "target must be in [0, C = 3), or ignore_index = -100", got("3", logits, target + 3), got("-1", logits, target - 1)),
        ],
        draw=lambda d: draw_loss(d, soft=False, smoothed=True), magnitudes=entropy_magnitudes, bad_arguments=BAD_SMOOTHED,
        precision=[
            Precision(lambda m: plain_rows(m, m.rows, 20)),
            Precision(lambda m: {**plain_rows(m, m.rows, 20), "weight": m.positive(20), "label_smoothing": 0.1, "reduction": "none"}, "weights and smoothing"),
        ],
        benchmarks=[
            entropy_benchmark("{0} x 200", (1_000_000,), 200),
            entropy_benchmark("{0} x 200 bfloat16", (1_000_000,), 200, torch.bfloat16),
            entropy_benchmark("4 x 50 x {0}", (16_384,), 50, batch=4, cuda=()),
            entropy_benchmark("16 x 50 x {0}", (), 50, batch=16, cuda=(65_536,)),
            entropy_benchmark("{0} x 50257", (256,), 50_257, cuda=(8192,)),
        ],
        growing=lambda n: (cross_entropy, torch.rand(n, n + 1, n + 2), any_index(n, n, n + 2).clamp(min=0)),
    ),
    OpInfo(
        "cross_entropy, probabilities", cross_entropy, differentiable=GRADS, plain=F.cross_entropy,
        samples=[
            Sample("rows", lambda m: probabilities(m, 4, 5), large=lambda m: probabilities(m, 3001, 203, reduction="none")),
            Sample("smoothed", lambda m: probabilities(m, 2, 3, 4, weight=True, label_smoothing=0.1, reduction="none"), large=lambda m: probabilities(m, 3, 37, 2003, weight=True, label_smoothing=0.1)),
        ],
        errors=[
            type_error("target must be float32, float64, float16 or bfloat16, got int64", logits, logits.long()),
            value_error("ignore_index must be negative when target holds probabilities, got 2", logits, logits, ignore_index=2),
        ],
        draw=lambda d: draw_loss(d, soft=True, smoothed=True), magnitudes=entropy_magnitudes, rounds=True,
        bad_arguments=BAD_SMOOTHED,
        precision=[Precision(lambda m: {"input": m.floats(m.rows, 20), "target": m.floats(m.rows, 20).double().softmax(1).to(m.dtype)})],
        growing=lambda n: (cross_entropy, torch.rand(n, n + 1), torch.rand(n, n + 1)),
    ),
    OpInfo(
        "nll_loss", nll_loss, differentiable=("input",), plain=F.nll_loss,
        samples=[
            Sample("positions", lambda m: classes(m, 2, 3, 4, weight=True, reduction="none")),
            Sample("rows", lambda m: {**classes(m, 5, 4), "target": m.ints(0, 3, -1, 2, 1)}),
        ],
        errors=[
            value_error("target must be (4,) classes to match input, got (4, 3)", logits, logits),
            bad_values("target must be in [0, C = 3), or ignore_index = 1, got 3", logits, target + 3, ignore_index=1),
        ],
        draw=lambda d: draw_loss(d, soft=False), magnitudes=nll_magnitudes, bad_arguments=BAD,
        precision=[Precision(lambda m: {"input": -m.positive(m.rows, 20), "target": m.below(20, m.rows)})],
        growing=lambda n: (nll_loss, torch.rand(n, n + 1, n + 2), any_index(n, n, n + 2).clamp(min=0)),
    ),
]  # fmt: skip
