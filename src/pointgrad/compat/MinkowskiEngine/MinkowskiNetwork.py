"""Base class of networks."""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

__all__ = ["MinkowskiNetwork"]


class MinkowskiNetwork(nn.Module, ABC):
    """Base class of networks with D axes."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.D = D

    @abstractmethod
    def forward(self, x: Any) -> Any:
        """Apply the network."""
