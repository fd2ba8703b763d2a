"""knn, ball_query, both through a NeighborIndex, and to_edges. Searches return the same bits on every backend."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pointgrad
from pointgrad import ball_query, knn, to_edges

from .base import Benchmark, OpInfo, Precision, Sample, Scaling, any_index, equal_offsets, ints
from .errors import bad_values, each, got, tensor_errors, type_error, value_error
from .inputs import Draw, Make
from .magnitudes import Arguments, Sums
from .scaling import NEIGHBORS, cloud, some

GRADS = ("points", "queries")
# Leaves and nodes of 16; lists up to 160 are sorted differently; divisions of more than 4096 have four parts.
EDGES = (15, 16, 17, 159, 161, 255, 256, 257, 271, 273, 4095, 4097, 4111)
BAD_K = [0, -1, 2.5, True, None, "3", 2**63]


def search(m: Make, points: Sequence[int], queries: Sequence[int] | None = None, **options: Any) -> Arguments:
    """Points and queries of these shapes, and further arguments."""
    own = {} if queries is None else {"queries": m.floats(*queries)}
    return {"points": m.floats(*points), **own, **options}


def search_twice(points: Tensor, queries: Tensor, k: int) -> Any:
    index = pointgrad.NeighborIndex(points)
    return index.knn(k, queries), index.ball_query(0.5, k, queries)


def by_index(points: Tensor, offsets: Any = None, lengths: Any = None, **options: Any) -> Any:
    """The search through a NeighborIndex: a ball with a radius, else the nearest."""
    index = pointgrad.NeighborIndex(points, offsets=offsets, lengths=lengths)
    return index.ball_query(**options) if "radius" in options else index.knn(**options)


def nearest(points: Tensor, k: int, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Distances and indices (M, k) of the nearest, computed in at least float32."""
    wide = torch.promote_types(points.dtype, torch.float32)
    cdist = functools.partial(torch.cdist, x2=points.detach().to(wide), compute_mode="donot_use_mm_for_euclid_dist")
    found = [cdist(part).topk(k, largest=False) for part in queries.detach().to(wide).split(2048)]
    return torch.cat([part.values for part in found]), torch.cat([part.indices for part in found])


def plain_knn(points: Tensor, k: int, queries: Tensor | None = None) -> Tensor:
    """Squared distances (M, k)."""
    return plain_ball(points, torch.inf, k, queries)


def plain_ball(points: Tensor, radius: float, k: int, queries: Tensor | None = None) -> Tensor:
    """Squared distances (M, k), infinity where the ball holds fewer points."""
    queries = points if queries is None else queries
    distance, index = nearest(points, k, queries)
    return torch.where(distance <= radius, (points[index] - queries.unsqueeze(1)).square().sum(-1), torch.inf)


def draw_search(d: Draw, dims: Sequence[int] = (3, 3, 3, 2, 1, 4, 5, 8, 9, 16, 19)) -> Arguments:
    layout, size, own = d.layout(), d.pick("dims", dims), d.flag("own")
    alone = layout[0] == "packed" and not own
    most, edges = (5000, (*EDGES, *EDGES[-3:] * 8)) if alone and not d.flag("few") else (257, EDGES[:-3])
    arguments: Arguments = dict(d.clouds("points", size, layout, most, edges))
    if size > 3:
        arguments["any_dims"] = True
    if not own:
        arguments |= d.clouds("queries", size, layout, 65, prefix="query_")
        if d.flag("among points", 3):
            points, queries = arguments["points"], arguments["queries"].clone()
            count = min(points.shape[-2], queries.shape[-2])
            queries[..., :count, :] = points[..., :count, :]  # distances of exactly zero
            arguments["queries"] = queries
    return arguments


def draw_k(d: Draw) -> Arguments:
    return {"k": d.pick("k", (1, 2, 3, 7, 9, 17) if d.tiny else (1, 1, 2, 3, 7, 8, 9, 16, 17, 32, 33, 40, 64, 65))}


def draw_ball(d: Draw) -> Arguments:
    radius = d.pick("radius", (0.5, 1.0, 1, 2.0, 1e-3, 1e-30, 1e-45, 1e-320, 1e30, 1e300, float("inf")))
    select = d.pick("select", ("nearest", "first", "random"))
    shell = {"min_radius": min(radius / 2, 1e300)} if d.flag("shell", 4) else {}
    return {"radius": radius, "closed": d.flag("closed"), "select": select, **draw_k(d), **shell}


def draw_edges(d: Draw) -> Arguments:
    batch, rows, queries, k = d.batch(), d.size(65), d.size(65), d.size(33)
    return {"index": d.index(rows, *batch, queries, k), **({"num_points": rows} if batch else {})}


def pulls(points: Tensor, queries: Tensor | None, index: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of absolute values in the gradients of squared distances, for points and for queries."""
    points, centers = points.double(), (points if queries is None else queries).double()
    found = (index >= 0).unsqueeze(-1)
    with pointgrad.backend("reference"):
        delta = torch.where(found, pointgrad.group(points, index) - centers.unsqueeze(-2), 0)
        pull = torch.where(found, 2 * grad.abs().unsqueeze(-1) * delta.abs(), 0)
        for_points = pointgrad.scatter(pull.flatten(-3, -2), index.flatten(-2), points.shape[-2])
    return for_points, pull.sum(-2)


def magnitudes(arguments: Arguments, upstream: list[Tensor], outputs: list[Tensor]) -> Sums:
    for_points, for_queries = pulls(arguments["points"], arguments.get("queries"), outputs[0], upstream[0])
    if "queries" in arguments:
        return [None], {"points": for_points, "queries": for_queries}
    return [None], {"points": for_points + for_queries}


def check_search(arguments: Arguments, found: Any) -> None:
    """Compare some lists with those of the plain form."""
    points = arguments["points"]
    places = some(len(points), points.device)
    index, queries = found.index[places], points[places]
    received = torch.where(index < 0, torch.inf, (points[index] - queries.unsqueeze(1)).square().sum(-1))
    torch.testing.assert_close(received, plain_ball(**{"radius": torch.inf, **arguments, "queries": queries}))
    assert torch.equal(found.count[places], (index >= 0).sum(1))


def uniform(m: Make, batch: int, rows: int, queries: int = 0, **options: Any) -> Arguments:
    """Clouds (B, N, 3) and queries in a unit cube."""
    given = {"points": torch.rand(batch, rows, 3, device=m.device), **options}
    return {**given, "queries": torch.rand(batch, queries, 3, device=m.device)} if queries else given


def few_pairs(arguments: Arguments) -> bool:
    points: Tensor = arguments["points"]
    queries = arguments.get("queries", points)
    return len(points) * points.shape[1] * queries.shape[1] <= (2**28 if points.is_cuda else 2**24)


def all_pairs(points: Tensor, k: int, radius: float = torch.inf, queries: Tensor | None = None) -> Tensor:
    """Indices (B, M, k) of the nearest inside the ball, -1 where there are fewer."""
    distance, index = torch.cdist(points if queries is None else queries, points).topk(
        min(k, points.shape[1]), largest=False
    )
    return torch.where(distance <= radius, index, -1)


def listed(arguments: Arguments, received: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances in float64 from random queries of the first cloud to all points (S, N), and to those of their
    lists (S, K), sorted, with infinity for -1."""
    points: Tensor = arguments["points"]
    queries = arguments.get("queries", points)
    assert received.shape[:2] == queries.shape[:2], f"shape must begin with {queries.shape[:2]}, got {received.shape}"
    chosen = torch.randperm(queries.shape[1], device=points.device)[: max(8, min(200, 20_000_000 // points.shape[1]))]
    distance2 = (points[0].double() - queries[0, chosen].double()[:, None]).square().sum(-1)
    index = received.to(points.device)[0, chosen].sort(dim=1).values
    assert (index < points.shape[1]).all(), "an index is out of range"
    assert not ((index[:, 1:] == index[:, :-1]) & (index[:, 1:] >= 0)).any(), "a neighbor is listed twice"
    return distance2, torch.where(index < 0, torch.inf, distance2.gather(1, index.clamp(min=0))).sort(dim=1).values


def check_nearest(arguments: Arguments, received: Tensor) -> None:
    """k different neighbors, as near as the nearest up to the rounding of |a|^2 + |b|^2 - 2ab, in any order."""
    distance2, found = listed(arguments, received)
    exact = distance2.topk(arguments["k"], largest=False).values.sort(dim=1).values
    assert found.shape == exact.shape, f"k must be {exact.shape[1]}, got {found.shape[1]}"
    slack = 1e-5 * exact + 8 * torch.finfo(torch.float32).eps * float(arguments["points"].square().sum(-1).max())
    wrong = int(((found - exact).abs() > slack).any(1).sum())
    assert wrong == 0, f"{wrong} of {len(found)} lists are not the nearest"


def check_inside(arguments: Arguments, received: Tensor) -> None:
    """Different neighbors inside the ball: any k of them, or all if there are fewer."""
    (distance2, found), square = listed(arguments, received), arguments["radius"] ** 2
    assert (found[found.isfinite()] <= square * (1 + 1e-5)).all(), "a point is outside the ball"
    expected = (distance2 < square * (1 - 1e-5)).sum(1).clamp(max=arguments["k"])
    short = int((found.isfinite().sum(1) < expected).sum())
    assert short == 0, f"{short} of {len(found)} lists miss points"


def read_index(found: Any) -> Tensor:
    return found.index


def ball_benchmark(radius: float, sizes: tuple[int, ...], cuda: tuple[int, ...]) -> Benchmark:
    return Benchmark(
        f"ball {{0}} x {{1}}, {{2}} queries, r {radius}", functools.partial(uniform, radius=radius, k=32), sizes, {"cdist + topk": all_pairs},
        cuda=cuda, work="ball", check=check_inside, read=read_index, fits=few_pairs,
    )  # fmt: skip


# Names of CPU rows leave out the number of clouds, which is one.
KNN = functools.partial(
    Benchmark, plain={"cdist + topk": all_pairs}, work="knn", check=check_nearest, read=read_index, fits=few_pairs
)


points, padded = torch.zeros(6, 3), torch.zeros(2, 6, 3)

OPERATORS = [
    OpInfo(
        "knn", knn, differentiable=GRADS, plain=plain_knn,
        samples=[
            Sample("one-cloud", lambda m: search(m, (50, 3), k=5), large=lambda m: search(m, (20_000, 3), k=16)),
            Sample("queries", lambda m: search(m, (40, 3), (9, 3), k=3)),
            Sample(
                "packed",
                lambda m: search(m, (30, 3), (14, 3), k=4, offsets=m.ints(0, 10, 10, 30), query_offsets=m.ints(0, 4, 6, 14)),
                large=lambda m: search(m, (9000, 3), (5000, 3), k=7, offsets=m.ints(0, 100, 4000, 9000), query_offsets=m.ints(0, 3000, 3000, 5000)),
            ),
            Sample("padded", lambda m: search(m, (3, 12, 3), (3, 4, 3), k=4, lengths=m.ints(12, 2, 0), query_lengths=m.ints(4, 3, 2)), large=lambda m: search(m, (4, 2000, 3), (4, 700, 3), k=33)),
            Sample("all-points", lambda m: search(m, (9, 3), k=9)),
            Sample("more-than-32", lambda m: search(m, (33, 3), k=33)),
            Sample("fewer-than-k", lambda m: search(m, (2, 5, 3), k=8)),
            Sample("plane", lambda m: search(m, (40, 2), (9, 2), k=3)),
            Sample("line", lambda m: search(m, (40, 1), k=3)),
            Sample("eight-dimensions", lambda m: search(m, (30, 8), (9, 8), k=3), large=lambda m: search(m, (900, 6), (700, 6), k=5)),
            Sample("many-dimensions", lambda m: search(m, (10, 19), k=3, offsets=m.ints(0, 3, 10)), large=lambda m: search(m, (4, 300, 64), k=20)),
            Sample("ties", lambda m: {"points": m.grid(60, 3), "k": 9}, smooth=False),
            Sample("all-equal", lambda m: {"points": m.equal(2, 40, 3), "k": 33}, smooth=False),
            Sample("one-point", lambda m: search(m, (1, 3), k=1)),
            Sample("no-points", lambda m: search(m, (0, 3), (3, 3), k=2)),
            Sample("no-queries", lambda m: search(m, (5, 3), (0, 3), k=2)),
            Sample("no-clouds", lambda m: search(m, (0, 5, 3), k=2)),
        ],
        errors=[
            *tensor_errors({"points": points, "k": 2}, points=[np.zeros((6, 3)), points.long()], queries=[[0.0], points.half(), points.to("meta")]),
            *each(value_error, "points must be (N, D) or (B, N, D) with D at least 1", got("(6,)", torch.zeros(6), 2), got("(6, 0)", torch.zeros(6, 0), 2)),
            *each(value_error, "k must be at least 1", got("0", points, 0), got("-1", points, -1)),
            *each(type_error, "k must be an int", got("float 2.0", points, 2.0), got("bool True", points, True)),
            *each(value_error, "queries must be (M, D) with D = 3, like points", got("(2, 6, 3)", points, 2, padded), got("(6, 2)", points, 2, points[:, :2])),
            value_error("queries must be (B, M, D) with D = 3, like points, got (6, 3)", padded, 2, points),
            *each(value_error, "queries must have as many clouds as points, B = 2", got("B = 1", padded, 2, padded[:1]), got("B = 1", points, 2, points, offsets=ints(0, 2, 6))),
            value_error("query_offsets must be None without queries, got a tensor", points, 2, query_offsets=ints(0, 6)),
            value_error("query_lengths must be None without queries, got a tensor", padded, 2, query_lengths=ints(6, 6)),
            value_error("query_lengths must be None for packed queries (N, D); use query_offsets, got a tensor", points, 2, points, query_lengths=ints(6)),
            type_error("query_offsets must be int64 or int32, got float32", points, 2, points, query_offsets=torch.zeros(2)),
            bad_values("offsets[-1] must equal N = 6, got 7", points, 2, offsets=ints(0, 7)),
            bad_values("lengths[1] must be in [0, N = 6], got 7", padded, 2, lengths=ints(6, 7)),
            bad_values("query_offsets[-1] must equal N = 6, got 5", points, 2, points, query_offsets=ints(0, 5)),
            bad_values("query_lengths[1] must be in [0, N = 6], got -1", padded, 2, padded, query_lengths=ints(6, -1)),
        ],
        draw=lambda d: {**draw_search(d), **draw_k(d)}, magnitudes=magnitudes, bad_arguments={"k": BAD_K},
        precision=[Precision(lambda m: search(m, (m.rows, 3), (m.rows, 3), k=5))],
        scaling=Scaling(lambda count, device: {"points": cloud(count, device), "k": NEIGHBORS}, check_search),
        benchmarks=[
            *(KNN("k nearest {0} x {1}, k 16", functools.partial(uniform, k=16), (), cuda=(batch, rows), rounds=rounds) for batch, rows, rounds in ((16, 4096, 31), (1, 100_000, 11), (1, 1_000_000, 11))),
            *(KNN("k nearest {0}, k 16", lambda m, rows: uniform(m, 1, rows, k=16), (rows,), cuda=(), rounds=rounds) for rows, rounds in ((4096, 31), (100_000, 7), (1_000_000, 7))),
        ],
        growing=lambda n: (
            lambda p, k, q, o, r, dense, others, s, t: (
                knn(p, k, q, offsets=o, query_offsets=r), knn(dense, k, others, lengths=s, query_lengths=t),
            ),
            torch.rand(n * n, 3), n + 2, torch.rand(n * (n + 1), 3), equal_offsets(n, n), equal_offsets(n + 1, n),
            torch.rand(n, n + 1, 3), torch.rand(n, n + 3, 3), torch.arange(n), torch.arange(n),
        ),
    ),
    OpInfo(
        "ball_query", ball_query, differentiable=GRADS, plain=plain_ball,
        samples=[
            Sample("nearest", lambda m: search(m, (50, 3), radius=1.0, k=6), large=lambda m: search(m, (9000, 3), radius=0.3, k=32)),
            Sample("first", lambda m: search(m, (50, 3), (9, 3), radius=1.2, k=4, select="first"), large=lambda m: search(m, (9000, 3), (900, 3), radius=0.3, k=8, select="first")),
            Sample("random", lambda m: search(m, (2, 18, 3), radius=1.5, k=4, select="random"), seeded=True, waits=True, large=lambda m: search(m, (2, 3000, 3), radius=0.6, k=8, select="random")),
            Sample("shell", lambda m: search(m, (50, 3), (12, 3), radius=1.5, min_radius=0.7, k=7, offsets=m.ints(0, 30, 50), query_offsets=m.ints(0, 5, 12))),
            Sample("ties", lambda m: {"points": m.grid(2, 40, 3), "radius": 1.0, "k": 12}, smooth=False),
            Sample("five-dimensions", lambda m: search(m, (30, 5), radius=2.0, k=4)),
            Sample("empty-balls", lambda m: search(m, (9, 3), radius=1e-9, k=3)),
        ],
        errors=[
            *each(value_error, "radius must be positive", got("0.0", points, 0.0, 2), got("-1", points, -1, 2), got("nan", points, float("nan"), 2)),
            type_error("radius must be a number, got str '1'", points, "1", 2),
            *each(value_error, "min_radius must be at least 0 and below radius = 1.0", got("1.0", points, 1.0, 2, min_radius=1.0), got("-0.5", points, 1.0, 2, min_radius=-0.5)),
            value_error("""select must be "nearest", "first" or "random", got 'all'""", points, 1.0, 2, select="all"),
            type_error('select must be "nearest", "first" or "random", got NoneType None', points, 1.0, 2, select=None),
            type_error("closed must be a bool, got int 0", points, 1.0, 2, closed=0),
        ],
        draw=lambda d: {**draw_search(d), **draw_ball(d)}, magnitudes=magnitudes,
        bad_arguments={
            "radius": [0, -1.0, float("nan"), None, "1", True], "min_radius": [-1.0, float("nan"), float("inf"), "0"],
            "select": ["all", None, 3], "closed": [1, None, "yes"], "k": BAD_K,
        },
        precision=[Precision(lambda m: search(m, (m.rows, 3), (m.rows, 3), radius=0.75, k=5))],
        scaling=Scaling(lambda count, device: {"points": cloud(count, device), "radius": 1.2, "k": NEIGHBORS}, check_search),
        benchmarks=[
            ball_benchmark(0.1, (1, 4096, 1024), (16, 4096, 1024)),
            ball_benchmark(0.1, (), (8, 16_384, 4096)),
            ball_benchmark(0.02, (1, 100_000, 100_000), (1, 200_000, 50_000)),
        ],
        growing=lambda n: (
            lambda p, k, q, o, r: ball_query(p, 0.3, k, q, offsets=o, query_offsets=r),
            torch.rand(n * n, 3), n + 2, torch.rand(n * (n + 1), 3), equal_offsets(n, n), equal_offsets(n + 1, n),
        ),
    ),
    OpInfo(
        "NeighborIndex", by_index, differentiable=GRADS,
        samples=[
            Sample("knn", lambda m: search(m, (34, 3), k=5)),
            Sample("packed", lambda m: search(m, (30, 2), (30, 2), k=5, offsets=m.ints(0, 9, 30), query_offsets=m.ints(0, 9, 30))),
        ],
        errors=[
            value_error("points must be (N, D) or (B, N, D) with D from 1 to 3, got (6, 4)", torch.zeros(6, 4), k=2),
            type_error("queries must have the dtype of points, float32, got float64", points, k=2, queries=points.double()),
            value_error("radius must be positive, got -1.0", points, radius=-1.0, k=2),
            bad_values("offsets[0] must be 0, got 1", points, offsets=ints(1, 6), k=2),
        ],
        draw=lambda d: {**draw_search(d, (3, 3, 3, 2, 1)), **(draw_ball(d) if d.flag("ball") else draw_k(d))},
        magnitudes=magnitudes, bad_arguments={"k": BAD_K},
        growing=lambda n: (search_twice, torch.rand(n, 3), torch.rand(n + 1, 3), n + 2),
    ),
    OpInfo(
        "to_edges", to_edges, registered=False, index_rows=lambda arguments: arguments.get("num_points"),
        samples=[
            Sample("packed", lambda m: {"index": m.index(9, 7, 4)}, waits=True),
            Sample("padded", lambda m: {"index": m.index(9, 2, 7, 4), "num_points": 9}, waits=True),
        ],
        errors=[
            type_error("index must be int64 or int32, got float32", points),
            value_error("index must be (M, K) or (B, M, K), got (1,)", ints(1)),
            type_error("num_points must be an int for padded (B, M, K), got NoneType None", ints(1)[None, None]),
            bad_values("index must be -1 or in [0, 3), got 3", ints(0, 3).view(1, 1, 2), 3),
        ],
        draw=draw_edges, bad_arguments={"index": [None, 3]},
        growing=lambda n: (to_edges, any_index(n, n, n + 1, n + 2), n),
    ),
]  # fmt: skip
