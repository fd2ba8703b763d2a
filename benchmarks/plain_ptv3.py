"""Point Transformer V3 and LitePT in plain PyTorch operators, with the structure of the published programs.

Codes of curves by tensor operations, padding of patches by a loop over clouds on the host, attention by
`scaled_dot_product_attention` on gathered copies, sparse convolution by gather, matrix product and `index_add` for each
kernel position, with pairs of rows searched once per resolution, and pooling by `unique` and `scatter_reduce`.

Modules are copied from a network of `pointgrad.models`, so that weights are equal.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointgrad.models.serialized import CURVES, Serialized
from pointgrad.nn.patch_block import PatchAttention, PatchBlock
from pointgrad.nn.sparse_conv import SubmanifoldConv
from pointgrad.ops.curves import reference as curves

Pairs = list[tuple[Tensor, Tensor]]  # for each kernel position: the outputs that read an input, and these inputs


@dataclass
class Voxels:
    """The voxels of one resolution.

    Attributes:
        coordinates: (N, 3), from 0.
        cloud: (N,) the cloud of each voxel.
        features: (N, C).
        bits: Number of bits of a coordinate.
        codes: (4, N) the codes along all curves.
        orders: (4, N) the voxels sorted by their codes, one order per curve.
        inverses: (4, N) the place of each voxel in each order.
        pairs: Pairs of the convolutions so far, by kernel size.
    """

    coordinates: Tensor
    cloud: Tensor
    features: Tensor
    bits: int
    codes: Tensor = field(init=False)
    orders: Tensor = field(init=False)
    inverses: Tensor = field(init=False)
    pairs: dict[int, Pairs] = field(default_factory=dict)

    def serialize(self) -> None:
        """Compute the codes along all curves."""
        codes = curves.space_filling_curve(self.coordinates, None, list(range(len(CURVES))), self.bits)
        self.codes = codes | self.cloud << 3 * self.bits

    def sort(self, shuffle: bool) -> None:
        """Sort the voxels along all curves, in random order of the curves if `shuffle` is set."""
        self.orders = (self.codes[torch.randperm(len(CURVES))] if shuffle else self.codes).argsort(1)
        place = torch.arange(self.codes.shape[1], device=self.codes.device).expand_as(self.orders)
        self.inverses = torch.zeros_like(self.orders).scatter_(1, self.orders, place)

    def find_pairs(self, size: int) -> Pairs:
        """Search the pairs of rows of a submanifold convolution in the sorted keys of the voxels."""
        if size not in self.pairs:
            side = int(self.coordinates.max()) + 1 + size
            extents = torch.tensor([side**3, side**2, side, 1], device=self.cloud.device)

            def key(coordinates: Tensor) -> Tensor:
                rows = torch.cat([self.cloud.unsqueeze(1), coordinates + size // 2], 1)
                return (rows * extents).sum(1)

            keys, rows = key(self.coordinates).sort()
            axis = torch.arange(size, device=self.cloud.device) - size // 2
            found = []
            for offset in torch.cartesian_prod(axis, axis, axis):
                wanted = key(self.coordinates + offset)
                place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
                outputs = (keys[place] == wanted).nonzero()[:, 0]
                found.append((outputs, rows[place[outputs]]))
            self.pairs[size] = found
        return self.pairs[size]


class PlainConv(nn.Module):
    """Submanifold convolution: for each kernel position gather, multiply and add."""

    def __init__(self, conv: SubmanifoldConv) -> None:
        super().__init__()
        self.size = conv.kernel_size[0]
        self.weight, self.bias = copy.deepcopy(conv.weight), copy.deepcopy(conv.bias)

    def forward(self, voxels: Voxels, features: Tensor) -> Tensor:
        weight = self.weight
        if torch.is_autocast_enabled(features.device.type):
            lower = torch.get_autocast_dtype(features.device.type)
            features, weight = features.to(lower), weight.to(lower)
        out = features.new_zeros(len(features), weight.shape[2])
        for matrix, (outputs, inputs) in zip(weight, voxels.find_pairs(self.size), strict=True):
            out = out.index_add(0, outputs, features[inputs] @ matrix)
        return out if self.bias is None else out + self.bias.to(out.dtype)


class PlainAttention(nn.Module):
    """Attention within patches on gathered copies."""

    def __init__(self, attention: PatchAttention) -> None:
        super().__init__()
        self.heads, self.patch, self.rotary = attention.heads, attention.patch, attention.rotary
        self.qkv, self.proj = copy.deepcopy(attention.qkv), copy.deepcopy(attention.proj)

    def forward(self, voxels: Voxels, features: Tensor, curve: int) -> Tensor:
        counts = torch.bincount(voxels.cloud)
        patch = min(int(counts.min()), self.patch)  # as published
        pad, unpad = padding(counts, patch)
        order, inverse = voxels.orders[curve][pad], unpad[voxels.inverses[curve]]
        qkv = self.qkv(features).unflatten(1, (3, self.heads, -1))
        if self.rotary is not None:
            rotated = [rotary(part, voxels.coordinates, self.rotary) for part in qkv[:, :2].unbind(1)]
            qkv = torch.stack([*rotated, qkv[:, 2]], 1)
        query, key, value = qkv[order].unflatten(0, (-1, patch)).permute(2, 0, 3, 1, 4).unbind(0)
        rows = functional.scaled_dot_product_attention(query, key, value)  # (P, H, patch, D)
        out: Tensor = self.proj(rows.transpose(1, 2).flatten(0, 1).flatten(1)[inverse])
        return out


def padding(counts: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """The padded places of all clouds, and the padded place of each place.

    The last patch is filled up from the one before.
    """
    device, padded = counts.device, torch.div(counts + patch - 1, patch, rounding_mode="trunc") * patch
    padded = torch.where(counts > patch, padded, counts)
    begin, padded_begin = (functional.pad(numbers.cumsum(0), (1, 0)) for numbers in (counts, padded))
    pad = torch.arange(int(padded_begin[-1]), device=device)
    unpad = torch.arange(int(begin[-1]), device=device)
    for number in range(len(counts)):
        first, end = int(padded_begin[number]), int(padded_begin[number + 1])
        unpad[int(begin[number]) : int(begin[number + 1])] += first - int(begin[number])
        if counts[number] != padded[number]:
            missing = patch - int(counts[number]) % patch
            pad[end - missing : end] = pad[end - patch - missing : end - patch]
        pad[first:end] -= first - int(begin[number])
    return pad, unpad


def rotary(features: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary embedding of coordinates: a third of each head (N, H, D) for each axis."""
    pairs = features.shape[-1] // 6
    wide = torch.promote_types(features.dtype, torch.float32)
    frequency = base ** -(torch.arange(pairs, device=features.device, dtype=wide) / pairs)
    parts = []
    for axis, part in enumerate(features.chunk(3, -1)):
        angle = (positions[:, axis, None] * frequency).unsqueeze(1)
        first, second = part.to(wide).chunk(2, -1)
        parts += [first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()]
    return torch.cat(parts, -1).to(features.dtype)


class PlainBlock(nn.Module):
    def __init__(self, block: PatchBlock) -> None:
        super().__init__()
        self.norm0 = copy.deepcopy(block.norm0) if block.conv is None else None
        if block.conv is not None:
            conv, linear, norm = block.conv
            assert isinstance(conv, SubmanifoldConv)
            self.conv, self.linear, self.norm = PlainConv(conv), copy.deepcopy(linear), copy.deepcopy(norm)
        self.attn = None if block.attn is None else PlainAttention(block.attn)
        if block.attn is not None:
            self.norm1, self.norm2 = copy.deepcopy(block.norm1), copy.deepcopy(block.norm2)
            self.mlp = nn.Sequential(*copy.deepcopy(block.mlp))  # keeps both hidden tensors, as published
            self.drop_path = copy.deepcopy(block.drop_path)

    def forward(self, voxels: Voxels, curve: int, conv_input: Tensor | None = None) -> None:
        rows = voxels.features
        if self.norm0 is not None:
            rows = self.norm0(rows)
        else:
            rows = rows + self.norm(self.linear(self.conv(voxels, rows if conv_input is None else conv_input)))
        if self.attn is not None:
            rows = rows + self.drop_path(self.attn(voxels, self.norm1(rows), curve))
            rows = rows + self.drop_path(self.mlp(self.norm2(rows)))
        voxels.features = rows


class PlainSerialized(nn.Module):
    """A network for segmentation with the weights of `network`, for coordinates (N, 3) and features (N, C)."""

    def __init__(self, network: Serialized) -> None:
        super().__init__()
        self.sizes = network.sizes
        first, norm, act = (copy.deepcopy(module) for module in network.stem)
        self.first = PlainConv(first) if isinstance(first, SubmanifoldConv) else first
        self.norm, self.act, self.head = norm, act, copy.deepcopy(network.head)
        encoder: list[Any] = list(network.enc)
        decoder: list[Any] = list(network.dec)
        self.downs = nn.ModuleList(copy.deepcopy(stage.down) for stage in encoder[1:])
        self.ups = nn.ModuleList(copy.deepcopy(stage.up) for stage in decoder)
        self.enc, self.dec = (
            nn.ModuleList(nn.ModuleList(PlainBlock(block) for block in stage.blocks) for stage in stages)
            for stages in (encoder, decoder)
        )

    def forward(self, coordinates: Tensor, features: Tensor, cloud: Tensor) -> Tensor:
        """Return the logits (N, classes) of voxels, whose coordinates begin at 0. `cloud` (N,) is sorted."""
        voxels = Voxels(coordinates, cloud, features, (int(coordinates.max()) + 1).bit_length())
        rows = self.first(voxels, features) if isinstance(self.first, PlainConv) else self.first(features)
        voxels.features = self.act(self.norm(rows))
        passed: list[tuple[Voxels, Tensor]] = []
        for number, blocks in enumerate(self.enc):
            if number:
                coarse, parent = self.down(number, voxels)
                passed.append((voxels, parent))
                voxels = coarse
            if self.sizes.attention[number]:
                if not number or not self.sizes.fixed_depth:
                    voxels.serialize()
                voxels.sort(shuffle=self.training)
            for place, block in enumerate(blocks):
                block(voxels, place % len(CURVES))
        for number, blocks in reversed(list(enumerate(self.dec))):
            skip, parent = passed.pop()
            up: Any = self.ups[number]
            projected = up.proj_skip(skip.features)
            skip.features = projected + up.proj(voxels.features)[parent]
            for place, block in enumerate(blocks):
                block(skip, place % len(CURVES), projected if self.sizes.conv_skip and not place else None)
            voxels = skip
        logits: Tensor = self.head(voxels.features)
        return logits

    def down(self, number: int, voxels: Voxels) -> tuple[Voxels, Tensor]:
        """Pool to the next coarser voxels; also return the coarse voxel of each voxel."""
        pool: Any = self.downs[number - 1]
        coordinates, bits = voxels.coordinates // 2, voxels.bits - 1
        if self.sizes.fixed_depth:
            key = voxels.codes[0] >> 3
        else:
            bits = (int(coordinates.max()) + 1).bit_length()
            key = curves.space_filling_curve(coordinates, None, [0], bits)[0] | voxels.cloud << 3 * bits
        _, parent, counts = torch.unique(key, return_inverse=True, return_counts=True)
        firsts = parent.argsort(stable=True)[counts.cumsum(0) - counts]  # the first voxel of each coarse voxel
        rows = pool.proj(voxels.features)
        index = parent.unsqueeze(1).expand_as(rows)
        rows = rows.new_zeros(len(firsts), rows.shape[1]).scatter_reduce(0, index, rows, "amax", include_self=False)
        coarse = Voxels(coordinates[firsts], voxels.cloud[firsts], pool.act(pool.norm(rows)), bits)
        if self.sizes.fixed_depth:
            coarse.codes = voxels.codes[:, firsts] >> 3
        return coarse, parent
