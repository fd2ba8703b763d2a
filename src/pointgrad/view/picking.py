"""Find the point under a mouse click."""

import numpy as np

REACH = 0.012  # radians around the ray: about eight pixels
DEPTH = 0.03  # depth behind the nearest candidate, relative to its distance, that costs as much as an offset of REACH


def pick(points: np.ndarray, origin: np.ndarray, direction: np.ndarray) -> int | None:
    """Return the index of the point that a ray hits or nearly hits, preferring points in front.

    Args:
        points: (N, 3) positions.
        origin: (3,) start of the ray.
        direction: (3,) direction of the ray, of any length.

    Returns:
        The index of the point, or None if no point is near the ray.

    Example:
        >>> points = np.array([[0., 0., 5.], [0.01, 0., 2.], [3., 0., 2.]])
        >>> pick(points, np.zeros(3), np.array([0., 0., 1.])), pick(points, np.zeros(3), np.array([0., 1., 0.]))
        (1, None)
    """
    direction = direction / np.linalg.norm(direction)
    relative = points - origin
    along = relative @ direction
    across = np.linalg.norm(relative - along[:, None] * direction, axis=1)
    near = np.flatnonzero((along > 0) & (across < REACH * along))
    if not len(near):
        return None
    first = along[near].min()
    cost = across[near] / along[near] / REACH + (along[near] - first) / (DEPTH * first)
    return int(near[cost.argmin()])
