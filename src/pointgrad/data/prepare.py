"""What a cloud goes through before a network sees it, the same in training, evaluation and prediction."""

import functools
import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pointgrad.data.cloud import Cloud
from pointgrad.data.transforms import Normalize, SamplePoints, Transform, VoxelSample

Normalization = Literal["sphere", "center", "none"]


@dataclass(frozen=True)
class Prepare:
    """Voxel thinning, then sampling to a number of points, then normalising. A checkpoint keeps it.

    points: how many points a cloud gets; see `SamplePoints`. 0: as many as there are.
    normalize: "sphere": centred on the mean, then scaled into the unit sphere; "center": centred only; "none".
    voxel: edge length, in the units of the source, of voxels of which one point each is kept. 0: off.
    features: names of the columns that the network takes; a cloud that lacks one is an error.

    Depends on nothing but the cloud and the generator. A cloud without points, or with a coordinate that is not
    finite, is a ValueError: `DropInvalid` takes such points out, if that is what they are there for.

    >>> cloud = Cloud(torch.tensor([[1., 0., 0.], [3., 0., 0.]]))
    >>> Prepare()(cloud, torch.Generator()).points
    tensor([[-1.,  0.,  0.],
            [ 1.,  0.,  0.]])
    """

    points: int = 0
    normalize: Normalization = "sphere"
    voxel: float = 0.0
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))  # a checkpoint or a config gives a list
        if self.points < 0:
            raise ValueError(f"points must be 0 or more, got {self.points}")
        if self.normalize not in get_args(Normalization):
            raise ValueError(f"normalize must be one of {', '.join(get_args(Normalization))}, got {self.normalize!r}")
        if not 0 <= self.voxel < math.inf:
            raise ValueError(f"voxel must be 0 or an edge length, got {self.voxel}")

    def __call__(self, cloud: Cloud, generator: torch.Generator) -> Cloud:
        cloud.need(self.features)
        _check(cloud)
        for step in self._steps:
            cloud = step(cloud, generator)
        return cloud

    @functools.cached_property
    def _steps(self) -> list[Transform]:
        thin = [VoxelSample(self.voxel)] if self.voxel else []
        sample = [SamplePoints(self.points)] if self.points else []
        scale = [] if self.normalize == "none" else [Normalize(self.normalize)]
        return [*thin, *sample, *scale]


def _check(cloud: Cloud) -> None:
    if not len(cloud):
        raise ValueError(f"{cloud.prefix()}a cloud must have at least one point, got none")
    if not _finite(cloud.points):
        bad = int((~cloud.points.isfinite()).any(1).sum())
        raise ValueError(
            f"{cloud.prefix()}coordinates must be finite, got {bad} of {len(cloud)} points with NaN or infinity"
        )


def _finite(points: Tensor) -> bool:
    # The sum tells at a fraction of the price, unless it overflows.
    return math.isfinite(points.sum().item()) or bool(points.isfinite().all())
