"""voxelize and unique_voxels: the same bits on every backend, except sums of features."""

from typing import Any

import torch
from torch import Tensor

from pointgrad import gather, unique_voxels, voxelize

from .base import Benchmark, OpInfo, Precision, Sample, equal_offsets, ints
from .errors import bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments, Sums, linear_in_each
from .sampling import BAD_EDGES, clouds, draw_edge
from .scatter import plain_scatter

points, padded = torch.zeros(6, 3), torch.zeros(2, 6, 3)
rows, padded_rows = points.long(), padded.long()
# At most int32, beyond 63 bits together, and beyond 64 bits on each axis.
EXTENTS = (2, 2, 9, 2000, 2**31 - 1, 2**62)
REDUCTIONS = ("mean", "sum", "max", "first")
SIZES = (1023, 1024, 1025, 70_001)


def center_of_each(points: Tensor, size: float) -> Tensor:
    """The center of every point's voxel."""
    found = voxelize(points, size)
    return gather(found.centers, found.inverse)


def unique(points: Tensor, size: float) -> tuple[Tensor, ...]:
    edge = torch.full((), size, device=points.device)  # on a GPU, torch multiplies by the reciprocal of a Python number
    return torch.unique((points / edge).floor().long(), dim=0, return_inverse=True, return_counts=True)


def voxel_features(**arguments: Any) -> Tensor | None:
    """Only the reduced features, which have a gradient."""
    return voxelize(**arguments).features


def plain_features(points: Tensor, size: float, features: Tensor, reduce: str) -> Tensor:
    voxels, inverse = (points / size).floor().unique(dim=0, return_inverse=True)
    return plain_scatter(features, inverse, len(voxels), reduce)


def featured(m: Make, *shape: int, channels: int = 2, reduce: str = "mean", **options: Any) -> Arguments:
    """Points whose voxel is the same in every dtype."""
    return {
        "points": m.grid(*shape, 3),
        "size": 0.7,
        "features": m.floats(*shape, channels),
        "reduce": reduce,
        **options,
    }


def feature_samples(r: str) -> list[Sample]:
    adds = r in ("mean", "sum")
    return [
        Sample(f"{r}-packed", lambda m: featured(m, 30, reduce=r, offsets=m.ints(0, 11, 11, 30)), any_order=adds, waits=True),
        Sample(f"{r}-padded", lambda m: featured(m, 3, 9, reduce=r, lengths=m.ints(9, 0, 4)), any_order=adds),
    ]  # fmt: skip


def feature_precision(r: str) -> Precision:
    return Precision(lambda m: featured(m, m.rows, channels=8, reduce=r), r)


def draw_features(d: Draw) -> Arguments:
    arguments = d.clouds("points", 3, d.layout(), 1025, SIZES)
    shape = arguments["points"].shape
    arguments["points"] = d.index(3, *shape, low=-2).to(d.dtype)
    return {
        **arguments,
        "size": d.pick("edge", (1.0, 2.0)),
        "features": d.floats(*shape[:-1], d.size(9)),
        "reduce": d.pick("reduce", REDUCTIONS),
    }


def feature_magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    """A maximum, the first row and their gradients are copies."""
    if arguments["reduce"] in ("max", "first"):
        return [], {}
    return linear_in_each(voxel_features, ("features",))(arguments, upstream, outputs)


def cells(m: Make, *shape: int, extent: int = 4, **options: Any) -> Arguments:
    return {"coordinates": m.below(2 * extent, *shape) - extent, **options}


def draw_cells(d: Draw) -> Arguments:
    arguments = d.clouds("coordinates", 3, d.layout(), 70_001, SIZES)
    shape, extent = arguments["coordinates"].shape, d.pick("extent", EXTENTS)
    arguments["coordinates"] = d.index(extent, *shape, low=-extent)
    return {**arguments, "valid": d.index(2, *shape[:-1]) > 0} if d.flag("valid") else arguments


def plain_unique(coordinates: Tensor) -> tuple[Tensor, ...]:
    return torch.unique(coordinates, dim=0, return_inverse=True, return_counts=True)


OPERATORS = [
    OpInfo(
        "voxelize", voxelize,
        samples=[
            Sample("one-cloud", lambda m: clouds(m, 50, 3, size=0.7), large=lambda m: clouds(m, 20011, 3, size=0.1), waits=True),
            Sample("packed", lambda m: clouds(m, 60, 3, size=(0.9, 1.0, 2.0), offsets=m.ints(0, 20, 20, 60, 60)), waits=True, large=lambda m: clouds(m, 9000, 3, size=0.2, offsets=m.ints(0, 4000, 4000, 7001, 9000))),
            Sample("padded", lambda m: clouds(m, 3, 20, 3, size=0.8, lengths=m.ints(20, 0, 7)), large=lambda m: clouds(m, 5, 3000, 3, size=0.2, lengths=m.ints(3000, 0, 7, 2999, 1500))),
            Sample("padded-full", lambda m: clouds(m, 2, 30, 3, size=1.0)),
            Sample("borders", lambda m: {"points": m.grid(2, 40, 3) - 1, "size": 1.0}),
            Sample("all-equal", lambda m: {"points": m.equal(9, 3), "size": 0.1}, waits=True),
            Sample("one-point", lambda m: clouds(m, 1, 3, size=1.0), waits=True),
            Sample("empty", lambda m: clouds(m, 0, 3, size=1.0), waits=True),
            Sample("no-clouds", lambda m: clouds(m, 0, 5, 3, size=1.0)),
            Sample("fine", lambda m: clouds(m, 50, 3, size=1e-18), waits=True),
        ],
        errors=[
            *tensor_errors({"points": points, "size": 1.0}, points=[None, points.long()]),
            *each(type_error, "size must be a number or three numbers", got("str '1'", points, "1"), got("bool True", points, True)),
            value_error("size must be one number or three, got 2 numbers", points, (1.0, 2.0)),
            *each(value_error, "size must be finite and positive", got("0.0", points, 0.0), got("-1.0", points, (1.0, -1.0, 1.0)), got("1e+39", points, 1e39)),
            value_error("points must be (N, 3) or (B, N, 3), got (6, 2)", torch.zeros(6, 2), 1.0),
            value_error("offsets must be None for padded points (B, N, 3); use lengths, got a tensor", padded, 1.0, offsets=ints(0, 6)),
            value_error("lengths must be None for packed points (N, 3); use offsets, got a tensor", points, 1.0, lengths=ints(6)),
            bad_values("offsets[-1] must equal N = 6, got 7", points, 1.0, offsets=ints(0, 7)),
            bad_values("lengths[0] must be in [0, N = 6], got 7", padded, 1.0, lengths=ints(7, 0)),
        ],
        draw=lambda d: {**d.clouds("points", 3, d.layout(), 70_001, SIZES), "size": draw_edge(d)},
        bad_arguments={"size": BAD_EDGES},
        precision=[
            Precision(lambda m: clouds(m, m.rows, 3, size=0.3), "centers", call=center_of_each, plain=lambda points, size: ((points / size).floor() + 0.5) * size)
        ],
        benchmarks=[
            Benchmark("voxelize {0} points", lambda m, rows: {"points": 20 * m.floats(rows, 3), "size": 0.2}, (1_000_000,), {"unique": unique}, read=lambda found: (found.coordinates, found.inverse, found.count), rounds=5),
        ],
        growing=lambda n: (lambda p, o: voxelize(p, 0.3, offsets=o), torch.rand(n * n, 3), equal_offsets(n, n)),
    ),
    OpInfo(
        "voxelize, features", voxel_features, differentiable=("features",), plain=plain_features, composed=True,
        samples=[
            *(sample for r in REDUCTIONS for sample in feature_samples(r)),
            Sample("one-point", lambda m: featured(m, 1), any_order=True, waits=True),
            Sample("no-channels", lambda m: featured(m, 5, channels=0), any_order=True, waits=True),
            Sample("no-points", lambda m: featured(m, 0, reduce="first"), waits=True),
            Sample("large", lambda m: featured(m, 7, reduce="sum"), large=lambda m: featured(m, 20_011, channels=33, reduce="sum"), any_order=True, waits=True),
        ],
        errors=[
            *tensor_errors({"points": points, "size": 1.0, "features": points}, features=[[1.0], points.to_sparse(), points.to("meta")]),
            *each(type_error, "features must be float32, float64, float16 or bfloat16", got("int64", points=points, size=1.0, features=rows)),
            *each(value_error, "features must be (N, C) with points (N, 3), or (B, N, C) with (B, N, 3)", got("(5, 2)", points=points, size=1.0, features=torch.zeros(5, 2)), got("(6,)", points=points, size=1.0, features=torch.zeros(6)), got("(6, 2)", points=padded, size=1.0, features=torch.zeros(6, 2))),
            type_error('reduce must be "mean", "sum", "max" or "first", got int 3', points=points, size=1.0, features=points, reduce=3),
            value_error("""reduce must be "mean", "sum", "max" or "first", got 'min'""", points=points, size=1.0, reduce="min"),
        ],
        draw=draw_features, magnitudes=feature_magnitudes,
        bad_arguments={"reduce": ["min", None, 3], "features": [3, "x"]},
        precision=[feature_precision(r) for r in REDUCTIONS[:3]],
        growing=lambda n: (
            lambda p, f: [voxelize(p, 0.3, features=f, reduce=r).features for r in ("mean", "max", "first")],
            torch.rand(n, 9, 3), torch.rand(n, 9, n + 1),
        ),
    ),
    OpInfo(
        "unique_voxels", unique_voxels,
        samples=[
            Sample("one-cloud", lambda m: cells(m, 50, 3), large=lambda m: cells(m, 40_011, 3, extent=20), waits=True),
            Sample("packed", lambda m: cells(m, 60, 3, extent=1, offsets=m.ints(0, 20, 20, 60, 60), valid=m.mask(60)), waits=True, large=lambda m: cells(m, 9000, 3, offsets=m.ints(0, 4000, 4000, 7001, 9000), valid=m.mask(9000))),
            Sample("padded", lambda m: cells(m, 3, 20, 3, extent=1, lengths=m.ints(20, 0, 7), valid=m.mask(3, 20)), large=lambda m: cells(m, 5, 3000, 3, lengths=m.ints(3000, 0, 7, 2999, 1500))),
            Sample("padded-full", lambda m: cells(m, 2, 30, 3, extent=1)),
            Sample("int32", lambda m: {"coordinates": cells(m, 40, 3, extent=2**31)["coordinates"].int()}, waits=True),
            Sample("int64", lambda m: cells(m, 3, 20, 3, extent=2**62 - 1)),
            Sample("none-valid", lambda m: cells(m, 9, 3, valid=m.mask(9) & False), waits=True),
            Sample("all-equal", lambda m: {"coordinates": m.ints(*[7] * 27).reshape(9, 3)}, waits=True),
            Sample("one-row", lambda m: cells(m, 1, 3), waits=True),
            Sample("empty", lambda m: cells(m, 0, 3), waits=True),
            Sample("no-clouds", lambda m: cells(m, 0, 5, 3)),
        ],
        errors=[
            *tensor_errors({"coordinates": rows, "offsets": ints(0, 6)}, coordinates=[None, rows.to_sparse()], offsets=[[0, 6], torch.zeros(2), ints(0, 6).to("meta")]),
            *each(type_error, "coordinates must be int64 or int32", got("float32", points), got("uint8", rows.byte())),
            *each(value_error, "coordinates must be (N, 3) or (B, N, 3)", got("(6, 4)", torch.zeros(6, 4).long()), got("(3,)", ints(0, 0, 0))),
            value_error("offsets must be None for padded coordinates (B, N, 3); use lengths, got a tensor", padded_rows, offsets=ints(0, 6)),
            value_error("lengths must be None for packed coordinates (N, 3); use offsets, got a tensor", rows, lengths=ints(6)),
            type_error("valid must be a torch.Tensor, got list", rows, valid=[True] * 6),
            type_error("valid must be bool, got uint8", rows, valid=torch.ones(6).byte()),
            value_error("valid must be (N,) = (6,), got (5,)", rows, valid=torch.ones(5).bool()),
            value_error("valid must be (B, N) = (2, 6), got (6,)", padded_rows, valid=torch.ones(6).bool()),
            value_error("valid must be on the device of coordinates, cpu, got meta", rows, valid=torch.ones(6, device="meta").bool()),
            value_error("coordinates must be on a device that holds values if they are packed, got meta", rows.to("meta")),
            bad_values("offsets[-1] must equal N = 6, got 7", rows, offsets=ints(0, 7)),
            bad_values("lengths[0] must be in [0, N = 6], got 7", padded_rows, lengths=ints(7, 0)),
        ],
        draw=draw_cells,
        benchmarks=[
            Benchmark("unique voxels {0}", lambda m, rows: {"coordinates": (100 * m.floats(rows, 3)).long()}, (1_000_000,), {"unique": plain_unique}, read=lambda found: (found.coordinates, found.inverse, found.count), rounds=5),
        ],
        growing=lambda n: (
            lambda c, o: unique_voxels(c, offsets=o), torch.randint(3, (n * n, 3)), equal_offsets(n, n),
        ),
    ),
]  # fmt: skip
