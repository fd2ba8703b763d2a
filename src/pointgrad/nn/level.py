"""One resolution of a batch of clouds, as layers pass it on."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from pointgrad.ops import checks


class Level(NamedTuple):
    """Points with their features, in either layout; what layers take and return.

    points: (N, 3) packed, or (B, N, 3) padded with clouds of one size. features: (N, C) or (B, N, C), or None.
    offsets: (B + 1,), packed only: where each cloud begins; one cloud without.
    sizes: the points of each cloud, known on the host. Layers that sample need them: without them each such layer
        reads `offsets`, for which a GPU waits. `with_sizes` reads them once; layers pass them on.

    >>> level = Level(torch.rand(5, 3), None, torch.tensor([0, 2, 5])).with_sizes()
    >>> level.sizes
    (2, 3)
    """

    points: Tensor
    features: Tensor | None = None
    offsets: Tensor | None = None
    sizes: tuple[int, ...] | None = None

    def packed(self) -> bool:  # not a property: torch 2.6 cannot trace one of a tuple
        return self.points.dim() == 2

    def with_features(self, features: Tensor | None) -> "Level":
        """The same points with other features. Not `_replace`, which torch 2.6 cannot trace."""
        return Level(self.points, features, self.offsets, self.sizes)

    def with_sizes(self) -> "Level":
        """The same level with sizes, if it is packed; nothing is read for padded levels or a single cloud."""
        if not self.packed() or self.sizes is not None:
            return self
        if self.offsets is None:
            return self._replace(sizes=(self.points.shape[0],))
        values = self.offsets.tolist()
        return self._replace(sizes=tuple(end - begin for begin, end in itertools.pairwise(values)))

    def cloud_ids(self) -> Tensor:
        """(N,) the cloud of each packed point."""
        place = torch.arange(self.points.shape[0], device=self.points.device)
        if self.offsets is None:
            return torch.zeros_like(place)
        return torch.searchsorted(self.offsets[1:].contiguous(), place, right=True)


def offsets_of(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """(B + 1,) from the sizes, without reading anything back."""
    return torch.tensor([0, *sizes], device=device).cumsum(0)


def check_level(level: Level, channels: int) -> None:
    """That the features are there, have this many channels, and belong to the points."""
    checks.clouds(level.points, level.offsets, None)
    features = level.features
    if features is None:
        checks.value(channels == 0, "features", lambda: f"a tensor of {channels} channels", "None")
        return
    expected = (*level.points.shape[:-1], channels)
    checks.tensor("features", features)
    checks.shape(features.shape == expected, "features", lambda: f"{expected}", features)
    checks.device("features", features, "points", level.points)
