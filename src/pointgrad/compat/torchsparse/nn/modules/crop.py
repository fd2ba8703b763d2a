"""Cropping."""

from torch import nn

from ...tensor import SparseTensor
from .. import functional

__all__ = ["SparseCrop"]


class SparseCrop(nn.Module):
    """Remove voxels outside a box; see `spcrop`."""

    def __init__(self, coords_min: tuple[int, ...] | None = None, coords_max: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.coords_min, self.coords_max = coords_min, coords_max

    def forward(self, input: SparseTensor) -> SparseTensor:
        """Apply the layer."""
        return functional.spcrop(input, self.coords_min, self.coords_max)
