"""Input features of networks: computed columns, and robust scaling with statistics of the training data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pointgrad.data.cloud import Cloud, color_range
from pointgrad.data.ground import height_above_ground
from pointgrad.data.mixing import mix

HEIGHT = "height_above_ground"
NORMALS = ("nx", "ny", "nz")  # not scaled: their length is one, and augmentation rotates them
CLOUDS, POINTS = 64, 16_384  # clouds that are read for statistics, and points of each
LIMIT = 10.0  # scaled values are clipped to this range


def with_computed(cloud: Cloud, names: Sequence[str]) -> Cloud:
    """Add the named features that can be computed from the points and are missing: `height_above_ground`."""
    if HEIGHT not in names or HEIGHT in cloud.features:
        return cloud
    return replace(cloud, features={**cloud.features, HEIGHT: height_above_ground(cloud.world())})


@dataclass(frozen=True)
class ComputeFeatures:
    """Transform that adds the named features that can be computed; see `with_computed`."""

    names: tuple[str, ...]

    def __call__(self, cloud: Cloud, generator: torch.Generator) -> Cloud:
        return with_computed(cloud, self.names)


def columns(cloud: Cloud, name: str) -> Tensor:
    """Return a feature as (N, c), float64, with integer colors in the range 0 to 1 as in `Cloud.stack`."""
    column = cloud.features[name]
    return column.reshape(len(cloud), -1).double() / color_range(name, column)


def feature_statistics(
    dataset: Any, names: Sequence[str], *, seed: int = 0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute center and scale of each feature column, for `Prepare`.

    The center is the median. The scale is the larger of the interquartile range and the range from the 1st to the 99th
    percentile, each divided by its value for a normal distribution of standard deviation one; the standard deviation if
    both are zero; and 1 for a constant column. NaN and infinity are ignored. Normals (`nx`, `ny`, `nz`) have center 0
    and scale 1.

    Args:
        dataset: Training data. At most 64 clouds, and 16,384 points of each, are used, chosen by `seed`. Clouds that
            cannot be read are skipped.
        names: Names of the features.
        seed: Random seed.

    Returns:
        Centers and scales, one for each column of the features in their order.

    Raises:
        ValueError: If a feature is missing.

    Example:
        >>> values = torch.arange(101.0)
        >>> feature_statistics([Cloud(torch.zeros(101, 3), {"intensity": values})], ["intensity"])[0]
        (50.0,)
    """
    generator = torch.Generator().manual_seed(mix(seed))
    samples: list[list[Tensor]] = []
    for index in torch.randperm(len(dataset), generator=generator)[:CLOUDS].sort().values.tolist():
        try:
            cloud = dataset[index]
        except (ValueError, OSError):  # reported, or skipped if the user wants it, when this cloud is trained on
            continue
        cloud = with_computed(cloud, names)
        cloud.need(names)
        cloud = cloud.select(torch.randperm(len(cloud), generator=generator)[:POINTS])
        samples.append([columns(cloud, name) for name in names])
    if not samples:
        raise ValueError("data must have clouds that can be read to compute the range of features, got none")
    centers, scales = [], []
    for name, parts in zip(names, zip(*samples, strict=True), strict=True):
        for column in torch.cat(parts).T:
            center, scale = (0.0, 1.0) if name in NORMALS else _robust(column)
            centers.append(center)
            scales.append(scale)
    return tuple(centers), tuple(scales)


def scale_features(
    cloud: Cloud, names: Sequence[str], center: Sequence[float], scale: Sequence[float]
) -> dict[str, Tensor]:
    """Return the scaled features, float32, clipped to -10 to 10; NaN and infinity become 0, the center."""
    found = {name: columns(cloud, name) for name in names}
    width = sum(column.shape[1] for column in found.values())
    if width != len(center):
        raise ValueError(f"{cloud.prefix()}features must have {len(center)} columns in total, got {width}")
    out, first = {}, 0
    for name, column in found.items():
        part = slice(first, first + column.shape[1])
        first = part.stop
        if name in NORMALS:
            continue
        moved = (column - torch.tensor(center[part]).double()) / torch.tensor(scale[part]).double()
        moved = torch.where(column.isfinite(), moved.clamp(-LIMIT, LIMIT), 0.0).float()
        out[name] = moved.reshape(cloud.features[name].shape)
    return out


def _robust(column: Tensor) -> tuple[float, float]:
    column = column[column.isfinite()]
    if not len(column):
        return 0.0, 1.0
    values = column.sort().values
    low, first, center, third, high = (
        float(values[round(part * (len(values) - 1))]) for part in (0.01, 0.25, 0.5, 0.75, 0.99)
    )
    scale = max((third - first) / 1.349, (high - low) / 4.653) or float(column.std(correction=0))
    return center, scale or 1.0
