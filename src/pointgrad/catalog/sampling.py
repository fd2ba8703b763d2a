"""farthest_point_sampling, random_sampling and voxel_sampling: the same bits on every backend."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad import farthest_point_sampling, random_sampling, voxel_sampling

from .base import Benchmark, OpInfo, Precision, Sample, Scaling, equal_offsets, ints
from .errors import bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments
from .neighbors import nearest
from .scaling import cloud, some

# Up to 768 points are sampled without a tree, whose blocks have 64 points; 16 blocks make a node.
EDGES = (767, 768, 769, 1023, 1024, 1025, 1100)
BAD_COUNTS = [0, -1, 2.5, True, None, "3", 2**63, [1] * 9, [-1], torch.tensor([[1]]), torch.tensor([1.0])]
BAD_EDGES = [0.0, -1.0, float("nan"), float("inf"), "1", None, True, [1.0, 1.0], [1.0, 1.0, -1.0], 1e-320]


def clouds(m: Make, *shape: int, **options: Any) -> Arguments:
    return {"points": m.floats(*shape), **options}


def samples(m: Make, shape: tuple[int, ...], count: Any, **options: Any) -> Arguments:
    return clouds(m, *shape, num_samples=count, **options)


def radii(m: Make, shape: tuple[int, ...], count: Any, **options: Any) -> Arguments:
    return samples(m, shape, count, return_radius=True, **options)


def step(points: Tensor, pick: Tensor, nearest: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the loop: `points` (B, N, 3), `pick` (B,), `nearest` (B, N) -> next pick, updated distances."""
    batch = torch.arange(len(points), device=points.device)
    dx, dy, dz = (points - points[batch, pick][:, None]).unbind(-1)
    nearest = torch.minimum(nearest, dx * dx + dy * dy + dz * dz)
    return nearest.argmax(1), nearest


def plain_fps(points: Tensor, num_samples: int, step: Callable[..., tuple[Tensor, Tensor]] = step) -> Tensor:
    """Picks (B, num_samples) by a Python loop over tensor operations."""
    pick, nearest = points.new_zeros(len(points), dtype=torch.long), points.new_full(points.shape[:2], torch.inf)
    picks = []
    for _ in range(num_samples):
        picks.append(pick)
        pick, nearest = step(points, pick, nearest)
    return torch.stack(picks, dim=1)


def covering_radius(points: Tensor, num_samples: int, return_radius: bool) -> Tensor:
    """The covering radius after each pick; picks in float64."""
    with pointgrad.backend("reference"):
        picks = farthest_point_sampling(points.double(), num_samples)
    pairs = (points.unsqueeze(1) - points[picks]).square().sum(-1)
    return pairs.cummin(1).values.amax(0).sqrt()


def cloud_sizes(arguments: Arguments) -> list[int]:
    points: Tensor = arguments["points"]
    if "offsets" in arguments:
        return list(arguments["offsets"].diff().tolist())
    if points.dim() == 2:
        return [points.shape[0]]
    return list(arguments["lengths"].tolist()) if "lengths" in arguments else [points.shape[1]] * points.shape[0]


def draw_counts(d: Draw, dims: int = 3) -> Arguments:
    """Clouds and a number of samples; packed clouds have at least as many points."""
    arguments: Arguments = dict(d.clouds("points", dims, d.layout(), 1100, EDGES))
    if dims > 3:
        arguments["any_dims"] = True
    sizes, packed = cloud_sizes(arguments), arguments["points"].dim() == 2
    limits = [min(size, 40) for size in sizes] if packed else [min(arguments["points"].shape[1] + 3, 40)] * len(sizes)
    one = ("one", "one") if not packed or (sizes and min(limits) >= 1) else ()
    form = d.pick("counts", (*one, "list", "tensor"))
    if form == "one":
        return {**arguments, "num_samples": d.number("count", 1, max(1, min(limits, default=3)))}
    counts = [d.number("count", 0, limit) for limit in limits]
    return {**arguments, "num_samples": counts if form == "list" else torch.tensor(counts, dtype=torch.int64)}


def draw_farthest(d: Draw) -> Arguments:
    arguments = draw_counts(d, d.pick("dims", (3, 3, 3, 1, 2, 4, 7)))
    counts, sizes = arguments["num_samples"], cloud_sizes(arguments)
    fewest = counts if isinstance(counts, int) else min([int(count) for count in counts], default=0)
    arguments["return_radius"] = d.flag("radius")
    start = d.pick("start", ("first", "random", "number", "each", "sets"))
    if start == "random":
        arguments["start"] = "random"
    elif start == "number" and min(sizes, default=0):
        arguments["start"] = d.number("first", 0, min(sizes) - 1)
    elif start == "each" and min(sizes, default=0) and fewest >= 1:
        arguments["start"] = [d.number("first", 0, size - 1) for size in sizes]
    elif start == "sets" and min(sizes, default=0) and fewest >= 2:
        rows = [[d.number("first", 0, size - 1), d.number("second", -1, size - 1)] for size in sizes]
        arguments["start"] = torch.tensor(rows, device=d.device)
    return arguments


def draw_edge(d: Draw) -> Any:
    edges = (1.0, 0.5, 0.1, 3, 1e-3, 1e-30, 1e30)
    return [d.pick("edge", edges) for _ in range(3)] if d.flag("edges", 4) else d.pick("edge", edges)


def check_farthest(arguments: Arguments, result: Any) -> None:
    points, (index, radius) = arguments["points"], result
    assert index.unique().numel() == arguments["num_samples"]
    distance, _ = nearest(points[index], 1, points[some(len(points), points.device)])
    assert (distance <= radius[-1] * (1 + 1e-6)).all(), "a point lies outside the covering radius"


def check_picks(arguments: Arguments, received: Tensor) -> None:
    """The first picks are different and each a farthest point, up to rounding, from any first pick."""
    points, count, offsets = arguments["points"], arguments["num_samples"], arguments.get("offsets")
    if offsets is not None:
        for cloud, picks, begin in zip(
            points.split(offsets.diff().tolist()), received.view(-1, count), offsets, strict=False
        ):
            check_picks({"points": cloud[None], "num_samples": count}, picks[None] - begin)
        return
    index = received.to(points.device)
    assert index.shape == (len(points), count), f"shape must be {(len(points), count)}, got {tuple(index.shape)}"
    assert all(len(row.unique()) == count for row in index), "a point was picked twice"
    nearest, ratios = points.new_full(points.shape[:2], torch.inf), [points.new_ones(len(points))]
    for number in range(min(count, 200, max(20, 100_000_000 // points.shape[1])) - 1):
        nearest = step(points, index[:, number], nearest)[1]
        ratios.append(nearest.gather(1, index[:, number + 1, None])[:, 0] / nearest.amax(1))
    worst = float(torch.stack(ratios).min())
    assert worst > 1 - 1e-5, f"a pick is at {worst**0.5:.4f} of the farthest distance"


def unit_cube(m: Make, batch: int, rows: int, count: int) -> Arguments:
    return {"points": torch.rand(batch, rows, 3, device=m.device), "num_samples": count}


def unit_cubes(m: Make, *sizes: int) -> Arguments:
    """Packed clouds of all sizes but the last, which is the number of samples of each."""
    *rows, count = sizes
    return {
        **clouds(m, sum(rows), 3, offsets=torch.tensor([0, *rows], device=m.device).cumsum(0)),
        "num_samples": count,
    }


FPS = functools.partial(
    Benchmark, "farthest points {0} x {1} -> {2}", unit_cube, plain={"loop of tensors": plain_fps}, work="fps", check=check_picks,
    compiled=lambda: functools.partial(plain_fps, step=torch.compile(step)),
    fits=lambda arguments: arguments["points"].shape[1] * arguments["num_samples"] <= 4096 * 1024,
)  # fmt: skip
FPS_CUDA = (32, 1024, 512), (32, 4096, 1024), (8, 16_384, 4096), (4, 24_000, 6000), (1, 100_000, 25_000), (1, 1_000_000, 20_000), (1, 4_000_000, 4000), (512, 1024, 256)  # fmt: skip
FPS_CPU = (1, 4096, 1024), (1, 16_384, 4096), (1, 100_000, 25_000), (32, 4096, 1024)


def check_voxels(arguments: Arguments, result: Any) -> None:
    cells = torch.floor(arguments["points"] / arguments["voxel_size"]).long()
    width = int(cells.max()) + 1
    keys = (cells[:, 0] * width + cells[:, 1]) * width + cells[:, 2]
    assert result.index.numel() == keys.unique().numel()
    assert keys[result.index].unique().numel() == result.index.numel()


points, padded, nan = torch.zeros(6, 3), torch.zeros(2, 6, 3), float("nan")
START = 'start must be an index, one index per cloud, a set of indices per cloud, or "random", got'

OPERATORS = [
    OpInfo(
        "farthest_point_sampling", farthest_point_sampling,
        samples=[
            Sample("one-cloud", lambda m: samples(m, (60, 3), 20), large=lambda m: samples(m, (20000, 3), 600)),
            Sample("packed", lambda m: radii(m, (60, 3), 9, offsets=m.ints(0, 9, 35, 60)), large=lambda m: radii(m, (9000, 3), 100, offsets=m.ints(0, 100, 4000, 9000))),
            Sample("packed-counts", lambda m: radii(m, (40, 3), [3, 0, 11, 0], offsets=m.ints(0, 7, 7, 30, 40)), waits=True),
            Sample("padded", lambda m: samples(m, (3, 30, 3), 12), large=lambda m: samples(m, (5, 3000, 3), 300)),
            Sample("padded-lengths", lambda m: radii(m, (4, 30, 3), 8, lengths=m.ints(30, 5, 0, 8))),
            Sample("padded-counts", lambda m: radii(m, (3, 20, 3), [4, 20, 0], lengths=m.ints(20, 11, 3)), waits=True),
            Sample("two-dimensions", lambda m: radii(m, (60, 2), 9, offsets=m.ints(0, 9, 35, 60))),
            Sample("five-dimensions", lambda m: radii(m, (3, 30, 5), 12, lengths=m.ints(30, 5, 12)), waits=True),
            Sample("start", lambda m: radii(m, (2, 20, 3), 6, start=m.ints(3, 19))),
            Sample("start-set", lambda m: radii(m, (50, 3), 6, offsets=m.ints(0, 20, 50), start=torch.stack([m.ints(4, 9, 2), m.ints(29, -1, -1)]))),
            Sample("random-start", lambda m: samples(m, (4, 30, 3), 5, start="random"), seeded=True, waits=True),
            Sample("ties", lambda m: {"points": m.grid(2, 40, 3), "num_samples": 40, "return_radius": True}),
            Sample("all-equal", lambda m: {"points": m.equal(2, 12, 3), "num_samples": 12, "return_radius": True}),
            Sample("one-point", lambda m: radii(m, (1, 3), 1)),
            Sample("all-points", lambda m: radii(m, (33, 3), 33)),
            Sample("empty", lambda m: radii(m, (2, 0, 3), 3)),
            Sample("no-clouds", lambda m: radii(m, (0, 5, 3), 3)),
        ],
        errors=[
            *tensor_errors({"points": points, "num_samples": 2}, points=[np.zeros((6, 3)), None, points.long(), points.to_sparse()], offsets=[[0, 6], torch.zeros(2), ints(0, 6).to("meta")], num_samples=[torch.tensor([2]).to_sparse(), torch.tensor([nan])], start=[torch.tensor([1]).to_sparse(), torch.zeros(1)]),
            *each(value_error, "points must be (N, D) or (B, N, D) with D at least 1", got("(6,)", torch.zeros(6), 2), got("(6, 0)", torch.zeros(6, 0), 2), got("(1, 1, 6, 3)", torch.zeros(1, 1, 6, 3), 2)),
            value_error("offsets must be (B + 1,), got (0,)", points, 2, offsets=ints()),
            value_error("offsets must be None for padded points (B, N, D); use lengths, got a tensor", padded, 2, offsets=ints(0, 6)),
            value_error("lengths must be None for packed points (N, D); use offsets, got a tensor", points, 2, lengths=ints(6)),
            value_error("lengths must be (B,) = (2,), got (1,)", padded, 2, lengths=ints(6)),
            *each(value_error, "num_samples must be at least 1", got("0", points, 0), got("-3", points, -3)),
            value_error(f"num_samples must be at least 1, got {2**63}", points, 2**63),
            *each(type_error, "num_samples must be an int or one int per cloud", got("float 2.0", points, 2.0), got("float nan", points, nan), got("bool True", points, True), got("str 'all'", points, "all")),
            *each(type_error, "num_samples must be an int or one int per cloud", got("bytes", points, b"2"), got("float nan", points, [nan])),
            value_error("num_samples must be on a device that holds values, got meta", points, torch.tensor([2], device="meta")),
            value_error("num_samples must be at least 0 for each cloud, got -1", points, [-1]),
            value_error("num_samples must have one count per cloud, B = 1, got 2", points, [1, 1]),
            value_error("num_samples must have one count per cloud, B = 2, got 1", padded, ints(1)),
            value_error("start must be at least 0, got -1", points, 2, start=-1),
            value_error(f"start must be at least 0, got {2**70}", points, 2, start=2**70),
            value_error(f"{START} 'last'", points, 2, start="last"),
            type_error(f"{START} float 1.5", points, 2, start=1.5),
            type_error(f"{START} [[1, 2], [3]]", points, 2, start=[[1, 2], [3]]),
            value_error("start must be (B,) or (B, S) with B = 1, got (2,)", points, 2, start=[0, 0]),
            value_error("start must have at most num_samples = 2 indices per cloud, got 3", points, 2, start=ints(0, 1, 2)[None]),
            bad_values("offsets[0] must be 0, got 1", points, 2, offsets=ints(1, 6)),
            bad_values("offsets[2] must be at least offsets[1] = 4, got 2", points, 2, offsets=ints(0, 4, 2, 6)),
            *each(bad_values, "offsets[-1] must equal N = 6", got("5", points, 2, offsets=ints(0, 5)), got("9", points, 2, offsets=ints(0, 9))),
            bad_values("lengths[0] must be in [0, N = 6], got 7", padded, 2, lengths=ints(7, 1)),
            bad_values("lengths[1] must be in [0, N = 6], got -1", padded, 2, lengths=ints(6, -1)),
            bad_values("num_samples must be at most 6, the size of cloud 0, got 7", points, 7),
            *each(bad_values, "num_samples must be at most 2, the size of cloud 1", got("3", points, 3, offsets=ints(0, 4, 6)), got("3", points, [1, 3], offsets=ints(0, 4, 6))),
            bad_values("num_samples must be at most 0, the size of cloud 0, got 1", torch.zeros(0, 3), 1),
            *each(bad_values, "start must be in [0, 6) for cloud 0", got("6", points, 2, start=6), got("-1", points, 2, start=ints(-1)), got("2", points, 3, start=ints(0, -1, 2)[None])),
            bad_values("start must be in [0, 5) for cloud 1, got 5", padded, 2, start=ints(0, 5), lengths=ints(6, 5)),
            bad_values("start must have at most 1 indices for cloud 0, got 2", points, [1], start=ints(0, 1)[None]),
        ],
        draw=draw_farthest, bad_arguments={"num_samples": BAD_COUNTS, "start": [-1, 1.5, "last", None, [[0.5]], 2**63]},
        precision=[Precision(lambda m: radii(m, (m.rows, 3), 16), "radius", plain=covering_radius)],
        scaling=Scaling(lambda count, device: {"points": cloud(count, device), "num_samples": 1024, "return_radius": True}, check_farthest),
        benchmarks=[
            *(FPS((), cuda=sizes) for sizes in FPS_CUDA),
            *(FPS(sizes, cuda=(), rounds=7) for sizes in FPS_CPU),
            Benchmark("farthest points {0}+{1}+{2}+{3} -> 4 x {4}", unit_cubes, (5000, 17_500, 2500, 25_000, 1250), {}, cuda=(20_000, 70_000, 10_000, 100_000, 5000), check=check_picks),
        ],
        growing=lambda n: (
            lambda p, m, o: farthest_point_sampling(p, m, offsets=o), torch.rand(n * n, 3), n - 1, equal_offsets(n, n),
        ),
    ),
    OpInfo(
        "random_sampling", random_sampling,
        samples=[
            Sample("packed", lambda m: samples(m, (40, 3), 5, offsets=m.ints(0, 5, 20, 40)), seeded=True, waits=True),
            Sample("packed-counts", lambda m: samples(m, (40, 3), [5, 0, 20], offsets=m.ints(0, 5, 20, 40)), seeded=True, waits=True),
            Sample("padded", lambda m: samples(m, (3, 9, 3), 12, lengths=m.ints(9, 0, 4)), seeded=True, waits=True),
            Sample("empty", lambda m: samples(m, (2, 0, 3), 3), seeded=True, waits=True),
        ],
        errors=[
            value_error("num_samples must be at least 1, got 0", points, 0),
            bad_values("num_samples must be at most 6, the size of cloud 0, got 7", points, 7),
        ],
        draw=draw_counts, bad_arguments={"num_samples": BAD_COUNTS},
        growing=lambda n: (
            lambda p, m, o: random_sampling(p, m, offsets=o), torch.rand(n * n, 3), n - 1, equal_offsets(n, n),
        ),
    ),
    OpInfo(
        "voxel_sampling", voxel_sampling,
        samples=[
            Sample("packed", lambda m: clouds(m, 60, 3, voxel_size=0.9, offsets=m.ints(0, 20, 20, 60)), waits=True, large=lambda m: clouds(m, 9000, 3, voxel_size=0.2, offsets=m.ints(0, 4000, 9000))),
            Sample("padded", lambda m: clouds(m, 3, 20, 3, voxel_size=(0.5, 1.0, 2.0), lengths=m.ints(20, 0, 7))),
            Sample("ties", lambda m: {"points": m.grid(2, 40, 3), "voxel_size": 2.0}),
            Sample("one-point", lambda m: clouds(m, 1, 3, voxel_size=1.0), waits=True),
            Sample("empty", lambda m: clouds(m, 0, 3, voxel_size=1.0), waits=True),
        ],
        errors=[
            *each(value_error, "voxel_size must be finite and positive", got("1e+39", points, 1e39), got("1e-320", points, 1e-320), got("0.0", points, 0.0), got("nan", points, nan)),
            *each(type_error, "voxel_size must be a number or three numbers", got("bool True", points, True), got("str '1'", points, "1")),
            value_error("voxel_size must be one number or three, got 2 numbers", points, (1.0, 2.0)),
            bad_values("offsets[-1] must equal N = 6, got 7", points, 1.0, offsets=ints(0, 7)),
        ],
        draw=lambda d: {**d.clouds("points", 3, d.layout(), 1100, EDGES), "voxel_size": draw_edge(d)},
        bad_arguments={"voxel_size": BAD_EDGES},
        scaling=Scaling(lambda count, device: {"points": cloud(count, device), "voxel_size": 2.0}, check_voxels),
        growing=lambda n: (
            lambda p, o: voxel_sampling(p, 0.3, offsets=o), torch.rand(n * n, 3), equal_offsets(n, n),
        ),
    ),
]  # fmt: skip
