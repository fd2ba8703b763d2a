"""Bounds of a cloud without its outliers, which would shrink the picture of everything else."""

from dataclasses import dataclass, field, replace

import numpy as np

TAIL = 0.02  # fraction of the points at either end of each axis that does not determine the core
CELLS = 6  # cells along the diagonal of the core: smaller gaps do not separate points
CROWD = 0.01  # minimum number of points of a cell, relative to the median in the core
FEWEST = 1000  # smaller samples are too sparse to tell outliers from the rest
WORTH = 0.95  # outliers are kept in the frame if the diagonal without them is longer than this fraction
BITS = 21  # bits of a cell number along each axis; three fit into 64 bits
_STEPS = np.stack(np.meshgrid(*[(-1, 0, 1)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)


@dataclass(frozen=True)
class Bounds:
    """The region of a cloud that a picture shows.

    Attributes:
        low, high: (3,) corners of the bounding box of the region.
        corner: (3,) position of cell 0.
        edge: Length of a cell; 0 if the region contains every point.
        cells: (C,) sorted codes of the cells of the region; see `_codes`.
    """

    low: np.ndarray
    high: np.ndarray
    corner: np.ndarray
    edge: float = 0.0
    cells: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def inside(self, points: np.ndarray) -> np.ndarray:
        """Whether each of the points (N, 3) is in the region: (N,) bool."""
        if not self.edge:
            return np.ones(len(points), bool)
        return np.isin(_codes(self.numbers(points)), self.cells)

    def numbers(self, points: np.ndarray) -> np.ndarray:
        """Cell numbers (N, 3) of points (N, 3); those far away share the outermost cells."""
        most = (1 << BITS - 1) - 2
        with np.errstate(over="ignore"):  # an edge may be as small as 5e-324
            places = (points - self.corner) / self.edge
        return np.floor(np.clip(places, -most, most)).astype(np.int64)


def bounds(points: np.ndarray) -> Bounds:
    """Find the region that a picture of a cloud should show.

    The core is the box between the 2nd and 98th percentile of each axis. The region is the core, and everything that
    is connected to it by cells with points, a sixth of its diagonal wide. So a tower belongs to the ground below it,
    but a few points far away or far below do not belong to anything. Nearly empty cells do not connect others. If the
    region is nearly as large as the cloud, it contains the whole cloud.

    Args:
        points: (N, 3) finite points, at least one: a fair sample of the cloud.

    Returns:
        The region.

    Example:
        >>> plane = np.random.default_rng(0).random((2000, 3)) * [10, 10, 1]
        >>> found = bounds(np.concatenate([plane, [[5, 5, -300]]]))
        >>> bool(found.low[2] > 0), found.inside(np.array([[5, 5, 0.5], [5, 5, -300]])).tolist()
        (True, [True, False])
    """
    points = np.asarray(points, np.float64)
    low, high = points.min(0), points.max(0)
    whole = Bounds(low, high, low)
    if len(points) < FEWEST:
        return whole
    core_low = np.quantile(points, TAIL, axis=0, method="higher")
    core_high = np.quantile(points, 1 - TAIL, axis=0, method="lower")
    diagonal = _length(core_high - core_low)
    edge = diagonal / CELLS
    if edge == 0 or WORTH * _length(high - low) <= diagonal:
        return whole
    grid = Bounds(low, high, core_low, edge)
    places = grid.numbers(points)
    codes, rows, numbers, counts = np.unique(_codes(places), return_index=True, return_inverse=True, return_counts=True)
    cells = places[rows]
    in_core = np.unique(numbers[((points >= core_low) & (points <= core_high)).all(1)])
    crowded = counts >= CROWD * np.median(counts[in_core])
    grid = replace(grid, cells=codes[_connected(cells, in_core.tolist(), crowded)])
    inside = points[grid.inside(points)]
    found = replace(grid, low=inside.min(0), high=inside.max(0))
    return found if _length(found.high - found.low) < WORTH * _length(high - low) else whole


def _length(vector: np.ndarray) -> float:
    """Euclidean norm, without overflow."""
    most = float(abs(vector).max())
    return most * float(np.linalg.norm(vector / most)) if most > 0 else 0.0


def _codes(cells: np.ndarray) -> np.ndarray:
    """One number (C,) for each cell (C, 3)."""
    x, y, z = (cells + (1 << BITS - 1)).T
    return (x << 2 * BITS) | (y << BITS) | z


def _connected(cells: np.ndarray, first: list[int], crowded: np.ndarray) -> list[int]:
    """Rows of the cells (C, 3) that crowded cells connect to the rows `first`."""
    rows = {cell: row for row, cell in enumerate(map(tuple, cells.tolist()))}
    found, open_rows = set(first), [*first]
    while open_rows:
        for cell in map(tuple, (cells[open_rows.pop()] + _STEPS).tolist()):
            row = rows.get(cell)
            if row is not None and row not in found:
                found.add(row)
                if crowded[row]:
                    open_rows.append(row)
    return sorted(found)
