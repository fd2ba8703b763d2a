"""Patch embedding: point clouds as sequences of tokens."""

import torch
from torch import nn

from pointgrad.nn.attention import nearest
from pointgrad.nn.level import Level, check_level
from pointgrad.nn.local import first_layer, relative_positions
from pointgrad.nn.set_abstraction import sample
from pointgrad.nn.shared_mlp import SharedMLP
from pointgrad.ops.gather import gather
from pointgrad.ops.scatter import segment


class PatchEmbedding(nn.Module):
    """One token per patch, as in Point-BERT (Yu et al. 2022) and Point-MAE (Pang et al. 2022).

    A patch is the k nearest points of a farthest point sample; its token is the output of a small PointNet. The output
    is a `Level` with the samples as points and the tokens as features.

    Args:
        width: Number of channels of a token.
        patches: Number of patches, as `samples` of `SetAbstraction`.
        k: Number of points per patch; all points of a smaller cloud.
        channels: Number of input feature channels, 0 for none.
        norm: Normalization, as for `SharedMLP`.

    Example:
        >>> PatchEmbedding(96, patches=16, k=8)(Level(torch.rand(2, 100, 3))).features.shape
        torch.Size([2, 16, 96])
    """

    def __init__(
        self, width: int, *, patches: int | float = 64, k: int = 32, channels: int = 0, norm: str | None = "batch"
    ) -> None:
        super().__init__()
        self.channels, self.patches, self.k = channels, patches, k
        self.points = SharedMLP(3 + channels, [128, 256], norm=norm, last="linear")
        self.joint = SharedMLP(2 * 256, [512, width], norm=norm, last="linear")

    def forward(self, level: Level) -> Level:
        check_level(level, self.channels)
        centers, _ = sample(level, self.patches)
        pairs = nearest(level, centers, self.k)
        rows = first_layer(self.points, relative_positions(level, centers, pairs), level.features, pairs)
        rows = self.points.finish(rows)
        whole = segment(rows, pairs.ends, "max")
        rows = self.joint(torch.cat([gather(whole, pairs.centers), rows], -1))
        return centers.with_features(segment(rows, pairs.ends, "max").unflatten(0, pairs.shape))
