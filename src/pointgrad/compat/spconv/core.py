"""Names of spconv's algorithms. They are accepted and have no effect."""

from enum import Enum

__all__ = ["AlgoHint", "ConvAlgo"]


class ConvAlgo(Enum):
    """Algorithm of a layer of spconv."""

    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2


class AlgoHint(Enum):
    """Passes for which spconv selects a kernel."""

    NoHint = 0b000
    Fowrard = 0b001
    BackwardInput = 0b010
    BackwardWeight = 0b100
