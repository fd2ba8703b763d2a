"""The plane cut into rectangles that hold about equally many points, however unevenly they lie."""

from dataclasses import dataclass

import numpy as np

LEAF_POINTS = 32_768  # what is read at once
TILE_POINTS = 16 * LEAF_POINTS  # what is predicted at once, besides the margin around it
SAMPLE_EVERY = 256  # the tree is built from every n-th point,
SAMPLE_POINTS = 1 << 20  # or from fewer if those would be more than this


class Sample:
    """Every n-th of a stream of points, n as small as `SAMPLE_POINTS` allows."""

    def __init__(self) -> None:
        self.every = SAMPLE_EVERY
        self.seen = 0
        self._kept: list[np.ndarray] = []
        self._count = 0

    def add(self, xy: np.ndarray) -> None:
        """xy: (n, 2), the next points."""
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
    """A rectangle of the plane, low (2,) to high (2,), the high end not included, and its leaves."""

    low: np.ndarray
    high: np.ndarray
    leaves: range

    def contains(self, xy: np.ndarray) -> np.ndarray:
        inside: np.ndarray = (xy >= self.low) & (xy < self.high)
        return inside[:, 0] & inside[:, 1]


class Tree:
    """The plane cut in two again and again, at the median of the longer side."""

    def __init__(self, sample: np.ndarray, every: int) -> None:
        """sample: (n, 2); every: how many points one of them stands for."""
        self._every = every
        self._splits: list[tuple[int, float, int, int]] = []  # axis, where, node below, node above; leaves are ~number
        self._boxes: list[tuple[np.ndarray, np.ndarray]] = []
        self._tiles: list[Tile] = []
        everywhere = np.full(2, -np.inf), np.full(2, np.inf)
        self._root = self._build(sample, *everywhere, in_tile=False)
        self.whole = Tile(*everywhere, range(len(self._boxes)))
        self._low, self._high = (np.array([box[end] for box in self._boxes]) for end in (0, 1))

    def tiles(self) -> list[Tile]:
        """Rectangles of about `TILE_POINTS` points, which together are the plane."""
        return self._tiles

    def leaf(self, xy: np.ndarray) -> np.ndarray:
        """(n,) the number of the leaf of each point (n, 2)."""
        out = np.zeros(len(xy), np.int64)
        todo = [(self._root, np.arange(len(xy)))]
        while todo:
            node, points = todo.pop()
            if node < 0:
                out[points] = ~node
                continue
            axis, where, below, above = self._splits[node]
            is_below = xy[points, axis] < where
            todo += [(below, points[is_below]), (above, points[~is_below])]
        return out

    def around(self, tile: Tile, margin: float) -> np.ndarray:
        """Numbers of the leaves that touch a tile or its margin."""
        touches = (self._low <= tile.high + margin) & (self._high >= tile.low - margin)
        return np.flatnonzero(touches.all(1))

    def _build(self, sample: np.ndarray, low: np.ndarray, high: np.ndarray, in_tile: bool) -> int:
        count = len(sample) * self._every
        if is_tile := not in_tile and count <= TILE_POINTS:
            first = len(self._boxes)
        node = self._split(sample, low, high, in_tile or is_tile) if count > LEAF_POINTS else None
        if node is None:  # a leaf, also if all of its points lie at one place
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
        where = values[len(values) // 2]
        if where == values[0]:
            where = values[np.searchsorted(values, where, "right")]
        node = len(self._splits)
        self._splits.append((0, 0.0, 0, 0))  # its place: the children come after it
        is_below = sample[:, axis] < where
        end_below, begin_above = high.copy(), low.copy()
        end_below[axis] = begin_above[axis] = where
        below = self._build(sample[is_below], low, end_below, in_tile)
        above = self._build(sample[~is_below], begin_above, high, in_tile)
        self._splits[node] = (axis, float(where), below, above)
        return node
