"""Rendering of a cloud in parts: one pass collects statistics, a second one draws."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.data.files.summary import position_hashes
from pointgrad.render.bounds import bounds
from pointgrad.render.camera import Camera, Frame, View, spacing
from pointgrad.render.canvas import Canvas
from pointgrad.render.colors import CHANNELS, LABEL, RGB, Scale, first_choice, paint, scale
from pointgrad.render.palette import Palette

SAMPLE = 250_000  # points from which colors and dot size are chosen
CLOSED = 2.6  # dot diameter that closes surfaces, relative to the distance of neighbors
LARGEST, SMALLEST = 0.025, 1.0  # bounds of the dot diameter: relative to the shorter side of the image; in pixels
FEW = 100_000  # range of integers that are counted without sorting
FARTHEST = 1e30  # limit of coordinates in single precision
RIM = 64  # points on the circles that bound a rotating cloud
SOFT = 20.0  # depth in pixels that gives the maximum darkening of an edge

Parts: TypeAlias = Callable[[], Iterable[Cloud]]  # each call iterates over all parts of a cloud


class Scene:
    """A cloud with the statistics that rendering needs, collected in one pass over its parts.

    Args:
        parts: The parts of the cloud.
        view: Viewing direction.
        by: The column to color by, if known.
        most: Maximum size of the sample.

    Attributes:
        count: Number of points with finite coordinates.
        dropped: Number of points with non-finite coordinates.
        sample: At most `most` points, chosen independently of order and parts.

    Raises:
        ValueError: If no point has finite coordinates, or a coordinate is too large.
    """

    def __init__(self, parts: Parts, view: View, by: str | None = None, most: int = SAMPLE) -> None:
        self.view, self.count, self.dropped = view, 0, 0
        self._parts, self._most, self._zeros = parts, most, 0
        self._counts: Counter[int] = Counter()
        self._lower, self._upper = torch.full((3,), torch.inf).double(), torch.full((3,), -torch.inf).double()
        extremes: list[Tensor] = []
        picked: list[Cloud] = []
        prefix = ""
        for part in parts():
            finite, prefix = _finite(part), part.prefix()
            self.dropped += len(part) - len(finite)
            if len(finite):
                extremes.append(self._add(finite, by))
                picked = self._thinned([*picked, self._chosen(finite)])
        if not self.count:
            found = f"{self.dropped:,} points with NaN or infinity" if self.dropped else "no points"
            raise ValueError(f"{prefix}expected points with finite coordinates, got {found}")
        if not float(torch.cat([self._lower, self._upper]).abs().max()) <= FARTHEST:
            raise ValueError(
                f"{prefix}expected coordinates up to {FARTHEST:g}, got {self._lower.tolist()} to {self._upper.tolist()}"
            )
        self._extremes, self.sample = torch.cat(extremes), _join(picked)
        self._leave_out_outliers()

    def scale(self, by: str | None, names: Mapping[int, str] | None, palette: Palette | None = None) -> Scale:
        """Compute the color scale of a column, or of the default column."""
        found = scale(self.sample, by or first_choice(self.sample), names, palette)
        return replace(found, counts=dict(sorted(self._counts.items()))) if found.kind == "class" else found

    def sampled(self) -> "Scene":
        """Return a scene of the sample only, which can be drawn repeatedly without reading a file."""
        made = Scene(lambda: [self.sample], self.view, most=self._most)
        made.dropped = self.dropped
        return made

    def camera(self, frame: Frame) -> Camera:
        """Return the nearest camera whose frame contains all points but outliers."""
        return self.view.fit(self._extremes, self._middle, frame)

    def circling(self, frame: Frame, azimuth: float) -> Camera:
        """Return a camera with the same distance for all azimuths, whose frame contains all points but outliers."""
        turn = torch.arange(RIM, dtype=torch.float64) * (2 * math.pi / RIM)
        radius = (self._upper - self._lower)[:2].norm() / 2 / math.cos(math.pi / RIM)
        circle = torch.stack([turn.cos() * radius, turn.sin() * radius, torch.zeros(RIM)], dim=1)
        rims = torch.cat([circle + torch.cat([self._middle[:2], end[2:]]) for end in (self._lower, self._upper)])
        first = View(0.0, self.view.elevation).fit(rims, self._middle, frame)
        return replace(first, view=View(azimuth, self.view.elevation))

    def dots(self, camera: Camera) -> float:
        """Choose the diameter in pixels, at the center of the cloud, that closes surfaces."""
        seen = camera.project(self.sample.points, self.sample.origin)
        shown = seen.select(seen.visible(camera.frame))
        if not len(shown.depth):
            return SMALLEST
        most = LARGEST * min(camera.frame.width, camera.frame.height)
        if max(float(side.amax() - side.amin()) for side in (shown.across, shown.down)) < 1:  # all in one place
            return most
        at_middle = (
            spacing(shown, round(self.count * len(shown.depth) / len(seen.depth)))
            * float(shown.depth.median())
            / camera.distance
        )
        return max(min(CLOSED * at_middle, most), SMALLEST)

    def draw(self, camera: Camera, scale: Scale, diameter: float) -> np.ndarray:
        """Draw the image (height, width, 4), float32 from 0 to 1: colors multiplied by opacity, and opacity."""
        canvas = Canvas(camera.frame.width, camera.frame.height)
        for part in self._parts():
            shown = _finite(_only(part, scale.by))
            seen = camera.project(shown.points, shown.origin)
            visible = seen.visible(camera.frame)
            if not bool(visible.all()):
                seen, shown = seen.select(visible), shown.select(visible)
            canvas.add(seen, paint(shown, scale), diameter / 2, camera.distance)
        return canvas.image(SOFT * camera.distance / camera.frame.focal)

    @property
    def _middle(self) -> Tensor:
        return (self._lower + self._upper) / 2

    def _leave_out_outliers(self) -> None:
        """Reduce the bounds and the extreme points to the region that the picture shows."""
        points = self.sample.world()
        region = bounds(points.numpy())
        if not region.edge:
            return
        near = points[torch.from_numpy(region.inside(points.numpy()))]
        extremes = torch.cat([self._extremes[torch.from_numpy(region.inside(self._extremes.numpy()))], near])
        self._extremes = self.view.extremes(extremes)
        self._lower, self._upper = extremes.amin(0), extremes.amax(0)

    def _add(self, part: Cloud, by: str | None) -> Tensor:
        """Update the statistics with a part, and return its extreme points."""
        self.count += len(part)
        world = part.world()
        self._lower, self._upper = self._lower.minimum(world.amin(0)), self._upper.maximum(world.amax(0))
        column = part.labels if by in (None, LABEL) and part.labels is not None else part.features.get(by or "")
        if column is not None and column.dim() == 1 and not column.is_floating_point():
            self._counts.update(_counted(column))
        return self.view.extremes(world)

    def _chosen(self, part: Cloud) -> Cloud:
        """Select points for the sample: those whose hash ends in the current number of zero bits."""
        if not self._zeros:
            return part
        hashes = position_hashes(part.world().numpy())
        return part.select(torch.from_numpy(hashes & np.uint64((1 << self._zeros) - 1) == 0))

    def _thinned(self, picked: list[Cloud]) -> list[Cloud]:
        while sum(map(len, picked)) > self._most:
            self._zeros += 1
            fewer = [self._chosen(part) for part in picked]
            if not any(map(len, fewer)):  # very few distinct positions
                return [_join(picked).select(torch.arange(self._most))]
            picked = fewer
        return picked


def _counted(column: Tensor) -> dict[int, int]:
    low = int(column.min())
    if int(column.max()) - low < FEW:  # much faster than sorting
        counts = torch.bincount(column.long() - low).tolist()
        return {low + offset: count for offset, count in enumerate(counts) if count}
    values, counts = (found.tolist() for found in column.unique(return_counts=True))
    return dict(zip(values, counts, strict=True))


def _finite(cloud: Cloud) -> Cloud:
    """Remove points with non-finite coordinates, and detach."""
    points = cloud.points.detach()
    known = points.isfinite().all(1)
    cloud = replace(cloud, points=points)
    return cloud if bool(known.all()) else cloud.select(known)


def _only(cloud: Cloud, by: str) -> Cloud:
    """Keep only the features that are needed for coloring by `by`."""
    wanted = (*CHANNELS, RGB) if by == RGB else (by.partition("[")[0],)
    return replace(cloud, features={name: cloud.features[name] for name in wanted if name in cloud.features})


def _join(clouds: list[Cloud]) -> Cloud:
    """Concatenate the parts of a cloud."""
    first = clouds[0]
    if len(clouds) == 1:
        return first
    shared = [name for name in first.features if all(name in cloud.features for cloud in clouds)]
    labels = [cloud.labels for cloud in clouds if cloud.labels is not None]
    return replace(
        first,
        points=torch.cat([cloud.world() - first.origin for cloud in clouds]),
        features={name: torch.cat([cloud.features[name] for cloud in clouds]) for name in shared},
        labels=torch.cat(labels) if len(labels) == len(clouds) else None,
    )
