"""`pointops.functions.sampling`."""

import torch
from torch import Tensor
from torch.nn import functional

import pointgrad

from ._packed import check_points, starts

__all__ = ["FarthestPointSampling", "farthest_point_sampling"]


def farthest_point_sampling(xyz: Tensor, offset: Tensor, new_offset: Tensor) -> Tensor:
    """Farthest point sampling of packed clouds, each from its first point.

    xyz: (N, 3). offset: (B,) where each cloud ends. new_offset: (B,) where its picks end. Both are read on the host, as
        by the original. returns: (M,) int32, counted through all clouds, no gradient.

    A cloud that is asked for more points than it has repeats its first one after the last. A cloud may be asked for
    none; the original then overwrites a pick of another cloud.

    >>> line = torch.tensor([[0., 0., 0.], [1., 0., 0.], [3., 0., 0.], [9., 0., 0.]])
    >>> farthest_point_sampling(line, torch.tensor([3, 4]), torch.tensor([2, 3]))
    tensor([0, 2, 3], dtype=torch.int32)
    """
    check_points("xyz", xyz)
    begins, new_begins = starts("offset", offset), starts("new_offset", new_offset)
    if begins.shape != new_begins.shape:
        raise ValueError(f"new_offset must be {tuple(offset.shape)}, like offset, got {tuple(new_offset.shape)}")
    first, sizes, counts = torch.stack([begins[:-1], begins.diff(), new_begins.diff()]).tolist()
    for cloud, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if count < 0:
            raise ValueError(f"new_offset must never fall, got {-count} fewer at cloud {cloud}")
        if count > 0 and size == 0:
            raise ValueError(f"new_offset must ask for no points of cloud {cloud}, which is empty, got {count}")
    picks = [min(size, count) for size, count in zip(sizes, counts, strict=True)]
    index = pointgrad.farthest_point_sampling(xyz, picks, offsets=begins).int()
    if picks == counts:
        return index
    parts = zip(index.split(picks), counts, first, strict=True)
    return torch.cat([functional.pad(part, (0, count - len(part)), value=begin) for part, count, begin in parts])


class FarthestPointSampling:
    apply = staticmethod(farthest_point_sampling)
