"""Time against the number of points, from a thousand to four million (takes minutes).

Neighbor searches for all points of one uniform cloud, including the time to build the index, and farthest point
sampling of a sixteenth of the points, at most 4096.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pointgrad.catalog import OPERATORS

from .. import operators
from ..comparison import Comparison, Row, Setup

SIZES = (1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000, 4_000_000)
SERIES = {"knn": "k nearest, k 16", "ball_query": "ball, k 32", "farthest_point_sampling": "farthest points, N / 16"}


def compare(name: str, size: int, device: str) -> Comparison:
    """The first benchmark of the operator, for one cloud. A ball contains 32 points on average."""
    op = next(op for op in OPERATORS if op.name == name)
    benchmark, last = op.benchmarks[0], {"ball_query": [size], "farthest_point_sampling": [min(size // 16, 4096)]}
    if name == "ball_query":
        build = benchmark.build
        benchmark = replace(benchmark, build=lambda m, *n: {**build(m, *n), "radius": (32 / (4.19 * size)) ** (1 / 3)})
    return operators.compare(op, benchmark, "forward", [1, size, *last.get(name, [])], device)


def rows(setup: Setup) -> Iterator[Row]:
    for name, series in SERIES.items():
        for size in SIZES[:2] if setup.quick else SIZES:
            rounds = 9 if size < 250_000 else 3
            yield Row(f"{series}: {size}", partial(compare, name, size, setup.device), rounds, series, size)
