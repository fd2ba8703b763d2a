"""knn, ball_query, both through a NeighborIndex, and to_edges. Searches agree to the bit, gradients within a bound."""

from typing import Any

import torch
from torch import Tensor

import pointgrad

from .draw import Draw
from .operators import Arguments, Operator

# Leaves and nodes of sixteen; lists up to 160 are sorted in another way; divisions of more than 4096 have four parts.
EDGES = (15, 16, 17, 159, 161, 255, 256, 257, 271, 273, 4095, 4097, 4111)


def searched(draw: Draw, most_dims: int = 19, own_queries: bool = False) -> tuple[Arguments, torch.dtype]:
    """Points, and queries; without `own_queries` maybe none."""
    dtype, (layout, batch) = draw.dtype(), draw.layout()
    dims = draw.pick("dims", [d for d in (3, 3, 3, 2, 1, 4, 5, 8, 9, 16, 19) if d <= most_dims])
    own = not own_queries and draw.flag("own")
    edges = (*EDGES, *EDGES[-3:] * 8) if layout == "packed" and not own else EDGES[:-3]
    most = 5000 if layout == "packed" and not own and not draw.flag("few", 2) else 257
    arguments = draw.clouds("points", "", dtype, dims, layout, batch, most=most, edges=edges)
    if not own:
        arguments |= draw.clouds("queries", "query_", dtype, dims, layout, batch, most=65)
        if draw.flag("among points", 3):
            points, queries = arguments["points"], arguments["queries"]
            count = min(points.shape[-2], queries.shape[-2])
            mixed = queries.clone()
            mixed[..., :count, :] = points[..., :count, :]  # distances of exactly zero
            arguments["queries"] = mixed
    return arguments, dtype


def _k(draw: Draw) -> int:
    return draw.pick("k", (1, 1, 2, 3, 7, 8, 9, 16, 17, 32, 33, 40, 64, 65) if not draw.tiny else (1, 2, 3, 7, 9, 17))


def _ball(draw: Draw) -> Arguments:
    radius = draw.pick("radius", (0.5, 1.0, 1, 2.0, 1e-3, 1e-30, 1e-45, 1e-320, 1e30, 1e300, float("inf")))
    arguments = {"radius": radius, "k": _k(draw), "closed": draw.flag("closed")}
    arguments["select"] = draw.pick("select", ("nearest", "first", "random"))
    if draw.flag("shell", 4):
        arguments["min_radius"] = min(radius / 2, 1e300)
    return arguments


def _knn(draw: Draw) -> Arguments:
    return {**searched(draw)[0], "k": _k(draw)}


def _ball_query(draw: Draw) -> Arguments:
    return {**searched(draw)[0], **_ball(draw)}


def _by_index(draw: Draw) -> Arguments:
    return {**searched(draw, most_dims=3)[0], **(_ball(draw) if draw.flag("ball") else {"k": _k(draw)})}


def by_index(points: Tensor, offsets: Any = None, lengths: Any = None, **asked: Any) -> Any:
    index = pointgrad.NeighborIndex(points, offsets=offsets, lengths=lengths)
    return index.ball_query(**asked) if "radius" in asked else index.knn(**asked)


def _edges(draw: Draw) -> Arguments:
    padded, rows = draw.flag("padded"), draw.size("points", most=65)
    shape = (
        *((draw.number("clouds", 0, 3),) if padded else ()),
        draw.size("queries", most=65),
        draw.size("k", most=33),
    )
    index = draw.index("index", rows, *shape)
    return {"index": index, "num_points": rows} if padded else {"index": index}


def _edge_rows(arguments: Arguments) -> int | None:
    return arguments.get("num_points")


def pulls(points: Tensor, queries: Tensor | None, index: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of absolute values in the gradients of squared distances, for points and for queries."""
    points, centers = points.double(), (points if queries is None else queries).double()
    there = (index >= 0).unsqueeze(-1)
    with pointgrad.backend("reference"):
        delta = torch.where(there, pointgrad.group(points, index) - centers.unsqueeze(-2), 0)
        pull = torch.where(there, 2 * grad.abs().unsqueeze(-1) * delta.abs(), 0)
        flat = pull.flatten(-3, -2)
        for_points = pointgrad.scatter(flat, index.flatten(-2), points.shape[-2])
    return for_points, pull.sum(-2)


def _magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    index, queries = outputs[0], arguments.get("queries")
    for_points, for_queries = pulls(arguments["points"], queries, index, upstream[0])
    if queries is None:
        return [None], {"points": for_points + for_queries}
    return [None], {"points": for_points, "queries": for_queries}


BAD_K = [0, -1, 2.5, True, None, "3", 2**63]
BAD_BALL = {
    "radius": [0, -1.0, float("nan"), None, "1", True], "min_radius": [-1.0, float("nan"), float("inf"), "0"],
    "select": ["all", None, 3], "closed": [1, None, "yes"], "k": BAD_K,
}  # fmt: skip
BOTH = ("points", "queries")
OPERATORS = [
    Operator("knn", pointgrad.knn, _knn, BOTH, _magnitudes, bad_arguments={"k": BAD_K}),
    Operator("ball_query", pointgrad.ball_query, _ball_query, BOTH, _magnitudes, bad_arguments=BAD_BALL),
    Operator("NeighborIndex", by_index, _by_index, BOTH, _magnitudes, bad_arguments={"k": BAD_K}),
    Operator("to_edges", pointgrad.to_edges, _edges, index_rows=_edge_rows, bad_arguments={"index": [None, 3]}),
]
