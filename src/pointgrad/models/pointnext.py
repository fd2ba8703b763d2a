"""PointNeXt (Qian et al. 2022): PointNet++ with inverted residual blocks."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.models import options
from pointgrad.models.heads import head, one_hot
from pointgrad.models.network import Network
from pointgrad.nn.inverted import InvResMLP
from pointgrad.nn.level import Level
from pointgrad.nn.local import cloud_pool, per_point
from pointgrad.nn.set_abstraction import FeaturePropagation, SetAbstraction

K = 32
# Number of blocks per level after set abstraction, number of layers of set abstraction, whether it is residual.
VARIANTS = {"s": ((0, 0, 0, 0), 2, True), "b": ((1, 2, 1, 1), 1, False)}


def pointnext(
    task: str = "classification",
    classes: int = 40,
    channels: int = 0,
    variant: str = "s",
    *,
    categories: int = 0,
    width: float = 1.0,
    radius: float = 1.0,
    norm: str = "batch",
    dropout: float = 0.5,
) -> Network:
    """PointNeXt: PointNet++ with residual blocks and positions relative to the radius.

    Each level keeps a quarter of the points for scenes, and half of them for objects and parts.

    Args:
        task: "classification" or "segmentation".
        classes: Number of classes.
        channels: Number of input features in addition to coordinates.
        variant: "s" for small, "b" for base.
        categories: Number of object categories for part segmentation, 0 for none.
        width: Factor on all widths.
        radius: Factor on all radii; 1 is for objects in the unit sphere and scenes in metres.
        norm: "batch" or "group".
        dropout: Dropout probability in the last layers.

    Returns:
        The network.

    Example:
        >>> pointnext(classes=10, width=0.25)(torch.rand(2, 64, 3)).shape
        torch.Size([2, 10])
    """
    return PointNeXt(options.check({"name": "pointnext", **locals()}))


class PointNeXt(Network):
    """See `pointnext`."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        options.variant(config, tuple(VARIANTS))
        norm, segments, parts = config["norm"], config["task"] == "segmentation", config["categories"] > 0
        blocks, layers, residual = VARIANTS[config["variant"]]
        # Radius of the first level, its growth per level, and the fraction of points kept.
        radius, growth, share = (0.15, 1.5, 0.5) if not segments else (0.1, 2.5, 0.5) if parts else (0.1, 2.0, 0.25)
        if parts and config["variant"] == "s":
            layers = 3
        widths = [options.scaled(config["width"], 32 * 2**level) for level in range(5)]
        self.stem = nn.Linear(3 + config["channels"], widths[0])
        self.down, self.blocks = nn.ModuleList(), nn.ModuleList()
        radius *= config["radius"]
        for before, after, count in zip(widths, widths[1:], blocks, strict=False):
            layout = [after // 2] * (layers - 1) + [after]
            ball: dict[str, Any] = {"samples": share, "radius": radius, "k": K, "normalize": True}
            self.down.append(SetAbstraction(before, layout, **ball, norm=norm, residual=residual))
            radius *= growth
            self.blocks.append(nn.Sequential(*(InvResMLP(after, radius=radius, k=K, norm=norm) for _ in range(count))))
        if not segments:
            self.whole = SetAbstraction(widths[-1], [widths[-1]] * layers, norm=norm)
            last = [options.scaled(config["width"], size) for size in (512, 256)]
            self.head = head(widths[-1], last, config["classes"], norm=norm, dropout=config["dropout"])
            return
        skips = widths[:-1]
        if parts:
            # Global features of the two coarsest levels and the category are appended to the finest level.
            sizes = [options.scaled(config["width"], size) for size in (64, 128)]
            self.context = nn.ModuleList(nn.Linear(w, s) for w, s in zip(widths[-2:], sizes, strict=True))
            skips = [skips[0] + sum(sizes) + config["categories"], *skips[1:]]
        self.up = nn.ModuleList()
        coarse = widths[-1]
        for skip, after in reversed(list(zip(skips, widths, strict=False))):
            self.up.append(FeaturePropagation(skip + coarse, [after, after], norm=norm))
            coarse = after
        inputs = coarse * 3 if parts else coarse
        self.head = head(inputs, [inputs], config["classes"], norm=norm, dropout=config["dropout"])

    def logits(self, level: Level, category: Tensor | None) -> Tensor:
        own = [] if level.features is None else [level.features]
        levels = [level.with_features(self.stem(torch.cat([level.points, *own], -1)))]
        for down, blocks in zip(self.down, self.blocks, strict=True):
            levels.append(blocks(down(levels[-1])))
        if self.config["task"] == "classification":
            whole = self.whole(levels[-1]).features
            return self.head(whole if levels[-1].packed() else whole.squeeze(1))
        if category is not None:
            levels[0] = self._with_context(levels, category)
        coarse: Any = levels.pop()
        for up in self.up:
            coarse = up(levels.pop(), coarse)
        if category is None:
            return self.head(coarse.features)
        whole = [per_point(coarse, cloud_pool(coarse, reduce)) for reduce in ("max", "mean")]
        return self.head(torch.cat([coarse.features, *whole], -1))

    def _with_context(self, levels: list[Level], category: Tensor) -> Level:
        """The finest level with global features of the two coarsest levels and the category."""
        found = []
        for level, linear in zip(levels[-2:], self.context, strict=True):
            active = functional.relu(linear(level.features))
            found.append(cloud_pool(level.with_features(active), "max"))
        fine: Any = levels[0]
        whole = torch.cat([*found, one_hot(category, self.config["categories"], found[0])], -1)
        return fine.with_features(torch.cat([per_point(fine, whole), fine.features], -1))
