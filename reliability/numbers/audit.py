"""`python -m reliability.numbers.audit --times 10 --out FILE.json`: errors that `pointgrad.inspect.audit` finds.

Plants errors of several kinds, each at several random places, into correct gradients and results, and counts those that
the audit reports. Functions without an error are audited too: each report is a false alarm.
"""

import argparse
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pointgrad import bench
from pointgrad.bench.machine import machine
from pointgrad.inspect.audit import Subject, rows
from reliability.arguments import out_file
from reliability.checkout import commit

Function = Callable[..., Tensor]
Damage = Callable[[Tensor, Tensor], None]  # changes a gradient, given the upstream gradient
MakeInputs = Callable[[torch.dtype, str], tuple[Tensor, ...]]


def normal(*shapes: tuple[int, ...]) -> MakeInputs:
    return lambda dtype, device: tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def whole(*shape: int) -> MakeInputs:
    """Small integers: ties, and values on kinks."""
    return lambda dtype, device: (torch.randint(-2, 3, shape).to(dtype),)


LARGE: dict[str, tuple[Function, MakeInputs]] = {
    "sine": (lambda x: x.square() / 2 + x.sin(), normal((64, 10))),
    "relu": (lambda x: F.relu(x) * x, normal((300, 10))),
    "maximum": (lambda x: x.reshape(-1, 10, 3).amax(1), normal((1000, 3))),
    "softmax": (lambda x: x.softmax(-1), normal((100, 50))),
    "layer norm": (lambda x: F.layer_norm(x, (50,)), normal((400, 50))),
    "distance": (torch.cdist, normal((300, 3), (20, 3))),
    "product": (torch.matmul, normal((1000, 20), (20, 5))),
}
SMALL: dict[str, tuple[Function, MakeInputs]] = {
    "sine": (torch.sin, normal((5, 4))),
    "square": (torch.square, normal((5, 4))),
    "softmax": (lambda x: x.softmax(-1), normal((6, 10))),
    "product": (torch.matmul, normal((6, 5), (5, 4))),
    "norm": (lambda x: x.norm(dim=-1), normal((9, 3))),
    "maximum": (lambda x: x.amax(0), normal((8, 4))),
    "layer norm": (lambda x: F.layer_norm(x, (8,)), normal((5, 8))),
    "squared distance": (lambda a, b: (a[:, None] - b).square().sum(-1), normal((5, 3), (6, 3))),
    "logsumexp": (lambda x: x.logsumexp(-1), normal((6, 10))),
    "variance": (lambda x: x.var(0), normal((12, 4))),
    "scalar": (lambda x: x.square().sum().sqrt(), normal((8, 4))),
}
CORRECT: dict[str, tuple[Function, MakeInputs]] = {
    **{f"large {name}": pair for name, pair in LARGE.items()},
    **{f"small {name}": pair for name, pair in SMALL.items()},
    "relu of integers": (F.relu, whole(60, 10)),
    "absolute value of integers": (torch.abs, whole(60, 10)),
    "maximum of integers": (lambda x: x.amax(0), whole(60, 10)),
    "max_pool2d of integers": (lambda x: F.max_pool2d(x, 2), whole(2, 3, 20, 20)),
    "clamp of integers": (lambda x: x.clamp(-1, 1), whole(600)),
    "leaky_relu of integers": (lambda x: F.leaky_relu(x, 0.1), whole(600)),
    "hinge": (lambda x: F.relu(1 - x).sum(), normal((700,))),
    "sort": (lambda x: x.sort(0).values, normal((300, 4))),
    "median": (lambda x: x.median(0).values, normal((301, 3))),
    "topk": (lambda x: x.topk(5, 0).values, normal((300, 3))),
    "l1_loss": (F.l1_loss, normal((400, 2), (400, 2))),
    "huber_loss": (F.huber_loss, normal((400, 2), (400, 2))),
    "distance to itself": (lambda x: torch.cdist(x, x), normal((100, 3))),
    "chamfer": (lambda a, b: torch.cdist(a, b).square().amin(1).mean(), normal((120, 3), (130, 3))),
    "inverse": (torch.reciprocal, normal((500,))),
    "logarithm": (lambda x: x.abs().log(), normal((500,))),
    "floor": (lambda x: x.floor() + x, normal((500,))),
    "where": (lambda x: torch.where(x > 0, x * x, -x), normal((600,))),
    "large offset": (lambda x: x + 1e6, normal((600,))),
    "small factor": (lambda x: x * 1e-8, normal((600,))),
    "float32 inside": (lambda x: x.float().square().to(x.dtype), normal((600,))),
    "conv2d": (F.conv2d, normal((1, 3, 20, 20), (4, 3, 3, 3))),
    "product of a column": (lambda x: x.prod(0), normal((10, 60))),
}


def used(pair: tuple[Function, MakeInputs]) -> Tensor:
    """Coordinates of the first input whose gradient is not small."""
    forward, make_inputs = pair
    torch.manual_seed(0)  # as in the audit
    values = [value.requires_grad_() for value in make_inputs(torch.float64, "cpu")]
    output = forward(*values)
    gradient = torch.autograd.grad((output * torch.rand_like(output)).sum(), values[0])[0].reshape(-1)
    return (gradient.abs() > 0.1 * gradient.square().mean().sqrt()).nonzero()[:, 0]


def multiply(factor: float) -> Callable[[Tensor, random.Random], Damage]:
    def plant(coordinates: Tensor, draw: random.Random) -> Damage:
        place = int(coordinates[draw.randrange(len(coordinates))])

        def damage(gradient: Tensor, upstream: Tensor) -> None:
            gradient.view(-1)[place] *= factor

        return damage

    return plant


def opposite(coordinates: Tensor, draw: random.Random) -> Damage:
    first, second = (int(coordinates[draw.randrange(len(coordinates))]) for _ in range(2))

    def damage(gradient: Tensor, upstream: Tensor) -> None:
        term = upstream.reshape(-1)[first % upstream.numel()] / 2
        gradient.view(-1)[first] += term
        gradient.view(-1)[second if second != first else (first + 1) % gradient.numel()] -= term

    return damage


def drop_row(coordinates: Tensor, draw: random.Random) -> Damage:
    place = int(coordinates[draw.randrange(len(coordinates))])

    def damage(gradient: Tensor, upstream: Tensor) -> None:
        gradient[place // gradient[0].numel()] = 0

    return damage


GRADIENT = {
    "one coordinate of many, 1.5 times": multiply(1.5),
    "one coordinate of many, 1.1 times": multiply(1.1),
    "one coordinate of many, zero": multiply(0.0),
    "two coordinates of many, opposite errors": opposite,
    "one row of many, zero": drop_row,
}


def damaged(forward: Function, gradient: Damage | None, result: Callable[[Tensor], Tensor] | None) -> Function:
    """The function with a changed gradient of its first input, or a changed result."""

    class Damaged(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Tensor:
            with torch.enable_grad():
                ctx.inputs = [each.detach().requires_grad_() for each in inputs]
                ctx.output = forward(*ctx.inputs)
            output = ctx.output.detach().clone()
            return output if result is None else result(output)

        @staticmethod
        def backward(ctx: Any, *upstream: Tensor) -> Any:
            first, *others = torch.autograd.grad(ctx.output, ctx.inputs, upstream, retain_graph=True)
            first = first.clone()
            if gradient is not None:
                gradient(first, upstream[0])
            return (first, *others)

    return Damaged.apply


def alarm(fn: Function, make_inputs: MakeInputs, check: str) -> str:
    """The message of a check that fails; empty if it passes."""
    (row,) = rows(Subject(fn, make_inputs, isolated=True), [check])
    return f"{check}: {row.message}" if row.status in ("failed", "crashed") else ""


def study(times: int, seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    found: dict[str, dict[str, Any]] = {}

    def count(kind: str, name: str, fn: Function, make_inputs: MakeInputs, check: str) -> None:
        counts = found.setdefault(kind, {"planted": 0, "found": 0, "missed": []})
        counts["planted"] += 1
        if alarm(fn, make_inputs, check):
            counts["found"] += 1
        else:
            counts["missed"].append(name)

    for kind, plant in GRADIENT.items():
        for name, pair in LARGE.items():
            coordinates = used(pair)
            for _ in range(times):
                count(kind, name, damaged(pair[0], plant(coordinates, draw), None), pair[1], "gradcheck")
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        kind = f"{str(dtype).removeprefix('torch.')} only, factor 0.9 or 1.1"
        for name, (forward, make_inputs) in SMALL.items():
            for factor in (0.9, 1.1):

                def scale(value: Tensor, factor: float = factor, dtype: torch.dtype = dtype) -> Tensor:
                    return value * factor if value.dtype == dtype else value

                def scale_gradient(gradient: Tensor, upstream: Tensor, scale: Any = scale) -> None:
                    gradient.copy_(scale(gradient))

                count(kind, f"{name}, result", damaged(forward, None, scale), make_inputs, "dtypes")
                count(kind, f"{name}, gradient", damaged(forward, scale_gradient, None), make_inputs, "dtypes")
    alarms = {}
    for name, (forward, make_inputs) in CORRECT.items():
        if messages := [text for check in ("gradcheck", "dtypes") if (text := alarm(forward, make_inputs, check))]:
            alarms[name] = messages
    return {"planted": found, "correct": len(CORRECT), "alarms": alarms}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="places at which each error is planted in each function")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=out_file, help="JSON file for the counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # its bfloat16 products do not run on every processor
    result = study(options.times, options.seed)
    for kind, counts in result["planted"].items():
        print(f"{kind}: {counts['found']} of {counts['planted']} found")
    print(f"false alarms: {len(result['alarms'])} of {result['correct']} correct functions")
    if options.out:
        bench.write({"machine": {**machine("cpu"), "commit": commit()}, **result}, options.out)


if __name__ == "__main__":
    main()
