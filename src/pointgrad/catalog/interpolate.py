"""interpolate, interpolate_at, trilinear, grid_sample and splat."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pointgrad
from pointgrad import grid_sample, interpolate, interpolate_at, splat, trilinear
from pointgrad.ops.interpolate import reference

from .attention import plain_aggregate
from .base import EACH_PASS, Benchmark, OpInfo, Precision, Sample, Scaling, any_index, equal_offsets
from .errors import each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments, Sums, doubled, linear_in_each
from .neighbors import draw_search, nearest, pulls
from .scaling import check_picked, exact_features

GRADS = ("features", "points", "queries")
SIZE = (4, 5, 6)
BAD_CELLS: dict[str, Sequence[Any]] = {"padding_mode": ["wrap", None, 1], "align_corners": [None, 1, "no"]}


def clouds(
    m: Make, batch: tuple[int, ...], n: int, channels: int, num_queries: int, dims: int = 3, **options: Any
) -> Arguments:
    places = {"points": m.floats(*batch, n, dims), "queries": m.floats(*batch, num_queries, dims)}
    return {"features": m.floats(*batch, n, channels), **places, **options}


def weighted(m: Make, batch: tuple[int, ...], n: int, channels: int, num_queries: int, k: int) -> Arguments:
    index = m.index(n, *batch, num_queries, k)
    return {"features": m.floats(*batch, n, channels), "index": index, "weights": m.floats(*batch, num_queries, k)}


def cells(m: Make, count: int, channels: int, spread: float = 1.0) -> Arguments:
    """With a spread of 0.5 most points are inside their cell."""
    corners, points = m.floats(count, 8, channels), m.floats(count, 3)
    return {"corners": corners, "points": points if spread == 1 else points * spread}


def sampled(m: Make, grid: Sequence[int], num_points: int, **settings: Any) -> Arguments:
    return {"grid": m.floats(*grid), "points": m.floats(grid[0], num_points, 3), **settings}


def splatted(m: Make, features: Sequence[int], size: Sequence[int], **settings: Any) -> Arguments:
    return {"features": m.floats(*features), "points": m.floats(*features[:2], 3), "size": tuple(size), **settings}


def on_voxels(m: Make, *shape: int) -> Tensor:
    """Points on the centers, faces and outermost corners of four voxels per axis, and as far outside."""
    return (torch.randint(-8, 9, (*shape, 3)) / 4).to(m.device, m.dtype)


def plain_interpolate(features: Tensor, points: Tensor, queries: Tensor, k: int = 3) -> Tensor:
    index = nearest(points, k, queries)[1]
    weights = 1 / (points[index] - queries.unsqueeze(1)).square().sum(-1).sqrt()
    return plain_interpolate_at(features, index, weights / weights.sum(1, keepdim=True))


def plain_interpolate_at(features: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    return plain_aggregate(weights, features, index)


def sliced_trilinear(corners: Tensor, points: Tensor) -> Tensor:
    """The common eager form: nested interpolation of slices."""
    u, v, w = ((points + 1) / 2).split(1, dim=1)
    a, b = (1 - v) * (1 - w), (1 - v) * w
    c, d = v * (1 - w), v * w
    low = a * corners[:, 0] + b * corners[:, 1] + c * corners[:, 2] + d * corners[:, 3]
    high = a * corners[:, 4] + b * corners[:, 5] + c * corners[:, 6] + d * corners[:, 7]
    return (1 - u) * low + u * high


def weighted_trilinear(corners: Tensor, points: Tensor) -> Tensor:
    """A faster eager form: eight weights, one product, one sum."""
    shares = torch.stack([(1 - points) / 2, (1 + points) / 2], dim=2)  # (N, 3, 2)
    x, y, z = shares.unbind(1)
    weights = x[:, :, None, None] * y[:, None, :, None] * z[:, None, None, :]
    return (weights.reshape(-1, 8, 1) * corners).sum(1)


def plain_grid_sample(grid: Tensor, points: Tensor) -> Tensor:
    return F.grid_sample(grid, points[:, :, None, None], align_corners=False)[..., 0, 0].mT


def plain_splat(features: Tensor, points: Tensor, size: tuple[int, int, int]) -> Tensor:
    place = ((points + 1) * torch.tensor(size[::-1], dtype=points.dtype, device=points.device) - 1) / 2
    low = place.floor()
    grid = features.new_zeros(features.shape[0], size[0] * size[1] * size[2], features.shape[2])
    for corner in range(8):
        step = torch.tensor([corner & 1, corner >> 1 & 1, corner >> 2], device=points.device)
        weight = torch.where(step == 1, place - low, 1 - (place - low)).prod(-1)
        x, y, z = (low.long() + step).unbind(-1)
        inside = (x >= 0) & (x < size[2]) & (y >= 0) & (y < size[1]) & (z >= 0) & (z < size[0])
        voxel = torch.where(inside, (z * size[1] + y) * size[2] + x, 0)
        share = torch.where(inside, weight, 0).unsqueeze(-1) * features
        grid = grid.scatter_add(1, voxel.unsqueeze(-1).expand_as(share), share)
    return grid.mT.unflatten(-1, size)


def uniform(m: Make, *shape: int) -> Tensor:
    """Coordinates in [-1, 1]."""
    return 2 * m.positive(*shape) - 1.2


def uniform_cells(m: Make, count: int, channels: int) -> Arguments:
    return {"corners": m.floats(count, 8, channels), "points": uniform(m, count, 3)}


def three_rows(m: Make, num_rows: int, picks: int, batch: int) -> Arguments:
    index = m.below(num_rows, batch, picks, 3)
    return {"features": m.floats(batch, num_rows, 256), "index": index, "weights": m.positive(batch, picks, 3)}


def in_grid(m: Make, count: int, side: int) -> Arguments:
    return {"grid": m.floats(1, 32, side, side, side), "points": uniform(m, 1, count, 3)}


CELLS = {"eager slices": sliced_trilinear, "eager weights": weighted_trilinear}
GRID = {"PyTorch": plain_grid_sample}


def draw_interpolate(d: Draw) -> Arguments:
    arguments = draw_search(d, (3, 3, 3, 2, 1, 4))
    arguments.setdefault("queries", arguments["points"])
    for kind in ("offsets", "lengths"):
        if kind in arguments:
            arguments.setdefault(f"query_{kind}", arguments[kind])
    features = d.floats(*arguments["points"].shape[:-1], d.size(17))
    power = d.pick("power", (1.0, 2, 0.5, 3.0, 40.0))
    return {**arguments, "features": features, "k": d.pick("k", (3, 1, 2, 8, 17)), "power": power}


def draw_settings(d: Draw) -> Arguments:
    mode = d.pick("padding", ("zeros", "border", "reflection"))
    return {"padding_mode": mode, "align_corners": d.flag("aligned")}


def draw_grid_size(d: Draw) -> list[int]:
    return [d.pick(f"grid {axis}", (1, 2, 3, 5) if d.tiny else (1, 2, 3, 5, 8, 9)) for axis in range(3)]


def draw_sample(d: Draw) -> Arguments:
    arguments = sampled(d, (d.number("clouds", 0, 3), d.size(17), *draw_grid_size(d)), d.size(129), **draw_settings(d))
    if d.flag("channels last", 4):
        arguments["grid"] = arguments["grid"].contiguous(memory_format=torch.channels_last_3d)
    return arguments


def interpolate_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """All backends find the same distances, to the bit, and the same weights. The sums after that may differ."""
    features, power = arguments["features"].double(), arguments["power"]
    sizes = {name: arguments.get(name) for name in ("offsets", "lengths", "query_offsets", "query_lengths")}
    with pointgrad.backend("reference"):
        found = pointgrad.knn(arguments["points"], arguments["k"], arguments["queries"], **sizes, any_dims=True)
        valid, distance2 = found.index >= 0, found.distance2.double()
        exact = valid & (distance2 == 0)
        coincides = exact.any(-1, keepdim=True)
        safe = torch.where(valid & ~coincides, distance2, 1)
        ratio = torch.where(valid & ~coincides, (safe[..., :1] / safe) ** (power / 2), 0)
        weights = torch.where(coincides, exact.double(), ratio)
        total = weights.sum(-1, keepdim=True).clamp(min=1)
        weights = weights / total
        blur = 2 + power  # a weight is a power of a quotient, which multiplies the rounding error of the quotient
        forward = blur * pointgrad.aggregate(weights, features.abs(), found.index)
        if not upstream:
            return [forward], {}
        grad = upstream[0].abs()
        for_weights = blur * (pointgrad.group(features.abs(), found.index) * grad.unsqueeze(-2)).sum(-1)
        for_weights = (for_weights + (weights * for_weights).sum(-1, keepdim=True)) / total
        slopes = torch.where(valid & ~coincides, power / 2 * ratio / safe * for_weights, 0)
        first = slopes[..., :1] + (slopes * safe / safe[..., :1]).sum(-1, keepdim=True)
        slopes = blur * torch.cat([first, slopes[..., 1:]], -1)
        for_points, for_queries = pulls(arguments["points"], arguments["queries"], found.index, slopes)
        rows = (weights.unsqueeze(-1) * grad.unsqueeze(-2)).flatten(-3, -2)
        for_features = blur * pointgrad.scatter(rows, found.index.flatten(-2), features.shape[-2])
    return [forward], {"features": for_features, "points": for_points, "queries": for_queries}


def trilinear_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """Both weights along an axis are at most (1 + |x|) / 2, and so is their rounding error."""
    given = doubled(arguments)
    corners, most = given["corners"].abs(), (1 + given["points"].abs()) / 2  # (N, 3)
    forward = corners.sum(1) * most.prod(1, keepdim=True)
    if not upstream:
        return [forward], {}
    grad = upstream[0].abs()
    products = (corners * grad.unsqueeze(1)).sum((1, 2))
    others = torch.stack([most[:, [1, 2]].prod(1), most[:, [0, 2]].prod(1), most[:, [0, 1]].prod(1)], 1)
    spread = (most.prod(1, keepdim=True) * grad).unsqueeze(1).expand(corners.shape)
    return [forward], {"corners": spread, "points": others * products.unsqueeze(1)}


def cell_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """All backends place a point alike, to the bit, and its eight weights are not negative."""
    points, mode, aligned = arguments["points"], arguments["padding_mode"], arguments["align_corners"]
    wide = points.to(torch.promote_types(points.dtype, torch.float32))
    grid = arguments.get("grid")
    size = arguments["size"] if grid is None else grid.shape[2:]
    shares, scale, voxel, inside = reference._places(wide, tuple(size), mode, aligned)
    shares, scale = shares.double(), scale.double().abs()
    weights = reference._weights(shares, None)
    spread_of = arguments["features"] if grid is None else (upstream[0] if upstream else None)
    gathered_from = grid if grid is not None else (upstream[0] if upstream else None)

    def gathered(values: Tensor) -> Tensor:
        return reference._corners(values.double().abs(), voxel, inside)

    def sample(values: Tensor) -> Tensor:
        return (weights.unsqueeze(-1) * gathered(values)).sum(2)

    def spread(rows: Tensor) -> Tensor:
        values = torch.where(inside.unsqueeze(-1), weights.unsqueeze(-1) * rows.double().abs().unsqueeze(2), 0)
        total = values.new_zeros(len(rows), rows.shape[-1], int(torch.Size(size).numel()))
        place = voxel.flatten(1).unsqueeze(1).expand(-1, rows.shape[-1], -1)
        return total.scatter_add(2, place, values.flatten(1, 2).transpose(1, 2)).unflatten(2, tuple(size))

    forward = spread(arguments["features"]) if grid is None else sample(grid)
    if spread_of is None or gathered_from is None:
        return [forward], {}
    products = (gathered(gathered_from) * spread_of.double().abs().unsqueeze(2)).sum(-1)
    products = torch.where(inside, products, 0)
    slopes = (reference._slopes(shares, None).abs() * products.unsqueeze(2)).sum(-1) * scale
    # A product may overflow before it is multiplied by a small slope.
    slopes = slopes + 1e300 * (products > torch.finfo(wide.dtype).max / 4).any(-1, keepdim=True).double()
    other = {"features": sample(gathered_from)} if grid is None else {"grid": spread(spread_of)}
    return [forward], {**other, "points": slopes}


def exact_weights(count: int, device: str) -> Arguments:
    """Weights of thirds would round; halves and quarters are exact."""
    features, number = exact_features(count, device), torch.arange(count, device=device)
    index = torch.stack([count - 1 - number, number, (number + 1) % count], 1)
    weights = torch.tensor([0.5, 0.25, 0.25], device=device, dtype=features.dtype).expand(count, 3).contiguous()
    return {"features": features, "index": index, "weights": weights}


points, corners, grid = torch.zeros(6, 3), torch.zeros(6, 8, 4), torch.zeros(2, 4, 3, 3, 3)
padded, features, pairs = torch.zeros(2, 6, 3), torch.zeros(2, 6, 4), torch.zeros(2, 3)

OPERATORS = [
    OpInfo(
        "interpolate", interpolate, differentiable=GRADS, plain=plain_interpolate, composed=True,
        samples=[
            Sample("packed", lambda m: clouds(m, (), 14, 3, 9, offsets=m.ints(0, 6, 14), query_offsets=m.ints(0, 5, 9))),
            Sample("padded", lambda m: clouds(m, (3,), 6, 3, 4, lengths=m.ints(6, 2, 0), query_lengths=m.ints(4, 4, 2)), large=lambda m: clouds(m, (2,), 600, 33, 3000)),
            Sample("squared", lambda m: clouds(m, (), 20, 4, 7, 2, k=5, power=2.0)),
            Sample("coinciding", lambda m: {"features": m.floats(30, 2), "points": m.grid(30, 3), "queries": m.grid(9, 3)}, smooth=False),
            Sample("empty", lambda m: clouds(m, (), 0, 2, 4)),
        ],
        errors=[
            *tensor_errors({"features": points, "points": points, "queries": points}, features=[None, points.long()], queries=[None]),
            value_error("features must be (N, C) with points (N, D), or (B, N, C) with (B, N, D), got (5, 3)", points[:5], points, points),
            value_error("k must be at least 1, got 0", points, points, points, 0),
            value_error("power must be positive and finite, got 0", points, points, points, power=0),
            type_error("power must be a number, got str '1'", points, points, points, power="1"),
        ],
        draw=draw_interpolate, magnitudes=interpolate_magnitudes,
        bad_arguments={"k": [0, -1, 2.5, True, None], "power": [0, -1.0, float("inf"), float("nan"), "1", True], "queries": [None]},
        precision=[Precision(lambda m: clouds(m, (), m.rows, 16, m.rows, k=5))],
        growing=lambda n: (
            lambda f, p, q, k, o, r: interpolate(f, p, q, k, offsets=o, query_offsets=r),
            torch.rand(n * n, n + 1), torch.rand(n * n, 3), torch.rand(n * (n + 1), 3), n, equal_offsets(n, n), equal_offsets(n + 1, n),
        ),
    ),
    OpInfo(
        "interpolate_at", interpolate_at, differentiable=("features", "weights"), plain=plain_interpolate_at,
        index_rows=lambda arguments: arguments["features"].shape[-2],
        samples=[
            Sample("packed", lambda m: weighted(m, (), 9, 5, 7, 3)),
            Sample("padded", lambda m: weighted(m, (2,), 9, 5, 7, 3)),
        ],
        errors=[
            value_error("weights must be (2, 3), like index, got (6, 3)", points, pairs.long(), points),
            type_error("weights must have the dtype of features, float32, got float16", points, pairs.long(), pairs.half()),
        ],
        draw=lambda d: weighted(d, d.batch(), d.size(129), d.size(33), d.size(65), d.size(17)),
        magnitudes=linear_in_each(interpolate_at, ("features", "weights")), bad_arguments={"weights": [None, 1.0]},
        precision=[Precision(lambda m: three_rows(m, m.rows, m.rows, 1))],
        scaling=Scaling(exact_weights, check_picked(plain_interpolate_at)),
        benchmarks=[
            Benchmark(
                "interpolate 3 of {0}, {2} x {1} x 256", three_rows, (1024, 4096, 2),
                {"PyTorch": plain_interpolate_at},
                EACH_PASS, ("features",), floor=True, work="interpolate", cuda=(1024, 4096, 16),
            ),
        ],
        growing=lambda n: (
            interpolate_at, torch.rand(n, n + 1), any_index(n, n + 2, n + 3), torch.rand(n + 2, n + 3),
        ),
    ),
    OpInfo(
        "trilinear", trilinear, differentiable=("corners", "points"), plain=weighted_trilinear,
        samples=[
            Sample("inside", lambda m: cells(m, 5, 4, 0.5), large=lambda m: cells(m, 3001, 37)),
            Sample("wide", lambda m: cells(m, 2, 19, 0.5)),
            Sample("one", lambda m: cells(m, 1, 1)),
            Sample("equal", lambda m: {"corners": m.equal(4, 8, 2), "points": m.equal(4, 3)}),
            Sample("empty", lambda m: cells(m, 0, 4)),
            Sample("no-features", lambda m: cells(m, 3, 0)),
        ],
        errors=[
            *tensor_errors({"corners": corners, "points": points}, points=[None, points.half(), points.to("meta")], corners=[corners.long()]),
            value_error("corners must be (N, 8, F), got (6, 7, 4)", torch.zeros(6, 7, 4), points),
            value_error("points must be (N, 3) = (6, 3), got (5, 3)", corners, points[:5]),
        ],
        draw=lambda d: cells(d, d.size(2049, (2049,)), d.size(33)), magnitudes=trilinear_magnitudes,
        precision=[Precision(lambda m: cells(m, m.rows, 16, 0.5))],
        benchmarks=[
            Benchmark(
                "trilinear {0} x 8 x {1}", uniform_cells, (65_536, 64), CELLS, EACH_PASS,
                ("corners",), floor=True, cuda=(65_536, 256),
            ),
            Benchmark(
                "trilinear {0} x 8 x {1}", uniform_cells, (65_536, 64), CELLS, {" backward, points": "backward"},
                ("corners", "points"), floor=True, cuda=(65_536, 256),
            ),
        ],
        growing=lambda n: (trilinear, torch.rand(n, 8, n + 1), torch.rand(n, 3)),
    ),
    OpInfo(
        "grid_sample", grid_sample, differentiable=("grid", "points"), plain=plain_grid_sample,
        samples=[
            Sample("zeros", lambda m: sampled(m, (2, 2, 2, 4, 3), 5), large=lambda m: sampled(m, (2, 19, 9, 10, 11), 5003)),
            Sample("border-aligned", lambda m: sampled(m, (2, 2, 3, 3, 2), 6, padding_mode="border", align_corners=True)),
            Sample("reflection", lambda m: sampled(m, (2, 2, 3, 3, 2), 6, padding_mode="reflection")),
            Sample("few-points", lambda m: sampled(m, (1, 2, 4, 5, 6), 4)),
            Sample("one-voxel-reflected", lambda m: sampled(m, (2, 3, 1, 1, 1), 5, padding_mode="reflection", align_corners=True)),
            Sample("on-voxels", lambda m: {"grid": m.floats(2, 3, 4, 4, 4), "points": on_voxels(m, 2, 40)}, smooth=False),
            Sample("empty", lambda m: sampled(m, (2, 3, 2, 2, 2), 0)),
            Sample("no-channels", lambda m: sampled(m, (2, 0, 2, 2, 2), 4)),
            Sample("no-clouds", lambda m: sampled(m, (0, 3, 2, 2, 2), 4)),
        ],
        errors=[
            *tensor_errors({"grid": grid, "points": padded}, grid=[None, grid.long()], points=[[0.0], padded.double(), padded.to("meta")]),
            type_error("padding_mode must be a str, got int 0", grid, padded, padding_mode=0),
            type_error("align_corners must be a bool, got NoneType None", grid, padded, align_corners=None),
            *each(value_error, "grid must be (B, C, D, H, W) with at least one voxel", got("(4, 3, 3, 3)", grid[0], padded), got("(2, 4, 0, 3, 3)", grid[:, :, :0], padded)),
            *each(value_error, "points must be (B, N, 3) with B = 2", got("(1, 6, 3)", grid, padded[:1]), got("(2, 6, 2)", grid, padded[..., :2]), got("(6, 3)", grid, points)),
            value_error("padding_mode must be zeros, border or reflection, got wrap", grid, padded, padding_mode="wrap"),
        ],
        draw=draw_sample, magnitudes=cell_magnitudes, bad_arguments=BAD_CELLS,
        precision=[Precision(lambda m: {"grid": m.floats(2, 8, *SIZE), "points": m.floats(2, m.rows, 3) / 2})],
        benchmarks=[
            Benchmark("grid_sample {0}, 32 x {1}^3", in_grid, (200_000, 64), GRID, {" forward": "forward"}, floor=True, cuda=(1_000_000, 128)),
            *(
                Benchmark("grid_sample {0}, 32 x {1}^3", in_grid, (200_000, 64), GRID, {suffix: "backward"}, sources, 1e-3, cuda=(1_000_000, 128))
                for suffix, sources in ((" backward", ("grid",)), (" backward, points", ("grid", "points")))
            ),
        ],
        growing=lambda n: (
            grid_sample, torch.rand(n, n + 1, n + 2, n + 3, n + 4), torch.rand(n, n + 5, 3),
        ),
    ),
    OpInfo(
        "splat", splat, differentiable=("features", "points"), plain=plain_splat,
        samples=[
            Sample("zeros", lambda m: splatted(m, (2, 5, 2), (2, 4, 3)), large=lambda m: splatted(m, (2, 5003, 19), (9, 10, 11)), any_order=True),
            Sample("reflection-aligned", lambda m: splatted(m, (2, 6, 2), (2, 3, 3), padding_mode="reflection", align_corners=True), any_order=True),
            Sample("few-points", lambda m: splatted(m, (1, 4, 2), (4, 5, 6)), large=lambda m: splatted(m, (1, 3001, 17), (41, 42, 43)), any_order=True),
            Sample("equal", lambda m: {"features": m.floats(1, 2, 2), "points": m.equal(1, 2, 3), "size": (3, 3, 3)}, any_order=True),
            Sample("empty", lambda m: splatted(m, (2, 0, 3), (2, 2, 2)), any_order=True),
        ],
        errors=[
            *tensor_errors({"features": features, "points": padded, "size": (2, 2, 2)}, features=[None, features.int()], points=[padded.half(), padded.to("meta")]),
            *each(type_error, "size must be three integers (D, H, W)", got("int 2", features, padded, 2), got("(2, 2)", features, padded, (2, 2)), got("(2, 2, 2.0)", features, padded, (2, 2, 2.0))),
            *each(type_error, "size must be three integers (D, H, W)", got("str 'abc'", features, padded, "abc")),
            type_error("padding_mode must be a str, got NoneType None", features, padded, (2, 2, 2), padding_mode=None),
            value_error("features must be (B, N, C), got (6, 4)", features[0], padded, (2, 2, 2)),
            value_error("points must be (B, N, 3) = (2, 6, 3), got (2, 5, 3)", features, padded[:, :5], (2, 2, 2)),
            value_error("size must be at least 1 along each axis, got (2, 0, 2)", features, padded, (2, 0, 2)),
            value_error("padding_mode must be zeros, border or reflection, got Border", features, padded, (2, 2, 2), padding_mode="Border"),
        ],
        draw=lambda d: splatted(d, (d.number("clouds", 0, 3), d.size(129), d.size(17)), draw_grid_size(d), **draw_settings(d)), magnitudes=cell_magnitudes,
        benchmarks=[
            Benchmark("splat {0}, 32 x {1}^3", lambda m, n, side: {"features": m.floats(1, n, 32), "points": uniform(m, 1, n, 3), "size": (side,) * 3}, (200_000, 64), {"PyTorch": plain_splat}, {" forward": "forward"}, cuda=(1_000_000, 128)),
        ],
        bad_arguments={**BAD_CELLS, "size": [3, (1, 2), (0, 1, 1), (1, -1, 1), "123", None, (1.0, 2, 3)]},
        precision=[Precision(lambda m: {"features": m.floats(2, m.rows, 8), "points": m.floats(2, m.rows, 3) / 2, "size": SIZE})],
        growing=lambda n: (
            lambda f, p, d, h, w: splat(f, p, (d, h, w)),
            torch.rand(n, n + 1, n + 2), torch.rand(n, n + 1, 3), n, n + 1, n + 2,
        ),
    ),
]  # fmt: skip
