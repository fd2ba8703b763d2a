"""What stands at the end of networks."""

from collections.abc import Sequence

from torch import nn

from pointgrad.nn.shared_mlp import SharedMLP


def head(channels: int, widths: Sequence[int], classes: int, *, norm: str | None, dropout: float) -> nn.Sequential:
    """Layers of these widths, each followed by dropout, and a linear one to the classes."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [SharedMLP(channels, [width], norm=norm), nn.Dropout(dropout)]
        channels = width
    return nn.Sequential(*layers, nn.Linear(channels, classes))
