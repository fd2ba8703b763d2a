"""Time against the number of points, from a thousand to four million (takes minutes).

Neighbor searches for all points of one uniform cloud, including the time to build the index, and farthest point
sampling of a sixteenth of the points, at most 4096.
"""

import functools
from collections.abc import Iterator

from ..comparison import Comparison, Row, Setup
from . import neighbors, sampling

SIZES = (1_000, 4_000, 16_000, 64_000, 250_000, 1_000_000, 4_000_000)


def knn(size: int, setup: Setup) -> Comparison:
    return neighbors.uniform_knn(1, size, setup.device)


def ball(size: int, setup: Setup) -> Comparison:
    """The radius is chosen so that a ball contains 32 points on average."""
    return neighbors.ball(1, size, size, (32 / (4.19 * size)) ** (1 / 3), 32, setup.device)


def farthest(size: int, setup: Setup) -> Comparison:
    return sampling.compare(1, size, min(size // 16, 4096), setup)


def rows(setup: Setup) -> Iterator[Row]:
    for series, make in (("k nearest, k 16", knn), ("ball, k 32", ball), ("farthest points, N / 16", farthest)):
        for size in SIZES[:2] if setup.quick else SIZES:
            rounds = 9 if size < 250_000 else 3
            yield Row(f"{series}: {size}", functools.partial(make, size, setup), rounds, series, size)
