"""chamfer_distance: the nearest targets have the same bits on every backend, sums and gradients lie within a bound."""

from typing import Any

import torch
from torch import Tensor

import pointgrad
from pointgrad import chamfer_distance

from .base import Benchmark, OpInfo, Precision, Sample, ints
from .errors import bad_values, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments, Sums
from .neighbors import pulls

BOTH = ("points", "targets")
PREFIXES = {"points": "", "targets": "target_"}
BAD = [None, 3, "max"]


def pair(m: Make, points: tuple[int, ...], targets: tuple[int, ...], **options: Any) -> Arguments:
    return {"points": m.floats(*points), "targets": m.floats(*targets), **options}


def plain_chamfer(points: Tensor, targets: Tensor) -> Tensor:
    """For one cloud (N, D), or the mean of clouds (B, N, D)."""
    pairs = (points.unsqueeze(-2) - targets.unsqueeze(-3)).square().sum(-1)
    return pairs.amin(-1).mean() + pairs.amin(-2).mean()


def draw_clouds(d: Draw) -> Arguments:
    layout, dims = d.layout(), d.pick("dims", (3, 3, 2, 1, 4, 9))
    return {
        **d.clouds("points", dims, layout, 129),
        **d.clouds("targets", dims, layout, 129, prefix="target_"),
        "any_dims": dims > 3,
        "direction": d.pick("direction", ("both", "to_targets", "to_points")),
        "reduction": d.pick("reduction", ("mean", "sum", "none")),
        "batch_reduction": d.pick("batch_reduction", ("mean", "sum", "none")),
    }


def magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """Distances are not negative, so a sum of them is its own magnitude; gradients are those of the nearest."""
    none = arguments["reduction"] == "none"
    grads = {name: torch.zeros_like(arguments[name], dtype=torch.float64) for name in BOTH}
    remaining = iter(upstream)
    for source, aim, direction in ((*BOTH, "to_targets"), (*reversed(BOTH), "to_points")):
        if upstream and arguments["direction"] in ("both", direction):
            grad = next(remaining) if none else upstream[0]
            for name, share in one_direction(arguments, source, aim, grad.abs()).items():
                grads[name] += share
    return [None if none else output.double() for output in outputs], grads


def cloud_of_each(points: Tensor, offsets: Tensor | None) -> tuple[Tensor, int]:
    """The cloud of every point, and the number of clouds."""
    if points.dim() == 3:
        return torch.arange(len(points), device=points.device).unsqueeze(1).expand(points.shape[:2]), len(points)
    if offsets is None:
        return torch.zeros(len(points), dtype=torch.int64, device=points.device), 1
    return torch.repeat_interleave(offsets.long().diff(), output_size=len(points)), len(offsets) - 1


def one_direction(arguments: Arguments, source: str, aim: str, grad: Tensor) -> dict[str, Tensor]:
    """Magnitudes for the distances from each point of one cloud to the nearest of the other."""
    points, targets = arguments[source], arguments[aim]
    sizes = {f"query_{name}": arguments.get(f"{PREFIXES[source]}{name}") for name in ("offsets", "lengths")}
    sizes |= {name: arguments.get(f"{PREFIXES[aim]}{name}") for name in ("offsets", "lengths")}
    with pointgrad.backend("reference"):
        found = pointgrad.knn(targets, 1, points, **sizes, any_dims=True)
    if arguments["reduction"] != "none":
        cloud, batch = cloud_of_each(points, sizes["query_offsets"])
        if arguments["batch_reduction"] != "none":
            grad = grad.expand(batch) / (max(batch, 1) if arguments["batch_reduction"] == "mean" else 1)
        if arguments["reduction"] == "mean":
            count = torch.zeros(batch, dtype=torch.int64, device=points.device)
            grad = grad / count.index_add(0, cloud.flatten(), (found.count > 0).long().flatten()).clamp(min=1)
        grad = grad[cloud]
    for_targets, for_points = pulls(targets, points, found.index, grad.unsqueeze(-1))
    return {aim: for_targets, source: for_points}


points, padded = torch.zeros(6, 3), torch.zeros(2, 6, 3)

OPERATORS = [
    OpInfo(
        "chamfer_distance", chamfer_distance, differentiable=BOTH, plain=plain_chamfer, composed=True,
        samples=[
            Sample("one-cloud", lambda m: pair(m, (12, 3), (15, 3)), large=lambda m: pair(m, (9000, 3), (7000, 3))),
            Sample("packed", lambda m: pair(m, (20, 3), (18, 3), batch_reduction="none", offsets=m.ints(0, 8, 8, 20), target_offsets=m.ints(0, 6, 9, 18))),
            Sample("padded", lambda m: pair(m, (3, 9, 3), (3, 7, 3), reduction="sum", lengths=m.ints(9, 4, 0), target_lengths=m.ints(7, 2, 3))),
            Sample("to-targets", lambda m: pair(m, (2, 9, 2), (2, 7, 2), direction="to_targets", reduction="none")),
            Sample("to-points", lambda m: pair(m, (9, 5), (7, 5), direction="to_points")),
            Sample("all-equal", lambda m: {"points": m.equal(9, 3), "targets": m.equal(4, 3)}, smooth=False),
            Sample("ties", lambda m: {"points": m.grid(9, 3), "targets": m.grid(8, 3)}, smooth=False),
            Sample("one-empty", lambda m: pair(m, (9, 3), (0, 3))),
            Sample("no-clouds", lambda m: pair(m, (0, 4, 3), (0, 5, 3))),
        ],
        errors=[
            *tensor_errors({"points": points, "targets": points}, targets=[None, points.double(), points.to("meta")]),
            value_error("targets must be (M, D) with D = 3, like points, got (2, 6, 3)", points, padded),
            value_error("targets must have as many clouds as points, B = 2, got B = 1", padded, padded[:1]),
            value_error("""reduction must be "mean", "sum" or "none", got 'max'""", points, points, reduction="max"),
            type_error('batch_reduction must be "mean", "sum" or "none", got NoneType None', points, points, batch_reduction=None),
            value_error("""direction must be "both", "to_targets" or "to_points", got 'forward'""", points, points, direction="forward"),
            value_error("target_lengths must be None for packed targets (N, D); use target_offsets, got a tensor", points, points, target_lengths=ints(6)),
            bad_values("offsets[-1] must equal N = 6, got 5", points, points, offsets=ints(0, 5), target_offsets=ints(0, 6)),
            bad_values("target_offsets[-1] must equal N = 6, got 7", points, points, offsets=ints(0, 6), target_offsets=ints(0, 7)),
        ],
        draw=draw_clouds, magnitudes=magnitudes,
        bad_arguments={"direction": BAD, "reduction": BAD, "batch_reduction": BAD, "targets": [None]},
        precision=[Precision(lambda m: pair(m, (m.rows, 3), (m.rows // 2, 3)))],
        benchmarks=[
            Benchmark("chamfer distance {0} x {1}", lambda m, batch, rows: {name: torch.rand(batch, rows, 3, device=m.device) for name in BOTH}, (1, 4096), {"all pairs": plain_chamfer}, cuda=(8, 4096), work="chamfer"),
        ],
        growing=lambda n: (chamfer_distance, torch.rand(n, n + 1, 3), torch.rand(n, n + 2, 3)),
    ),
]  # fmt: skip
