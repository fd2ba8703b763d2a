"""Registration of this family's operator: fake outputs and value checks. It has no gradient: see `__init__.py`."""

import torch
from torch import Tensor

from .. import clouds
from ..registry import operator
from . import reference


def _fits(points: Tensor, sizes: Tensor | None) -> bool:
    return clouds.fit(points, sizes) and points.shape[-1] == 3


def _check(points: Tensor, sizes: Tensor | None) -> None:
    clouds.check_values(points, sizes)


def _fake(points: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Packed: the number of voxels depends on the data.
    voxels = (torch.library.get_ctx().new_dynamic_size(),) if points.dim() == 2 else points.shape[:-1]
    shapes = (points.shape[:-1], (*voxels, 3), voxels, (clouds.batch_size(points, sizes),))
    inverse, coordinates, count, occupied = (points.new_empty(shape, dtype=torch.int64) for shape in shapes)
    return inverse, coordinates, count, occupied


voxel_groups = operator(
    reference.voxel_groups,
    contract=f"{clouds.CONTRACT}, and D = 3",
    fits=_fits,
    fake=_fake,
    check=_check,
    kernels=("cpu",),
)
