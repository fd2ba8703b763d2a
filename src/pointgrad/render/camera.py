"""Where a picture is taken from: a direction, and the distance at which all points are just in it."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

FIELD = math.radians(35)  # across the longer side of a picture
NEAREST = 0.5  # of the depth of a cloud lies at least between it and the camera
SPARSE = 0.2  # of the area of a cloud may have less dense points than the dots are made for
SLOPES = 4  # directions from straight ahead to the edge of a picture in which the outermost points are looked for


class Seen(NamedTuple):
    """Points in a picture: across and down in pixels from its upper left corner, and depth, (N,) float32 each."""

    across: Tensor
    down: Tensor
    depth: Tensor


class Frame(NamedTuple):
    """The size of a picture in pixels, and how much of it stays free on all sides."""

    width: int
    height: int
    margin: float

    @property
    def focal(self) -> float:
        """Pixels that a unit covers at depth one."""
        return max(self.width, self.height) / 2 / math.tan(FIELD / 2)

    @property
    def slopes(self) -> tuple[float, float]:
        """How far the edges lie to the side of the middle and above it, at depth one."""
        return (self.width / 2 - self.margin) / self.focal, (self.height / 2 - self.margin) / self.focal


@dataclass(frozen=True)
class View:
    """A direction to look from.

    azimuth: degrees, from +x over +y, where the camera stands as seen from above. elevation: degrees above the ground.
    """

    azimuth: float
    elevation: float

    def axes(self) -> Tensor:
        """(3, 3) float64: what points right, up and to the camera."""
        turn, tilt = math.radians(self.azimuth), math.radians(self.elevation)
        right = (-math.sin(turn), math.cos(turn), 0.0)
        up = (-math.sin(tilt) * math.cos(turn), -math.sin(tilt) * math.sin(turn), math.cos(tilt))
        back = (math.cos(tilt) * math.cos(turn), math.cos(tilt) * math.sin(turn), math.sin(tilt))
        return torch.tensor([right, up, back], dtype=torch.float64)

    def extremes(self, points: Tensor) -> Tensor:
        """A few of the points (N, 3) float64, from which `fit` finds nearly the same camera as from all."""
        near = (points - (points.amin(0) + points.amax(0)) / 2).float()
        x, y, z = _turned(near, self.axes().float())
        places = [z.argmax(), z.argmin()]
        for step in range(1, SLOPES + 1):
            slope = math.tan(FIELD / 2) * step / SLOPES
            places += [(slope * z + side).argmax() for side in (x, -x, y, -y)]
        return points[torch.stack(places)]

    def fit(self, points: Tensor, anchor: Tensor, frame: Frame) -> "Camera":
        """The nearest camera that has all points (N, 3) float64 in its frame. anchor: (3,) a place among them."""
        wide, high = frame.slopes
        x, y, z = _turned(points - anchor, self.axes())
        right, left = (float((wide * z + side).amax()) for side in (x, -x))
        top, bottom = (float((high * z + side).amax()) for side in (y, -y))
        front, rear = float(z.amax()), float(z.amin())
        distance = max((right + left) / 2 / wide, (top + bottom) / 2 / high, front + NEAREST * (front - rear))
        if distance - front <= 1e-9 * max(abs(distance), front - rear) or distance < 1e-30:  # all at one place
            distance = front + 1.0
        return Camera(self, frame, anchor, (right - left) / 2, (top - bottom) / 2, distance)


@dataclass(frozen=True)
class Camera:
    """A view from a place: `distance` away from the anchor, moved to the right and up by `shift` and `lift`."""

    view: View
    frame: Frame
    anchor: Tensor
    shift: float
    lift: float
    distance: float

    def project(self, points: Tensor, origin: Tensor) -> Seen:
        """points: (N, 3) relative to origin (3,) float64. What is far from zero is first brought near to the anchor, in
        double precision."""
        near = (points.double() + (origin - self.anchor)).float()
        x, y, z = _turned(near, self.view.axes().float())
        depth = self.distance - z
        scale = self.frame.focal / depth
        across = self.frame.width / 2 + (x - self.shift) * scale
        return Seen(across, self.frame.height / 2 - (y - self.lift) * scale, depth)


def _turned(points: Tensor, axes: Tensor) -> list[Tensor]:
    """(N,) each: how far the points lie along the axes. Not a matrix product, which rounds differently for other N."""
    x, y, z = points.T.contiguous()
    return [x * axis[0] + y * axis[1] + z * axis[2] for axis in axes]


def spacing(seen: Seen, total: int) -> float:
    """How many pixels lie between points that are neighbours in the picture, if `seen` is a sample of `total`.

    Cells of a size that most of those with points have several say how dense points are where there are any.
    """
    across, down = (side.double().numpy() for side in (seen.across, seen.down))
    cell, most = 1.0, max(np.ptp(across), np.ptp(down), 1.0)
    while True:
        cells = np.floor(across / cell).astype(np.int64) << 32 | np.floor(down / cell).astype(np.int64) & 0xFFFFFFFF
        counts = np.unique(cells, return_counts=True)[1]
        if len(across) >= 8 * len(counts) or cell > most:
            return float(cell / math.sqrt(np.quantile(counts, SPARSE) * total / len(across)))
        cell *= 2
