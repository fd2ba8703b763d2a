"""The two layouts of a batch of clouds.

Behind the public functions one argument describes both: `sizes` holds the offsets (B + 1,) of packed points (N, D), or
the lengths (B,) of padded points (B, N, D), depending on the rank of the points. None means that all clouds are full.
"""

from typing import Any

import torch
from torch import Tensor

from . import checks


def as_sizes(offsets: Tensor | None, lengths: Tensor | None) -> Tensor | None:
    """Return offsets or lengths, whichever is given, as int64. At most one of them is not None."""
    sizes = lengths if offsets is None else offsets
    return None if sizes is None else sizes.long()


def fit(points: Tensor, sizes: Tensor | None) -> bool:
    """Whether these are points of a floating dtype in one of the two layouts, with int64 sizes."""
    return points.dtype in checks.FLOATS and layout_fits(points, sizes)


def layout_fits(points: Tensor, sizes: Tensor | None) -> bool:
    """The same for points of any dtype."""
    shape = points.shape
    if not 2 <= len(shape) <= 3 or shape[-1] == 0:
        return False
    if sizes is None:
        return True
    numbers = sizes.shape
    if len(numbers) != 1 or sizes.dtype != torch.int64:
        return False
    return numbers[0] > 0 if len(shape) == 2 else numbers == shape[:1]


CONTRACT = "points (N, D) with int64 offsets (B + 1,) or None, or (B, N, D) with int64 lengths (B,) or None"


def batch_size(points: Tensor, sizes: Tensor | None) -> int:
    if points.dim() == 3:
        return points.shape[0]
    return 1 if sizes is None else sizes.shape[0] - 1


def samples_shape(points: Tensor, sizes: Tensor | None, num_samples: int, counts: Tensor | None) -> tuple[int, ...]:
    """Shape of a sample index. With counts per cloud, `num_samples` is their sum (packed) or maximum (padded)."""
    batch = batch_size(points, sizes)
    if points.dim() == 3:
        return batch, num_samples
    return (num_samples if counts is not None else batch * num_samples,)


def bounds(points: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B,) the row of each cloud's first point, counted through all clouds, and (B,) its number of points.

    On a GPU the values were not checked. They are clamped, so that nothing is read out of bounds.
    """
    batch, rows = batch_size(points, sizes), points.shape[-2]
    if points.dim() == 2 and sizes is not None:
        inside = sizes.clamp(0, rows)
        return inside[:-1], inside.diff().clamp(min=0)
    begin = torch.arange(batch, device=points.device) * rows
    return begin, torch.full_like(begin, rows) if sizes is None else sizes.clamp(0, rows)


def num_points(points: Tensor, sizes: Tensor | None) -> Tensor:
    """(B,) the number of points of each cloud."""
    return bounds(points, sizes)[1]


def ids(points: Tensor, sizes: Tensor | None) -> Tensor:
    """(N,) the cloud of each packed point."""
    if sizes is None:
        return torch.zeros(points.shape[0], dtype=torch.int64, device=points.device)
    place = torch.arange(points.shape[0], device=points.device)
    last = max(sizes.shape[0] - 2, 0)
    return (torch.searchsorted(sizes.contiguous(), place, right=True) - 1).clamp(0, last)


def kernel_arguments(points: Tensor, sizes: Tensor | None) -> dict[str, Any]:
    """The arguments that describe a batch to a C++ kernel (clouds.h)."""
    return {
        "packed": points.dim() == 2,
        "batch": batch_size(points, sizes),
        "num_points": points.shape[-2],
        "sizes": None if sizes is None else sizes.contiguous(),
    }


def check_values(points: Tensor, sizes: Tensor | None, prefix: str = "") -> None:
    """Check the values of offsets or lengths, whose names in messages begin with the prefix."""
    if sizes is None:
        return
    if points.dim() == 2:
        checks.offsets_values(sizes, points.shape[0], f"{prefix}offsets")
    else:
        checks.lengths_values(sizes, points.shape[1], f"{prefix}lengths")


def check_partner(
    points: Tensor,
    offsets: Tensor | None,
    partner: Any,
    partner_offsets: Any,
    partner_lengths: Any,
    name: str,
    prefix: str,
) -> None:
    """Check clouds that are compared with the points, such as queries or targets, after the points themselves."""
    checks.clouds(
        partner, partner_offsets, partner_lengths, name=name, prefix=prefix, most_dims=checks.ANY, any_dims=True
    )
    fits = partner.dim() == points.dim() and partner.shape[-1] == points.shape[-1]
    layout = "(M, D)" if points.dim() == 2 else "(B, M, D)"
    checks.point_shape(fits, name, lambda: f"{layout} with D = {points.shape[-1]}, like points", partner)
    batch, other = batch_size(points, offsets), batch_size(partner, partner_offsets)
    contract, received = (lambda: f"as many clouds as points, B = {batch}"), (lambda: f"B = {other}")
    checks.value(other == batch, name, contract, received, verb="have")
    if not checks.autocasts(points):
        checks.same_dtype(name, partner, "points", points)
    checks.device(name, partner, "points", points)
