"""Estimate of noise: points with hardly any others around them."""

from collections.abc import Callable, Iterable
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .table import Array, Table

EDGE = 10  # edge length of a cell, in spacings
FEW = 3  # a point is isolated if the 27 cells around it hold at most this many points
CELLS = 1 << 23  # maximum number of cells kept; more double the edge length


def count_isolated(
    parts: Callable[[], Iterable[Table]], spacing: float, hashes: Callable[[Array], NDArray[np.uint64]]
) -> int:
    """Count the points of a file whose surroundings, a cube of 30 spacings, hold at most 3 points.

    On a surface, such a cube holds hundreds of points.

    Args:
        parts: Iterates over the file from its beginning.
        spacing: Typical distance between neighboring points.
        hashes: Hash of each row of (N, 3).
    """
    edge = EDGE * spacing
    index, count = np.zeros((0, 3)), np.zeros(0, np.int64)
    for part in parts():
        xyz = part.xyz[np.isfinite(part.xyz).all(1)].astype(np.float64)
        index, count = _merged(np.concatenate([index, np.floor(xyz / edge)]), _ones(count, len(xyz)), hashes)
        while len(index) > CELLS:
            edge *= 2
            index, count = _merged(np.floor(index / 2), count, hashes)
    order = np.argsort(keys := hashes(index))
    keys, sizes = keys[order], count[order]
    index, count = index[count <= FEW], count[count <= FEW]
    around = np.zeros(len(index), np.int64)
    for step in product((-1.0, 0.0, 1.0), repeat=3):
        wanted = hashes(index + step)
        place = np.searchsorted(keys, wanted).clip(max=max(len(keys) - 1, 0))
        around += np.where(keys[place] == wanted, sizes[place], 0)
    return int(count[around <= FEW].sum())


def _ones(count: NDArray[np.int64], more: int) -> NDArray[np.int64]:
    return np.concatenate([count, np.ones(more, np.int64)])


def _merged(
    index: NDArray[np.float64], count: NDArray[np.int64], hashes: Callable[[Array], NDArray[np.uint64]]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Add the counts of equal cells (n, 3)."""
    _, first, inverse = np.unique(hashes(index), return_index=True, return_inverse=True)
    return index[first], np.bincount(inverse, count, len(first)).astype(np.int64)
