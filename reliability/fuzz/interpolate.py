"""interpolate, interpolate_at, trilinear, grid_sample and splat."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops.interpolate import reference

from .draw import Draw
from .neighbors import pulls, searched
from .operators import Arguments, Operator, doubled, linear_in_each


def _interpolate(draw: Draw) -> Arguments:
    arguments, dtype = searched(draw, most_dims=4, own_queries=True)
    points = arguments["points"]
    features = draw.floats("features", dtype, *points.shape[:-1], draw.size("channels", most=17))
    k = draw.pick("k", (3, 1, 2, 8, 17))
    return {**arguments, "features": features, "k": k, "power": draw.pick("power", (1.0, 2, 0.5, 3.0, 40.0))}


def _interpolate_magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """Both backends find the same distances, to the bit, and weigh them alike. What differs is added up from there."""
    features, power = arguments["features"].double(), arguments["power"]
    sizes = {name: arguments.get(name) for name in ("offsets", "lengths", "query_offsets", "query_lengths")}
    with pointgrad.backend("reference"):
        found = pointgrad.knn(arguments["points"], arguments["k"], arguments["queries"], **sizes)
        there, distance2 = found.index >= 0, found.distance2.double()
        exact = there & (distance2 == 0)
        coincides = exact.any(-1, keepdim=True)
        safe = torch.where(there & ~coincides, distance2, 1)
        ratio = torch.where(there & ~coincides, (safe[..., :1] / safe) ** (power / 2), 0)
        weights = torch.where(coincides, exact.double(), ratio)
        total = weights.sum(-1, keepdim=True).clamp(min=1)
        weights = weights / total
        # A weight is a power of a quotient: its rounding counts by the power.
        blur = 2 + power
        forward = blur * pointgrad.aggregate(weights, features.abs(), found.index)
        if not upstream:
            return [forward], {}
        grad = upstream[0].abs()
        back = pointgrad.group(features.abs(), found.index)
        for_weights = blur * (back * grad.unsqueeze(-2)).sum(-1)
        for_weights = (for_weights + (weights * for_weights).sum(-1, keepdim=True)) / total
        slopes = torch.where(there & ~coincides, power / 2 * ratio / safe * for_weights, 0)
        slopes = blur * torch.cat(
            [slopes[..., :1] + (slopes * safe / safe[..., :1]).sum(-1, keepdim=True), slopes[..., 1:]], -1
        )
        for_points, for_queries = pulls(arguments["points"], arguments["queries"], found.index, slopes)
        rows = (weights.unsqueeze(-1) * grad.unsqueeze(-2)).flatten(-3, -2)
        for_features = blur * pointgrad.scatter(rows, found.index.flatten(-2), features.shape[-2])
    return [forward], {"features": for_features, "points": for_points, "queries": for_queries}


def _at(draw: Draw) -> Arguments:
    batch = (draw.number("clouds", 0, 3),) if draw.flag("padded") else ()
    rows, picks, k = draw.size("rows", most=129), draw.size("picks", most=65), draw.size("k", most=17)
    dtype = draw.dtype()
    return {
        "features": draw.floats("features", dtype, *batch, rows, draw.size("channels", most=33)),
        "index": draw.index("index", rows, *batch, picks, k),
        "weights": draw.floats("weights", dtype, *batch, picks, k),
    }


def _trilinear(draw: Draw) -> Arguments:
    count, dtype = draw.size("points", most=2049, edges=(2049,)), draw.dtype()
    corners = draw.floats("corners", dtype, count, 8, draw.size("channels", most=33))
    return {"corners": corners, "points": draw.floats("points", dtype, count, 3)}


def _trilinear_magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """Both shares along an axis are at most (1 + |x|) / 2, and err by as much."""
    given = doubled(arguments)
    corners, reach = given["corners"].abs(), (1 + given["points"].abs()) / 2  # (N, 3)
    forward = corners.sum(1) * reach.prod(1, keepdim=True)
    if not upstream:
        return [forward], {}
    grad = upstream[0].abs()
    products = (corners * grad.unsqueeze(1)).sum((1, 2))
    others = torch.stack([reach[:, [1, 2]].prod(1), reach[:, [0, 2]].prod(1), reach[:, [0, 1]].prod(1)], 1)
    spread = (reach.prod(1, keepdim=True) * grad).unsqueeze(1).expand(corners.shape)
    return [forward], {"corners": spread, "points": others * products.unsqueeze(1)}


def _settings(draw: Draw) -> Arguments:
    return {
        "padding_mode": draw.pick("padding", ("zeros", "border", "reflection")),
        "align_corners": draw.flag("aligned"),
    }


def _grid_size(draw: Draw) -> list[int]:
    return [draw.pick(f"grid {axis}", (1, 2, 3, 5) if draw.tiny else (1, 2, 3, 5, 8, 9)) for axis in range(3)]


def _sample(draw: Draw) -> Arguments:
    batch, dtype, size = draw.number("clouds", 0, 3), draw.dtype(), _grid_size(draw)
    grid = draw.floats("grid", dtype, batch, draw.size("channels", most=17), *size)
    if draw.flag("channels last", 4):
        grid = grid.contiguous(memory_format=torch.channels_last_3d)
    points = draw.floats("points", dtype, batch, draw.size("points", most=129), 3)
    return {"grid": grid, "points": points, **_settings(draw)}


def _splat(draw: Draw) -> Arguments:
    batch, dtype, count = draw.number("clouds", 0, 3), draw.dtype(), draw.size("points", most=129)
    features = draw.floats("features", dtype, batch, count, draw.size("channels", most=17))
    points = draw.floats("points", dtype, batch, count, 3)
    return {"features": features, "points": points, "size": _grid_size(draw), **_settings(draw)}


def _cell_magnitudes(
    arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]
) -> tuple[list[Tensor | None], dict[str, Tensor]]:
    """Both backends place a point alike, to the bit; its eight shares are not negative."""
    points, mode, aligned = arguments["points"], arguments["padding_mode"], arguments["align_corners"]
    wide = points.to(torch.promote_types(points.dtype, torch.float32))
    grid = arguments.get("grid")
    size = arguments["size"] if grid is None else grid.shape[2:]
    shares, scale, voxel, inside = (part for part in reference._places(wide, tuple(size), mode, aligned))
    shares, scale = shares.double(), scale.double().abs()
    weights = reference._weights(shares, None)
    spread_of = arguments["features"] if grid is None else (upstream[0] if upstream else None)
    gathered_from = grid if grid is not None else (upstream[0] if upstream else None)

    def gathered(cells: Tensor) -> Tensor:
        return reference._corners(cells.double().abs(), voxel, inside)

    def sampled(cells: Tensor) -> Tensor:
        return (weights.unsqueeze(-1) * gathered(cells)).sum(2)

    def splatted(rows: Tensor) -> Tensor:
        values = torch.where(inside.unsqueeze(-1), weights.unsqueeze(-1) * rows.double().abs().unsqueeze(2), 0)
        total = values.new_zeros(len(rows), rows.shape[-1], int(torch.Size(size).numel()))
        place = voxel.flatten(1).unsqueeze(1).expand(-1, rows.shape[-1], -1)
        return total.scatter_add(2, place, values.flatten(1, 2).transpose(1, 2)).unflatten(2, tuple(size))

    forward = splatted(spread_of) if grid is None else sampled(grid)
    if spread_of is None or gathered_from is None:
        return [forward], {}
    products = (gathered(gathered_from) * spread_of.double().abs().unsqueeze(2)).sum(-1)
    products = torch.where(inside, products, 0)
    slopes = (reference._slopes(shares, None).abs() * products.unsqueeze(2)).sum(-1) * scale
    # A product that overflows does so before a small slope is multiplied with it.
    slopes = slopes + 1e300 * (products > torch.finfo(wide.dtype).max / 4).any(-1, keepdim=True).double()
    other = {"features": sampled(gathered_from)} if grid is None else {"grid": splatted(spread_of)}
    return [forward], {**other, "points": slopes}


BAD_K = [0, -1, 2.5, True, None]
BAD_CELLS = {"padding_mode": ["wrap", None, 1], "align_corners": [None, 1, "no"]}
CLOUDS = ("features", "points", "queries")
OPERATORS = [
    Operator(
        "interpolate", pointgrad.interpolate, _interpolate, CLOUDS, _interpolate_magnitudes,
        bad_arguments={"k": BAD_K, "power": [0, -1.0, float("inf"), float("nan"), "1", True], "queries": [None]},
    ),
    Operator(
        "interpolate_at", pointgrad.interpolate_at, _at, ("features", "weights"),
        linear_in_each(pointgrad.interpolate_at, ("features", "weights")),
        index_rows=lambda arguments: arguments["features"].shape[-2], bad_arguments={"weights": [None, 1.0]},
    ),
    Operator("trilinear", pointgrad.trilinear, _trilinear, ("corners", "points"), _trilinear_magnitudes),
    Operator("grid_sample", pointgrad.grid_sample, _sample, ("grid", "points"), _cell_magnitudes, bad_arguments=BAD_CELLS),  # noqa: E501
    Operator(
        "splat", pointgrad.splat, _splat, ("features", "points"), _cell_magnitudes,
        bad_arguments={**BAD_CELLS, "size": [3, (1, 2), (0, 1, 1), (1, -1, 1), "123", None, (1.0, 2, 3)]},
    ),
]  # fmt: skip
