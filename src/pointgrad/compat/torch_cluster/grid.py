"""Clustering by voxels."""

import torch
from torch import Tensor

from pointgrad.ops import checks

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
    if points.dtype in (torch.float16, torch.bfloat16):
        points = points.float()
    edges = _per_axis("size", size, points)
    on_host = points.is_cpu and not torch.compiler.is_compiling()
    if on_host and not all(edge > 0 for edge in edges.tolist()):
        raise ValueError(f"size must be positive, got {size.tolist()}")
    if points.shape[0] == 0:
        return torch.empty(0, dtype=torch.int64, device=points.device)
    if start is None and end is None:
        low, high = torch.aminmax(points, dim=0)
    else:
        low = points.amin(0) if start is None else _per_axis("start", start, points)
        high = points.amax(0) if end is None else _per_axis("end", end, points)
    cells = ((high - low) / edges).long()
    voxel = (points - low).div_(edges).long()
    if on_host:  # numbers of Python take less time than small tensors
        stride = [1]
        for count in cells.tolist()[:-1]:
            stride.append(((stride[-1] * (count + 1) + 2**63) & (2**64 - 1)) - 2**63)  # wraps around like int64
        return voxel.mv(torch.tensor(stride, device="cpu"))
    strides = torch.cat([cells.new_ones(1), (cells + 1)[:-1]]).cumprod(0)
    return (voxel * strides).sum(1)


def _per_axis(name: str, value: Tensor, points: Tensor) -> Tensor:
    checks.tensor(name, value)
    axes = points.shape[1]
    if value.numel() != axes:
        raise ValueError(f"{name} must be ({axes},), one for each axis of pos, got {tuple(value.shape)}")
    checks.device(name, value, "pos", points)
    if value.dim() == 1 and value.dtype == points.dtype and not value.requires_grad:
        return value
    return value.detach().flatten().to(points.dtype)
