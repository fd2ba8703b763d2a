"""Registration of this family's operators: fake outputs and value checks. They have no gradient: see `__init__.py`."""

import torch
from torch import Tensor

from .. import clouds
from ..registry import operator
from . import reference


def _fits_groups(points: Tensor, sizes: Tensor | None) -> bool:
    return clouds.fit(points, sizes) and points.shape[-1] == 3


def _check_groups(points: Tensor, sizes: Tensor | None) -> None:
    clouds.check_values(points, sizes)


def _fake_groups(points: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Packed: the number of voxels depends on the data.
    packed = int(points.dim() == 2)
    voxels = (torch.library.get_ctx().new_dynamic_size(),) if packed else points.shape[:-1]
    shapes = (points.shape[:-1], (*voxels, 3), voxels, (clouds.batch_size(points, sizes) + packed,))
    inverse, coordinates, count, voxel_sizes = (points.new_empty(shape, dtype=torch.int64) for shape in shapes)
    return inverse, coordinates, count, voxel_sizes


voxel_groups = operator(
    reference.voxel_groups,
    contract=f"{clouds.CONTRACT}, and D = 3",
    fits=_fits_groups,
    fake=_fake_groups,
    check=_check_groups,
)


def _fits_unique(coordinates: Tensor, sizes: Tensor | None, valid: Tensor | None) -> bool:
    shape = coordinates.shape
    if coordinates.dtype != torch.int64 or not clouds.layout_fits(coordinates, sizes) or shape[-1] != 3:
        return False
    return valid is None or (valid.shape == shape[:-1] and valid.dtype == torch.bool)


def _check_unique(coordinates: Tensor, sizes: Tensor | None) -> None:
    clouds.check_values(coordinates, sizes)


def _fake_unique(coordinates: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _fake_groups(coordinates, sizes)


unique_voxels = operator(
    reference.unique_voxels,
    contract=(
        "int64 coordinates (N, 3) with int64 offsets (B + 1,) or None and bool valid (N,) or None, "
        "or (B, N, 3) with int64 lengths (B,) or None and bool valid (B, N) or None"
    ),
    fits=_fits_unique,
    fake=_fake_unique,
    check=_check_unique,
)
