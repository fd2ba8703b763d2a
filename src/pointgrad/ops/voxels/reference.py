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
        inverse (N,) or (B, N), the number of each point's voxel, -1 for none; coordinates (V, 3) or (B, N, 3) of each
        voxel on the grid; count (V,) or (B, N) of its points; occupied (B,), the number of voxels of each cloud.
        Beyond a padded cloud's last voxel, coordinates and count are 0.
    """
    packed = points.dim() == 2
    wide = points.to(sum_dtype(points.dtype)).reshape(-1, 3)
    # As a tensor: torch divides by a plain number through its reciprocal on a GPU, which rounds differently.
    edge = torch.stack([wide.new_full((), size) for size in (x, y, z)])
    voxel = (wide / edge).floor()
    rows, batch = len(wide), clouds.batch_size(points, sizes)
    place = torch.arange(rows, device=points.device)
    if packed:
        # There may be points although the offsets describe no cloud: values are not checked on a GPU.
        cloud, inside = clouds.ids(points, sizes), torch.full_like(place, batch > 0, dtype=torch.bool)
    else:
        cloud = torch.arange(batch, device=points.device).repeat_interleave(points.shape[1])
        inside = place - cloud * points.shape[1] < clouds.num_points(points, sizes)[cloud]
    valid = inside & ((voxel >= -(2.0**63)) & (voxel < 2.0**63)).all(1)
    # Sort by cloud, x, y, z and index, invalid points last; the least significant key first.
    order = place
    for key in (voxel[:, 2], voxel[:, 1], voxel[:, 0], cloud, ~valid):
        order = order[key[order].argsort(stable=True)]
    voxel, cloud, valid = voxel[order], cloud[order], valid[order]
    opens = torch.ones_like(valid)
    opens[1:] = (voxel[1:] != voxel[:-1]).any(1) | (cloud[1:] != cloud[:-1])
    opens &= valid
    occupied = place.new_zeros(max(batch, 1)).scatter_add_(0, cloud, opens.long())[:batch]
    number = opens.cumsum(0) - 1
    slot = number  # the voxel's row in the results
    if not packed:
        number = number - (occupied.cumsum(0) - occupied)[cloud]
        slot = number + cloud * points.shape[1]
    inverse = torch.full_like(place, -1).scatter_(0, order, torch.where(valid, number, -1))
    # Invalid points go to an extra last row.
    count = place.new_zeros(rows + 1).scatter_add_(0, torch.where(valid, slot, rows), torch.ones_like(slot))
    coordinates = place.new_zeros(rows + 1, 3)
    coordinates[torch.where(opens, slot, rows)] = torch.where(opens.unsqueeze(1), voxel, 0).long()
    num_voxels = int(occupied.sum()) if packed else rows
    shape = (num_voxels,) if packed else points.shape[:-1]
    return (
        inverse.reshape(points.shape[:-1]),
        coordinates[:num_voxels].clone().reshape(*shape, 3),
        count[:num_voxels].clone().reshape(shape),
        occupied,
    )
