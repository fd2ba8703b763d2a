"""The operators of this family in plain PyTorch."""

import torch
from torch import Tensor

from .. import clouds
from ..sums import sum_dtype


def voxel_groups(
    points: Tensor, sizes: Tensor | None, x: float, y: float, z: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The occupied voxels of packed points (N, 3) or padded points (B, N, 3).

    Returns:
        The results of `unique_voxels` for the voxel of each point. A point whose voxel does not fit in int64 has none.
    """
    wide = points.to(sum_dtype(points.dtype))
    # As a tensor: torch divides by a plain number through its reciprocal on a GPU, which rounds differently.
    edge = torch.stack([wide.new_full((), size) for size in (x, y, z)])
    voxel = (wide / edge).floor()
    valid = ((voxel >= -(2.0**63)) & (voxel < 2.0**63)).all(-1)
    return unique_voxels(torch.where(valid.unsqueeze(-1), voxel, 0).long(), sizes, valid)


def unique_voxels(
    coordinates: Tensor, sizes: Tensor | None, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct rows of packed coordinates (N, 3) or padded coordinates (B, N, 3), without rows that are not valid.

    Returns:
        inverse (N,) or (B, N), the number of each row's voxel, -1 for none; coordinates (V, 3) or (B, N, 3) of each
        voxel; count (V,) or (B, N) of its rows; sizes, the offsets (B + 1,) or lengths (B,) of the clouds in voxels.
        Beyond a padded cloud's last voxel, coordinates and count are 0.
    """
    packed = coordinates.dim() == 2
    voxel = coordinates.reshape(-1, 3)
    rows, batch = len(voxel), clouds.batch_size(coordinates, sizes)
    place = torch.arange(rows, device=voxel.device)
    if packed:
        # There may be rows although the offsets describe no cloud: values are not checked on a GPU.
        cloud, inside = clouds.ids(coordinates, sizes), torch.full_like(place, batch > 0, dtype=torch.bool)
    else:
        cloud = torch.arange(batch, device=voxel.device).repeat_interleave(coordinates.shape[1])
        inside = place - cloud * coordinates.shape[1] < clouds.num_points(coordinates, sizes)[cloud]
    if valid is not None:
        inside &= valid.reshape(-1)
    # Sort by cloud, x, y, z and index, rows without a voxel last; the least significant key first.
    order = place
    for key in (voxel[:, 2], voxel[:, 1], voxel[:, 0], cloud, ~inside):
        order = order[key[order].argsort(stable=True)]
    voxel, cloud, inside = voxel[order], cloud[order], inside[order]
    opens = torch.ones_like(inside)
    opens[1:] = (voxel[1:] != voxel[:-1]).any(1) | (cloud[1:] != cloud[:-1])
    opens &= inside
    occupied = place.new_zeros(max(batch, 1)).scatter_add_(0, cloud, opens.long())[:batch]
    number = opens.cumsum(0) - 1
    slot = number  # the voxel's row in the results
    if not packed:
        number = number - (occupied.cumsum(0) - occupied)[cloud]
        slot = number + cloud * coordinates.shape[1]
    inverse = torch.full_like(place, -1).scatter_(0, order, torch.where(inside, number, -1))
    # Rows without a voxel go to an extra last row.
    count = place.new_zeros(rows + 1).scatter_add_(0, torch.where(inside, slot, rows), torch.ones_like(slot))
    unique = place.new_zeros(rows + 1, 3)
    unique[torch.where(opens, slot, rows)] = torch.where(opens.unsqueeze(1), voxel, 0)
    voxel_sizes = torch.cat([occupied.new_zeros(1), occupied.cumsum(0)]) if packed else occupied
    num_voxels = int(voxel_sizes[-1]) if packed else rows
    shape = (num_voxels,) if packed else coordinates.shape[:-1]
    return (
        inverse.reshape(coordinates.shape[:-1]),
        unique[:num_voxels].clone().reshape(*shape, 3),
        count[:num_voxels].clone().reshape(shape),
        voxel_sizes,
    )
