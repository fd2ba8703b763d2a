"""Ways to call the neighbour searches, right and wrong."""

import functools
from typing import Any

import numpy as np
import torch

import pointgrad

from .base import Case, ints

knn, ball = pointgrad.knn, pointgrad.ball_query
both = ("points", "queries")


@functools.wraps(pointgrad.knn)
def knn_by_index(points: Any, k: Any, queries: Any = None, offsets: Any = None) -> Any:
    return pointgrad.NeighborIndex(points, offsets=offsets).knn(k, queries, query_offsets=offsets)


CASES = [
    Case(
        "knn/one-cloud", knn, lambda m: {"points": m.floats(50, 3), "k": 5}, ("points",),
        large=lambda m: {"points": m.floats(20_000, 3), "k": 16},
    ),
    Case("knn/queries", knn, lambda m: {"points": m.floats(40, 3), "k": 3, "queries": m.floats(9, 3)}, both),
    Case(
        "knn/packed", knn,
        lambda m: {
            "points": m.floats(60, 3), "k": 4, "queries": m.floats(25, 3),
            "offsets": m.ints(0, 20, 20, 60), "query_offsets": m.ints(0, 7, 11, 25),
        },
        both,
        large=lambda m: {
            "points": m.floats(9000, 3), "k": 7, "queries": m.floats(5000, 3),
            "offsets": m.ints(0, 100, 4000, 9000), "query_offsets": m.ints(0, 3000, 3000, 5000),
        },
    ),
    Case(
        "knn/padded", knn,
        lambda m: {
            "points": m.floats(3, 20, 3), "k": 4, "queries": m.floats(3, 6, 3),
            "lengths": m.ints(20, 2, 0), "query_lengths": m.ints(6, 5, 3),
        },
        both,
        large=lambda m: {"points": m.floats(4, 2000, 3), "k": 33, "queries": m.floats(4, 700, 3)},
    ),
    Case("knn/all-of-them", knn, lambda m: {"points": m.floats(35, 3), "k": 35}, ("points",)),
    Case("knn/more-than-there-are", knn, lambda m: {"points": m.floats(2, 5, 3), "k": 8}, ("points",)),
    Case("knn/plane", knn, lambda m: {"points": m.floats(40, 2), "k": 3, "queries": m.floats(9, 2)}, both),
    Case("knn/line", knn, lambda m: {"points": m.floats(40, 1), "k": 3}, ("points",)),
    Case(
        "knn/eight-dimensions", knn, lambda m: {"points": m.floats(30, 8), "k": 3, "queries": m.floats(9, 8)}, both,
        large=lambda m: {"points": m.floats(900, 6), "k": 5, "queries": m.floats(700, 6)},
    ),
    Case(
        "knn/many-dimensions", knn, lambda m: {"points": m.floats(20, 19), "k": 3, "offsets": m.ints(0, 5, 20)}, ("points",),
        large=lambda m: {"points": m.floats(4, 300, 64), "k": 20},
    ),
    Case("knn/ties", knn, lambda m: {"points": m.grid(60, 3), "k": 9}, ("points",), smooth=False),
    Case("knn/all-equal", knn, lambda m: {"points": m.equal(2, 40, 3), "k": 33}, ("points",), smooth=False),
    Case("knn/single", knn, lambda m: {"points": m.floats(1, 3), "k": 1}, ("points",)),
    Case("knn/no-points", knn, lambda m: {"points": m.floats(0, 3), "k": 2, "queries": m.floats(3, 3)}, both),
    Case("knn/no-queries", knn, lambda m: {"points": m.floats(5, 3), "k": 2, "queries": m.floats(0, 3)}, both),
    Case("knn/no-clouds", knn, lambda m: {"points": m.floats(0, 5, 3), "k": 2}, ("points",)),
    Case("knn/index", knn_by_index, lambda m: {"points": m.floats(50, 3), "k": 5}, ("points",)),
    Case(
        "knn/index-packed", knn_by_index,
        lambda m: {"points": m.floats(50, 2), "k": 5, "queries": m.floats(50, 2), "offsets": m.ints(0, 9, 50)}, both,
    ),
    Case(
        "ball/nearest", ball, lambda m: {"points": m.floats(50, 3), "radius": 1.0, "k": 6}, ("points",),
        large=lambda m: {"points": m.floats(9000, 3), "radius": 0.3, "k": 32},
    ),
    Case(
        "ball/first", ball,
        lambda m: {"points": m.floats(50, 3), "radius": 1.2, "k": 4, "queries": m.floats(9, 3), "select": "first"}, both,
        large=lambda m: {
            "points": m.floats(9000, 3), "radius": 0.3, "k": 8, "queries": m.floats(900, 3), "select": "first",
        },
    ),
    Case(
        "ball/random", ball,
        lambda m: {"points": m.floats(2, 30, 3), "radius": 1.5, "k": 4, "select": "random"}, ("points",),
        seeded=True, waits=True,
        large=lambda m: {"points": m.floats(2, 3000, 3), "radius": 0.6, "k": 8, "select": "random"},
    ),
    Case(
        "ball/shell", ball,
        lambda m: {
            "points": m.floats(50, 3), "radius": 1.5, "min_radius": 0.7, "k": 7, "queries": m.floats(12, 3),
            "offsets": m.ints(0, 30, 50), "query_offsets": m.ints(0, 5, 12),
        },
        both,
    ),
    Case("ball/ties", ball, lambda m: {"points": m.grid(2, 40, 3), "radius": 1.0, "k": 12}, ("points",), smooth=False),
    Case("ball/five-dimensions", ball, lambda m: {"points": m.floats(30, 5), "radius": 2.0, "k": 4}, ("points",)),
    Case("ball/nothing-near", ball, lambda m: {"points": m.floats(9, 3), "radius": 1e-9, "k": 3}, ("points",)),
    Case("edges/packed", pointgrad.to_edges, lambda m: {"index": m.index(9, 7, 4)}, waits=True, plain=True),
    Case("edges/padded", pointgrad.to_edges, lambda m: {"index": m.index(9, 2, 7, 4), "num_points": 9}, waits=True, plain=True),
]  # fmt: skip

points = torch.zeros(6, 3)
padded = torch.zeros(2, 6, 3)


def an_index():
    with pointgrad.backend("reference"):  # any device, whatever backend the test forces
        return pointgrad.NeighborIndex(points)


BAD_METADATA = [
    (lambda: knn(np.zeros((6, 3)), 2), TypeError, "points must be a torch.Tensor, got numpy.ndarray"),
    (lambda: knn(torch.zeros(6), 2), ValueError, "points must be (N, D) or (B, N, D) with D at least 1, got (6,)"),
    (lambda: knn(torch.zeros(6, 0), 2), ValueError, "points must be (N, D) or (B, N, D) with D at least 1, got (6, 0)"),
    (lambda: knn(points.long(), 2), TypeError, "points must be float32, float64, float16 or bfloat16, got int64"),
    (lambda: knn(points, 0), ValueError, "k must be at least 1, got 0"),
    (lambda: knn(points, -1), ValueError, "k must be at least 1, got -1"),
    (lambda: knn(points, 2.0), TypeError, "k must be an int, got float 2.0"),
    (lambda: knn(points, True), TypeError, "k must be an int, got bool True"),
    (lambda: knn(points, 2, [0.0]), TypeError, "queries must be a torch.Tensor, got list"),
    (lambda: knn(points, 2, padded), ValueError, "queries must be (M, D) with D = 3, like points, got (2, 6, 3)"),
    (lambda: knn(padded, 2, points), ValueError, "queries must be (B, M, D) with D = 3, like points, got (6, 3)"),
    (lambda: knn(points, 2, points[:, :2]), ValueError, "queries must be (M, D) with D = 3, like points, got (6, 2)"),
    (lambda: knn(padded, 2, padded[:1]), ValueError, "queries must be in as many clouds as points, B = 2, got B = 1"),
    (lambda: knn(points, 2, points, offsets=ints(0, 2, 6)), ValueError, "queries must be in as many clouds as points, B = 2, got B = 1"),
    (lambda: knn(points, 2, points.half()), TypeError, "queries must have the dtype of points, float32, got float16"),
    (lambda: knn(points, 2, points.to("meta")), ValueError, "queries must be on the device of points, cpu, got meta"),
    (lambda: knn(points, 2, query_offsets=ints(0, 6)), ValueError, "query_offsets must be None without queries, got a tensor"),
    (lambda: knn(padded, 2, query_lengths=ints(6, 6)), ValueError, "query_lengths must be None without queries, got a tensor"),
    (lambda: knn(points, 2, points, query_lengths=ints(6)), ValueError, "query_lengths must be None for packed queries (N, D); use query_offsets, got a tensor"),
    (lambda: knn(points, 2, points, query_offsets=torch.zeros(2)), TypeError, "query_offsets must be int64 or int32, got float32"),
    (lambda: ball(points, 0.0, 2), ValueError, "radius must be positive, got 0.0"),
    (lambda: ball(points, -1, 2), ValueError, "radius must be positive, got -1"),
    (lambda: ball(points, float("nan"), 2), ValueError, "radius must be positive, got nan"),
    (lambda: ball(points, "1", 2), TypeError, "radius must be a number, got str '1'"),
    (lambda: ball(points, 1.0, 2, min_radius=1.0), ValueError, "min_radius must be at least 0 and below radius = 1.0, got 1.0"),
    (lambda: ball(points, 1.0, 2, min_radius=-0.5), ValueError, "min_radius must be at least 0 and below radius = 1.0, got -0.5"),
    (lambda: ball(points, 1.0, 2, select="all"), ValueError, """select must be "nearest", "first" or "random", got 'all'"""),
    (lambda: ball(points, 1.0, 2, select=None), TypeError, 'select must be "nearest", "first" or "random", got NoneType None'),
    (lambda: ball(points, 1.0, 2, closed=0), TypeError, "closed must be a bool, got int 0"),
    (lambda: pointgrad.NeighborIndex(torch.zeros(6, 4)), ValueError, "points must be (N, D) or (B, N, D) with D from 1 to 3, got (6, 4)"),
    (lambda: an_index().knn(2, points.double()), TypeError, "queries must have the dtype of points, float32, got float64"),
    (lambda: an_index().ball_query(-1.0, 2), ValueError, "radius must be positive, got -1.0"),
    (lambda: pointgrad.to_edges(points), TypeError, "index must be int64 or int32, got float32"),
    (lambda: pointgrad.to_edges(ints(1)), ValueError, "index must be (M, K) or (B, M, K), got (1,)"),
    (lambda: pointgrad.to_edges(ints(1)[None, None]), TypeError, "num_points must be an int for padded (B, M, K), got NoneType None"),
]  # fmt: skip

BAD_VALUES = [
    (lambda: knn(points, 2, offsets=ints(0, 7)), "offsets must be N = 6 in its last entry, got 7"),
    (lambda: knn(padded, 2, lengths=ints(6, 7)), "lengths must be in [0, N = 6], got 7 for cloud 1"),
    (lambda: knn(points, 2, points, query_offsets=ints(0, 5)), "query_offsets must be N = 6 in its last entry, got 5"),
    (lambda: knn(padded, 2, padded, query_lengths=ints(6, -1)), "query_lengths must be in [0, N = 6], got -1 for cloud 1"),
    (lambda: pointgrad.to_edges(ints(0, 3).view(1, 1, 2), 3), "index must be -1 (nothing here) or in [0, 3), got 3"),
    (lambda: pointgrad.NeighborIndex(points, offsets=ints(1, 6)), "offsets must be 0 in its first entry, got 1"),
]  # fmt: skip
