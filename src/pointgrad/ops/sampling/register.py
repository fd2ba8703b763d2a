"""Schema and fake of this room's operators. None has a gradient: the public functions detach.

In all of them `offsets` belongs to packed points and `lengths` to padded ones. `num_samples` is the
count per cloud, or, when `counts` is given, the total (packed) or the largest (padded).
"""

import torch
from torch import Tensor

from .. import checks, clouds
from ..registry import operator


def _check_counts(
    points: Tensor, offsets: Tensor | None, lengths: Tensor | None, num_samples: int, counts: Tensor | None
) -> None:
    clouds.check_values(points, offsets, lengths)
    if points.dim() == 3:
        return
    sizes = clouds.sizes(points, offsets, lengths).tolist()
    wanted = [num_samples] * len(sizes) if counts is None else counts.tolist()
    for cloud, (count, size) in enumerate(zip(wanted, sizes, strict=True)):
        contract = f"at most {size}, the size of cloud {cloud}"
        checks.value(count <= size, "num_samples", contract, count)


def _check_farthest(
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    start: Tensor | None,
    radii: bool,
) -> None:
    _check_counts(points, offsets, lengths, num_samples, counts)
    if start is None:
        return
    sizes = clouds.sizes(points, offsets, lengths).tolist()
    wanted = [num_samples] * len(sizes) if counts is None else counts.tolist()
    for cloud, (first, size, count) in enumerate(zip(start.tolist(), sizes, wanted, strict=True)):
        if size == 0 or count == 0:
            continue  # nothing is picked there
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
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    start: Tensor | None,
    radii: bool,
) -> tuple[Tensor, Tensor]:
    shape = clouds.samples_shape(points, offsets, num_samples, counts)
    wide = torch.promote_types(points.dtype, torch.float32)
    index = points.new_empty(shape, dtype=torch.int64)
    return index, points.new_empty(shape if radii else (0,), dtype=wide)


def _check_random(
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    seed: Tensor,
) -> None:
    _check_counts(points, offsets, lengths, num_samples, counts)


def _fake_random(
    points: Tensor,
    offsets: Tensor | None,
    lengths: Tensor | None,
    num_samples: int,
    counts: Tensor | None,
    seed: Tensor,
) -> Tensor:
    return points.new_empty(clouds.samples_shape(points, offsets, num_samples, counts), dtype=torch.int64)


def _check_voxels(points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float) -> None:
    clouds.check_values(points, offsets, lengths)


def _fake_voxels(
    points: Tensor, offsets: Tensor | None, lengths: Tensor | None, x: float, y: float, z: float
) -> Tensor:
    return points.new_empty(points.shape[:-1], dtype=torch.bool)


farthest_point_sampling = operator(
    "farthest_point_sampling(Tensor points, Tensor? offsets, Tensor? lengths, SymInt num_samples,"
    " Tensor? counts, Tensor? start, bool radii) -> (Tensor, Tensor)",
    room=__package__,
    kernels=("cpu", "triton"),
    fake=_fake_farthest,
    check=_check_farthest,
)

random_sampling = operator(
    "random_sampling(Tensor points, Tensor? offsets, Tensor? lengths, SymInt num_samples,"
    " Tensor? counts, Tensor seed) -> Tensor",
    room=__package__,
    fake=_fake_random,
    check=_check_random,
    kernels=("cpu",),
)

voxel_representatives = operator(
    "voxel_representatives(Tensor points, Tensor? offsets, Tensor? lengths, float x, float y, float z) -> Tensor",
    room=__package__,
    fake=_fake_voxels,
    check=_check_voxels,
    kernels=("cpu",),
)
