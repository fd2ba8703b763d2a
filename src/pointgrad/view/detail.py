"""Which points are worth drawing: how many of each leaf, for a camera and a number of points in all."""

from dataclasses import dataclass

import numpy as np

COARSEST = 64  # points that every leaf keeps, so that nothing vanishes when the camera turns
BEHIND = 0.02  # how much a leaf outside of the picture counts


@dataclass(frozen=True)
class Camera:
    """position, look: (3,) where it is, and the unit vector that it looks along. half_angle: from the middle of the
    picture to a corner, in radians."""

    position: np.ndarray
    look: np.ndarray
    half_angle: float


def shares(low: np.ndarray, high: np.ndarray, counts: np.ndarray, camera: Camera | None, budget: int) -> np.ndarray:
    """(L,) how many points of each leaf to draw, about `budget` in all.

    low, high: (L, 3) bounds of the leaves; counts: (L,) their points. Leaves get points by the area that they fill in
    the picture; what a small leaf cannot use goes to the others. Without a camera, all leaves count by their points.

    Numbers are powers of two, or all that there is: a small move changes few of them, and little is sent again.
    """
    if counts.sum() <= budget:
        return counts.copy()
    weights = counts.astype(np.float64) if camera is None else _area(low, high, camera)
    coarse = np.minimum(counts, COARSEST)
    wanted = coarse + _fill(weights, counts - coarse, max(0, budget - int(coarse.sum())))
    rounded = 2 ** np.floor(np.log2(wanted)).astype(np.int64)
    return np.where(wanted >= counts, counts, np.maximum(rounded, coarse))


def _area(low: np.ndarray, high: np.ndarray, camera: Camera) -> np.ndarray:
    """About the solid angle of each leaf, less where it is out of the picture."""
    middle, radius = (low + high) / 2, np.linalg.norm(high - low, axis=1) / 2
    towards = middle - camera.position
    distance = np.maximum(np.linalg.norm(towards, axis=1), 1e-12)
    apparent = np.arctan2(radius, np.maximum(distance - radius, 0))  # a right angle for a leaf around the camera
    off = np.arccos(np.clip(towards @ camera.look / distance, -1, 1))
    outside = (off - apparent > camera.half_angle) & (distance > radius)
    return np.maximum(apparent, 1e-6) ** 2 * np.where(outside, BEHIND, 1.0)


def _fill(weights: np.ndarray, counts: np.ndarray, budget: int) -> np.ndarray:
    """Shares of the budget in proportion to the weights, none above its count."""
    level = 0.0
    # wanted(level) = min(counts, level * weights) grows with the level; leaves fill up in the order of count / weight.
    order = np.argsort(counts / weights)
    rest, left = float(weights.sum()), float(budget)
    for leaf in order:
        level = left / rest
        if counts[leaf] > level * weights[leaf]:
            break
        left -= counts[leaf]
        rest -= weights[leaf]
    return np.minimum(counts, level * weights)
