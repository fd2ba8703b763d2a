"""Triangulation of polygons, and sampling of points on meshes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from .errors import FileError
from .table import Table


def fan(polygons: Sequence[Sequence[int]], vertices: int) -> NDArray[np.int64]:
    """Split polygons, each a list of vertex indices, into triangles (F, 3) around their first corner."""
    sizes = np.fromiter((len(polygon) for polygon in polygons), np.int64, len(polygons))
    try:
        corners = np.fromiter(chain.from_iterable(polygons), np.int64, int(sizes.sum()))
    except OverflowError:
        raise FileError(f"expected faces of vertices 0 to {vertices - 1}, found larger numbers") from None
    return triangles(sizes, corners, vertices)


def triangles(sizes: NDArray[np.int64], corners: NDArray[np.int64], vertices: int) -> NDArray[np.int64]:
    """Split polygons into triangles (F, 3), given the size of each polygon and the concatenated corners of all."""
    if (sizes < 1).any():
        raise FileError(f"expected at least one vertex per face, found none in face {int(np.argmin(sizes))}")
    if corners.min() < 0 or corners.max() >= vertices:
        wrong = corners.min() if corners.min() < 0 else corners.max()
        raise FileError(f"expected faces of vertices 0 to {vertices - 1}, found {wrong}")
    starts = np.concatenate([[0], sizes.cumsum()[:-1]])
    counts = np.maximum(sizes - 2, 0)
    first = np.repeat(starts, counts)
    position = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    return corners[np.stack([first, first + position + 1, first + position + 2], axis=1)]


def sample(table: Table, count: int, generator: torch.Generator | None) -> Table:
    """Draw `count` random points.

    On a mesh they are uniform over its surface, and each has the columns of the nearest corner of its face. Without
    faces, the points are a random subset.
    """
    if table.faces is None or not len(table.faces):
        if count > len(table):
            raise FileError(f"expected at least {count} points to sample from, found {len(table)} and no faces")
        return table.take(torch.randperm(len(table), generator=generator)[:count].numpy())
    corners = torch.from_numpy(table.xyz[table.faces].astype(np.float64))  # (F, 3, 3)
    edges = corners[:, 1:] - corners[:, :1]
    area = torch.linalg.cross(edges[:, 0], edges[:, 1]).norm(dim=1)
    total = area.cumsum(0)
    if not (total[-1] > 0 and total[-1].isfinite()):
        raise FileError(f"expected faces with a positive, finite area, found a total of {float(total[-1]) / 2:g}")
    u = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    face = torch.searchsorted(total, u[:, 0] * total[-1], right=True).clamp_(max=len(total) - 1)
    root = u[:, 1].sqrt()
    weights = torch.stack([1 - root, root * (1 - u[:, 2]), root * u[:, 2]], dim=1)  # uniform in the triangle
    points = (weights[:, :, None] * corners[face]).sum(1)
    nearest = table.faces[face.numpy(), weights.argmax(1).numpy()]
    return replace(table.take(nearest), xyz=points.numpy().astype(table.xyz.dtype))
