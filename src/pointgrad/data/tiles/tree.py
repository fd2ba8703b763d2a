"""A kd-tree over x and y, whose leaves hold about equally many points."""

from dataclasses import dataclass

import numpy as np

LEAF_POINTS = 32_768  # points of a leaf, the unit of reading
TILE_POINTS = 16 * LEAF_POINTS  # points of a tile, without its margin
SAMPLE_EVERY = 256  # the tree is built from every n-th point
SAMPLE_POINTS = 1 << 20  # maximum number of points in the sample


class Sample:
    """Every n-th point of a stream, where n grows so that at most `SAMPLE_POINTS` are kept."""

    def __init__(self) -> None:
        self.every = SAMPLE_EVERY
        self.seen = 0
        self._kept: list[np.ndarray] = []
        self._count = 0

    def add(self, xy: np.ndarray) -> None:
        """Add the next points (n, 2)."""
        kept = xy[-self.seen % self.every :: self.every].copy()
        self.seen += len(xy)
        self._kept.append(kept)
        self._count += len(kept)
        while self._count > SAMPLE_POINTS:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._count = len(self._kept[0])
            self.every *= 2

    def points(self) -> np.ndarray:
        return np.concatenate(self._kept) if self._kept else np.zeros((0, 2))


@dataclass(frozen=True)
class Tile:
    """A rectangle from low (2,) to high (2,), exclusive, and its leaves."""

    low: np.ndarray
    high: np.ndarray
    leaves: range

    def contains(self, xy: np.ndarray) -> np.ndarray:
        inside: np.ndarray = (xy >= self.low) & (xy < self.high)
        return inside[:, 0] & inside[:, 1]


class Tree:
    """A kd-tree that covers the plane, split at the median of the longer side of each node.

    Args:
        sample: A sample (n, 2) of the points.
        every: Number of points that each sample represents.
    """

    def __init__(self, sample: np.ndarray, every: int) -> None:
        self._every = every
        self._splits: list[tuple[int, float, int, int]] = []  # axis, value, node below, node above; ~number for leaves
        self._boxes: list[tuple[np.ndarray, np.ndarray]] = []
        self._tiles: list[Tile] = []
        everywhere = np.full(2, -np.inf), np.full(2, np.inf)
        self._root = self._build(sample, *everywhere, in_tile=False)
        self.whole = Tile(*everywhere, range(len(self._boxes)))
        self._low, self._high = (np.array([box[end] for box in self._boxes]) for end in (0, 1))

    def tiles(self) -> list[Tile]:
        """Rectangles of about `TILE_POINTS` points each, which cover the plane."""
        return self._tiles

    def leaf(self, xy: np.ndarray) -> np.ndarray:
        """Return the leaf number (n,) of each point (n, 2)."""
        out = np.zeros(len(xy), np.int64)
        todo = [(self._root, np.arange(len(xy)))]
        while todo:
            node, points = todo.pop()
            if node < 0:
                out[points] = ~node
                continue
            axis, value, below, above = self._splits[node]
            is_below = xy[points, axis] < value
            todo += [(below, points[is_below]), (above, points[~is_below])]
        return out

    def around(self, tile: Tile, margin: float) -> np.ndarray:
        """Return the numbers of the leaves that touch a tile or its margin."""
        touches = (self._low <= tile.high + margin) & (self._high >= tile.low - margin)
        return np.flatnonzero(touches.all(1))

    def _build(self, sample: np.ndarray, low: np.ndarray, high: np.ndarray, in_tile: bool) -> int:
        count = len(sample) * self._every
        if is_tile := not in_tile and count <= TILE_POINTS:
            first = len(self._boxes)
        node = self._split(sample, low, high, in_tile or is_tile) if count > LEAF_POINTS else None
        if node is None:  # small enough, or all points are identical
            node = ~len(self._boxes)
            self._boxes.append((low, high))
            if not in_tile and not is_tile:
                self._tiles.append(Tile(low, high, range(~node, ~node + 1)))
        if is_tile:
            self._tiles.append(Tile(low, high, range(first, len(self._boxes))))
        return node

    def _split(self, sample: np.ndarray, low: np.ndarray, high: np.ndarray, in_tile: bool) -> int | None:
        extent = sample.max(0) - sample.min(0)
        axis = int(extent.argmax())
        if not extent[axis] > 0:
            return None
        values = np.sort(sample[:, axis])
        value = values[len(values) // 2]
        if value == values[0]:
            value = values[np.searchsorted(values, value, "right")]
        node = len(self._splits)
        self._splits.append((0, 0.0, 0, 0))  # set below, after the children
        is_below = sample[:, axis] < value
        end_below, begin_above = high.copy(), low.copy()
        end_below[axis] = begin_above[axis] = value
        below = self._build(sample[is_below], low, end_below, in_tile)
        above = self._build(sample[~is_below], begin_above, high, in_tile)
        self._splits[node] = (axis, float(value), below, above)
        return node
