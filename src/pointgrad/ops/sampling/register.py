"""Registration of this family's operators: fake outputs and value checks. No gradients: see `__init__.py`.

`num_samples` is the count per cloud or, with `counts`, their sum (packed) or maximum (padded).
"""

import torch
from torch import Tensor

from .. import checks, clouds
from ..registry import operator
from ..sums import sum_dtype
from . import reference


def _fits_counts(points: Tensor, sizes: Tensor | None, num_samples: int, counts: Tensor | None) -> bool:
    if not clouds.fit(points, sizes) or num_samples < 0:
        return False
    if counts is None:
        return True
    batch = clouds.batch_size(points, sizes)
    return counts.dtype == torch.int64 and counts.shape == (batch,) and (batch > 0 or num_samples == 0)


def _fits_farthest(
    points: Tensor, sizes: Tensor | None, num_samples: int, counts: Tensor | None, start: Tensor | None
) -> bool:
    if not _fits_counts(points, sizes, num_samples, counts) or points.shape[-1] < 3:
        return False
    if start is None:
        return True
    picks = start.shape
    batch = clouds.batch_size(points, sizes)
    return start.dtype == torch.int64 and len(picks) == 2 and picks[0] == batch and picks[1] > 0


def _fits_random(points: Tensor, sizes: Tensor | None, num_samples: int, counts: Tensor | None, seed: Tensor) -> bool:
    return _fits_counts(points, sizes, num_samples, counts) and seed.dtype == torch.int64 and seed.numel() == 1


_COUNTS = f"{clouds.CONTRACT}, num_samples >= 0, int64 counts (B,) or None"


def _check_counts(points: Tensor, sizes: Tensor | None, num_samples: int, counts: Tensor | None) -> None:
    clouds.check_values(points, sizes)
    padded = points.dim() == 3
    if counts is not None:
        listed = counts.tolist()
        checks.value(min(listed, default=0) >= 0, "counts", "at least 0", min(listed, default=0))
        total, of_all = (max(listed, default=0), "maximum") if padded else (sum(listed), "sum")
        checks.value(total == num_samples, f"{of_all} of counts", f"num_samples = {num_samples}", total, verb="equal")
    if padded:
        return
    available = [points.shape[0]] if sizes is None else sizes.diff().tolist()
    wanted = [num_samples] * len(available) if counts is None else listed
    for cloud, (count, size) in enumerate(zip(wanted, available, strict=True)):
        contract = f"at most {size}, the size of cloud {cloud}"
        checks.value(count <= size, "num_samples", contract, count)


def _check_farthest(
    points: Tensor, sizes: Tensor | None, num_samples: int, counts: Tensor | None, start: Tensor | None
) -> None:
    _check_counts(points, sizes, num_samples, counts)
    if start is None:
        return
    available = clouds.num_points(points, sizes).tolist()
    wanted = [num_samples] * len(available) if counts is None else counts.tolist()
    for cloud, (first, size, count) in enumerate(zip(start.tolist(), available, wanted, strict=True)):
        if size == 0 or count == 0:
            continue  # nothing is sampled from this cloud
        named = first[: first.index(-1)] if -1 in first else first
        contract = f"in [0, {size}) for cloud {cloud}"
        checks.value(len(named) > 0, "start", contract, -1)
        checks.value(
            len(named) <= count, "start", f"at most {count} indices for cloud {cloud}", len(named), verb="have"
        )
        for place, index in enumerate(first):
            in_set = place < len(named)
            checks.value(0 <= index < size if in_set else index == -1, "start", contract, index)


def _fake_farthest(
    points: Tensor, sizes: Tensor | None, num_samples: int, counts: Tensor | None, radii: bool
) -> tuple[Tensor, Tensor]:
    shape = clouds.samples_shape(points, sizes, num_samples, counts)
    index = points.new_empty(shape, dtype=torch.int64)
    return index, points.new_empty(shape if radii else (0,), dtype=sum_dtype(points.dtype))


farthest_point_sampling = operator(
    reference.farthest_point_sampling,
    contract=f"{_COUNTS}, D >= 3, and int64 start (B, S) with S >= 1 or None",
    fits=_fits_farthest,
    fake=_fake_farthest,
    check=_check_farthest,
)


def _fake_random(points: Tensor, sizes: Tensor | None, num_samples: int, counts: Tensor | None) -> Tensor:
    return points.new_empty(clouds.samples_shape(points, sizes, num_samples, counts), dtype=torch.int64)


random_sampling = operator(
    reference.random_sampling,
    contract=f"{_COUNTS}, and an int64 seed",
    fits=_fits_random,
    fake=_fake_random,
    check=_check_counts,
    kernels=("cpu",),
)


def _fits_voxels(points: Tensor, sizes: Tensor | None) -> bool:
    return clouds.fit(points, sizes) and points.shape[-1] == 3


def _check_voxels(points: Tensor, sizes: Tensor | None) -> None:
    clouds.check_values(points, sizes)


def _fake_voxels(points: Tensor) -> Tensor:
    return points.new_empty(points.shape[:-1], dtype=torch.bool)


voxel_representatives = operator(
    reference.voxel_representatives,
    contract=f"{clouds.CONTRACT}, and D = 3",
    fits=_fits_voxels,
    fake=_fake_voxels,
    check=_check_voxels,
    kernels=("cpu",),
)
