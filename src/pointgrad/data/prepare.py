"""Preparation of clouds for a network, shared by training, evaluation and prediction."""

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from pointgrad.data.cloud import Cloud
from pointgrad.data.scaling import scale_features, with_computed
from pointgrad.data.transforms import Normalize, SamplePoints, Transform, VoxelSample

Normalization = Literal["sphere", "center", "none"]


@dataclass(frozen=True)
class Prepare:
    """Voxel subsampling, then sampling to a number of points, then normalization. Checkpoints store it.

    The result depends only on the cloud and the generator. An empty cloud or a non-finite coordinate raises
    `ValueError`; `DropInvalid` removes points with non-finite coordinates.

    Attributes:
        points: Number of points of each cloud; see `SamplePoints`. 0: unchanged.
        normalize: "sphere" moves the mean to the origin and scales into the unit sphere, "center" only moves, "none".
        voxel: Edge length, in the units of the source, of voxels of which one point each is kept. 0: off.
        features: Names of the input features of the network, which every cloud must have; `height_above_ground` is
            computed from the points if it is missing.
        feature_center: Value that scaling subtracts from each feature column, from `feature_statistics`. Empty: the
            features are not scaled.
        feature_scale: Positive value by which each column is then divided.

    Example:
        >>> cloud = Cloud(torch.tensor([[1., 0., 0.], [3., 0., 0.]]))
        >>> Prepare()(cloud, torch.Generator()).points
        tensor([[-1.,  0.,  0.],
                [ 1.,  0.,  0.]])
    """

    points: int = 0
    normalize: Normalization = "sphere"
    voxel: float = 0.0
    features: tuple[str, ...] = ()
    feature_center: tuple[float, ...] = ()
    feature_scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("features", "feature_center", "feature_scale"):  # checkpoints and config files contain lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.feature_center) != len(self.feature_scale) or not all(
            0 < each < math.inf for each in self.feature_scale
        ):
            raise ValueError(
                f"feature_scale must have a positive value for each of {len(self.feature_center)} values of the "
                f"center, got {self.feature_scale}"
            )
        if self.points < 0:
            raise ValueError(f"points must be at least 0, got {self.points}")
        if self.normalize not in get_args(Normalization):
            raise ValueError(f"normalize must be one of {', '.join(get_args(Normalization))}, got {self.normalize!r}")
        if not 0 <= self.voxel < math.inf:
            raise ValueError(f"voxel must be 0 or a positive edge length, got {self.voxel}")

    def __call__(self, cloud: Cloud, generator: torch.Generator) -> Cloud:
        _check(cloud)
        cloud = with_computed(cloud, self.features)
        cloud.need(self.features)
        for step in self._steps:
            cloud = step(cloud, generator)
        if self.feature_center:
            scaled = scale_features(cloud, self.features, self.feature_center, self.feature_scale)
            cloud = replace(cloud, features={**cloud.features, **scaled})
        return cloud

    @functools.cached_property
    def _steps(self) -> list[Transform]:
        thin = [VoxelSample(self.voxel)] if self.voxel else []
        sample = [SamplePoints(self.points)] if self.points else []
        scale = [] if self.normalize == "none" else [Normalize(self.normalize)]
        return [*thin, *sample, *scale]


def _check(cloud: Cloud) -> None:
    if not len(cloud):
        raise ValueError(f"{cloud.prefix()}expected at least one point, got none")
    if not _finite(cloud.points):
        bad = int((~cloud.points.isfinite()).any(1).sum())
        raise ValueError(
            f"{cloud.prefix()}coordinates must be finite, got {bad} of {len(cloud)} points with NaN or infinity"
        )


def _finite(points: Tensor) -> bool:
    # A finite sum proves it at a fraction of the cost.
    return math.isfinite(points.sum().item()) or bool(points.isfinite().all())
