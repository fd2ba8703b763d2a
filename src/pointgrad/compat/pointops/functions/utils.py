"""`pointops.functions.utils`."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of, is_traced
from ._packed import check_points, check_rows, cloud_of_rows, to_offsets
from .grouping import grouping
from .query import ball_query, nearest

__all__ = ["ball_query_and_group", "batch2offset", "knn_query_and_group", "offset2batch", "query_and_group"]


def knn_query_and_group(
    feat: Tensor,
    xyz: Tensor,
    offset: Tensor | None = None,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
    idx: Tensor | None = None,
    nsample: int | None = None,
    with_xyz: bool = False,
) -> tuple[Tensor, Tensor]:
    """Apply `grouping` to the `nsample` nearest neighbors, or to `idx` if given.

    Args:
        feat: (N, C) features.
        xyz, offset, new_xyz, new_offset, nsample: As for `knn_query`.
        idx: (M, K) indices of neighbors; searched if None.
        with_xyz: Prepend positions relative to the center to the features.

    Returns:
        The grouped features, and the index.
    """
    if idx is None:
        checks.value(nsample is not None, "nsample", "given if idx is None", nsample)
        centers = None if new_xyz is None else new_xyz.detach()
        idx = nearest(nsample, xyz.detach(), offset, centers, new_offset).index.int()  # type: ignore[arg-type]
    return grouping(idx, feat, xyz, new_xyz, with_xyz), idx


def ball_query_and_group(
    feat: Tensor,
    xyz: Tensor,
    offset: Tensor | None = None,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
    idx: Tensor | None = None,
    max_radio: float | None = None,
    min_radio: float = 0,
    nsample: int | None = None,
    with_xyz: bool = False,
) -> tuple[Tensor, Tensor]:
    """Apply `grouping` to the result of a `ball_query`, or to `idx` if given.

    Args:
        feat: (N, C) features.
        xyz, offset, new_xyz, new_offset, nsample: As for `ball_query`.
        idx: (M, K) indices of neighbors; searched if None.
        max_radio, min_radio: Radii of `ball_query`, under the original's names.
        with_xyz: Prepend positions relative to the center to the features.

    Returns:
        The grouped features, and the index.
    """
    if idx is None:
        for name, value in (("nsample", nsample), ("offset", offset), ("max_radio", max_radio)):
            checks.value(value is not None, name, "given if idx is None", value)
        idx, _ = ball_query(nsample, max_radio, min_radio, xyz, offset, new_xyz, new_offset)  # type: ignore[arg-type]
    return grouping(idx, feat, xyz, new_xyz, with_xyz), idx


def query_and_group(
    nsample: int,
    xyz: Tensor,
    new_xyz: Tensor | None,
    feat: Tensor,
    idx: Tensor | None,
    offset: Tensor,
    new_offset: Tensor | None,
    dilation: int = 0,
    with_feat: bool = True,
    with_xyz: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """Gather the features of the nearest neighbors.

    Args:
        nsample, xyz, new_xyz, offset, new_offset: As for `knn_query`.
        feat: (N, C) features.
        idx: (M, nsample) indices of neighbors; searched if None.
        dilation: Number of neighbors to skip between two that are taken. In a cloud with too few points, all points are
            spread evenly over the `nsample` entries, so that indices repeat.
        with_feat: Return features; otherwise only the index.
        with_xyz: Prepend positions relative to the center to the features.

    Returns:
        (M, nsample, 3 + C) or (M, nsample, C) and the index; only the index if `with_feat` is False.
    """
    if new_xyz is None or new_offset is None:
        new_xyz, new_offset = xyz, offset
    if idx is None:
        idx = _dilated(nsample, xyz, new_xyz, offset, new_offset, dilation)
    if not with_feat:
        return idx
    if not with_xyz:
        check_rows("feat", feat, idx)
        return pointgrad.group(feat, idx), idx
    return grouping(idx, feat, xyz, new_xyz, with_xyz=True), idx


def offset2batch(offset: Tensor) -> Tensor:
    """Convert ends of clouds to cloud numbers.

    Args:
        offset: (B,) ends of the clouds.

    Returns:
        (N,) int64 cloud number of each point.

    Example:
        >>> offset2batch(torch.tensor([2, 5]))
        tensor([0, 0, 1, 1, 1])
    """
    sizes = to_offsets("offset", offset).diff()
    if sizes.device.type == "cpu" and not is_traced(sizes):
        checks.value(bool((sizes >= 0).all()), "offset", "non-decreasing", offset.tolist())
    return torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)


def batch2offset(batch: Tensor) -> Tensor:
    """Convert cloud numbers to ends of clouds.

    Args:
        batch: (N,) cloud number of each point, sorted.

    Returns:
        (B,) int32 ends of the clouds.

    Example:
        >>> batch2offset(torch.tensor([0, 0, 1, 1, 1]))
        tensor([2, 5], dtype=torch.int32)
    """
    checks.tensor("batch", batch)
    checks.shape(batch.dim() == 1, "batch", "(N,)", batch)
    if batch.device.type == "cpu" and not is_traced(batch):
        checks.value(bool((batch.diff() >= 0).all()), "batch", "sorted", "a number after a larger one")
    return batch.bincount().cumsum(0).int()


def _dilated(nsample: int, xyz: Tensor, new_xyz: Tensor, offset: Tensor, new_offset: Tensor, dilation: int) -> Tensor:
    """(M, nsample) indices of every (dilation + 1)-th nearest neighbor."""
    nsample = count_of("nsample", nsample)
    check_points("new_xyz", new_xyz)
    total = 1 + (nsample - 1) * (dilation + 1)
    index = nearest(total, xyz.detach(), offset, new_xyz.detach(), new_offset).index.int()
    sizes = to_offsets("offset", offset).diff().double()
    shrunk = (sizes - 1) / max(nsample - 1, 1) - 1
    step = torch.where(sizes < total, shrunk, dilation) + 1  # rounded as in the original
    step = step[cloud_of_rows(new_xyz.shape[0], to_offsets("new_offset", new_offset))].unsqueeze(1)
    rank = (step * torch.arange(nsample, device=xyz.device)).long()
    return index.gather(1, rank.clamp(0, total - 1))
