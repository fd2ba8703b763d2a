"""One resolution of a batch of clouds: the input and output of layers."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from pointgrad.ops import checks


class Level(NamedTuple):
    """Points with features, in either layout. Layers take and return a level.

    Attributes:
        points: (N, 3) packed, or (B, N, 3) for clouds of equal size.
        features: (N, C) or (B, N, C), or None.
        offsets: (B + 1,), packed only: the start of each cloud, and N. None for a single cloud.
        sizes: Number of points of each cloud, on the host. Layers that sample need it; without it, each of them reads
            `offsets`, which waits for the GPU. `with_sizes` reads it once, and layers pass it on.

    Example:
        >>> level = Level(torch.rand(5, 3), None, torch.tensor([0, 2, 5])).with_sizes()
        >>> level.sizes
        (2, 3)
    """

    points: Tensor
    features: Tensor | None = None
    offsets: Tensor | None = None
    sizes: tuple[int, ...] | None = None

    def packed(self) -> bool:  # not a property: torch 2.6 cannot trace properties of tuples
        """Whether the layout is packed."""
        return self.points.dim() == 2

    def with_features(self, features: Tensor | None) -> "Level":
        """Return the same points with different features."""
        return Level(self.points, features, self.offsets, self.sizes)  # torch 2.6 cannot trace _replace

    def with_sizes(self) -> "Level":
        """Return the same level with `sizes` if it is packed. Only `offsets` are read from the device, if any."""
        if not self.packed() or self.sizes is not None:
            return self
        if self.offsets is None:
            return self._replace(sizes=(self.points.shape[0],))
        values = self.offsets.tolist()
        return self._replace(sizes=tuple(end - begin for begin, end in itertools.pairwise(values)))

    def cloud_ids(self) -> Tensor:
        """Return the cloud (N,) of each packed point."""
        row = torch.arange(self.points.shape[0], device=self.points.device)
        if self.offsets is None:
            return torch.zeros_like(row)
        return torch.searchsorted(self.offsets[1:].contiguous(), row, right=True)


def offsets_of(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Offsets (B + 1,) of clouds of these sizes."""
    return torch.tensor([0, *sizes], device=device).cumsum(0)


def check_type(level: object, name: str = "level") -> None:
    """Check that the input of a layer is a level and not, for example, a tensor of points."""
    advice = "; pass Level(points, features)" if isinstance(level, (Tensor, tuple)) else ""
    checks.kind(isinstance(level, Level), name, f"a pointgrad.nn.Level{advice}", level)


def check_level(level: Level, channels: int) -> None:
    """Check that the features match the points and have this number of channels."""
    check_type(level)
    checks.clouds(level.points, level.offsets, None)
    features = level.features
    if features is None:
        checks.value(channels == 0, "features", lambda: f"a tensor with {channels} channels", "None")
        return
    expected = (*level.points.shape[:-1], channels)
    checks.tensor("features", features)
    checks.shape(features.shape == expected, "features", lambda: f"{expected}", features)
    checks.device("features", features, "points", level.points)
