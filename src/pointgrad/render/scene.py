"""A cloud in parts, as a picture needs it: one pass finds what must be known before, a second one draws."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pointgrad.data import Cloud
from pointgrad.data.files.summary import place_hashes
from pointgrad.render.camera import Camera, Frame, View, spacing
from pointgrad.render.canvas import Canvas
from pointgrad.render.colors import CHANNELS, LABEL, RGB, Scale, first_choice, paint, scale

SAMPLE = 250_000  # points from which colours and the size of dots are chosen
CLOSED = 2.6  # diameter of dots, in distances of neighbours, that leaves no holes in surfaces
LARGEST, SMALLEST = 0.025, 1.0  # diameter of dots that are chosen: of the shorter side of the picture; in pixels
FEW = 100_000  # different numbers that are counted without sorting
FARTHEST = 1e30  # beyond, single precision ends
RIM = 64  # points of the circles between which a cloud turns
SOFT = 20.0  # pixels of depth that make an edge as dark as it gets

Parts: TypeAlias = Callable[[], Iterable[Cloud]]  # those of one cloud, from the beginning at each call


class Scene:
    """A cloud, and what one pass over its parts finds.

    view: the direction of the picture. by: the column of the colours, if it is known already.
    count, dropped: how many points have finite coordinates, and how many not.
    sample: at most `most` of the points, the same ones whatever their order and the parts.
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
            whole, prefix = _finite(part), part.prefix()
            self.dropped += len(part) - len(whole)
            if len(whole):
                extremes.append(self._add(whole, by))
                picked = self._thinned([*picked, self._chosen(whole)])
        if not self.count:
            found = f"{self.dropped:,} points without" if self.dropped else "no points"
            raise ValueError(f"{prefix}expected points with finite coordinates, got {found}")
        if not float(torch.cat([self._lower, self._upper]).abs().max()) <= FARTHEST:
            raise ValueError(
                f"{prefix}expected coordinates up to {FARTHEST:g}, got {self._lower.tolist()} to {self._upper.tolist()}"
            )
        self._extremes, self.sample = torch.cat(extremes), _join(picked)

    def scale(self, by: str | None, names: Mapping[int, str] | None) -> Scale:
        """How a column becomes colours; without its name, the one that shows most."""
        found = scale(self.sample, by or first_choice(self.sample), names)
        return replace(found, counts=dict(sorted(self._counts.items()))) if found.kind == "class" else found

    def sampled(self) -> "Scene":
        """The scene of the sample alone, which is drawn often without reading a file again."""
        made = Scene(lambda: [self.sample], self.view, most=self._most)
        made.dropped = self.dropped
        return made

    def camera(self, frame: Frame) -> Camera:
        """With all points just in its frame."""
        return self.view.fit(self._extremes, self._middle, frame)

    def circling(self, frame: Frame, azimuth: float) -> Camera:
        """At the same distance for every azimuth, with all points in its frame for each."""
        turn = torch.arange(RIM, dtype=torch.float64) * (2 * math.pi / RIM)
        radius = (self._upper - self._lower)[:2].norm() / 2 / math.cos(math.pi / RIM)
        circle = torch.stack([turn.cos() * radius, turn.sin() * radius, torch.zeros(RIM)], dim=1)
        rims = torch.cat([circle + torch.cat([self._middle[:2], end[2:]]) for end in (self._lower, self._upper)])
        first = View(0.0, self.view.elevation).fit(rims, self._middle, frame)
        return replace(first, view=View(azimuth, self.view.elevation))

    def dots(self, camera: Camera) -> float:
        """A diameter in pixels, in the middle of the cloud, that closes surfaces."""
        seen = camera.project(self.sample.points, self.sample.origin)
        at_middle = spacing(seen, self.count) * float(seen.depth.median()) / camera.distance
        most = LARGEST * min(camera.frame.width, camera.frame.height)
        return max(min(CLOSED * at_middle, most), SMALLEST)

    def draw(self, camera: Camera, scale: Scale, diameter: float) -> np.ndarray:
        """(height, width, 4) float32 from 0 to 1: colours times opacity, and opacity."""
        canvas = Canvas(camera.frame.width, camera.frame.height)
        for part in self._parts():
            shown = _finite(_only(part, scale.by))
            seen = camera.project(shown.points, shown.origin)
            canvas.add(seen, paint(shown, scale), diameter / 2, camera.distance)
        return canvas.image(SOFT * camera.distance / camera.frame.focal)

    @property
    def _middle(self) -> Tensor:
        return (self._lower + self._upper) / 2

    def _add(self, part: Cloud, by: str | None) -> Tensor:
        """Takes note of a part; returns its outermost points."""
        self.count += len(part)
        world = part.world()
        self._lower, self._upper = self._lower.minimum(world.amin(0)), self._upper.maximum(world.amax(0))
        column = part.labels if by in (None, LABEL) and part.labels is not None else part.features.get(by or "")
        if column is not None and column.dim() == 1 and not column.is_floating_point():
            self._counts.update(_counted(column))
        return self.view.extremes(world)

    def _chosen(self, part: Cloud) -> Cloud:
        """Points for the sample: those whose hash ends in zeros, in as many as makes them few enough."""
        if not self._zeros:
            return part
        hashes = place_hashes(part.world().numpy())
        return part.select(torch.from_numpy(hashes & np.uint64((1 << self._zeros) - 1) == 0))

    def _thinned(self, picked: list[Cloud]) -> list[Cloud]:
        while sum(map(len, picked)) > self._most:
            self._zeros += 1
            fewer = [self._chosen(part) for part in picked]
            if not any(map(len, fewer)):  # all at very few places
                return [_join(picked).select(torch.arange(self._most))]
            picked = fewer
        return picked


def _counted(column: Tensor) -> dict[int, int]:
    low = int(column.min())
    if int(column.max()) - low < FEW:  # much faster than sorting
        counts = torch.bincount(column.long() - low).tolist()
        return {low + place: count for place, count in enumerate(counts) if count}
    values, counts = (found.tolist() for found in column.unique(return_counts=True))
    return dict(zip(values, counts, strict=True))


def _finite(cloud: Cloud) -> Cloud:
    """Without points that have no place, and without their gradients."""
    points = cloud.points.detach()
    known = points.isfinite().all(1)
    cloud = replace(cloud, points=points)
    return cloud if bool(known.all()) else cloud.select(known)


def _only(cloud: Cloud, by: str) -> Cloud:
    """Without the columns that colours by this name do not need."""
    wanted = (*CHANNELS, RGB) if by == RGB else (by.partition("[")[0],)
    return replace(cloud, features={name: cloud.features[name] for name in wanted if name in cloud.features})


def _join(clouds: list[Cloud]) -> Cloud:
    """One cloud of its parts."""
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
