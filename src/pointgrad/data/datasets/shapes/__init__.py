"""Objects made of simple surfaces, as a scanner would see them: to learn on without a download."""

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

GRID = 4  # cells along each of the first two numbers of an object
CELLS = {"train": (2, 3), "val": (1,), "test": (0,)}  # cell (i, j) belongs to the split of (i + j) modulo GRID
NUMBERS = 12
SIZES = {"train": 2000, "val": 400, "test": 600}


class Shapes(Dataset[Cloud]):
    """Twelve kinds of objects built from primitives, with parts; the same for a seed on every machine.

    split: "train", "val" or "test". They differ by seed and by shape: the two proportions that matter most for a kind
        lie in a 4 x 4 grid of cells, of which each split has its own, so that a test object has proportions that no
        training object has.
    task: "classification": which of twelve kinds; "segmentation": which part of it each point belongs to, -1 for an
        outlier, with the kind as the category.
    size: how many; 2000, 400 and 600 without.
    points: per cloud.

    Nothing is stored: an object is made when it is first asked for, and kept in memory. Each has a random pose (any
    heading, tilted by up to 25 degrees, any size), noise, up to three holes, uneven density and up to 4 % of outliers;
    more than half of them are seen from one side only.

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
            raise ValueError(f"points must be 1 or more, got {points}")
        self.split, self.task, self.points, self.seed = split, task, points, seed
        self.size = SIZES[split] if size is None else size
        self._made: dict[int, Cloud] = {}  # making one costs ten times as much as all that becomes of it in training
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
            raise IndexError(f"index must be from 0 to {self.size - 1}, got {index}")
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
        """Twelve, evenly from 0 to 1, the first two from a cell of the split."""
        numbers = rng.random(NUMBERS).tolist()
        row, column = rng.integers(GRID), rng.integers(len(CELLS[self.split]))
        cell = (row, (CELLS[self.split][column] - row) % GRID)
        return [(cell[0] + numbers[0]) / GRID, (cell[1] + numbers[1]) / GRID, *numbers[2:]]
