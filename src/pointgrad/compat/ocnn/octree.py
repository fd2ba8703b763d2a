"""Keys of voxels along the z-order curve."""

import torch
from torch import Tensor

import pointgrad
from pointgrad.ops import checks

from ._missing import Missing

__all__ = ["Octree", "Points", "xyz2key"]


def xyz2key(x: Tensor, y: Tensor, z: Tensor, b: Tensor | None = None, depth: int = 16) -> Tensor:
    """Interleave the bits of voxel coordinates.

    Args:
        x: Integer coordinates, of any shape, of which the lowest `depth` bits are used; the highest bit of each triple.
        y: The same for the middle bit.
        z: The same for the lowest bit.
        b: Number of each cloud, which is placed above bit 48, or None.
        depth: Number of bits, from 1 to 16.

    Returns:
        int64 keys of the same shape.

    Example:
        >>> xyz2key(torch.tensor([1, 0, 0, 2]), torch.tensor([0, 1, 0, 0]), torch.tensor([0, 0, 1, 3])).tolist()
        [4, 2, 1, 41]
    """
    checks.kind(checks.is_integer(depth), "depth", "an int", depth)
    checks.value(1 <= depth <= 16, "depth", "in [1, 16]", depth)
    coordinates = torch.stack([x, y, z], -1).long() & (1 << depth) - 1
    key = pointgrad.space_filling_curve(coordinates.view(-1, 3), "z", bits=depth).view(coordinates.shape[:-1])
    return key if b is None else b.long() << 48 | key


class Octree(Missing):
    """Not provided."""


class Points(Missing):
    """Not provided."""
