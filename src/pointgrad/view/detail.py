"""Level of detail: how many points of each leaf to draw for a camera and a point budget."""

from dataclasses import dataclass

import numpy as np

COARSEST = 64  # points that every leaf keeps, so that nothing vanishes when the camera turns
OUTSIDE_WEIGHT = 0.02  # relative weight of leaves outside the picture


@dataclass(frozen=True)
class Camera:
    """A camera.

    Attributes:
        position: (3,) position.
        direction: (3,) unit vector of the viewing direction.
        half_angle: Angle from the center of the picture to a corner, in radians.
    """

    position: np.ndarray
    direction: np.ndarray
    half_angle: float


def points_per_leaf(
    low: np.ndarray, high: np.ndarray, counts: np.ndarray, camera: Camera | None, budget: int
) -> np.ndarray:
    """Distribute a budget of points over the leaves of a cloud.

    A leaf's share is proportional to the area it covers in the picture; points that a small leaf cannot use go to the
    other leaves. Shares are rounded to powers of two, or to the whole leaf, so that a small camera move changes few of
    them and little has to be sent again.

    Args:
        low, high: (L, 3) bounds of the leaves.
        counts: (L,) number of points in each leaf.
        camera: The camera. Without one, leaves are weighted by their number of points.
        budget: Total number of points to draw, approximately.

    Returns:
        (L,) number of points to draw of each leaf.
    """
    if counts.sum() <= budget:
        return counts.copy()
    weights = counts.astype(np.float64) if camera is None else _area(low, high, camera)
    coarse = np.minimum(counts, COARSEST)
    wanted = coarse + _distribute(weights, counts - coarse, max(0, budget - int(coarse.sum())))
    rounded = 2 ** np.floor(np.log2(np.maximum(wanted, 1))).astype(np.int64)
    return np.where(wanted >= counts, counts, np.minimum(counts, np.maximum(rounded, coarse)))


def _area(low: np.ndarray, high: np.ndarray, camera: Camera) -> np.ndarray:
    """Approximate solid angle of each leaf, reduced for leaves outside the picture."""
    center, radius = (low + high) / 2, np.linalg.norm(high - low, axis=1) / 2
    relative = center - camera.position
    distance = np.maximum(np.linalg.norm(relative, axis=1), 1e-12)
    apparent = np.arctan2(radius, np.maximum(distance - radius, 0))  # a right angle for a leaf around the camera
    off_axis = np.arccos(np.clip(relative @ camera.direction / distance, -1, 1))
    outside = (off_axis - apparent > camera.half_angle) & (distance > radius)
    return np.maximum(apparent, 1e-6) ** 2 * np.where(outside, OUTSIDE_WEIGHT, 1.0)


def _distribute(weights: np.ndarray, counts: np.ndarray, budget: int) -> np.ndarray:
    """Distribute the budget in proportion to the weights, at most counts[i] to leaf i."""
    level = 0.0
    # The shares are min(counts, level * weights). As the level rises, leaves fill up in order of count / weight.
    order = np.argsort(counts / weights)
    open_weight, left = float(weights.sum()), float(budget)
    for leaf in order:
        level = left / open_weight
        if counts[leaf] > level * weights[leaf]:
            break
        left -= counts[leaf]
        open_weight -= weights[leaf]
    return np.minimum(counts, level * weights)
