"""Simulation of a scanner: random pose, hidden and missing points, uneven density, noise and outliers."""

import math

import numpy as np

OVERSAMPLING = 3  # points drawn from the surface for each point kept
OUTLIER = -1  # part number of outliers

TILT = math.radians(25)  # maximum
ONE_SIDED = 0.6  # fraction of objects visible from one side only
HOLES, HOLE = 3, (0.12, 0.3)  # maximum number, and range of radii relative to the object's radius
UNEVEN = 1.8  # maximum change of the logarithm of the density along the radius
NOISE = (0.004, 0.02)  # range of the standard deviation
OUTLIERS = 0.04  # maximum fraction of the points
SIZE = (0.5, 1.5)  # range of the radius


def scan(
    points: np.ndarray, parts: np.ndarray, count: int, rng: "np.random.Generator"
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate a scan from a denser sample (3, M) of the surface and its parts (M,).

    Returns points (count, 3) float32 and their parts (count,).
    """
    points = points - points.mean(1, keepdims=True)
    points /= np.sqrt((points * points).sum(0).max())
    points = _rotation(rng) @ points
    weight = _density(points, rng)
    if rng.random() < ONE_SIDED:
        weight *= _visible(points, rng)
    for _ in range(rng.integers(HOLES + 1)):
        center = points[:, rng.integers(points.shape[1]), None]
        weight *= np.square(points - center).sum(0) > rng.uniform(*HOLE) ** 2
    # Sorting exponential draws with these rates gives a weighted choice without replacement.
    with np.errstate(divide="ignore", invalid="ignore"):  # weight 0 gives infinity or NaN, which sort last
        order = np.argsort(rng.standard_exponential(len(weight), np.float32) / weight)
    # If too few are left, some are repeated; noise makes them differ.
    chosen = rng.permutation(np.resize(order[: max(1, np.count_nonzero(weight))], count))
    noise = rng.standard_normal((3, count), np.float32) * np.float32(rng.uniform(*NOISE))
    out, part = points[:, chosen] + noise, parts[chosen]
    outliers = int(rng.uniform(0, OUTLIERS) * count)
    out[:, :outliers] = rng.uniform(-1, 1, (3, outliers))
    part[:outliers] = OUTLIER
    order = rng.permutation(count)
    return np.ascontiguousarray((out[:, order] * np.float32(rng.uniform(*SIZE))).T), part[order]


def _rotation(rng: "np.random.Generator") -> np.ndarray:
    """Random rotation about z, then a tilt about a random horizontal axis."""
    heading, tilt, toward = rng.random(3) * (2 * math.pi, TILT, 2 * math.pi)
    c, s = math.cos(heading), math.sin(heading)
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]], np.float32)
    x, y, c, s = math.cos(toward), math.sin(toward), math.cos(tilt), math.sin(tilt)
    lean = [
        [c + x * x * (1 - c), x * y * (1 - c), y * s],
        [x * y * (1 - c), c + y * y * (1 - c), -x * s],
        [-y * s, x * s, c],
    ]
    return np.array(lean, np.float32) @ turn


def _direction(heading: float, elevation: float) -> tuple[float, float, float]:
    flat = math.cos(elevation)
    return flat * math.cos(heading), flat * math.sin(heading), math.sin(elevation)


def _density(points: np.ndarray, rng: "np.random.Generator") -> np.ndarray:
    """Relative density, higher on the side that faces a scanner."""
    toward = np.array(_direction(rng.uniform(0, 2 * math.pi), rng.uniform(-0.5, 0.5)), np.float32)
    return np.exp(np.float32(rng.uniform(0, UNEVEN)) * (toward @ points))


def _visible(points: np.ndarray, rng: "np.random.Generator") -> np.ndarray:
    """Mask of the points visible from a distance: those near the front of their image cell and the cells around it."""
    heading, elevation = rng.uniform(0, 2 * math.pi), math.radians(rng.uniform(-10, 60))
    right = _direction(heading + math.pi / 2, 0)
    up = _direction(heading + math.pi, math.pi / 2 - elevation)
    across, upward, nearness = np.array([right, up, _direction(heading, elevation)], np.float32) @ points
    cell = 2.5 / math.sqrt(points.shape[1])
    side = int(2.0 / cell) + 4
    index = ((across + 1) / cell + 1.5).astype(np.int64) * side + ((upward + 1) / cell + 1.5).astype(np.int64)
    single = np.full(side * side, -np.inf, np.float32)
    np.maximum.at(single, index, nearness)
    # A single cell of a closed surface may be empty; five cells together contain about five points.
    front = single.copy()
    for step in (1, side):
        np.maximum(front[step:], single[:-step], out=front[step:])
        np.maximum(front[:-step], single[step:], out=front[:-step])
    return nearness > front[index] - 3 * cell
