"""Schema and fake of this room's operator. It has no gradient: the public function detaches."""

import torch
from torch import Tensor

from .. import clouds
from ..registry import legacy_operator as operator


def _check(points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float) -> None:
    clouds.check_values(points, offsets, lengths)


def _fake(
    points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Packed: as many voxels as the data makes.
    voxels = (torch.library.get_ctx().new_dynamic_size(),) if points.dim() == 2 else points.shape[:-1]
    shapes = (points.shape[:-1], (*voxels, 3), voxels, (clouds.batch_size(points, offsets),))
    inverse, coordinates, count, occupied = (points.new_empty(shape, dtype=torch.int64) for shape in shapes)
    return inverse, coordinates, count, occupied


voxel_groups = operator(
    "voxel_groups(Tensor points, Tensor? offsets, Tensor? lengths, float x, float y, float z)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    room=__package__,
    fake=_fake,
    check=_check,
    kernels=("cpu",),
)
