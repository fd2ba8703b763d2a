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
    points = points.to(sum_dtype(points.dtype))
    edges = _per_axis("size", size, points)
    if size.device.type == "cpu" and not torch.compiler.is_compiling():
        checks.value(all(edge > 0 for edge in edges.tolist()), "size", "positive", edges.tolist())
    if points.shape[0] == 0:
        return torch.empty(0, dtype=torch.int64, device=points.device)
    if start is None and end is None:
        low, high = torch.aminmax(points, dim=0)
    else:
        low = points.amin(0) if start is None else _per_axis("start", start, points)
        high = points.amax(0) if end is None else _per_axis("end", end, points)
    cells = ((high - low) / edges).long().add_(1)
    stride = torch.cat([cells.new_ones(1), cells[:-1]]).cumprod(0)
    voxel = ((points - low) / edges).long()
    if voxel.device.type == "cpu":
        return voxel.mv(stride)
    return (voxel * stride).sum(1)  # a GPU has no product of integer matrices


def _per_axis(name: str, value: Tensor, points: Tensor) -> Tensor:
    checks.tensor(name, value)
    axes = points.shape[1]
    checks.shape(value.numel() == axes, name, lambda: f"({axes},), one for each axis of pos", value)
    checks.device(name, value, "pos", points)
    return value.detach().flatten().to(points.dtype)
