"""Which point is meant by a click."""

import numpy as np

REACH = 0.012  # radians around the ray: about eight pixels
DEPTH = 0.03  # so much farther, relative to the nearest candidate, counts as much as the whole reach


def pick(points: np.ndarray, origin: np.ndarray, direction: np.ndarray) -> int | None:
    """The number of the point (N, 3) that a ray meets, or nearly meets: close to the ray, and in front.

    >>> row = np.array([[0., 0., 5.], [0.01, 0., 2.], [3., 0., 2.]])
    >>> pick(row, np.zeros(3), np.array([0., 0., 1.])), pick(row, np.zeros(3), np.array([0., 1., 0.]))
    (1, None)
    """
    direction = direction / np.linalg.norm(direction)
    towards = points - origin
    along = towards @ direction
    across = np.linalg.norm(towards - along[:, None] * direction, axis=1)
    near = np.flatnonzero((along > 0) & (across < REACH * along))
    if not len(near):
        return None
    first = along[near].min()
    cost = across[near] / along[near] / REACH + (along[near] - first) / (DEPTH * first)
    return int(near[cost.argmin()])
