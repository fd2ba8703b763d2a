"""farthest_point_sampling, random_sampling and voxel_sampling: all of them to the bit."""

from typing import Any

import torch

import pointgrad

from .draw import Draw
from .operators import Arguments, Operator

# Up to 768 points are sampled without a tree, whose blocks have 64 points, and 16 of them make a node.
EDGES = (767, 768, 769, 1023, 1024, 1025, 1100)


def _sizes(arguments: Arguments) -> list[int]:
    points = arguments["points"]
    if "offsets" in arguments:
        return arguments["offsets"].diff().tolist()
    if points.dim() == 2:
        return [points.shape[0]]
    return arguments["lengths"].tolist() if "lengths" in arguments else [points.shape[1]] * points.shape[0]


def _clouds(draw: Draw, dims: int) -> Arguments:
    layout, batch = draw.layout()
    return draw.clouds("points", "", draw.dtype(), dims, layout, batch, most=1100, edges=EDGES)


def _counts(draw: Draw, arguments: Arguments) -> Any:
    """How many picks: of packed clouds no more than each has."""
    sizes, packed = _sizes(arguments), arguments["points"].dim() == 2
    limits = [min(size, 40) for size in sizes] if packed else [min(arguments["points"].shape[1] + 3, 40)] * len(sizes)
    if not packed or (sizes and min(limits) >= 1):
        form = draw.pick("counts", ("one", "one", "list", "tensor"))
    else:
        form = draw.pick("counts", ("list", "tensor"))
    if form == "one":
        return draw.number("count", 1, max(1, min(limits, default=3)))
    counts = [draw.number(f"count {cloud}", 0, limit) for cloud, limit in enumerate(limits)]
    return counts if form == "list" else torch.tensor(counts, dtype=torch.int64).reshape(-1)


def _farthest(draw: Draw) -> Arguments:
    arguments = _clouds(draw, draw.pick("dims", (3, 3, 3, 1, 2, 4, 7)))
    counts = arguments["num_samples"] = _counts(draw, arguments)
    arguments["return_radius"] = draw.flag("radius")
    sizes = _sizes(arguments)
    least = min(sizes, default=0)
    start = draw.pick("start", ("first", "random", "number", "each", "sets"))
    if start == "random":
        arguments["start"] = "random"
    elif start == "number" and least:
        arguments["start"] = draw.number("first", 0, least - 1)
    elif start == "each" and sizes and least and counts is not None and _at_least(counts, 1):
        arguments["start"] = [draw.number(f"first {cloud}", 0, size - 1) for cloud, size in enumerate(sizes)]
    elif start == "sets" and sizes and least and _at_least(counts, 2):
        rows = [[draw.number(f"first {cloud}", 0, size - 1), draw.number(f"second {cloud}", -1, size - 1)]
                for cloud, size in enumerate(sizes)]  # fmt: skip
        arguments["start"] = torch.tensor(rows, device=draw.device)
    return arguments


def _at_least(counts: Any, number: int) -> bool:
    return counts >= number if isinstance(counts, int) else min([int(count) for count in counts], default=0) >= number


def _random(draw: Draw) -> Arguments:
    arguments = _clouds(draw, 3)
    return {**arguments, "num_samples": _counts(draw, arguments)}


def edge(draw: Draw) -> Any:
    sizes = (1.0, 0.5, 0.1, 3, 1e-3, 1e-30, 1e30)
    if draw.flag("edges", 4):
        return [draw.pick(f"edge {axis}", sizes) for axis in range(3)]
    return draw.pick("edge", sizes)


BAD_EDGES = [0.0, -1.0, float("nan"), float("inf"), "1", None, True, [1.0, 1.0], [1.0, 1.0, -1.0], 1e-320]


def _voxels(draw: Draw) -> Arguments:
    return {**_clouds(draw, 3), "voxel_size": edge(draw)}


BAD_COUNTS = [0, -1, 2.5, True, None, "3", 2**63, [1] * 9, [-1], torch.tensor([[1]]), torch.tensor([1.0])]
OPERATORS = [
    Operator(
        "farthest_point_sampling", pointgrad.farthest_point_sampling, _farthest,
        bad_arguments={"num_samples": BAD_COUNTS, "start": [-1, 1.5, "last", None, [[0.5]], 2**63]},
    ),
    Operator("random_sampling", pointgrad.random_sampling, _random, bad_arguments={"num_samples": BAD_COUNTS}),
    Operator("voxel_sampling", pointgrad.voxel_sampling, _voxels, bad_arguments={"voxel_size": BAD_EDGES}),
]  # fmt: skip
