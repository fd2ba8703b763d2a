"""Functions of features."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...tensor import SparseTensor, with_feats

__all__ = ["fapply"]


def fapply(input: SparseTensor, fn: Callable[..., Tensor], *args: Any, **kwargs: Any) -> SparseTensor:
    """Apply a function to the features."""
    return with_feats(input, fn(input.feats, *args, **kwargs))
