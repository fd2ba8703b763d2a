"""Crops of scenes, which training and evaluation draw from the same scans."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from pointgrad import data
from pointgrad.data import Cloud, Prepare, Transform
from pointgrad.data.scaling import ComputeFeatures

KEPT = 1 << 30  # bytes of scenes kept in memory


class Crops(NamedTuple):
    """A data set, and the transform for its clouds."""

    dataset: Any
    transform: Transform


class Repeated(torch.utils.data.Dataset[Cloud]):
    """Data set that repeats every cloud several times in a row, each time with different random numbers.

    Args:
        dataset: The clouds.
        times: Repetitions of each.
        first: Transform without random numbers that is applied to every cloud first.
        keep: Bytes of clouds that are kept in memory after the first transform, instead of reading them again for the
            next crop.
    """

    def __init__(self, dataset: Any, times: int, first: Transform | None = None, keep: int = 0) -> None:
        self.dataset, self.times, self._first, self._free = dataset, times, first, keep
        self._kept: dict[int, Cloud] = {}
        self.classes, self.task = dataset.classes, dataset.task
        for name in ("categories", "parts", "class_map"):
            if hasattr(dataset, name):
                setattr(self, name, getattr(dataset, name))

    def __len__(self) -> int:
        return len(self.dataset) * self.times

    def __getitem__(self, index: int) -> Cloud:
        number = index // self.times
        if number in self._kept:
            return self._kept[number]
        cloud = self.dataset[number]
        if self._first is not None:
            cloud = self._first(cloud, torch.Generator())
        columns = [cloud.points, *cloud.features.values(), *([] if cloud.labels is None else [cloud.labels])]
        size = sum(column.nbytes for column in columns)
        if size <= self._free:
            self._free -= size
            self._kept[number] = cloud
        return cloud


def crops(dataset: Any, prepare: Prepare, points: int, times: int, *, workers: int, balance: float = 0.0) -> Crops:
    """Return a data set of crops of scenes, and the transform that crops and prepares them.

    Height above ground and voxels are computed once for each whole scene, because the ground depends on the
    surroundings. Scenes of up to 1 GiB together stay in memory.

    Args:
        dataset: The scenes.
        prepare: The preparation, including voxels.
        points: Points of a crop; 0: no cropping.
        times: Crops of each scene.
        workers: Processes that read.
        balance: See `data.Crop`.
    """
    if not points:
        return Crops(Repeated(dataset, times) if times > 1 else dataset, prepare)
    thin: list[Transform] = [data.VoxelSample(prepare.voxel)] if prepare.voxel else []
    first = data.Compose(ComputeFeatures(prepare.features), *thin)
    scenes = Repeated(dataset, times, first, keep=KEPT // max(workers, 1))
    return Crops(scenes, data.Compose(data.Crop(points, balance), replace(prepare, voxel=0.0)))
