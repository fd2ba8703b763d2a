"""Transformers on voxels in the order of space-filling curves: `ptv3`, `sonata` and `litept`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from pointgrad.models.heads import voxel_input
from pointgrad.models.network import Network
from pointgrad.nn.grid_pool import GridPool, GridUnpool, Norm
from pointgrad.nn.level import Level
from pointgrad.nn.patch_block import PatchBlock
from pointgrad.nn.shared_mlp import make_norm
from pointgrad.nn.sparse_conv import SubmanifoldConv
from pointgrad.nn.sparse_tensor import Key, SparseTensor, assume_rows, submanifold_step
from pointgrad.ops import checks, clouds
from pointgrad.ops.curves import Curve, serialize
from pointgrad.ops.gather import gather
from pointgrad.ops.scatter import segment
from pointgrad.ops.sparse import KernelMap, submanifold_map

CURVES: tuple[Curve, ...] = ("z", "z-trans", "hilbert", "hilbert-trans")
MOST_BITS = 16  # most bits of a coordinate, as published


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network with five stages, one per resolution. Its decoder has all stages but the last.

    Attributes:
        heads: Number of heads of each stage of the encoder.
        blocks: Number of blocks of each stage of the encoder.
        decoder_heads: Number of heads of each stage of the decoder; empty for an encoder only.
        decoder_blocks: Number of blocks of each stage of the decoder.
        head_size: Number of channels of a head.
        patch: Number of voxels of a patch.
        conv: Whether the blocks of each stage have a convolution.
        attention: Whether the blocks of each stage have attention and MLP.
        position_bias: Whether attention has a bias for the difference of coordinates.
        rotary: Base of the rotary embedding of coordinates, or None.
        conv_stem: Whether the first layer is a convolution with kernel size 5, or a linear layer.
        layer_norm: Whether norms outside of blocks are layer norms.
        fixed_depth: Whether a pooled voxel keeps its place on the curves, or curves are chosen for the pooled extent.
        conv_skip: Whether the first convolution of a stage of the decoder reads the projected features of the encoder
            only, or the sum.
    """

    heads: tuple[int, ...]
    blocks: tuple[int, ...]
    decoder_heads: tuple[int, ...] = ()
    decoder_blocks: tuple[int, ...] = ()
    head_size: int = 16
    patch: int = 1024
    conv: tuple[bool, ...] = (True,) * 5
    attention: tuple[bool, ...] = (True,) * 5
    position_bias: bool = False
    rotary: float | None = None
    conv_stem: bool = True
    layer_norm: bool = False
    fixed_depth: bool = True
    conv_skip: bool = True


class Grid(NamedTuple):
    """The voxels of one resolution and everything that layers derive from their coordinates.

    Attributes:
        coordinates: (V, 3) int64, from 0 in each cloud.
        offsets: (B + 1,) int64, the voxels of each cloud.
        parent: (V,) int64, the voxel of the next coarser grid that contains each voxel; None for the coarsest grid.
        orders: Orders (V,) of the voxels along curves; none without attention.
        maps: Kernel maps of the convolutions.
    """

    coordinates: Tensor
    offsets: Tensor
    parent: Tensor | None
    orders: tuple[Tensor, ...]
    maps: tuple[KernelMap, ...]

    def tensor(self, features: Tensor) -> SparseTensor:
        """Return these voxels with features (V, C)."""
        maps: dict[Key, KernelMap] = {((), submanifold_step(map.kernel_size)): map for map in self.maps}
        return SparseTensor(self.coordinates, features, self.offsets, maps=maps)


class Stage(nn.Module):
    """The blocks of one resolution, and the layer before them that changes the resolution.

    Args:
        blocks: The blocks.
        down: Layer from the finer resolution.
        up: Layer from the coarser resolution.
        legacy: Whether a block convolves the last branch that the previous block added, instead of its result.
    """

    def __init__(
        self,
        blocks: list[PatchBlock],
        down: GridPool | None = None,
        up: GridUnpool | None = None,
        legacy: bool = False,
    ) -> None:
        super().__init__()
        self.legacy = legacy
        self.down, self.up = down, up
        self.blocks = nn.ModuleList(blocks)

    def forward(
        self, tensor: SparseTensor, orders: Sequence[Tensor], conv_input: SparseTensor | None = None
    ) -> SparseTensor:
        for number, block in enumerate(self.blocks):
            order = orders[number % len(orders)] if orders else None
            tensor, branch = cast("PatchBlock", block).with_branch(tensor, order, conv_input)
            conv_input = branch if self.legacy else None
        return tensor


class Serialized(Network):
    """Encoder, optional decoder and head.

    Without a decoder, the head for segmentation reads the features of all stages of the encoder, copied to the voxels.

    Args:
        config: Name and options of the network.
        sizes: Its sizes, before `width` is applied to the numbers of heads.
    """

    def __init__(self, config: dict[str, Any], sizes: Sizes) -> None:
        super().__init__(config)
        self.sizes = sizes
        inputs = 3 * config["coordinates"] + config["channels"]
        checks.value(inputs > 0, "coordinates", "True for a network with channels=0", False)
        heads, decoder_heads = (
            [max(1, round(config["width"] * count)) for count in counts]
            for counts in (sizes.heads, sizes.decoder_heads)
        )
        widths, decoder_widths = ([sizes.head_size * count for count in counts] for counts in (heads, decoder_heads))
        norm: Norm = nn.LayerNorm if sizes.layer_norm else _Norm(config["norm"])

        inputs += config["categories"]
        first = SubmanifoldConv(inputs, widths[0], 5, bias=False) if sizes.conv_stem else nn.Linear(inputs, widths[0])
        self.stem = nn.ModuleList([first, norm(widths[0]), nn.GELU()])

        def blocks(stage: int, count: int, number_of_heads: int, rates: list[float]) -> list[PatchBlock]:
            return [
                PatchBlock(
                    sizes.head_size * number_of_heads,
                    number_of_heads,
                    sizes.patch,
                    conv=sizes.conv[stage],
                    attention=sizes.attention[stage],
                    position_bias=sizes.position_bias,
                    rotary=sizes.rotary,
                    drop_path=rates[number],
                )
                for number in range(count)
            ]

        legacy = config.get("legacy", False)
        rates = _rates(config["drop_path"], sizes.blocks)
        self.enc = nn.ModuleList()
        for stage, count in enumerate(sizes.blocks):
            down = GridPool(widths[stage - 1], widths[stage], norm=norm) if stage else None
            self.enc.append(Stage(blocks(stage, count, heads[stage], rates[stage]), down=down, legacy=legacy))
        out = sum(widths)
        self.dec = nn.ModuleList()
        if config["task"] == "classification":
            out = widths[-1]
        elif decoder_heads:
            rates = _rates(config["drop_path"], sizes.decoder_blocks)
            below = [*decoder_widths[1:], widths[-1]]
            for stage, count in enumerate(sizes.decoder_blocks):
                up = GridUnpool(below[stage], widths[stage], decoder_widths[stage], norm=norm)
                self.dec.append(
                    Stage(blocks(stage, count, decoder_heads[stage], rates[stage][::-1]), up=up, legacy=legacy)
                )
            out = decoder_widths[0]
        self.head = nn.Sequential(nn.Dropout(config["dropout"]), nn.Linear(out, config["classes"]))

    def logits(self, level: Level, category: Tensor | None) -> Tensor:
        tensor, voxel = voxel_input(level, category, self.config)
        grids = self.grids(tensor.coordinates, tensor.offsets)
        tensor = self._first(tensor.features, grids[0])
        grids[0] = grids[0]._replace(maps=grids[0].maps[-1:])  # frees the large map of the first layer
        rows = self._stages(tensor, grids)
        if self.config["task"] == "classification":
            return self.head(rows)
        return gather(self.head(rows), voxel).unflatten(0, level.points.shape[:-1])

    def grids(self, coordinates: Tensor, offsets: Tensor | None = None) -> list[Grid]:
        """Return the grids of all stages, which `voxel_features` reads. They depend on coordinates only.

        A GPU is synchronized once per stage. In training mode, curves are drawn at random.

        Args:
            coordinates: (V, 3) int64 or int32, different voxels within each cloud.
            offsets: (B + 1,) int64, the voxels of each cloud. By default one cloud.
        """
        checks.clouds(coordinates, offsets, None, name="coordinates", dtypes=checks.INDICES)
        if offsets is None:
            offsets = torch.arange(2, device=coordinates.device) * coordinates.shape[0]
        begin = segment(coordinates, offsets, "min")
        coordinates = coordinates - gather(begin, clouds.ids(coordinates, offsets))
        extents = segment(coordinates, offsets, "max").amax(1)
        largest = None  # a traced program cannot choose the number of bits by its value
        if not torch.compiler.is_compiling():
            largest = int(extents.max())
            fits = largest < 2**MOST_BITS
            checks.value(fits, "voxel", f"so large that a cloud spans at most {2**MOST_BITS} voxels", largest + 1)
        found: list[Grid] = []
        for number, stage in enumerate(cast("list[Stage]", list(self.enc))):
            if stage.down is not None:
                cells = stage.down.cells(coordinates, offsets)
                assert cells.offsets is not None
                found[-1] = found[-1]._replace(parent=cells.inverse)
                coordinates, offsets = cells.coordinates, cells.offsets
            assume_rows(coordinates)
            kernels = ([5] if self.sizes.conv_stem and not number else []) + [3] * self.sizes.conv[number]
            maps = tuple(submanifold_map(coordinates, kernel, offsets=offsets) for kernel in kernels)
            orders = self._orders(number, coordinates, offsets, extents, largest)
            found.append(Grid(coordinates, offsets, None, orders, maps))
        return found

    def voxel_features(self, features: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Return the input of the head: (V, C) for V voxels, or (B, C) for classification.

        All shapes depend on those of the arguments only, so a GPU is not synchronized: with prepared grids, inference
        or a training step can be captured as a CUDA graph.

        Args:
            features: (V, C), the input of each voxel.
            grids: From `grids`.
        """
        return self._stages(self._first(features, grids[0]), grids)

    def _first(self, features: Tensor, grid: Grid) -> SparseTensor:
        """The input of the first stage."""
        first, norm, act = self.stem
        rows = first(grid.tensor(features)).features if self.sizes.conv_stem else first(features)
        return grid._replace(maps=grid.maps[-1:]).tensor(act(norm(rows)))

    def _stages(self, tensor: SparseTensor, grids: Sequence[Grid]) -> Tensor:
        """The output of the last stage."""
        passed: list[SparseTensor] = []
        for number, stage in enumerate(cast("list[Stage]", list(self.enc))):
            if stage.down is not None:
                parent = grids[number - 1].parent
                assert parent is not None
                passed.append(tensor)
                rows = stage.down.pool(tensor.features, parent, grids[number].coordinates.shape[0])
                tensor = grids[number].tensor(rows)
            tensor = stage(tensor, grids[number].orders)
        if self.config["task"] == "classification":
            return segment(tensor.features, grids[-1].offsets, "mean")
        for number, stage in reversed(list(enumerate(cast("list[Stage]", list(self.dec))))):
            parent = grids[number].parent
            assert stage.up is not None
            assert parent is not None
            projected = stage.up.project(passed.pop())
            tensor = stage.up.add(tensor, projected, parent)
            tensor = stage(tensor, grids[number].orders, projected if self.sizes.conv_skip else None)
        rows = tensor.features
        while passed:
            parent = grids[len(passed) - 1].parent
            assert parent is not None
            rows = torch.cat([passed.pop().features, gather(rows, parent)], 1)
        return rows

    def _orders(
        self, stage: int, coordinates: Tensor, offsets: Tensor, extents: Tensor, largest: int | None
    ) -> tuple[Tensor, ...]:
        """The orders (V,) of voxels for the blocks of a stage; none without attention.

        In training, the curves are drawn at random. A Hilbert curve depends on the number of bits of the coordinates.
        Each cloud uses the number that it would have alone; a left shift makes the codes of all clouds equally long.

        Args:
            stage: Number of the stage.
            coordinates: (V, 3) from 0.
            offsets: (B + 1,).
            extents: (B,) the largest coordinate of each cloud in the first stage.
            largest: The largest of `extents`, or None: then codes have as many bits as possible.
        """
        if not self.sizes.attention[stage]:
            return ()
        counts = [stages[stage] for stages in (self.sizes.blocks, self.sizes.decoder_blocks) if stage < len(stages)]
        curves = [CURVES[number] for number in torch.randperm(len(CURVES)).tolist()] if self.training else list(CURVES)
        bits = MOST_BITS + 1  # the published number of bits of 2**MOST_BITS voxels
        if largest is not None:
            whole = self.sizes.fixed_depth
            bits = max((largest + 1).bit_length() - stage, 1) if whole else ((largest >> stage) + 1).bit_length()
        if largest is None or len(extents) > 1:
            shifts = bits - self._depths(extents, stage)
            coordinates = coordinates << gather(shifts.unsqueeze(1), clouds.ids(coordinates, offsets))
        drawn = curves[: max(counts)]
        # In a fixed order, because a GPU kernel is compiled for each sequence of curves.
        sequence = sorted(drawn, key=CURVES.index)
        orders = serialize(coordinates, sequence, bits=bits, offsets=offsets).order
        return tuple(orders[sequence.index(curve)] for curve in drawn)

    def _depths(self, extents: Tensor, stage: int) -> Tensor:
        """The number of bits (B,) of the coordinates of each cloud in a stage."""
        fixed = self.sizes.fixed_depth
        powers = 1 << torch.arange(MOST_BITS + 1, device=extents.device)  # Inductor would compute 2 ** index in float
        lengths = ((extents if fixed else extents >> stage).unsqueeze(1) + 1 >= powers).sum(1)
        return (lengths - stage).clamp(min=1) if fixed else lengths


class _Norm:
    """Norm of rows by its name, with the eps of the published networks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, channels: int) -> nn.Module:
        module = make_norm(self.name, channels)
        assert module is not None
        if isinstance(module, nn.BatchNorm1d):
            module.eps = 1e-3
        return module


def _rates(last: float, blocks: Sequence[int]) -> list[list[float]]:
    """The probability of drop path of each block: from 0 to `last`, as published."""
    rates = torch.linspace(0, last, sum(blocks), device="cpu").split(list(blocks))
    return [part.tolist() for part in rates]
