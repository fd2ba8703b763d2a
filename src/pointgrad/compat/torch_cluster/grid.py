"""Clustering by voxels."""

import torch
from torch import Tensor

from pointgrad.ops import checks
from pointgrad.ops.sums import sum_dtype

from .._torchscript import operator
from ._clouds import coordinates


@operator
def grid_cluster(pos: Tensor, size: Tensor, start: Tensor | None = None, end: Tensor | None = None) -> Tensor:
    """Compute the number of the voxel that contains each point.

    16-bit coordinates are divided in float32. The native function is `pointgrad.voxelize`, for three axes, which
    numbers voxels without gaps, cloud by cloud.

    Args:
        pos: (N, D), (N,) or (N, ...) points.
        size: (D,) edge lengths of a voxel.
        start, end: (D,) corners of the grid; by default the smallest and largest coordinates of `pos`.

    Returns:
        (N,) int64 voxel numbers, counted from `start` with the first axis fastest. Points outside a given grid may
        share the number of another voxel, as in the original.

    Example:
        >>> pos = torch.tensor([[0., 0.], [11., 9.], [2., 8.], [2., 2.], [8., 3.]])
        >>> grid_cluster(pos, torch.tensor([5., 5.]))
        tensor([0, 5, 3, 0, 1])
    """
    if torch.jit.is_scripting():
        return torch.ops.pointgrad_compat.grid_cluster(pos, size, start, end)
    return _grid(pos, size, start, end)


def _grid(pos: Tensor, size: Tensor, start: Tensor | None, end: Tensor | None) -> Tensor:
    points = coordinates("pos", pos)
    wide = sum_dtype(points.dtype)
    points, axes = points.to(wide), points.shape[1]
    edges = _per_axis("size", size, points)
    if size.device.type == "cpu" and not torch.compiler.is_compiling():
        checks.value(bool((edges > 0).all()), "size", "positive", size.tolist())
    if points.shape[0] == 0:
        return torch.empty(0, dtype=torch.int64, device=points.device)
    low = points.amin(0) if start is None else _per_axis("start", start, points)
    high = points.amax(0) if end is None else _per_axis("end", end, points)
    cells = ((high - low) / edges).long() + 1
    stride = torch.cat([torch.ones_like(cells[:1]), cells.cumprod(0)[: axes - 1]])
    return (((points - low) / edges).long() * stride).sum(1)


def _per_axis(name: str, value: Tensor, points: Tensor) -> Tensor:
    checks.tensor(name, value)
    axes = points.shape[1]
    checks.shape(value.numel() == axes, name, lambda: f"({axes},), one for each axis of pos", value)
    checks.device(name, value, "pos", points)
    return value.detach().flatten().to(points.dtype)
