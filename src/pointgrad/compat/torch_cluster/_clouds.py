"""Conversion of torch-cluster's arguments to pointgrad's: coordinates and offsets."""

from typing import Any

import torch
from torch import Tensor

from pointgrad.ops import checks

from .._scalars import number

_REAL = (*checks.FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def coordinates(name: str, points: Any) -> Tensor:
    """Convert (N,) or (N, ...) to floating-point (N, D) without gradient; integers become float64, which is exact."""
    checks.tensor(name, points)
    checks.shape(points.dim() >= 1, name, "(N,) or (N, D)", points)
    checks.dtype(name, points, _REAL)
    points = points.detach()
    if not points.is_floating_point():
        points = points.double()
    return points.unsqueeze(1) if points.dim() == 1 else points.flatten(1)


def pair(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Coordinates of points and queries, which must match in dimension, dtype and device."""
    points = coordinates("x", x)
    if y is x:
        return points, points
    queries = coordinates("y", y)
    fits = queries.shape[1] == points.shape[1]
    checks.shape(fits, "y", lambda: f"(M, D) with D = {points.shape[1]}, like x", y)
    checks.same_dtype("y", queries, "x", points)
    checks.device("y", queries, "x", points)
    return points, queries


def count_clouds(name: str, batch: Any, points: Tensor, batch_size: Any) -> int:
    """Number of clouds in a batch vector.

    The vector is read on the host once, to find this number and to check that it is sorted; on a GPU only if
    `batch_size` is None.
    """
    batch_size = number(batch_size)
    checks.kind(batch_size is None or checks.is_integer(batch_size), "batch_size", "an int or None", batch_size)
    checks.value(batch_size is None or batch_size >= 1, "batch_size", "at least 1", batch_size)
    if batch is None:
        return batch_size or 1
    checks.tensor(name, batch)
    checks.shape(batch.shape == points.shape[:1], name, lambda: f"(N,) = ({points.shape[0]},), like its points", batch)
    checks.dtype(name, batch, checks.INDICES)
    checks.device(name, batch, "its points", points)
    if batch.shape[0] == 0 or (batch_size is not None and batch.device.type != "cpu"):
        return batch_size or 1
    decreases = (batch[1:] < batch[:-1]).any().to(batch.dtype)
    first, last, is_unsorted = torch.stack([batch[0], batch[-1], decreases]).tolist()
    if is_unsorted:
        row = int((batch[1:] < batch[:-1]).nonzero()[0])
        raise ValueError(f"{name} must be sorted, got {int(batch[row])} before {int(batch[row + 1])}")
    checks.value(first >= 0, name, "at least 0", first)
    inside = batch_size is None or last < batch_size
    checks.value(inside, name, f"below batch_size = {batch_size}", last)
    return batch_size or last + 1


def offsets(batch: Tensor, clouds: int) -> Tensor:
    """Offsets (B + 1,) of a sorted batch vector."""
    number = torch.arange(clouds + 1, dtype=batch.dtype, device=batch.device)
    return torch.searchsorted(batch.contiguous(), number)


def pair_offsets(
    points: Tensor, queries: Tensor, batch_x: Any, batch_y: Any, batch_size: Any
) -> tuple[Tensor | None, Tensor | None]:
    """Offsets of points and of queries. If both have the same batch vector, it is read only once."""
    clouds = count_clouds("batch_x", batch_x, points, batch_size)
    if batch_y is not batch_x:
        clouds = max(clouds, count_clouds("batch_y", batch_y, queries, batch_size))
    if clouds == 1:
        return None, None
    for name, batch in (("batch_x", batch_x), ("batch_y", batch_y)):
        checks.value(batch is not None, name, lambda: f"a tensor if there are {clouds} clouds", None)
    point_offsets = offsets(batch_x, clouds)
    return point_offsets, point_offsets if batch_y is batch_x else offsets(batch_y, clouds)
