"""Synthetic objects as seen by a scanner, for training without a download."""

import itertools
from typing import get_args

import numpy as np
import torch
from torch.utils.data import Dataset

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.shapes.kinds import KINDS
from pointgrad.data.datasets.shapes.sensor import OVERSAMPLING, scan
from pointgrad.data.datasets.shapes.surface import Surface
from pointgrad.data.datasets.split import SPLITS, Task, check_split
from pointgrad.data.mixing import mix

GRID = 4  # cells along each of the first two parameters of an object
CELLS = {"train": (2, 3), "val": (1,), "test": (0,)}  # cell (i, j) belongs to the split of (i + j) modulo GRID
NUMBERS = 12
SIZES = {"train": 2000, "val": 400, "test": 600}


class Shapes(Dataset[Cloud]):
    """Synthetic objects of twelve kinds, built from primitives, with parts; reproducible on every machine.

    Objects are generated on first access and kept in memory. Each has a random pose (any heading, a tilt of up to 25
    degrees, a random size), noise, up to three holes, uneven density and up to 4 % outliers; more than half of them
    are visible from one side only.

    Args:
        split: "train", "val" or "test". Splits differ in seed and shape: the two main proportions of a kind lie in a
            4 x 4 grid of cells, which are divided among the splits, so that test objects have combinations of
            proportions that do not occur in training.
        task: "classification" of the kind, or "segmentation" into parts, with -1 for outliers and the kind as category.
        size: Number of objects. Default: 2000, 400 and 600 for the three splits.
        points: Number of points of each cloud.
        seed: Random seed.

    Example:
        >>> data = Shapes("train", size=100, points=256)
        >>> data[0].points.shape, data.classes[data[0].label]
        (torch.Size([256, 3]), 'airplane')
    """

    def __init__(
        self,
        split: str = "train",
        task: Task = "classification",
        *,
        size: int | None = None,
        points: int = 1024,
        seed: int = 0,
    ) -> None:
        check_split(split, SPLITS)
        if task not in get_args(Task):
            raise ValueError(f"task must be {' or '.join(get_args(Task))}, got {task!r}")
        if points < 1:
            raise ValueError(f"points must be at least 1, got {points}")
        self.split, self.task, self.points, self.seed = split, task, points, seed
        self.size = SIZES[split] if size is None else size
        self._made: dict[int, Cloud] = {}  # generating one takes ten times as long as its use in training
        kinds = tuple(KINDS)
        if task == "classification":
            self.classes = kinds
        else:
            self.categories = kinds
            self.classes = tuple(f"{kind} {part}" for kind in kinds for part in KINDS[kind].parts)
            ends = np.cumsum([len(kind.parts) for kind in KINDS.values()]).tolist()
            self.parts = tuple(tuple(range(a, b)) for a, b in itertools.pairwise([0, *ends]))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Cloud:
        if not 0 <= index < self.size:
            raise IndexError(f"index must be in [0, {self.size}), got {index}")
        if index not in self._made:
            self._made[index] = self._make(index)
        return self._made[index]

    def _make(self, index: int) -> Cloud:
        rng = np.random.default_rng(mix(self.seed, SPLITS.index(self.split), index))
        number = index % len(KINDS)
        surface = Surface()
        list(KINDS.values())[number].build(surface, self._numbers(rng))
        points, parts = scan(*surface.sample(OVERSAMPLING * self.points, rng), self.points, rng)
        cloud = Cloud(torch.from_numpy(points), source=f"shapes {self.split} {index}")
        if self.task == "classification":
            cloud.label = number
        else:
            cloud.labels = torch.from_numpy(np.where(parts < 0, -1, parts + self.parts[number][0]))
            cloud.category = number
        return cloud

    def _numbers(self, rng: "np.random.Generator") -> list[float]:
        """Draw twelve uniform parameters in [0, 1), the first two from a cell of the split."""
        numbers = rng.random(NUMBERS).tolist()
        row, column = rng.integers(GRID), rng.integers(len(CELLS[self.split]))
        cell = (row, (CELLS[self.split][column] - row) % GRID)
        return [(cell[0] + numbers[0]) / GRID, (cell[1] + numbers[1]) / GRID, *numbers[2:]]
