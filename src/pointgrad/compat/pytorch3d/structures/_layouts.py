"""Rows of clouds in three layouts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Layouts:
    """Rows of clouds as a list, padded and packed. At least one layout is given; others are computed when needed."""

    def __init__(
        self,
        sizes: list[int],
        rows: list[Tensor] | None = None,
        padded: Tensor | None = None,
        packed: Tensor | None = None,
    ) -> None:
        self.sizes = sizes
        self.rows = rows
        self.padded = padded
        self.packed = packed

    def as_list(self) -> list[Tensor]:
        """Tensors (P_n, C), views of another layout."""
        if self.rows is None:
            if self.packed is not None:
                self.rows = list(self.packed.split(self.sizes))
            else:
                assert self.padded is not None
                self.rows = [rows[:size] for rows, size in zip(self.padded.unbind(0), self.sizes, strict=True)]
        return self.rows

    def as_padded(self, refresh: bool = False) -> Tensor:
        """Tensor (N, max(P_n), C), filled with zeros."""
        if self.padded is None or (refresh and self.sizes):
            self.padded = torch.nn.utils.rnn.pad_sequence(self.as_list(), batch_first=True)
        return self.padded

    def as_packed(self, refresh: bool = False) -> Tensor:
        """Tensor (sum(P_n), C)."""
        if self.packed is None or refresh:
            if self.padded is not None and (not self.sizes or (self.rows is None and len(set(self.sizes)) == 1)):
                self.packed = self.padded.flatten(0, 1)
            else:
                self.packed = torch.cat(self.as_list())
        return self.packed

    def map(self, change: Callable[[Tensor], Tensor]) -> "Layouts":
        """Copy with a function applied to every tensor."""
        rows = None if self.rows is None else [change(item) for item in self.rows]
        padded = None if self.padded is None else change(self.padded)
        packed = None if self.packed is None else change(self.packed)
        return Layouts(self.sizes, rows, padded, packed)


def points_rows(points: Sequence[Any]) -> list[Tensor]:
    """Check a list of points (P_n, 3); empty tensors of another shape become (0, 3)."""
    rows = []
    for item in points:
        if not isinstance(item, Tensor):
            raise ValueError(f"points must be a list of tensors, got {type(item).__name__}")
        if item.device != points[0].device:
            raise ValueError(f"points must all be on the same device, got {points[0].device} and {item.device}")
        if item.dim() and len(item) == 0:
            item = item if item.shape[1:] == (3,) else item.new_zeros(0, 3)
        elif item.dim() != 2 or item.shape[1] != 3:
            raise ValueError(f"points must be a list of tensors (P, 3) or empty tensors, got {tuple(item.shape)}")
        rows.append(item)
    return rows


def auxiliary(
    name: str, given: Any, sizes: list[int], device: torch.device, width: int | None = None
) -> Layouts | None:
    """Check normals or features of clouds with these sizes."""
    if given is None or not sizes:
        return None
    if isinstance(given, Tensor):
        expected = (len(sizes), max(sizes))
        if given.dim() != 3 or given.shape[:2] != expected:
            raise ValueError(f"{name} must be (N, P, C) with (N, P) = {expected}, got {tuple(given.shape)}")
        layouts, channels, devices = Layouts(sizes, padded=given), given.shape[2], {given.device}
    elif isinstance(given, (list, tuple)):
        if len(given) != len(sizes):
            raise ValueError(f"{name} must be a list of {len(sizes)} tensors, like points, got {len(given)}")
        full = [item for size, item in zip(sizes, given, strict=True) if size or _is_rows(item)]
        if not full:
            return None
        if not all(map(_is_rows, full)) or len({item.shape[1] for item in full}) != 1:
            shapes = [tuple(getattr(item, "shape", ())) for item in full]
            raise ValueError(f"{name} must be tensors (P_n, C) with the same number of channels C, got {shapes}")
        channels = full[0].shape[1]
        # Empty clouds may have None or an empty tensor of another shape.
        none = full[0].new_zeros(0, channels)
        rows = [item if size or _is_rows(item) else none for size, item in zip(sizes, given, strict=True)]
        counts = [len(item) for item in rows]
        if counts != sizes:
            raise ValueError(f"{name} must have as many rows as points, {sizes}, got {counts}")
        layouts, devices = Layouts(sizes, rows=rows), {item.device for item in rows}
    else:
        raise ValueError(f"{name} must be a list or a tensor (N, P, C), got {type(given).__name__}")
    if width not in (None, channels):
        raise ValueError(f"{name} must have {width} channels, got {channels}")
    if devices != {device}:
        received = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"{name} must be on the same device as points, {device}, got {received}")
    return layouts


def _is_rows(item: Any) -> bool:
    return isinstance(item, Tensor) and item.dim() == 2
