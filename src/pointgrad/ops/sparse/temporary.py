import torch
from ..voxels import Voxels
from ..voxels.register import voxel_groups
from .. import clouds


def unique_voxels(coordinates, *, offsets=None, lengths=None, valid=None):
    points = coordinates.double()
    if valid is not None:
        points = torch.where(valid[..., None], points, torch.nan)
    inverse, found, count, occupied = voxel_groups(points, clouds.as_sizes(offsets, lengths), 1.0, 1.0, 1.0)
    if points.dim() == 3:
        return Voxels(inverse, found, count, found, None, occupied)
    return Voxels(inverse, found, count, found, torch.cat([occupied.new_zeros(1), occupied.cumsum(0)]), None)
