"""Surfaces composed of patches, and uniform sampling of points on them.

A patch maps (u, v) in the unit square to `origin + alpha a + beta b + gamma c`. It is a flat parallelogram, a ring
between two radii (a cone, cylinder or disc; several of them form any surface of revolution), or an arc of a torus.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

FLAT, RING, ARC = 0, 1, 2
Vector = Sequence[float]
X, Y, Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


class Surface:
    """The patches of one shape. The first argument of each method is the part number."""

    def __init__(self) -> None:
        self._patches: tuple[list[tuple[float, ...]], ...] = ([], [], [])

    def flat(self, part: int, origin: Vector, a: Vector, b: Vector) -> None:
        """Add a parallelogram with corners origin, origin + a and origin + b."""
        area = math.hypot(a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
        self._patches[FLAT].append((part, area, *origin, *a, *b, 0, 0, 0, 0, 0, 0, 0))

    def box(self, part: int, center: Vector, size: Vector, slant: float = 0.0) -> None:
        """Add an axis-aligned box whose top is shifted along y by `slant`."""
        (cx, cy, cz), (w, d, h) = center, size
        x, y, z = cx - w / 2, cy - d / 2, cz - h / 2
        a, b, c = (w, 0, 0), (0, d, 0), (0, slant, h)
        top, right, back = (x, y + slant, z + h), (x + w, y, z), (x, y + d, z)
        for origin, first, second in (
            ((x, y, z), a, b), (top, a, b), ((x, y, z), a, c), (back, a, c), ((x, y, z), b, c), (right, b, c),
        ):  # fmt: skip
            self.flat(part, origin, first, second)

    def lathe(
        self,
        part: int,
        profile: Sequence[tuple[float, float]],
        center: Vector = (0, 0, 0),
        axes: tuple[Vector, Vector, Vector] = (X, Y, Z),
    ) -> None:
        """Add the surface of revolution of a polyline of (radius, height) about the third axis."""
        a, b, c = axes
        for (r0, z0), (r1, z1) in itertools.pairwise(profile):
            origin = (center[0] + z0 * c[0], center[1] + z0 * c[1], center[2] + z0 * c[2])
            area = math.pi * (r0 + r1) * math.hypot(r1 - r0, z1 - z0) * math.sqrt(math.hypot(*a) * math.hypot(*b))
            self._patches[RING].append((part, area, *origin, *a, *b, *c, r0, r1, z1 - z0, 2 * math.pi))

    def rod(self, part: int, start: Vector, end: Vector, r0: float, r1: float | None = None) -> None:
        """Add a round bar between two points, open at both ends."""
        c = (end[0] - start[0], end[1] - start[1], end[2] - start[2])
        length = math.hypot(*c)
        c = (c[0] / length, c[1] / length, c[2] / length)
        other = X if abs(c[0]) < 0.7 else Y
        a = _unit(_cross(other, c))
        self.lathe(part, [(r0, 0), (r0 if r1 is None else r1, length)], start, (a, _cross(c, a), c))

    def arc(
        self, part: int, center: Vector, a: Vector, b: Vector, radius: float, tube: float, begin: float, end: float
    ) -> None:
        """Add a part of a torus in the plane of a and b, between two angles."""
        c = _cross(a, b)
        area = 2 * math.pi * tube * radius * (end - begin)
        self._patches[ARC].append((part, area, *center, *a, *b, *c, radius, tube, begin, end))

    def sample(self, count: int, rng: "np.random.Generator") -> tuple[np.ndarray, np.ndarray]:
        """Draw points (3, count) uniformly by area, sorted by patch, and return them with their parts (count,)."""
        patches = np.array([patch for kind in self._patches for patch in kind], np.float32).T
        bounds = np.cumsum(patches[1], dtype=np.float64)
        draw = (np.arange(count) + rng.random(count)) * (bounds[-1] / count)  # stratified by area
        index = np.minimum(np.searchsorted(bounds, draw), len(bounds) - 1)
        ends = np.searchsorted(index, np.cumsum([len(kind) for kind in self._patches]))
        chosen = patches[:, index]
        weights = np.zeros((3, count), np.float32)
        weights[:2] = u, v = rng.random((2, count), np.float32)

        ring = slice(ends[FLAT], ends[RING])
        r0, r1, rise, turn = chosen[14:, ring]
        # Uniform by area: the area within radius r is proportional to r squared, or to the height for equal radii.
        radius = np.sqrt(r0 * r0 + v[ring] * (r1 * r1 - r0 * r0))
        slope = r1 - r0
        level = np.abs(slope) < 1e-4
        share = np.where(level, v[ring], (radius - r0) / np.where(level, 1, slope))
        angle = u[ring] * turn
        weights[:, ring] = radius * np.cos(angle), radius * np.sin(angle), share * rise

        arc = slice(ends[RING], ends[ARC])
        bend, tube, begin, end = chosen[14:, arc]
        angle, around = begin + u[arc] * (end - begin), np.float32(2 * math.pi) * v[arc]
        radius = bend + tube * np.cos(around)
        weights[:, arc] = radius * np.cos(angle), radius * np.sin(angle), tube * np.sin(around)

        alpha, beta, gamma = weights
        points = chosen[2:5] + alpha * chosen[5:8] + beta * chosen[8:11] + gamma * chosen[11:14]
        return points, chosen[0].astype(np.int64)


def _cross(a: Vector, b: Vector) -> tuple[float, float, float]:
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def _unit(a: Vector) -> tuple[float, float, float]:
    length = math.hypot(*a)
    return (a[0] / length, a[1] / length, a[2] / length)
