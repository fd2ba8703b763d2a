"""`pointops.functions.utils`."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ..._scalars import count_of
from ._packed import check_points, check_rows, cloud_of_rows, starts
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
    """`grouping` of `idx`, or of the `nsample` nearest if it is not given. returns: what was grouped, and idx."""
    if idx is None:
        checks.value(nsample is not None, "nsample", "given without idx", nsample)
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
    """`grouping` of `idx`, or of a `ball_query` if it is not given. returns: what was grouped, and idx."""
    if idx is None:
        for name, value in (("nsample", nsample), ("offset", offset), ("max_radio", max_radio)):
            checks.value(value is not None, name, "given without idx", value)
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
    """The nearest neighbours' features, behind their positions relative to the centre if `with_xyz`.

    nsample, xyz, new_xyz, offset, new_offset: as for `knn_query`. feat: (N, C). idx: (M, nsample), if known already.
    dilation: how many neighbours are left out between two that are taken. A cloud with too few points for that spreads
        all it has evenly over the `nsample` places, so that indices repeat.
    returns: (M, nsample, 3 + C) or (M, nsample, C), and idx; idx alone without `with_feat`.
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
    """(N,) int64 the number of each point's cloud, from (B,) where each cloud ends.

    >>> offset2batch(torch.tensor([2, 5]))
    tensor([0, 0, 1, 1, 1])
    """
    sizes = starts("offset", offset).diff()
    if sizes.device.type == "cpu" and not torch.compiler.is_compiling():
        checks.value(bool((sizes >= 0).all()), "offset", "never falling", offset.tolist())
    return torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)


def batch2offset(batch: Tensor) -> Tensor:
    """(B,) int32 where each cloud ends, from (N,) the number of each point's cloud, in ascending order.

    >>> batch2offset(torch.tensor([0, 0, 1, 1, 1]))
    tensor([2, 5], dtype=torch.int32)
    """
    checks.tensor("batch", batch)
    checks.shape(batch.dim() == 1, "batch", "(N,)", batch)
    if batch.device.type == "cpu" and not torch.compiler.is_compiling():
        checks.value(bool((batch.diff() >= 0).all()), "batch", "ascending", "a number after a larger one")
    return batch.bincount().cumsum(0).int()


def _dilated(nsample: int, xyz: Tensor, new_xyz: Tensor, offset: Tensor, new_offset: Tensor, dilation: int) -> Tensor:
    """(M, nsample) every (dilation + 1)-th of the nearest."""
    nsample = count_of("nsample", nsample)
    check_points("new_xyz", new_xyz)
    total = 1 + (nsample - 1) * (dilation + 1)
    index = nearest(total, xyz.detach(), offset, new_xyz.detach(), new_offset).index.int()
    sizes = starts("offset", offset).diff().double()
    shrunk = (sizes - 1) / max(nsample - 1, 1) - 1
    step = torch.where(sizes < total, shrunk, dilation) + 1  # these roundings are the original's
    step = step[cloud_of_rows(new_xyz.shape[0], starts("new_offset", new_offset))].unsqueeze(1)
    place = (step * torch.arange(nsample, device=xyz.device)).long()
    return index.gather(1, place.clamp(0, total - 1))
