"""Point clouds and packed batches of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

COLORS = ("red", "green", "blue", "alpha", "rgb", "rgba", "color", "colors", "colour", "colours")


def _no_offset() -> Tensor:
    return torch.zeros(3, dtype=torch.float64)


@dataclass
class Cloud:
    """A point cloud with named columns, on the CPU.

    Attributes:
        points: Coordinates (N, 3) relative to `origin`, float32 if the source stores float32, else float64.
        features: Per-point columns by name, each (N,) or (N, c) in its own dtype.
        labels: Class of each point (N,), int64; -1 means no label.
        label: Class of the whole cloud.
        category: Category of the object, for part segmentation.
        origin: Origin (3,), float64; world coordinates are `origin + points`. Readers choose integers, so that
            subtracting and adding the origin does not round.
        source: Description of the source, for messages.

    Example:
        >>> cloud = Cloud(torch.zeros(4, 3), {"height": torch.arange(4.)})
        >>> len(cloud), cloud.select(torch.tensor([1, 3])).features["height"]
        (4, tensor([1., 3.]))
    """

    points: Tensor
    features: dict[str, Tensor] = field(default_factory=dict)
    labels: Tensor | None = None
    label: int | None = None
    category: int | None = None
    origin: Tensor = field(default_factory=_no_offset)
    source: str = ""

    def __post_init__(self) -> None:
        count = self.points.shape[0] if self.points.dim() == 2 else -1
        if count < 0 or self.points.shape[1] != 3:
            raise ValueError(f"{self.prefix()}points must be (N, 3), got {tuple(self.points.shape)}")
        columns = {**self.features, **({} if self.labels is None else {"labels": self.labels})}
        for name, column in columns.items():
            if column.shape[:1] != (count,):
                raise ValueError(f"{self.prefix()}{name} must have {count} rows like points, got {tuple(column.shape)}")

    def __len__(self) -> int:
        return self.points.shape[0]

    def world(self) -> Tensor:
        """Return the coordinates of the source, (N, 3) float64."""
        return self.points.double() + self.origin

    def select(self, index: Tensor) -> "Cloud":
        """Select points by index (M,) or mask (N,), with all their columns."""
        if index.dtype == torch.bool:
            index = index.nonzero().squeeze(1)
        return replace(
            self,
            points=self.points.index_select(0, index),
            features={name: column.index_select(0, index) for name, column in self.features.items()},
            labels=None if self.labels is None else self.labels.index_select(0, index),
        )

    def stack(self, names: Sequence[str]) -> Tensor | None:
        """Concatenate the named columns to (N, C) float32.

        Colors are scaled to the range 0 to 1: uint8 columns whose name is or ends in red, green, blue, alpha, rgb,
        rgba, color or colors are divided by 255, and `red`, `green` and `blue` in wider integers, as in LAS files, by
        65535. All other columns keep their values, whatever their dtype.

        Args:
            names: Names of features.

        Returns:
            The columns, or None if there are no names.

        Raises:
            ValueError: If a feature is missing.
        """
        self.need(names)
        if not names:
            return None
        return torch.cat([_floats(name, self.features[name]).reshape(len(self), -1) for name in names], dim=1)

    def need(self, names: Sequence[str]) -> None:
        """Raise `ValueError` if one of the named features is missing."""
        missing = [name for name in names if name not in self.features]
        if missing:
            has = ", ".join(self.features) or "no features"
            raise ValueError(f"{self.prefix()}features must contain {', '.join(missing)}, got {has}")

    def prefix(self) -> str:
        """Return the start of messages about this cloud: its source, if known."""
        return f"{self.source}: " if self.source else ""


@dataclass
class Batch:
    """B clouds packed into one, the input of a network.

    Attributes:
        points: Coordinates (N, 3), float32.
        features: Features (N, C), float32, or None.
        offsets: Cloud i is `points[offsets[i]:offsets[i + 1]]`; (B + 1,), int64.
        target: One class per cloud (B,), or one per point (N,) with -1 for no label. None without labels.
        category: Category of each cloud (B,), int64, or None.
        sizes: Number of points of each cloud, on the host.
        sources: Source of each cloud; may be empty.
    """

    points: Tensor
    features: Tensor | None
    offsets: Tensor
    target: Tensor | None
    category: Tensor | None
    sizes: tuple[int, ...]
    sources: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sizes)

    def to(self, device: torch.device | str) -> "Batch":
        """Move the batch to a device. The copy to a GPU is asynchronous if the memory is pinned."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """Copy the batch to pinned memory."""
        return self._map(lambda tensor: tensor.pin_memory())

    def inputs(self) -> dict[str, Any]:
        """Return the arguments of a network: padded (B, N, ...) for clouds of equal size, else packed with offsets."""
        if len(set(self.sizes)) != 1:
            out: dict[str, Any] = {"points": self.points, "features": self.features, "offsets": self.offsets}
        else:
            dense = (len(self.sizes), self.sizes[0], -1)
            features = None if self.features is None else self.features.reshape(dense)
            out = {"points": self.points.reshape(dense), "features": features}
        return {**out, "category": self.category} if self.category is not None else out

    def _map(self, change: Any) -> "Batch":
        def each(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        return replace(
            self,
            points=change(self.points),
            features=each(self.features),
            offsets=change(self.offsets),
            target=each(self.target),
            category=each(self.category),
        )


def _floats(name: str, column: Tensor) -> Tensor:
    divisor = color_range(name, column)
    return column.float() if divisor == 1 else column.float() / divisor


def color_range(name: str, column: Tensor) -> int:
    """Return the number by which a column is divided for a network: the highest value of an integer color, else 1."""
    if column.dtype == torch.uint8:
        return 255 if name.lower().endswith(COLORS) else 1
    return 65535 if name in ("red", "green", "blue") and not column.is_floating_point() else 1


def collate(clouds: Sequence[Cloud], features: Sequence[str] = ()) -> Batch:
    """Pack clouds into a batch, in their order.

    Args:
        clouds: The clouds. Without any, the batch is empty.
        features: Names of the features to include.

    Returns:
        The batch. `target` is None unless all clouds have labels.

    Raises:
        ValueError: If a feature is missing, or has different widths in two clouds.

    Example:
        >>> batch = collate([Cloud(torch.zeros(2, 3), label=4), Cloud(torch.ones(3, 3), label=1)])
        >>> batch.offsets, batch.target
        (tensor([0, 2, 5]), tensor([4, 1]))
    """
    if not clouds:  # the part of a rank in the last batch may be empty, and so may a batch of unreadable files
        none = torch.zeros(0, dtype=torch.int64)
        return Batch(torch.zeros(0, 3), None, torch.zeros(1, dtype=torch.int64), none, None, ())
    sizes = tuple(len(cloud) for cloud in clouds)
    return Batch(
        points=torch.cat([cloud.points.float() for cloud in clouds]),
        features=_features(clouds, features) if features else None,
        offsets=torch.tensor([0, *sizes]).cumsum(0),
        target=_targets(clouds),
        category=_if_complete([cloud.category for cloud in clouds]),
        sizes=sizes,
        sources=tuple(cloud.source for cloud in clouds),
    )


def _features(clouds: Sequence[Cloud], names: Sequence[str]) -> Tensor:
    columns = [column for cloud in clouds if (column := cloud.stack(names)) is not None]
    for cloud, column in zip(clouds, columns, strict=True):
        if column.shape[1] != columns[0].shape[1]:
            width, source = columns[0].shape[1], clouds[0].source or "the first cloud"
            raise ValueError(
                f"{cloud.prefix()}features must have {width} columns, as in {source}, got {column.shape[1]}"
            )
    return torch.cat(columns)


def _if_complete(values: Sequence[int | None]) -> Tensor | None:
    known = [value for value in values if value is not None]
    return torch.tensor(known) if len(known) == len(values) else None


def _targets(clouds: Sequence[Cloud]) -> Tensor | None:
    labels = [cloud.labels for cloud in clouds if cloud.labels is not None]
    return torch.cat(labels) if len(labels) == len(clouds) else _if_complete([cloud.label for cloud in clouds])
