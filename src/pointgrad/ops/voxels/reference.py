"""What the operators of this room mean, in plain PyTorch."""

import torch
from torch import Tensor

from .. import clouds


def voxel_groups(
    points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of packed (N, 3) or padded (B, N, 3) points:

    inverse: (N,) or (B, N) the number of each point's voxel, -1 for none.
    coordinates: (V, 3) or (B, N, 3) the place of each voxel, 0 where there are no more voxels.
    count: (V,) or (B, N) how many points each voxel has, 0 where there are no more.
    occupied: (B,) how many voxels each cloud has.
    """
    packed = points.dim() == 2
    wide = points.to(torch.promote_types(points.dtype, torch.float32)).reshape(-1, 3)
    # As a tensor: torch divides by a plain number through its reciprocal on a GPU, which rounds differently.
    edge = torch.stack([wide.new_full((), size) for size in (x, y, z)])
    voxel = (wide / edge).floor()
    rows, batch = len(wide), clouds.batch_size(points, offsets)
    place = torch.arange(rows, device=points.device)
    if packed:
        # On a GPU nobody has checked the offsets: of no clouds they may still say that there are points.
        cloud, inside = clouds.ids(points, offsets), torch.full_like(place, batch > 0, dtype=torch.bool)
    else:
        cloud = torch.arange(batch, device=points.device).repeat_interleave(points.shape[1])
        inside = place - cloud * points.shape[1] < clouds.sizes(points, offsets, lengths)[cloud]
    valid = inside & ((voxel >= -(2.0**63)) & (voxel < 2.0**63)).all(1)
    # Sort by cloud, x, y, z and index, what is not valid last; the least significant key first.
    order = place
    for key in (voxel[:, 2], voxel[:, 1], voxel[:, 0], cloud, ~valid):
        order = order[key[order].argsort(stable=True)]
    voxel, cloud, valid = voxel[order], cloud[order], valid[order]
    opens = torch.ones_like(valid)
    opens[1:] = (voxel[1:] != voxel[:-1]).any(1) | (cloud[1:] != cloud[:-1])
    opens &= valid
    occupied = place.new_zeros(max(batch, 1)).scatter_add_(0, cloud, opens.long())[:batch]
    number = opens.cumsum(0) - 1
    slot = number  # where the voxel stands in the results
    if not packed:
        number = number - (occupied.cumsum(0) - occupied)[cloud]
        slot = number + cloud * points.shape[1]
    inverse = torch.full_like(place, -1).scatter_(0, order, torch.where(valid, number, -1))
    # The last row takes what has no place.
    count = place.new_zeros(rows + 1).scatter_add_(0, torch.where(valid, slot, rows), torch.ones_like(slot))
    coordinates = place.new_zeros(rows + 1, 3)
    coordinates[torch.where(opens, slot, rows)] = torch.where(opens.unsqueeze(1), voxel, 0).long()
    there = int(occupied.sum()) if packed else rows
    shape = (there,) if packed else points.shape[:-1]
    return (
        inverse.reshape(points.shape[:-1]),
        coordinates[:there].clone().reshape(*shape, 3),
        count[:there].clone().reshape(shape),
        occupied,
    )
