"""What a scanner makes of an object: a pose, hidden and missing points, uneven density, noise, outliers."""

import math

import numpy as np

OVERSAMPLING = 3  # points drawn from the surface for each that is kept
OUTLIER = -1  # the part of a point that belongs to none


def scan(points: np.ndarray, parts: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(count, 3) float32 points and their parts, from a denser sample of the surface."""
    draw = rng.random(16)
    points = points - points.mean(0)
    points /= np.sqrt((points**2).sum(1).max())
    points = points @ _rotation(2 * math.pi * draw[0], math.radians(15) * draw[1], 2 * math.pi * draw[2])
    keep = np.ones(len(points), bool)
    if draw[3] < 0.5:
        keep &= _visible(points, 2 * math.pi * draw[4], math.radians(70 * draw[5] - 10))
    for hole in range(int(draw[6] * 3)):
        center = points[int(draw[7 + hole] * len(points))]
        keep &= ((points - center) ** 2).sum(1) > (0.12 + 0.13 * draw[9 + hole]) ** 2
    # The smallest of exponential draws with rates `weight`: a weighted choice without repetition.
    heading = 2 * math.pi * draw[11]
    slope = 1.2 * draw[12]
    weight = np.exp(slope * (points[:, 0] * math.cos(heading) + points[:, 1] * math.sin(heading)))
    key = rng.standard_exponential(len(points)) / weight
    key[~keep] = np.inf
    order = np.argsort(key)[: max(1, keep.sum())]
    chosen = rng.permutation(np.resize(order, count) if len(order) < count else order[:count])
    out = points[chosen] + rng.standard_normal((count, 3)) * (0.004 + 0.012 * draw[13])
    part = parts[chosen]
    outliers = int(count * 0.02 * draw[14])
    out[:outliers] = rng.uniform(-1, 1, (outliers, 3))
    part[:outliers] = OUTLIER
    order = rng.permutation(count)
    return (out[order] * (0.5 + draw[15])).astype(np.float32), part[order]


def _rotation(heading: float, tilt: float, toward: float) -> np.ndarray:
    """To multiply rows with: a turn about z, then a tilt about a horizontal axis."""
    c, s = math.cos(heading), math.sin(heading)
    turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    x, y = math.cos(toward), math.sin(toward)
    c, s = math.cos(tilt), math.sin(tilt)
    lean = np.array(
        [
            [c + x * x * (1 - c), x * y * (1 - c), -y * s],
            [x * y * (1 - c), c + y * y * (1 - c), x * s],
            [y * s, -x * s, c],
        ]
    )
    return turn @ lean.T


def _visible(points: np.ndarray, heading: float, elevation: float) -> np.ndarray:
    """Which points are seen from far away: those near the front of their cell of an image."""
    c, s = math.cos(heading), math.sin(heading)
    up = math.sin(elevation)
    flat = math.cos(elevation)
    across = points @ np.array([-s, c, 0])
    upward = points @ np.array([-c * up, -s * up, flat])
    depth = -(points @ np.array([c * flat, s * flat, up]))
    cell = 2.5 / math.sqrt(len(points))
    side = int(2.1 / cell) + 1
    index = ((across + 1.05) / cell).astype(np.int64) * side + ((upward + 1.05) / cell).astype(np.int64)
    front = np.full(side * (side + 1), np.inf)
    np.minimum.at(front, index, depth)
    return depth < front[index] + 1.5 * cell
