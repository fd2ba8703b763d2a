"""Height above ground, computed from the points of a scene.

The ground is estimated on a grid of square cells, from the lowest point of each cell:

1. Cells whose lowest point lies below almost all others around it are dropped: points below the ground, from
   reflections.
2. A progressive morphological filter drops buildings, vegetation and vehicles: a cell belongs to an object if opening
   (erosion, then dilation) with a growing window lowers it by more than terrain of moderate slope allows.
3. Cells that only the larger windows dropped are restored if they continue the ground without a step: hills, unlike
   buildings, have no edges.
4. The remaining cells are the ground. Empty cells are filled from coarser grids, and heights are interpolated
   bilinearly between the centers of cells.

Only the grid is kept, so it can be collected from a stream of points of any length, and the result does not depend on
the order of the points or on how they are divided into parts.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d, pad

CELL = 1.0  # edge length of a cell, in the units of the coordinates, which are expected to be metres
RADII = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # radii of windows, in cells: objects up to 64 m wide are not ground
SLOPE, STEP = 0.2, 0.4  # terrain may rise by STEP + SLOPE * radius above the opened surface
SMALL = 6  # radius of the windows whose objects, such as trees and vehicles, are not restored
REACH, RISE, EDGE = 2, 0.6, 0.2  # a hill continues within REACH cells, and rises by at most EDGE + RISE * distance
AROUND, SUPPORT, DEPTH = 5, 5, 1.0  # a low cell needs SUPPORT others within AROUND cells, at most DEPTH higher
OCCUPIED = 1 << 23  # cells kept while collecting; more double the edge length
DENSE = 1 << 22  # cells of the rectangle that is filtered
TRIM = 0.001  # fraction of cells left out on each side if the rectangle is too large, because of stray points


class GroundGrid:
    """Lowest points of the cells of a grid, collected part by part.

    Example:
        >>> x, y = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
        >>> flat = torch.stack([x, y, torch.zeros_like(x)], 2).reshape(-1, 3).double() + 0.5
        >>> tree = torch.tensor([[20.0, 20.0, 8.5]]).double()
        >>> grid = GroundGrid()
        >>> grid.add(torch.cat([flat, tree]))
        >>> grid.ground().height(tree)
        tensor([8.])
    """

    def __init__(self) -> None:
        self.cell = CELL
        self._index = np.zeros((0, 2), np.int64)
        self._low = np.zeros(0)

    def add(self, world: Tensor) -> None:
        """Add points (N, 3) in world coordinates, float64. Points with non-finite coordinates are ignored."""
        xyz = world[world.isfinite().all(1)].double().numpy()
        if len(xyz):
            self._merge(np.floor(xyz[:, :2] / self.cell).astype(np.int64), xyz[:, 2])
        while len(self._low) > OCCUPIED:
            self.cell *= 2
            index, low, self._index, self._low = self._index // 2, self._low, self._index[:0], self._low[:0]
            self._merge(index, low)

    def _merge(self, index: np.ndarray, low: np.ndarray) -> None:
        index, low = np.concatenate([self._index, index]), np.concatenate([self._low, low])
        order = np.lexsort((low, index[:, 1], index[:, 0]))
        index = index[order]
        is_first = np.ones(len(index), bool)
        is_first[1:] = (index[1:] != index[:-1]).any(1)
        self._index, self._low = index[is_first], low[order][is_first]

    def ground(self) -> "Ground":
        """Estimate the ground from all points that were added; at least one."""
        index, low, cell = self._index, self._low, self.cell
        if not len(low):
            raise ValueError("expected at least one point with finite coordinates, got none")
        if np.prod((np.ptp(index, 0) + 1).astype(float)) > DENSE:
            bounds = np.quantile(index, [TRIM, 1 - TRIM], axis=0, method="nearest")
            inside = ((index >= bounds[0]) & (index <= bounds[1])).all(1)
            index, low = (index[inside], low[inside]) if inside.any() else (index, low)
        while np.prod((np.ptp(index, 0) + 1).astype(float)) > DENSE:
            index, cell = index // 2, cell * 2
        first = index.min(0)
        grid = np.full(np.ptp(index, 0) + 1, np.inf)
        np.minimum.at(grid, tuple((index - first).T), low)
        known = np.isfinite(grid)
        level = float(np.median(low))  # float32 is exact enough around it
        heights = torch.from_numpy(np.where(known, grid - level, 0)).float()
        surface = _fill(heights, _is_ground(heights, torch.from_numpy(known), cell))
        return Ground(surface, level, (float(first[0]) * cell, float(first[1]) * cell), cell)


@dataclass(frozen=True, eq=False)
class Ground:
    """A ground surface, from `GroundGrid.ground`.

    Attributes:
        surface: Height (rows, columns) at the centers of the cells, relative to `level`, float32.
        level: Height of the zero of `surface`.
        corner: World x and y of the corner of the first cell.
        cell: Edge length of a cell.
    """

    surface: Tensor
    level: float
    corner: tuple[float, float]
    cell: float

    def height(self, world: Tensor) -> Tensor:
        """Return the height (N,) above ground of points (N, 3), float32; NaN for non-finite coordinates."""
        finite = world.isfinite().all(1)
        world = torch.where(finite[:, None], world.double(), 0)
        place = (world[:, :2] - torch.tensor(self.corner, dtype=torch.float64)) / self.cell - 0.5
        most = torch.tensor(self.surface.shape) - 1
        place = torch.minimum(place.clamp(min=0), most.double())
        low = place.long()
        high = torch.minimum(low + 1, most)
        x, y = (place - low).unbind(1)
        surface = self.surface.double()
        left = surface[low[:, 0], low[:, 1]] * (1 - y) + surface[low[:, 0], high[:, 1]] * y
        right = surface[high[:, 0], low[:, 1]] * (1 - y) + surface[high[:, 0], high[:, 1]] * y
        height = world[:, 2] - self.level - (left * (1 - x) + right * x)
        return torch.where(finite, height, torch.nan).float()


def height_above_ground(world: Tensor) -> Tensor:
    """Return the height of each point of a scene above the ground below it.

    The ground is estimated from the points themselves: the lowest points on a grid of 1 m, without objects up to 64 m
    wide and without isolated points below the ground. It is accurate to a few decimetres on slopes and hills of up to
    about 30 degrees; it is too high under wider buildings and bridges, and where no point reached the ground, and too
    low on the crests of cliffs.

    Args:
        world: Coordinates (N, 3) in metres, with z up; `Cloud.world()`.

    Returns:
        Heights (N,), float32; NaN for points with non-finite coordinates, which are ignored otherwise.

    Example:
        >>> height_above_ground(torch.tensor([[0.2, 0.2, 1.0], [0.4, 0.2, 3.5]], dtype=torch.float64))
        tensor([0.0000, 2.5000])
    """
    if not bool(world.isfinite().all(1).any()):
        return torch.full((len(world),), torch.nan)
    grid = GroundGrid()
    grid.add(world)
    return grid.ground().height(world)


def _is_ground(heights: Tensor, known: Tensor, cell: float) -> Tensor:
    """Mask of the cells whose lowest point is on the ground."""
    heights = heights - _plane(heights, known)
    known = known & ~_too_low(heights, known)
    ground = known.clone()
    small = ground
    opened = heights
    before = 0
    for radius in RADII:
        if radius // 2 >= max(heights.shape):
            break
        last, opened = opened, _open(opened, known, radius)
        ground = ground & (last - opened <= STEP + SLOPE * cell * (radius - before))
        small = ground if radius <= SMALL else small
        before = radius
    return _grow(heights, ground, small, cell)


def _grow(heights: Tensor, ground: Tensor, candidates: Tensor, cell: float) -> Tensor:
    """Add the candidate cells that are connected to the ground without a step."""
    columns = heights.shape[1] + 2 * REACH
    padding = (REACH,) * 4
    height = pad(heights, padding).flatten()
    reached, free = (pad(mask, padding).flatten() for mask in (ground, candidates & ~ground))
    near = max_pool2d(free.view(1, 1, -1, columns).float(), 2 * REACH + 1, 1, REACH).flatten() > 0
    front = (reached & near).nonzero()[:, 0]
    while len(front):
        found = []
        for down in range(-REACH, REACH + 1):
            for right in range(-REACH, REACH + 1):
                step = down * columns + right
                source = front[free[front + step]]
                rise = (height[source + step] - height[source]).abs()
                cells = source[rise <= EDGE + RISE * cell * math.hypot(down, right)] + step
                free[cells], reached[cells] = False, True
                found.append(cells)
        front = torch.cat(found)
    return reached.view(-1, columns)[REACH:-REACH, REACH:-REACH]


def _plane(heights: Tensor, known: Tensor) -> Tensor:
    """Slope of the whole scene, (rows, columns): opening at the border of a scene would cut off its upper side."""
    size = max(2, min(16, min(heights.shape) // 4))
    if min(heights.shape) < 2 * size:
        return torch.zeros_like(heights)
    lowest = -_pool(torch.where(known, -heights, -torch.inf), size, size)
    row, column = torch.nonzero(lowest.isfinite()).T
    design = torch.stack([row.double(), column.double(), torch.ones(len(row)).double()], 1)
    target = lowest[row, column].double()
    weight = torch.ones_like(target)
    for _ in range(10):  # least absolute deviations: blocks without ground, or with a point below it, hardly count
        normal = (design * weight[:, None]).T
        solution = torch.linalg.lstsq(normal @ design, normal @ target, driver="gelsd").solution
        weight = 1 / (target - design @ solution).abs().clamp(min=0.1)
    slope = solution[:2] / size
    rows, columns = (torch.arange(extent).double() for extent in heights.shape)
    return (rows[:, None] * slope[0] + columns * slope[1]).float()


def _too_low(heights: Tensor, known: Tensor) -> Tensor:
    """Mask of cells that lie below almost all others around them."""
    rows, columns = heights.shape
    values = torch.where(known, heights, torch.inf)
    limit = heights + DEPTH
    support = torch.zeros(heights.shape, dtype=torch.int16)
    present = torch.zeros(heights.shape, dtype=torch.int16)
    for down in range(-AROUND, AROUND + 1):
        for right in range(-AROUND, AROUND + 1):
            here = (slice(max(-down, 0), rows - max(down, 0)), slice(max(-right, 0), columns - max(right, 0)))
            there = (slice(max(down, 0), rows - max(-down, 0)), slice(max(right, 0), columns - max(-right, 0)))
            support[here] += values[there] <= limit[here]
            present[here] += known[there]
    return known & (support <= SUPPORT) & (present > 4 * SUPPORT)  # a cell counts itself


def _open(heights: Tensor, known: Tensor, radius: int) -> Tensor:
    """Erode and dilate with a square window; cells that are not known have no effect."""
    eroded = -_window_max(torch.where(known, -heights, -torch.inf), radius)
    return _window_max(torch.where(eroded.isfinite(), eroded, -torch.inf), radius)


def _window_max(values: Tensor, radius: int) -> Tensor:
    size = 2 * radius + 1
    rows = max_pool2d(values[None, None], (size, 1), 1, (radius, 0))
    return max_pool2d(rows, (1, size), 1, (0, radius))[0, 0]


def _pool(values: Tensor, size: int, stride: int) -> Tensor:
    return max_pool2d(values[None, None], size, stride)[0, 0]


def _fill(heights: Tensor, known: Tensor) -> Tensor:
    """Replace the heights of cells that are not known by those of coarser grids, smoothly."""
    if bool(known.all()) or max(heights.shape) == 1:
        return heights
    if not bool(known.any()):
        return torch.zeros_like(heights)
    weight = known.float()[None, None]
    shape = heights.shape
    total, count = (
        avg_pool2d(each, 2, ceil_mode=True, count_include_pad=False)
        for each in (torch.where(known, heights, 0.0)[None, None], weight)
    )
    coarse = _fill((total / count.clamp(min=1e-9))[0, 0], (count > 0)[0, 0])
    doubled = (2 * coarse.shape[0], 2 * coarse.shape[1])
    fine = interpolate(coarse[None, None], size=doubled, mode="bilinear", align_corners=False)[0, 0]
    return torch.where(known, heights, fine[: shape[0], : shape[1]])
