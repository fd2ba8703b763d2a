"""A synthetic labeled street scene, which needs no download."""

import math
from typing import NamedTuple

import numpy as np
import torch

from pointgrad.data.cloud import Cloud
from pointgrad.data.datasets.shapes.surface import Surface

STREET_CLASSES = ("car", "building", "tree", "pole", "fence", "ground")
CAR, BUILDING, TREE, POLE, FENCE, GROUND = range(6)
NOISE = 0.02  # standard deviation in metres
LEAVES = 0.35  # the same, for trees
WALLS = ((201, 186, 160), (188, 120, 100), (216, 210, 198), (150, 160, 150), (196, 170, 120))
ROOFS = ((130, 66, 54), (92, 84, 84), (110, 72, 60))
CARS = ((170, 40, 44), (46, 84, 140), (212, 214, 216), (52, 56, 60), (180, 150, 60))


class _Material(NamedTuple):
    label: int
    color: tuple[int, int, int]


class _Town:
    """Builds surfaces, each with a material."""

    def __init__(self, rng: "np.random.Generator") -> None:
        self.surface, self.rng = Surface(), rng
        self.materials: list[_Material] = []

    def material(self, label: int, color: tuple[int, int, int]) -> int:
        self.materials.append(_Material(label, color))
        return len(self.materials) - 1

    def between(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def one(self, colors: tuple[tuple[int, int, int], ...]) -> tuple[int, int, int]:
        return colors[self.rng.integers(len(colors))]

    def floor(self, length: float, near: float, far: float, height: float, color: tuple[int, int, int]) -> None:
        part = self.material(GROUND, color)
        self.surface.flat(part, (0, near, height), (length, 0, 0), (0, far - near, 0))

    def house(self, x: float, y: float, width: float) -> None:
        """Add a house between y and larger y, with the ridge of its roof along x."""
        wall, roof = self.material(BUILDING, self.one(WALLS)), self.material(BUILDING, self.one(ROOFS))
        deep, high, rise = self.between(6.5, 8.5), self.between(4.5, 7.5), self.between(1.8, 3.0)
        for side, ridge in ((y, deep / 2), (y + deep, -deep / 2)):
            self.surface.flat(wall, (x, side, 0), (width, 0, 0), (0, 0, high))
            self.surface.flat(roof, (x, side, high), (width, 0, 0), (0, ridge, rise))
        for end in (x, x + width):
            self.surface.flat(wall, (end, y, 0), (0, deep, 0), (0, 0, high))
            for step in range(6):  # the gable, in strips of decreasing width
                inset = deep / 2 * step / 6
                strip = (end, y + inset, high + rise * step / 6)
                self.surface.flat(wall, strip, (0, deep - 2 * inset, 0), (0, 0, rise / 6))
        self.surface.box(wall, (x + width * 0.3, y + deep * 0.6, high + rise * 0.9), (0.7, 0.7, 1.6))

    def fence(self, x: float, y: float, length: float) -> None:
        wood = self.material(FENCE, (148, 118, 88))
        for post in np.linspace(x, x + length, 2 + int(length / 2.5)).tolist():
            self.surface.rod(wood, (post, y, 0.15), (post, y, 1.25), 0.06)
        for rail in (0.35, 0.65, 0.95):
            self.surface.flat(wood, (x, y, rail), (length, 0, 0), (0, 0, 0.16))

    def tree(self, x: float, y: float) -> None:
        bark, leaves = (
            self.material(TREE, (96, 74, 56)),
            self.material(TREE, (70, int(self.rng.integers(110, 145)), 62)),
        )
        trunk, radius = self.between(1.6, 2.6), self.between(1.3, 2.0)
        self.surface.rod(bark, (x, y, 0), (x, y, trunk + 0.5), 0.16, 0.1)
        stretch = self.between(1.0, 1.4)
        angles = np.linspace(0, math.pi, 9)
        profile = [(radius * math.sin(a), radius * stretch * (1 - math.cos(a))) for a in angles.tolist()]
        for _ in range(2):  # twice, for a higher density of leaves
            self.surface.lathe(leaves, profile, (x, y, trunk))

    def car(self, x: float, y: float) -> None:
        body, tyre = self.material(CAR, self.one(CARS)), self.material(CAR, (40, 42, 46))
        length, width = self.between(3.9, 4.6), 1.75
        self.surface.box(body, (x, y, 0.62), (length, width, 0.62))
        self.surface.box(body, (x - length * 0.06, y, 1.17), (length * 0.5, width * 0.88, 0.52))
        for wheel in (-0.3, 0.3):
            for side in (-0.5, 0.5):
                center = (x + wheel * length, y + side * width, 0.33)
                self.surface.lathe(tyre, [(0, 0), (0.33, 0)], center, ((1, 0, 0), (0, 0, 1), (0, 1, 0)))
                self.surface.lathe(tyre, [(0.33, -0.1), (0.33, 0.1)], center, ((1, 0, 0), (0, 0, 1), (0, 1, 0)))

    def lamp(self, x: float, y: float, toward: float) -> None:
        steel = self.material(POLE, (120, 126, 134))
        self.surface.rod(steel, (x, y, 0), (x, y, 6.5), 0.1, 0.07)
        self.surface.rod(steel, (x, y, 6.4), (x, y + toward * 1.4, 6.7), 0.06)
        self.surface.box(steel, (x, y + toward * 1.5, 6.68), (0.3, 0.6, 0.14))


def street(points: int = 100_000, *, length: float = 60.0, seed: int = 0) -> Cloud:
    """Generate a street along x, 30 metres wide, with houses, trees, parked cars, lamps and fences.

    Args:
        points: Number of points N, uniform over the surface.
        length: Length in metres.
        seed: Random seed; equal seeds give equal points.

    Returns:
        A cloud with points (N, 3), where z is the height above the road, `labels` (N,) of the classes
        `STREET_CLASSES`, and the features red, green, blue (uint8) and intensity (float32).

    Raises:
        ValueError: If `points` or `length` is out of range.

    Example:
        >>> scene = street(1000)
        >>> len(scene), scene.labels.unique().tolist(), list(scene.features)
        (1000, [0, 1, 2, 3, 4, 5], ['red', 'green', 'blue', 'intensity'])
    """
    if points < 1:
        raise ValueError(f"points must be at least 1, got {points}")
    if not 10 <= length <= 10_000:
        raise ValueError(f"length must be from 10 to 10000 metres, got {length}")
    rng = np.random.default_rng(seed)
    town = _Town(rng)
    for near, far, height, color in (
        (-15, -6, 0.15, (122, 140, 92)), (-6, -3.5, 0.15, (168, 166, 162)), (-3.5, 3.5, 0.0, (104, 106, 112)),
        (3.5, 6, 0.15, (168, 166, 162)), (6, 15, 0.15, (122, 140, 92)),
    ):  # fmt: skip
        town.floor(length, near, far, height, color)
    for side in (-1, 1):
        x = town.between(0, 2)
        while (width := town.between(8, 12)) < length - x:
            if side > 0 or rng.random() < 0.3:  # few houses on the near side, to keep the street visible
                town.house(x, 7.0 if side > 0 else -15.0, width)
            if rng.random() < 0.6:
                town.fence(x + 0.5, side * 6.2, width - 1.0)
            x += width + town.between(1.5, 5)
        for along in np.arange(3, length - 2, 7.5):
            if rng.random() < 0.75:
                town.tree(float(along) + town.between(-1, 1), side * town.between(5.2, 5.8))
        for along in np.arange(4, length - 4, 6.0):
            if rng.random() < 0.5:
                town.car(float(along) + town.between(-0.4, 0.4), side * 2.4)
        for along in np.arange(7 if side > 0 else 19, length, 24.0):
            town.lamp(float(along), side * 4.1, -side)
    xyz, part = town.surface.sample(points, rng)
    labels = np.array([material.label for material in town.materials])[part]
    noise = np.where(labels == TREE, LEAVES, NOISE) * rng.standard_normal((3, points))
    colors = np.array([material.color for material in town.materials])[part]
    shade = rng.normal(1.0, 0.06, points)
    bytes_ = np.clip(np.rint(colors * shade[:, None]), 0, 255).astype(np.uint8)
    order = rng.permutation(points)

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values[order]))

    return Cloud(
        points=column((xyz + noise).T.astype(np.float32)),
        features={
            **{name: column(bytes_[:, channel]) for channel, name in enumerate(("red", "green", "blue"))},
            "intensity": column((colors.mean(1) / 255 * shade).astype(np.float32)),
        },
        labels=column(labels),
    )
