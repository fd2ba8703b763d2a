"""Inputs of the viewer: a file, or clouds in memory."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import ClassMap, Cloud
from pointgrad.data.stream import Source
from pointgrad.errors import printable
from pointgrad.render import choices, colors, first_choice
from pointgrad.render.colors import CHANNELS, HEIGHT, NUMBERED, RGB
from pointgrad.view.levels import Part

CLOUD = "cloud"  # column that tells apart several clouds
GAP = 1.15  # distance between the centers of clouds side by side, in sizes of the largest


class Input(Protocol):
    """Something to open."""

    @property
    def title(self) -> str:
        """Short name, without a folder."""

    @property
    def label(self) -> str:
        """Name in messages."""

    def parts(self) -> Iterable[Cloud]:
        """Stream the points from the beginning."""

    def names(self, by: str) -> dict[int, str]:
        """Class names of a column."""

    @property
    def preferred(self) -> str | None:
        """Column requested to color the points; None for the default."""

    def first_choice(self, sample: Cloud) -> str:
        """Column that colors the points at first."""

    def original(self, row: Part) -> Part:
        """The given points with their original coordinates and numbers."""


@dataclass(frozen=True)
class File:
    """A point cloud file.

    Attributes:
        path: The file.
        columns: Column names, as for `pointgrad.data.read`.
        category: Object category, for part segmentation networks.
        classes: Classes that replace the codes of the labels.
    """

    path: Path
    columns: str | None = None
    category: int | None = None
    classes: ClassMap | None = None

    @property
    def title(self) -> str:
        return self.path.name

    @property
    def label(self) -> str:
        return printable(self.path)

    @cached_property
    def _source(self) -> Source:
        return Source(self.path, self.columns, self.classes)

    def parts(self) -> Iterable[Cloud]:
        parts = self._source.parts()
        return parts if self.category is None else (replace(part, category=self.category) for part in parts)

    def names(self, by: str) -> dict[int, str]:
        return self._source.names(by)

    @property
    def preferred(self) -> str | None:
        return None

    def first_choice(self, sample: Cloud) -> str:
        return first_choice(sample)

    def original(self, row: Part) -> Part:
        return row


@dataclass(frozen=True)
class Clouds:
    """Clouds in memory, drawn together.

    Attributes:
        clouds: Clouds by name.
        classes: Class names of labels and predictions.
        preferred: Column that colors the points at first; None for a default.
        side_by_side: Whether the clouds are moved apart, into a grid.
    """

    clouds: Mapping[str, Cloud]
    classes: Mapping[int, str] = field(default_factory=dict)
    preferred: str | None = None
    side_by_side: bool = False

    @property
    def title(self) -> str:
        return ", ".join(self.clouds) if len(self.clouds) <= 3 else f"{len(self.clouds)} clouds"

    @property
    def label(self) -> str:
        return printable(self.title)

    def parts(self) -> Iterable[Cloud]:
        return [self._joined]

    def names(self, by: str) -> dict[int, str]:
        if by == CLOUD and len(self.clouds) > 1:
            return dict(enumerate(self.clouds))
        return dict(self.classes) if by in NUMBERED else {}

    def first_choice(self, sample: Cloud) -> str:
        if self.preferred is not None:
            return self.preferred
        found = first_choice(sample)
        return CLOUD if found == HEIGHT and len(self.clouds) > 1 else found

    def original(self, row: Part) -> Part:
        starts = np.cumsum([0, *(len(cloud) for cloud in self.clouds.values())])
        number = int(np.searchsorted(starts, row.number[0], side="right")) - 1
        points = row.cloud.points - self._shifts[number].to(row.cloud.points.dtype)
        return Part(replace(row.cloud, points=points), row.number - starts[number])

    @cached_property
    def _shifts(self) -> list[Tensor]:
        """Vector (3,) from the original to the shown position of each cloud."""
        clouds = list(self.clouds.values())
        if not self.side_by_side:
            return [torch.zeros(3, dtype=torch.float64)] * len(clouds)
        bounds = [_bounds(cloud) for cloud in clouds]
        size = GAP * max(float((high - low).max()) for low, high in bounds) or 1.0
        columns = math.ceil(math.sqrt(len(clouds)))
        cells = [torch.tensor([number % columns, -(number // columns), 0.0]) for number in range(len(clouds))]
        first = bounds[0][0]
        return [
            size * cell.double() + first - torch.cat([(low + high)[:2] / 2, low[2:]])
            for cell, (low, high) in zip(cells, bounds, strict=True)
        ]

    @cached_property
    def _joined(self) -> Cloud:
        clouds = list(self.clouds.values())
        if len(clouds) == 1:
            return clouds[0]
        features = {name: _joined_column(name, clouds) for name in _features(clouds)}
        sizes = torch.tensor([len(cloud) for cloud in clouds])
        labels = None
        if any(cloud.labels is not None for cloud in clouds):
            labels = torch.cat([_labels(cloud) for cloud in clouds])
        origin = clouds[0].origin
        same = all(torch.equal(cloud.origin, origin) and cloud.points.dtype == torch.float32 for cloud in clouds)
        points = [
            cloud.points if same and not self.side_by_side else cloud.points.double() + (cloud.origin - origin) + shift
            for cloud, shift in zip(clouds, self._shifts, strict=True)
        ]
        features[CLOUD] = torch.arange(len(clouds)).repeat_interleave(sizes)
        return Cloud(torch.cat(points), features, labels, origin=origin)


def check_columns(clouds: Mapping[str, Cloud], by: str | None) -> None:
    """Raise `ValueError` if the columns of clouds cannot be joined, or `by` is not among them."""
    several = len(clouds) > 1
    for name in _features(list(clouds.values())) if several else ():
        if name == CLOUD:
            raise ValueError(f"a feature must not be named {CLOUD} if there are several clouds")
        widths = {cloud.features[name].shape[1:] for cloud in clouds.values() if name in cloud.features}
        if len(widths) > 1:
            raise ValueError(f"{name} must have the same number of columns in all clouds")
    known = list(dict.fromkeys(each for cloud in clouds.values() for each in choices(cloud))) + [CLOUD] * several
    if by is not None and by not in known:
        raise ValueError(f"by must be one of {', '.join(known)}, got {by}")


def _bounds(cloud: Cloud) -> tuple[Tensor, Tensor]:
    """Lower and upper corner (3,) of the finite points, float64, in the coordinates of the source."""
    finite = cloud.points[cloud.points.isfinite().all(1)].double()
    return (finite.amin(0) + cloud.origin, finite.amax(0) + cloud.origin) if len(finite) else (cloud.origin,) * 2


def _features(clouds: list[Cloud]) -> list[str]:
    return list(dict.fromkeys(name for cloud in clouds for name in cloud.features))


def _labels(cloud: Cloud) -> Tensor:
    return torch.full((len(cloud),), -1) if cloud.labels is None else cloud.labels


def _joined_column(name: str, clouds: list[Cloud]) -> Tensor:
    """Join a column of all clouds. Clouds without it get NaN or -1, and grey as color."""
    if name in CHANNELS and any(RGB in choices(cloud) for cloud in clouds):
        return torch.cat([_channel(cloud, CHANNELS.index(name)) for cloud in clouds])
    having = [cloud.features[name] for cloud in clouds if name in cloud.features]
    dtype = having[0].dtype
    for column in having[1:]:
        dtype = torch.promote_types(dtype, column.dtype)
    if len(having) < len(clouds) and not dtype.is_floating_point:
        dtype = torch.int64
    shape = having[0].shape[1:]
    missing = math.nan if dtype.is_floating_point else -1
    return torch.cat([
        cloud.features[name].to(dtype)
        if name in cloud.features
        else torch.full((len(cloud), *shape), missing, dtype=dtype)
        for cloud in clouds
    ])  # fmt: skip


def _channel(cloud: Cloud, channel: int) -> Tensor:
    """One channel of the colors as uint8; stored colors of two clouds may have different ranges."""
    if RGB not in choices(cloud):
        return torch.full((len(cloud),), GREY, dtype=torch.uint8)
    painted = colors.paint(cloud, colors.scale(cloud, RGB))
    return torch.from_numpy(painted[:, channel].copy())


GREY = 150  # color of clouds without colors beside others with colors
