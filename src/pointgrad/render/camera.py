"""Viewing directions, and perspective cameras fitted to a cloud."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

FIELD = math.radians(35)  # field of view along the longer side of an image
NEAREST = 0.5  # minimum distance between camera and cloud, relative to the depth of the cloud
SPARSE = 0.2  # fraction of the area that may be less dense than the dots are sized for
SLOPES = 4  # directions between the optical axis and the image edge in which extreme points are searched


class Seen(NamedTuple):
    """Projected points: pixels right of and below the upper left corner, and depth, each (N,) float32."""

    across: Tensor
    down: Tensor
    depth: Tensor

    def visible(self, frame: "Frame") -> Tensor:
        """Whether each point is in front of the camera and in the frame, up to rounding: (N,) bool."""
        across = (self.across > -1) & (self.across < frame.width + 1)
        return (self.depth > 0) & across & (self.down > -1) & (self.down < frame.height + 1)

    def select(self, rows: Tensor) -> "Seen":
        """Select points."""
        return Seen(self.across[rows], self.down[rows], self.depth[rows])


class Frame(NamedTuple):
    """Size of an image in pixels, the margin that stays free on all sides, and the field of view."""

    width: int
    height: int
    margin: float
    field: float = FIELD  # field of view along the longer side

    @property
    def focal(self) -> float:
        """Focal length in pixels."""
        return max(self.width, self.height) / 2 / math.tan(self.field / 2)

    @property
    def slopes(self) -> tuple[float, float]:
        """Half width and half height of the frame without margin, at depth one."""
        return (self.width / 2 - self.margin) / self.focal, (self.height / 2 - self.margin) / self.focal


@dataclass(frozen=True)
class View:
    """A viewing direction.

    Attributes:
        azimuth: Direction of the camera in the xy plane, in degrees from +x towards +y.
        elevation: Angle of the camera above the xy plane, in degrees.
    """

    azimuth: float
    elevation: float

    def axes(self) -> Tensor:
        """Unit vectors (3, 3), float64, that point right, up and towards the camera."""
        turn, tilt = math.radians(self.azimuth), math.radians(self.elevation)
        right = (-math.sin(turn), math.cos(turn), 0.0)
        up = (-math.sin(tilt) * math.cos(turn), -math.sin(tilt) * math.sin(turn), math.cos(tilt))
        back = (math.cos(tilt) * math.cos(turn), math.cos(tilt) * math.sin(turn), math.sin(tilt))
        return torch.tensor([right, up, back], dtype=torch.float64)

    def extremes(self, points: Tensor) -> Tensor:
        """Select a few of the points (N, 3), float64, for which `fit` finds nearly the same camera as for all."""
        near = (points - (points.amin(0) + points.amax(0)) / 2).float()
        x, y, z = _turned(near, self.axes().float())
        extremes = [z.argmax(), z.argmin()]
        for step in range(1, SLOPES + 1):
            slope = math.tan(FIELD / 2) * step / SLOPES
            extremes += [(slope * z + side).argmax() for side in (x, -x, y, -y)]
        return points[torch.stack(extremes)]

    def fit(self, points: Tensor, anchor: Tensor, frame: Frame) -> "Camera":
        """Find the nearest camera whose frame contains all points (N, 3), float64; `anchor` (3,) is near them."""
        wide, high = frame.slopes
        x, y, z = _turned(points - anchor, self.axes())
        right, left = (float((wide * z + side).amax()) for side in (x, -x))
        top, bottom = (float((high * z + side).amax()) for side in (y, -y))
        front, rear = float(z.amax()), float(z.amin())
        distance = max((right + left) / 2 / wide, (top + bottom) / 2 / high, front + NEAREST * (front - rear))
        if distance - front <= 1e-9 * max(abs(distance), front - rear) or distance < 1e-30:  # identical points
            distance = front + 1.0
        return Camera(self, frame, anchor, (right - left) / 2, (top - bottom) / 2, distance)


@dataclass(frozen=True)
class Camera:
    """A camera at `distance` from the anchor, shifted right and up by `shift` and `lift`."""

    view: View
    frame: Frame
    anchor: Tensor
    shift: float
    lift: float
    distance: float

    def project(self, points: Tensor, origin: Tensor) -> Seen:
        """Project points (N, 3), which are relative to `origin` (3,), float64.

        The origin is moved to the anchor in double precision before computing in single precision.
        """
        near = (points.double() + (origin - self.anchor)).float()
        x, y, z = _turned(near, self.view.axes().float())
        depth = self.distance - z
        scale = self.frame.focal / depth
        across = self.frame.width / 2 + (x - self.shift) * scale
        return Seen(across, self.frame.height / 2 - (y - self.lift) * scale, depth)


def _turned(points: Tensor, axes: Tensor) -> list[Tensor]:
    """Coordinates of the points along the axes, each (N,). A matrix product would round differently for different N."""
    x, y, z = points.T.contiguous()
    return [x * axis[0] + y * axis[1] + z * axis[2] for axis in axes]


def spacing(seen: Seen, total: int) -> float:
    """Estimate the distance of neighboring points in an image, in pixels, if `seen` is a sample of `total` points.

    The density is estimated from square cells, large enough that those with points have eight on average.
    """
    across, down = (side.double().numpy() for side in (seen.across, seen.down))
    cell, most = 1.0, max(np.ptp(across), np.ptp(down), 1.0)
    while True:
        cells = np.floor(across / cell).astype(np.int64) << 32 | np.floor(down / cell).astype(np.int64) & 0xFFFFFFFF
        counts = np.unique(cells, return_counts=True)[1]
        if len(across) >= 8 * len(counts) or cell > most:
            return float(cell / math.sqrt(np.quantile(counts, SPARSE) * total / len(across)))
        cell *= 2
