"""PointNet++ (Qi et al. 2017): set abstraction and feature propagation."""

from typing import Any

import torch
from torch import Tensor, nn

from pointgrad.models import options
from pointgrad.models.heads import head, one_hot
from pointgrad.models.network import Network
from pointgrad.nn.level import Level
from pointgrad.nn.local import per_point
from pointgrad.nn.set_abstraction import FeaturePropagation, SetAbstraction

# samples (None: the whole cloud), radii, k and widths of a set abstraction.
Stage = tuple[int | None, list[float], list[int], list[list[int]]]

WHOLE: Stage = (None, [], [], [[256, 512, 1024]])
SSG: list[Stage] = [
    (512, [0.2], [32], [[64, 64, 128]]),
    (128, [0.4], [64], [[128, 128, 256]]),
    WHOLE,
]
MSG: list[Stage] = [
    (512, [0.1, 0.2, 0.4], [16, 32, 128], [[32, 32, 64], [64, 64, 128], [64, 96, 128]]),
    (128, [0.2, 0.4, 0.8], [32, 64, 128], [[64, 64, 128], [128, 128, 256], [128, 128, 256]]),
    WHOLE,
]
PARTS_MSG: list[Stage] = [
    (512, [0.1, 0.2, 0.4], [32, 64, 128], [[32, 32, 64], [64, 64, 128], [64, 96, 128]]),
    (128, [0.4, 0.8], [64, 128], [[128, 128, 256], [128, 196, 256]]),
    WHOLE,
]
SCENES: list[Stage] = [
    (1024, [0.1], [32], [[32, 32, 64]]),
    (256, [0.2], [32], [[64, 64, 128]]),
    (64, [0.4], [32], [[128, 128, 256]]),
    (16, [0.8], [32], [[256, 256, 512]]),
]
SCENES_MSG: list[Stage] = [
    (1024, [0.05, 0.1], [16, 32], [[16, 16, 32], [32, 32, 64]]),
    (256, [0.1, 0.2], [16, 32], [[64, 64, 128], [64, 96, 128]]),
    (64, [0.2, 0.4], [16, 32], [[128, 196, 256], [128, 196, 256]]),
    (16, [0.4, 0.8], [16, 32], [[256, 256, 512], [256, 384, 512]]),
]
# Widths of feature propagation, finest level first.
PARTS_UP = [[128, 128, 128], [256, 128], [256, 256]]
SCENES_UP = [[128, 128, 128], [256, 128], [256, 256], [256, 256]]


def pointnet2(
    task: str = "classification",
    classes: int = 40,
    channels: int = 0,
    variant: str = "ssg",
    *,
    categories: int = 0,
    width: float = 1.0,
    density: float = 1.0,
    radius: float = 1.0,
    norm: str = "batch",
    dropout: float = 0.5,
) -> Network:
    """PointNet++: the maximum of an MLP over balls around farthest points, on several levels.

    Segmentation with `categories` is the network of the paper for parts of objects, without them that for scenes.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates.
        variant: "ssg" for one radius per level, "msg" for several.
        categories: Number of object categories for part segmentation, 0 for none.
        width: Factor on all widths.
        density: Factor on the number of points of each level and on the number of neighbors; 0.25 is sixteen times less
            work.
        radius: Factor on all radii; 1 is for objects in the unit sphere and scenes in metres.
        norm: "batch" or "group".
        dropout: Dropout probability in the last layers.

    Returns:
        The network.

    Example:
        >>> pointnet2(classes=10, width=0.25)(torch.rand(2, 64, 3)).shape
        torch.Size([2, 10])
    """
    return PointNet2(options.check({"name": "pointnet2", **locals()}))


class PointNet2(Network):
    """See `pointnet2`."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        options.variant(config, ("ssg", "msg"))
        norm, segments = config["norm"], config["task"] == "segmentation"
        stages, up = _stages(segments, bool(config["categories"]), config["variant"])

        def wide(widths: list[int]) -> list[int]:
            return [options.scaled(config["width"], width) for width in widths]

        def dense(counts: list[int]) -> list[int]:
            return [options.scaled(config["density"], count) for count in counts]

        channels = [config["channels"]]
        self.down = nn.ModuleList()
        for samples, radii, k, scales in stages:
            radii = [radius * config["radius"] for radius in radii]
            kept = None if samples is None else dense([samples])[0]
            mlps = [wide(widths) for widths in scales]
            self.down.append(SetAbstraction(channels[-1], mlps, samples=kept, radius=radii, k=dense(k), norm=norm))
            channels.append(self.down[-1].out_channels)
        if not segments:
            self.head = head(channels[-1], wide([512, 256]), config["classes"], norm=norm, dropout=config["dropout"])
            return
        # Parts: coordinates and category are additional features of the finest level.
        channels[0] += 3 + config["categories"] if config["categories"] else 0
        self.up = nn.ModuleList()
        coarse = channels[-1]
        for fine, widths in reversed(list(zip(channels, up, strict=False))):
            self.up.append(FeaturePropagation(fine + coarse, wide(widths), norm=norm))
            coarse = self.up[-1].out_channels
        self.head = head(coarse, wide([128]), config["classes"], norm=norm, dropout=config["dropout"])

    def logits(self, level: Level, category: Tensor | None) -> Tensor:
        levels = [level]
        for stage in self.down:
            levels.append(stage(levels[-1]))
        coarse = levels.pop()
        assert coarse.features is not None
        if self.config["task"] == "classification":
            return self.head(coarse.features.squeeze(1) if not coarse.packed() else coarse.features)
        if category is not None:
            levels[0] = with_category(level, category, self.config["categories"])
        for stage in self.up:
            coarse = stage(levels.pop(), coarse)
        return self.head(coarse.features)


def _stages(segments: bool, parts: bool, variant: str) -> tuple[list[Stage], list[list[int]]]:
    if not segments:
        return (SSG if variant == "ssg" else MSG), []
    if parts:
        return (SSG if variant == "ssg" else PARTS_MSG), PARTS_UP
    return (SCENES if variant == "ssg" else SCENES_MSG), SCENES_UP


def with_category(level: Level, category: Tensor, categories: int) -> Level:
    """The level with the one-hot category of each cloud and the coordinates as additional features."""
    kind = per_point(level, one_hot(category, categories, level.points))
    own = [] if level.features is None else [level.features]
    return level.with_features(torch.cat([kind, level.points, *own], -1))
