"""Clusters by voxels."""

import torch
from torch import Tensor

from pointgrad.ops import checks

from ._clouds import coordinates


def grid_cluster(pos: Tensor, size: Tensor, start: Tensor | None = None, end: Tensor | None = None) -> Tensor:
    """The number of the voxel that each point lies in.

    pos: (N, D), (N,) or (N, ...). size: (D,), the edges of a voxel.
    start, end: (D,), the corners of the grid; by default the smallest and largest coordinates of `pos`.
    returns: (N,) int64: voxels are counted from `start`, the first axis fastest. Points in the same voxel share a
        number; with the default corners no others do. Outside of given corners a number may belong to two voxels, as
        in the original: the grid has none there.

    16-bit coordinates are divided in float32. Natively: `pointgrad.voxelize`, three axes, whose voxels are numbered
    without gaps, cloud by cloud.

    >>> pos = torch.tensor([[0., 0.], [11., 9.], [2., 8.], [2., 2.], [8., 3.]])
    >>> grid_cluster(pos, torch.tensor([5., 5.]))
    tensor([0, 5, 3, 0, 1])
    """
    points = coordinates("pos", pos)
    wide = torch.promote_types(points.dtype, torch.float32)
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
