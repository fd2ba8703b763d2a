"""U-Net of sparse convolutions on the voxels of a cloud: `minkunet` and `spunet`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from pointgrad.models import options
from pointgrad.models.heads import voxel_input
from pointgrad.models.network import Network
from pointgrad.nn.level import Level
from pointgrad.nn.shared_mlp import make_norm
from pointgrad.nn.sparse_conv import Conv, InverseConv, SparseConv, SubmanifoldConv
from pointgrad.nn.sparse_norm import ConvNorm, LinearNorm, conv_norm, join
from pointgrad.nn.sparse_tensor import SparseTensor
from pointgrad.ops import checks
from pointgrad.ops.gather import gather
from pointgrad.ops.scatter import segment

STEM = 32  # width of the first layer


class SparseUNet(Network):
    """Four levels of residual blocks, halved and doubled by convolutions with kernel size and stride 2.

    Args:
        config: Name and options of the network.
        widths: Width of each level, four on the way down and four on the way up.
        blocks: Number of residual blocks of each level.
        widen_first: Whether the strided convolutions widen the features, or the blocks after them.
        eps: Term added to variances in batch norm.
    """

    def __init__(
        self, config: dict[str, Any], widths: Sequence[int], blocks: Sequence[int], *, widen_first: bool, eps: float
    ) -> None:
        super().__init__(config)
        inputs = 3 * config["coordinates"] + config["channels"]
        checks.value(inputs > 0, "coordinates", "True for a network with channels=0", False)
        norm = config["norm"]

        def full(conv: Conv, width: int) -> ConvNorm:
            return ConvNorm(conv, _norm(norm, width, eps))

        stem, *sizes = (options.scaled(config["width"], width) for width in (STEM, *widths))
        self.stem = full(SubmanifoldConv(inputs + config["categories"], stem, 5, bias=False), stem)
        self.down, self.encode, self.up, self.decode = (nn.ModuleList() for _ in range(4))
        width, skips = stem, []
        for after, count in zip(sizes[:4], blocks[:4], strict=True):
            skips.append(width)
            strided = after if widen_first else width
            self.down.append(full(SparseConv(width, strided, 2, stride=2, bias=False), strided))
            self.encode.append(_blocks(strided, after, count, norm, eps))
            width = after
        if config["task"] == "segmentation":
            for after, count in zip(sizes[4:], blocks[4:], strict=True):
                self.up.append(full(InverseConv(width, after, 2, bias=False), after))
                self.decode.append(_blocks(after + skips.pop(), after, count, norm, eps))
                width = after
        self.head = nn.Sequential(nn.Dropout(config["dropout"]), nn.Linear(width, config["classes"]))

    def logits(self, level: Level, category: Tensor | None) -> Tensor:
        tensor, voxel = voxel_input(level, category, self.config)
        tensor = self.stem(tensor)
        skips = []
        for down, blocks in zip(self.down, self.encode, strict=True):
            skips.append(tensor)
            tensor = blocks(down(tensor))
        if self.config["task"] == "classification":
            assert tensor.offsets is not None
            return self.head(segment(tensor.features, tensor.offsets, "mean"))
        for up, blocks in zip(self.up, self.decode, strict=True):
            tensor = up(tensor)
            tensor = blocks(tensor.with_features(join(tensor.features, skips.pop().features)))
        return gather(self.head(tensor.features), voxel).unflatten(0, level.points.shape[:-1])


class Block(nn.Module):
    """Two convolutions with a residual connection, which has a linear layer if the width changes."""

    def __init__(self, before: int, after: int, norm: str, eps: float) -> None:
        super().__init__()
        self.conv1 = SubmanifoldConv(before, after, 3, bias=False)
        self.norm1 = _norm(norm, after, eps)
        self.conv2 = SubmanifoldConv(after, after, 3, bias=False)
        self.norm2 = _norm(norm, after, eps)
        self.project: nn.Module | None = None
        if before != after:
            self.project = LinearNorm(before, after, _norm(norm, after, eps))

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        own = tensor.features if self.project is None else self.project(tensor.features)
        return conv_norm(self.conv2, self.norm2, conv_norm(self.conv1, self.norm1, tensor), added=own)


def _blocks(before: int, after: int, count: int, norm: str, eps: float) -> nn.Sequential:
    return nn.Sequential(*(Block(after if number else before, after, norm, eps) for number in range(count)))


def _norm(norm: str, channels: int, eps: float) -> nn.Module:
    module = make_norm(norm, channels)
    assert module is not None
    if isinstance(module, nn.BatchNorm1d):
        module.eps = eps
    return module
