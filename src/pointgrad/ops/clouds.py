"""Where each cloud lies, in either layout: packed with offsets, or padded with lengths."""

from typing import Any

import torch
from torch import Tensor

from . import checks


def batch_size(points: Tensor, offsets: Tensor | None) -> int:
    if points.dim() == 3:
        return points.shape[0]
    return 1 if offsets is None else offsets.shape[0] - 1


def samples_shape(points: Tensor, offsets: Tensor | None, num_samples: int, counts: Tensor | None) -> tuple[int, ...]:
    """Of an index of samples. With counts per cloud, `num_samples` is their sum (packed) or maximum (padded)."""
    batch = batch_size(points, offsets)
    if points.dim() == 3:
        return batch, num_samples
    return (num_samples if counts is not None else batch * num_samples,)


def bounds(points: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B,) the number of each cloud's first point, counted through all clouds, and (B,) its size.

    On a GPU nobody has checked the values: they are kept in range, so that nothing is read out of bounds.
    """
    batch, rows = batch_size(points, offsets), points.shape[-2]
    if offsets is not None:
        inside = offsets.clamp(0, rows)
        return inside[:-1], inside.diff().clamp(min=0)
    begin = torch.arange(batch, device=points.device) * rows
    return begin, torch.full_like(begin, rows) if lengths is None else lengths.clamp(0, rows)


def sizes(points: Tensor, offsets: Tensor | None, lengths: Tensor | None) -> Tensor:
    """(B,) the number of points of each cloud."""
    return bounds(points, offsets, lengths)[1]


def check_values(points: Tensor, offsets: Tensor | None, lengths: Tensor | None, prefix: str = "") -> None:
    if offsets is not None:
        checks.offsets_values(offsets, points.shape[0], f"{prefix}offsets")
    if lengths is not None:
        checks.lengths_values(lengths, points.shape[1], f"{prefix}lengths")


def ids(points: Tensor, offsets: Tensor | None) -> Tensor:
    """(N,) which cloud each packed point belongs to."""
    if offsets is None:
        return torch.zeros(points.shape[0], dtype=torch.int64, device=points.device)
    place = torch.arange(points.shape[0], device=points.device)
    last = max(offsets.shape[0] - 2, 0)
    return (torch.searchsorted(offsets.contiguous(), place, right=True) - 1).clamp(0, last)


def check_partner(
    points: Tensor,
    offsets: Tensor | None,
    partner: Any,
    partner_offsets: Any,
    partner_lengths: Any,
    name: str,
    prefix: str,
) -> None:
    """Other clouds that are compared with the points: queries, targets. The points were checked before."""
    checks.clouds(partner, partner_offsets, partner_lengths, name=name, prefix=prefix, most_dims=checks.ANY)
    fits = partner.dim() == points.dim() and partner.shape[-1] == points.shape[-1]
    layout = "(M, D)" if points.dim() == 2 else "(B, M, D)"
    checks.shape(fits, name, lambda: f"{layout} with D = {points.shape[-1]}, like points", partner)
    batch, other = batch_size(points, offsets), batch_size(partner, partner_offsets)
    checks.value(other == batch, name, lambda: f"as many clouds as points, B = {batch}", f"B = {other}", verb="have")
    if not checks.autocasts(points):
        checks.same_dtype(name, partner, "points", points)
    checks.device(name, partner, "points", points)
