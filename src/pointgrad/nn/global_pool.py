"""Reduction of each cloud to one row."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from pointgrad.nn.level import Level, check_type
from pointgrad.nn.local import cloud_pool
from pointgrad.ops import checks

Reduce = Literal["max", "mean", "sum"]
_REDUCES = get_args(Reduce)


class GlobalPool(nn.Module):
    """The maximum, mean or sum of the features of each cloud, for a head that classifies whole clouds.

    The input is a `Level` in either layout, the output a tensor (B, C). Clouds of a batch never mix. A cloud without
    points gives zeros.

    Args:
        reduce: "max", "mean" or "sum", or several of them, whose results are concatenated in this order.

    Example:
        >>> level = Level(torch.rand(5, 3), torch.arange(5.).unsqueeze(1), torch.tensor([0, 2, 5]))
        >>> GlobalPool(["max", "mean"])(level)
        tensor([[1.0000, 0.5000],
                [4.0000, 3.0000]])
    """

    def __init__(self, reduce: Reduce | Sequence[Reduce] = "max") -> None:
        super().__init__()
        self.reduce = [reduce] if isinstance(reduce, str) else list(reduce)
        known = len(self.reduce) > 0 and all(one in _REDUCES for one in self.reduce)
        checks.value(known, "reduce", '"max", "mean" or "sum", or a list of them', repr(reduce))

    def forward(self, level: Level) -> Tensor:
        check_type(level)
        checks.clouds(level.points, level.offsets, None)
        features = level.features
        checks.tensor("features", features)
        assert features is not None
        fits = features.dim() == level.points.dim() and features.shape[:-1] == level.points.shape[:-1]
        checks.shape(fits, "features", lambda: f"(N, C) or (B, N, C) with points {tuple(level.points.shape)}", features)
        checks.device("features", features, "points", level.points)
        pooled = [cloud_pool(level, one) for one in self.reduce]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)

    def extra_repr(self) -> str:
        return ", ".join(self.reduce)
