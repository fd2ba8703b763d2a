"""Parts that networks share in addition to the layers of `nn`."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from pointgrad.nn.shared_mlp import SharedMLP


def head(
    channels: int, widths: Sequence[int], classes: int, *, norm: str | None, dropout: float, activation: str = "relu"
) -> nn.Sequential:
    """Layers of these widths, each followed by dropout, and a linear layer to the classes."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [SharedMLP(channels, [width], norm=norm, activation=activation), nn.Dropout(dropout)]
        channels = width
    return nn.Sequential(*layers, nn.Linear(channels, classes))


def one_hot(category: Tensor, categories: int, like: Tensor) -> Tensor:
    """One-hot encoding (B, categories) in the dtype of `like`."""
    return functional.one_hot(category.long(), categories).to(like.dtype)
