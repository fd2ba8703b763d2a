"""chamfer_distance: which targets are nearest, to the bit; sums and gradients within a bound."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import clouds

from .draw import Draw
from .neighbors import pulls
from .operators import Arguments, Operator

PREFIXES = {"points": "", "targets": "target_"}
BOTH = ("points", "targets")


def _clouds(draw: Draw) -> Arguments:
    dtype, (layout, batch) = draw.dtype(), draw.layout()
    dims = draw.pick("dims", (3, 3, 2, 1, 4, 9))
    return {
        **draw.clouds("points", "", dtype, dims, layout, batch, most=129),
        **draw.clouds("targets", "target_", dtype, dims, layout, batch, most=129),
        "direction": draw.pick("direction", ("both", "to_targets", "to_points")),
        "reduction": draw.pick("reduction", ("mean", "sum", "none")),
        "batch_reduction": draw.pick("batch_reduction", ("mean", "sum", "none")),
    }


def _magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """Distances are not negative, so a sum of them is its own magnitude. Gradients are those of the nearest."""
    none = arguments["reduction"] == "none"
    grads = {
        name: torch.zeros(arguments[name].shape, dtype=torch.float64, device=arguments[name].device) for name in BOTH
    }
    into = iter(upstream)
    for source, aim, direction in ((*BOTH, "to_targets"), (*reversed(BOTH), "to_points")):
        if upstream and arguments["direction"] in ("both", direction):
            grad = next(into) if none else upstream[0]
            for name, share in _side(arguments, source, aim, grad.abs()).items():
                grads[name] += share
    return [None if none else output.double() for output in outputs], grads


def _side(arguments: Arguments, source: str, aim: str, grad: Tensor) -> dict[str, Tensor]:
    """From each point of one cloud to the nearest of the other."""
    own, other = PREFIXES[source], PREFIXES[aim]
    points, targets = arguments[source], arguments[aim]
    offsets, lengths = arguments.get(f"{own}offsets"), arguments.get(f"{own}lengths")
    with pointgrad.backend("reference"):
        found = pointgrad.knn(
            targets, 1, points, query_offsets=offsets, query_lengths=lengths,
            offsets=arguments.get(f"{other}offsets"), lengths=arguments.get(f"{other}lengths"),
        )  # fmt: skip
    if arguments["reduction"] != "none":
        cloud = (
            clouds.ids(points, offsets)
            if points.dim() == 2
            else torch.arange(len(points)).unsqueeze(1).expand(points.shape[:2])
        )
        cloud = cloud.to(points.device)
        batch = clouds.batch_size(points, offsets)
        if arguments["batch_reduction"] != "none":
            grad = grad.expand(batch) / (max(batch, 1) if arguments["batch_reduction"] == "mean" else 1)
        if arguments["reduction"] == "mean":
            has_one = torch.zeros(batch, dtype=torch.int64, device=points.device)
            grad = grad / has_one.index_add(0, cloud.flatten(), (found.count > 0).long().flatten()).clamp(min=1)
        grad = grad[cloud]
    for_targets, for_points = pulls(targets, points, found.index, grad.unsqueeze(-1))
    return {aim: for_targets, source: for_points}


BAD = [None, 3, "max"]
OPERATORS = [
    Operator(
        "chamfer_distance", pointgrad.chamfer_distance, _clouds, BOTH, _magnitudes,
        bad_arguments={"direction": BAD, "reduction": BAD, "batch_reduction": BAD, "targets": [None]},
    ),
]  # fmt: skip
