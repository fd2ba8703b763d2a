"""Networks and functions that tests of inspection share."""

import torch
from torch import Tensor, nn

from pointgrad.inspect import Graph, Node


class Residual(nn.Module):
    def __init__(self, blocks: int, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
            for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


class Attention(nn.Module):
    """A network whose embedding is used for both input and output."""

    def __init__(self, layers: int, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for mix, norm in zip(self.mix, self.norm, strict=True):
            query, key, value = mix(norm(x)).chunk(3, -1)
            x = x + (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return x @ self.embedding.weight.t()


class Net(nn.Module):
    """A network with an in-place layer after a view, a shared layer, tuples, keyword arguments and nested layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.relu = nn.ReLU(inplace=True)
        self.shared = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        h = self.relu(self.first(x))
        h = self.shared(h) + self.shared(2 * h)
        h = self.block(h) + h
        return self.attention(h, h, value=h)[0]


class Scale(torch.autograd.Function):
    """Saves two tensors with save_for_backward, and one as an attribute of ctx."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        ctx.hidden = x * factor
        ctx.number = 3
        return ctx.hidden + 0

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        return grad * factor, (grad * x).sum()


def named(found: Graph, name: str) -> Node:
    (node,) = [node for node in found.nodes if node.name == name]
    return node
