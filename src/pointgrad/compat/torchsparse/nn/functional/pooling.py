"""Pooling of whole clouds."""

from typing import Literal

from torch import Tensor

import pointgrad

from ...tensor import SparseTensor

__all__ = ["global_avg_pool", "global_max_pool"]


def global_avg_pool(inputs: SparseTensor) -> Tensor:
    """Mean of the features of each cloud: (B, C), 0 for an empty one."""
    return _pool(inputs, "mean")


def global_max_pool(inputs: SparseTensor) -> Tensor:
    """Maximum of the features of each cloud: (B, C), 0 for an empty one."""
    return _pool(inputs, "max")


def _pool(inputs: SparseTensor, reduce: Literal["mean", "max"]) -> Tensor:
    return pointgrad.scatter(inputs.feats, inputs.coords[:, 0].long(), None, reduce)
