"""A module that returns its input."""

from typing import Any

from torch import nn

__all__ = ["Identity"]


class Identity(nn.Module):
    """Returns its input."""

    def forward(self, input: Any) -> Any:
        """Return `input`."""
        return input

    def input_spatial_size(self, out_size: Any) -> Any:
        """Return `out_size`."""
        return out_size
