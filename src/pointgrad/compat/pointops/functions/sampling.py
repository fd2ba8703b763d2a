"""`pointops.functions.sampling`."""

import torch
from torch import Tensor
from torch.nn import functional

import pointgrad

from ._packed import check_points, to_offsets

__all__ = ["FarthestPointSampling", "farthest_point_sampling"]


def farthest_point_sampling(xyz: Tensor, offset: Tensor, new_offset: Tensor) -> Tensor:
    """Farthest point sampling of packed clouds, starting from the first point of each cloud.

    If more samples are requested than a cloud has points, its first point repeats. Zero samples of a cloud are
    allowed, where the original overwrites a sample of another cloud.

    Args:
        xyz: (N, 3) points.
        offset: (B,) ends of the clouds.
        new_offset: (B,) ends of the samples of each cloud. Both offsets are read on the host, as in the original.

    Returns:
        (M,) int32 rows of `xyz`, without gradient.

    Example:
        >>> line = torch.tensor([[0., 0., 0.], [1., 0., 0.], [3., 0., 0.], [9., 0., 0.]])
        >>> farthest_point_sampling(line, torch.tensor([3, 4]), torch.tensor([2, 3]))
        tensor([0, 2, 3], dtype=torch.int32)
    """
    check_points("xyz", xyz)
    offsets, new_offsets = to_offsets("offset", offset), to_offsets("new_offset", new_offset)
    if offsets.shape != new_offsets.shape:
        raise ValueError(f"new_offset must be {tuple(offset.shape)}, like offset, got {tuple(new_offset.shape)}")
    first, sizes, counts = torch.stack([offsets[:-1], offsets.diff(), new_offsets.diff()]).tolist()
    for cloud, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if count < 0:
            raise ValueError(f"new_offset must be non-decreasing, got a decrease of {-count} at cloud {cloud}")
        if count > 0 and size == 0:
            raise ValueError(f"new_offset must give 0 samples to the empty cloud {cloud}, got {count}")
    samples = [min(size, count) for size, count in zip(sizes, counts, strict=True)]
    index = pointgrad.farthest_point_sampling(xyz, samples, offsets=offsets).int()
    if samples == counts:
        return index
    parts = zip(index.split(samples), counts, first, strict=True)
    return torch.cat([functional.pad(part, (0, count - len(part)), value=begin) for part, count, begin in parts])


class FarthestPointSampling:
    apply = staticmethod(farthest_point_sampling)
