"""Schema and fake of this room's operator. It has no gradient: the public function detaches."""

import torch
from torch import Tensor

from .. import clouds
from ..registry import operator


def _check(points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float) -> None:
    clouds.check_values(points, offsets, lengths)


def _fake(
    points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    per_point = [points.new_empty(points.shape[:-1], dtype=torch.int64) for _ in range(3)]
    occupied = points.new_empty((clouds.batch_size(points, offsets),), dtype=torch.int64)
    return per_point[0], per_point[1], per_point[2], occupied


voxel_groups = operator(
    "voxel_groups(Tensor points, Tensor? offsets, Tensor? lengths, float x, float y, float z)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    room=__package__,
    fake=_fake,
    check=_check,
    kernels=("cpu",),
)
