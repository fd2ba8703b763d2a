"""What the operators of this room mean, in plain PyTorch."""

import torch
from torch import Tensor

from .. import clouds


def voxel_groups(
    points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of packed (N, 3) or padded (B, N, 3) points:

    inverse: (N,) or (B, N) the number of each point's voxel, -1 for none.
    first: (N,) or (B, N) for each voxel its first point, -1 where there are no more voxels.
    count: (N,) or (B, N) for each voxel how many points it has, 0 where there are no more.
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
        cloud, inside = clouds.ids(points, offsets), torch.ones_like(place, dtype=torch.bool)
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
    occupied = torch.zeros(batch, dtype=torch.int64, device=points.device).scatter_add_(0, cloud, opens.long())
    slot = opens.cumsum(0) - 1  # where the voxel stands in the results
    number, point = slot, order
    if not packed:
        number = slot - (occupied.cumsum(0) - occupied)[cloud]
        slot, point = number + cloud * points.shape[1], order - cloud * points.shape[1]
    inverse = torch.full_like(place, -1).scatter_(0, order, torch.where(valid, number, -1))
    nowhere = place.new_full((rows + 1,), -1)  # the last takes what has no place
    first = nowhere.scatter(0, torch.where(opens, slot, rows), point)[:rows]
    count = torch.zeros_like(nowhere).scatter_add_(0, torch.where(valid, slot, rows), torch.ones_like(slot))[:rows]
    shape = points.shape[:-1]
    return inverse.reshape(shape), first.clone().reshape(shape), count.clone().reshape(shape), occupied
