"""Transformer block on voxels in the order of a space-filling curve (Point Transformer V3, LitePT)."""

import torch
from torch import Tensor, nn

from pointgrad.nn.drop_path import DropPath
from pointgrad.nn.gelu_mlp import GeluMLP
from pointgrad.nn.sparse_conv import SubmanifoldConv
from pointgrad.nn.sparse_tensor import SparseTensor
from pointgrad.ops import checks
from pointgrad.ops.patches import patch_attention, rotary_embedding


class PatchAttention(nn.Module):
    """Multi-head attention within patches of consecutive voxels along an order.

    Args:
        channels: Number of input and output channels.
        heads: Number of heads, a divisor of `channels`.
        patch: Number of voxels of a patch.
        position_bias: Whether logits have a learned bias for the difference of coordinates along each axis.
        rotary: Base of the rotary embedding of coordinates, or None for no embedding.

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 0], [0, 0, 1]]), torch.rand(2, 8))
        >>> PatchAttention(8, 2)(tensor, torch.tensor([1, 0])).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        patch: int = 1024,
        *,
        position_bias: bool = False,
        rotary: float | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("channels", channels), ("heads", heads)):
            checks.kind(checks.is_integer(value), name, "an int", value)
            checks.value(value >= 1, name, "at least 1", value)
        checks.value(channels % heads == 0, "channels", f"a multiple of heads = {heads}", channels)
        self.heads, self.patch, self.rotary = heads, patch, rotary
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.bias_table: nn.Parameter | None = None
        if position_bias:
            bound = int((4 * patch) ** (1 / 3) * 2)  # twice the edge of a cube of 4 patches
            self.bias_table = nn.Parameter(torch.empty(3 * (2 * bound + 1), heads))
            nn.init.trunc_normal_(self.bias_table, std=0.02)

    def forward(self, tensor: SparseTensor, order: Tensor) -> Tensor:
        """Return features (N, channels).

        Args:
            tensor: N voxels with features (N, channels).
            order: (N,) the voxels of each cloud along a curve, from `serialize`.
        """
        parts = self.qkv(tensor.features).unflatten(1, (3, self.heads, -1))
        query, key, value = parts.unbind(1)
        if self.rotary is not None:
            query, key = (rotary_embedding(part, tensor.coordinates, self.rotary) for part in (query, key))
        coordinates = None if self.bias_table is None else tensor.coordinates
        rows = patch_attention(
            query,
            key,
            value,
            order,
            self.patch,
            offsets=tensor.offsets,
            coordinates=coordinates,
            bias_table=self.bias_table,
        )
        out: Tensor = self.proj(rows.flatten(1))
        return out


class PatchBlock(nn.Module):
    """Convolution, attention within patches and an MLP, each with a residual connection.

    The convolution, followed by a linear layer and a norm, encodes positions. Without it, the input is normalized.

    Args:
        channels: Number of input and output channels.
        heads: Number of heads, a divisor of `channels`.
        patch: Number of voxels of a patch.
        conv: Whether there is a convolution.
        attention: Whether there are attention and MLP.
        position_bias: Whether attention has a bias for the difference of coordinates.
        rotary: Base of the rotary embedding of coordinates, or None for no embedding.
        drop_path: Probability to drop attention or MLP of a voxel in training.

    Example:
        >>> tensor = SparseTensor(torch.tensor([[0, 0, 0], [0, 0, 1]]), torch.rand(2, 8))
        >>> PatchBlock(8, 2)(tensor, torch.tensor([1, 0])).features.shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        patch: int = 1024,
        *,
        conv: bool = True,
        attention: bool = True,
        position_bias: bool = False,
        rotary: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.conv: nn.ModuleList | None = None
        if conv:
            self.conv = nn.ModuleList(
                [SubmanifoldConv(channels, channels, 3), nn.Linear(channels, channels), nn.LayerNorm(channels)]
            )
        else:
            self.norm0 = nn.LayerNorm(channels)
        self.attn: PatchAttention | None = None
        if attention:
            self.norm1 = nn.LayerNorm(channels)
            self.attn = PatchAttention(channels, heads, patch, position_bias=position_bias, rotary=rotary)
            self.norm2 = nn.LayerNorm(channels)
            self.mlp = GeluMLP(channels, 4 * channels)
            self.drop_path = DropPath(drop_path)

    def forward(
        self, tensor: SparseTensor, order: Tensor | None, conv_input: SparseTensor | None = None
    ) -> SparseTensor:
        """Return the same voxels with new features.

        Args:
            tensor: N voxels with features (N, channels).
            order: (N,) the voxels of each cloud along a curve, from `serialize`; None for a block without attention.
            conv_input: The voxels with the features that are convolved, by default those of `tensor`.
        """
        return self.with_branch(tensor, order, conv_input)[0]

    def with_branch(
        self, tensor: SparseTensor, order: Tensor | None, conv_input: SparseTensor | None = None
    ) -> tuple[SparseTensor, SparseTensor]:
        """Return the result, and the output of its last branch: of the MLP, or of the convolution without attention."""
        rows = tensor.features
        if checks.autocasts(rows):  # residual sums in float32, as layer norm on a GPU gives them
            rows = rows.float()
        if self.conv is None:
            rows = branch = self.norm0(rows)
        else:
            conv, linear, norm = self.conv
            branch = norm(linear(conv(tensor if conv_input is None else conv_input).features))
            rows = rows + branch
        if self.attn is not None:
            assert order is not None
            rows = rows + self.drop_path(self.attn(tensor.with_features(self.norm1(rows)), order))
            branch = self.drop_path(self.mlp(self.norm2(rows)))
            rows = rows + branch
        return tensor.with_features(rows), tensor.with_features(branch)
