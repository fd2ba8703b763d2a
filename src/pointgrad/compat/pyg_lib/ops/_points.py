"""Sampling, neighbors and clusters of points."""

import torch
from torch import Tensor


def fps(src: Tensor, ptr: Tensor, ratio: float = 0.5, random_start: bool = True) -> Tensor:
    """Sample `ceil(ratio * n)` points of each cloud of n points by farthest point sampling.

    The native function is `pointgrad.farthest_point_sampling`, which takes counts instead of a ratio.

    Args:
        src: (N, D) points.
        ptr: (B + 1,) bounds: cloud b is `src[ptr[b]:ptr[b + 1]]`.
        ratio: In (0, 1].
        random_start: Start from a random point of each cloud instead of its first.

    Returns:
        (M,) int64 rows of `src`, cloud by cloud.

    Example:
        >>> square = torch.tensor([[-1., -1.], [-1., 1.], [1., -1.], [1., 1.]])
        >>> fps(square, torch.tensor([0, 4]), random_start=False)
        tensor([0, 3])
    """
    result: Tensor = torch.ops.pyg.fps(src, ptr, ratio, random_start)
    return result


def knn(
    x: Tensor,
    y: Tensor,
    k: int = 1,
    ptr_x: Tensor | None = None,
    ptr_y: Tensor | None = None,
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    """Find the k nearest points of `x` for each point of `y`, in the cloud with the same number.

    The native function is `pointgrad.knn`, whose result (M, k) has a fixed size.

    Args:
        x: (N, D) or (N,) points to search.
        y: (M, D) or (M,) queries.
        k: Number of neighbors.
        ptr_x: (B + 1,) bounds of the clouds of `x`, from 0 to N.
        ptr_y: (B + 1,) bounds of the clouds of `y`, from 0 to M.
        cosine: Compare angles between vectors instead of distances; here also on the CPU.
        num_workers: Ignored; use `torch.set_num_threads`.

    Returns:
        (2, E) int64 edges: row 0 is the query in `y`, row 1 the neighbor in `x`. Sorted by query, nearest first; ties
        go to the smallest index.

    Example:
        >>> knn(torch.tensor([[0.], [1.], [5.]]), torch.tensor([[0.9], [4.]]), 2)
        tensor([[0, 0, 1, 1],
                [1, 0, 2, 1]])
    """
    result: Tensor = torch.ops.pyg.knn(x, y, ptr_x, ptr_y, k, cosine, num_workers)
    return result


def radius(
    x: Tensor,
    y: Tensor,
    r: float = 1.0,
    ptr_x: Tensor | None = None,
    ptr_y: Tensor | None = None,
    max_num_neighbors: int = 32,
    num_workers: int = 1,
    ignore_same_index: bool = False,
) -> Tensor:
    """Find the points of `x` that are closer than r to each point of `y`, in the cloud with the same number.

    The native function is `pointgrad.ball_query`.

    Args:
        x: (N, D) or (N,) points to search.
        y: (M, D) or (M,) queries.
        r: Radius. Points at exactly this distance are not neighbors.
        ptr_x, ptr_y: As for `knn`.
        max_num_neighbors: Maximum number of neighbors of each query: those with the smallest indices, on every device.
        num_workers: Ignored.
        ignore_same_index: Leave out pairs of query i and point i.

    Returns:
        (2, E) int64 edges: row 0 is the query in `y`, row 1 the neighbor in `x`. Sorted by query, then by index.

    Example:
        >>> radius(torch.tensor([[0.], [1.], [5.]]), torch.tensor([[0.9], [4.]]))
        tensor([[0, 0],
                [0, 1]])
    """
    result: Tensor = torch.ops.pyg.radius(x, y, ptr_x, ptr_y, r, max_num_neighbors, num_workers, ignore_same_index)
    return result


def nearest(x: Tensor, y: Tensor, ptr_x: Tensor | None = None, ptr_y: Tensor | None = None) -> Tensor:
    """Find the nearest point of `y` for each point of `x`, in the cloud with the same number.

    Args:
        x: (N, D) or (N,) points.
        y: (M, D) or (M,) points to search. Every cloud with points in `x` must have points in `y`.
        ptr_x, ptr_y: As for `knn`.

    Returns:
        (N,) int64 rows of `y`; ties go to the smallest index.

    Example:
        >>> nearest(torch.tensor([[0.], [1.], [5.]]), torch.tensor([[0.9], [4.]]))
        tensor([0, 0, 1])
    """
    result: Tensor = torch.ops.pyg.nearest(x, y, ptr_x, ptr_y)
    return result


def grid_cluster(pos: Tensor, size: Tensor, start: Tensor | None = None, end: Tensor | None = None) -> Tensor:
    """Compute the number of the voxel that contains each point.

    Args:
        pos: (N, D) points.
        size: (D,) edge lengths of a voxel.
        start, end: (D,) corners of the grid; by default the smallest and largest coordinates of `pos`.

    Returns:
        (N,) int64 voxel numbers, counted from `start` with the first axis fastest.

    Example:
        >>> grid_cluster(torch.tensor([[0., 0.], [11., 9.], [2., 8.]]), torch.tensor([5., 5.]))
        tensor([0, 5, 3])
    """
    result: Tensor = torch.ops.pyg.grid_cluster(pos, size, start, end)
    return result
