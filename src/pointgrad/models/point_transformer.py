"""Point Transformer (Zhao et al. 2021): vector attention over nearest neighbors on several levels."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.models import options
from pointgrad.models.heads import head
from pointgrad.models.network import Network
from pointgrad.models.pointnet2 import with_category
from pointgrad.nn.attention import GlobalContext, TransitionDown, TransitionUp, VectorAttention
from pointgrad.nn.level import Level
from pointgrad.nn.local import cloud_pool
from pointgrad.nn.shared_mlp import SharedMLP, make_norm

WIDTHS = (32, 64, 128, 256, 512)
BLOCKS = (1, 2, 3, 5, 2)
NEIGHBORS = (8, 16, 16, 16, 16)


def point_transformer(
    task: str = "classification",
    classes: int = 40,
    channels: int = 0,
    *,
    categories: int = 0,
    width: float = 1.0,
    norm: str = "batch",
    dropout: float = 0.5,
) -> Network:
    """Point Transformer: vector attention over nearest neighbors, on five levels with a quarter of the points each.

    Depth and widths are those of the authors' network for scenes. Classification uses the mean over the coarsest level.
    With `categories`, the category of each cloud is appended to the input features.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates.
        categories: Number of object categories for part segmentation, 0 for none.
        width: Factor on all widths.
        norm: "batch" or "group".
        dropout: Dropout probability in the last layers.

    Returns:
        The network.

    Example:
        >>> point_transformer(classes=10, width=0.25)(torch.rand(2, 64, 3)).shape
        torch.Size([2, 10])
    """
    return PointTransformer(options.check({"name": "point_transformer", **locals()}))


class PointTransformer(Network):
    """See `point_transformer`."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        norm, dropout, classes = config["norm"], config["dropout"], config["classes"]
        widths = [options.scaled(config["width"], width) for width in WIDTHS]
        self.stem = SharedMLP(3 + config["channels"] + config["categories"], widths[:1], norm=norm)
        self.down, self.blocks = nn.ModuleList(), nn.ModuleList()
        for stage, (width, count, k) in enumerate(zip(widths, BLOCKS, NEIGHBORS, strict=True)):
            if stage:
                self.down.append(TransitionDown(widths[stage - 1], width, samples=0.25, k=k, norm=norm))
            self.blocks.append(nn.Sequential(*(Block(width, k, norm) for _ in range(count))))
        if config["task"] == "classification":
            top = options.scaled(config["width"], 256), options.scaled(config["width"], 128)
            self.head = head(widths[-1], top, classes, norm=norm, dropout=dropout)
            return
        self.context = nn.Sequential(GlobalContext(widths[-1], norm=norm), Block(widths[-1], NEIGHBORS[-1], norm))
        self.up, self.refine = nn.ModuleList(), nn.ModuleList()
        for stage in reversed(range(len(widths) - 1)):
            self.up.append(TransitionUp(widths[stage + 1], widths[stage], norm=norm))
            self.refine.append(Block(widths[stage], NEIGHBORS[stage], norm))
        self.head = head(widths[0], widths[:1], classes, norm=norm, dropout=dropout)

    def logits(self, level: Level, category: Tensor | None) -> Tensor:
        if category is not None:
            level = with_category(level, category, self.config["categories"])
        else:
            own = [] if level.features is None else [level.features]
            level = level.with_features(torch.cat([level.points, *own], -1))
        levels = [self.blocks[0](level.with_features(self.stem(level.features)))]
        for down, blocks in zip(self.down, list(self.blocks)[1:], strict=True):
            levels.append(blocks(down(levels[-1])))
        coarse = levels.pop()
        if self.config["task"] == "classification":
            return self.head(cloud_pool(coarse, "mean"))
        coarse = self.context(coarse)
        for up, refine in zip(self.up, self.refine, strict=True):
            coarse = refine(up(levels.pop(), coarse))
        return self.head(coarse.features)


class Block(nn.Module):
    """Attention between two linear layers, with a residual connection."""

    def __init__(self, channels: int, k: int, norm: str) -> None:
        super().__init__()
        self.before = SharedMLP(channels, [channels], norm=norm)
        self.attention = VectorAttention(channels, k=k, norm=norm)
        self.norm: Any = make_norm(norm, channels)
        self.after = SharedMLP(channels, [channels], norm=norm, last="norm")

    def forward(self, level: Level) -> Level:
        features: Any = level.features
        mixed: Any = self.attention(level.with_features(self.before(features))).features
        active = functional.relu(self.norm(mixed.flatten(0, -2))).reshape(mixed.shape)
        return level.with_features(functional.relu(self.after(active) + features))
