"""A serialized transformer written for flash-attn, spconv and torch-scatter without any reference to pointgrad.

Points are sorted along a z-order curve, attend within patches of the curve, and get their position from a sparse
convolution; voxels are pooled once. Trains for a few steps on random surfaces and prints the loss before each step.
"""

import argparse

import flash_attn
import spconv.pytorch as spconv
import torch
import torch_scatter
from torch import nn


def z_order(grid, batch):
    code = batch << 24
    for bit in range(8):
        for axis in range(3):
            code = code | (((grid[:, axis] >> bit) & 1) << (3 * bit + axis))
    return code


class Attention(nn.Module):
    def __init__(self, channels, heads, patch):
        super().__init__()
        self.heads, self.patch = heads, patch
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x, order, counts):
        """Whole patches, and one shorter patch at the end of each cloud."""
        cuts = [torch.full((count // self.patch,), self.patch) for count in counts]
        rest = [torch.tensor([count % self.patch]) for count in counts]
        lengths = torch.cat([part for pair in zip(cuts, rest, strict=True) for part in pair]).to(x.device)
        cu_seqlens = nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        out = flash_attn.flash_attn_varlen_qkvpacked_func(
            self.qkv(x)[order].half().reshape(len(x), 3, self.heads, -1),
            cu_seqlens,
            max_seqlen=self.patch,
            dropout_p=0.1 if self.training else 0,
            softmax_scale=(x.shape[1] // self.heads) ** -0.5,
        )
        return self.proj(out.reshape(x.shape).to(x.dtype)[order.argsort()])


class Block(nn.Module):
    def __init__(self, channels, key, heads=2, patch=16):
        super().__init__()
        self.position = spconv.SubMConv3d(channels, channels, 3, bias=True, indice_key=key)
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = Attention(channels, heads, patch)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def forward(self, x, grid, batch):
        indices = torch.cat([batch.unsqueeze(1), grid], 1).int()
        shape = (grid.amax(0) + 8).tolist()
        counts = batch.bincount().tolist()
        x = x + self.position(spconv.SparseConvTensor(x, indices, shape, len(counts))).features
        x = x + self.attention(self.norm1(x), z_order(grid, batch).argsort(), counts)
        return x + self.mlp(self.norm2(x))


class Network(nn.Module):
    def __init__(self, classes, widths=(16, 32)):
        super().__init__()
        fine, coarse = widths
        self.stem = nn.Linear(3, fine)
        self.encode, self.middle, self.decode = Block(fine, "fine"), Block(coarse, "coarse"), Block(fine, "fine")
        self.down, self.up = nn.Linear(fine, coarse), nn.Linear(coarse, fine)
        self.head = nn.Linear(fine, classes)

    def forward(self, points, grid, batch):
        x = self.encode(self.stem(points), grid, batch)
        _, cluster, counts = torch.unique(z_order(grid, batch) >> 3, return_inverse=True, return_counts=True)
        order = cluster.argsort()
        bounds = nn.functional.pad(counts.cumsum(0), (1, 0))
        first = order[bounds[:-1]]
        y = torch_scatter.segment_csr(self.down(x)[order], bounds, reduce="max")
        y = self.middle(y, grid[first] >> 1, batch[first])
        return self.head(self.decode(x + self.up(y)[cluster], grid, batch))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    clouds = [nn.functional.normalize(torch.randn(count, 3), dim=1) for count in (150, 9, 40)]
    voxels = [torch.unique(((cloud + 1) * 8).long(), dim=0) for cloud in clouds]
    batch = torch.cat([torch.full((len(cloud),), number) for number, cloud in enumerate(voxels)]).to(args.device)
    grid = torch.cat(voxels).to(args.device)
    points = grid / 8 - 1
    target = (points[:, 0] > 0).long()
    model = Network(2).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(args.steps):
        loss = nn.functional.cross_entropy(model(points, grid, batch), target)
        print(f"loss {loss.item():.6f}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


if __name__ == "__main__":
    trained = main()
