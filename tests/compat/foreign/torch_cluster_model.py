"""A PointNet++ on packed clouds, written for torch-cluster without any reference to pointgrad.

Two set abstractions (farthest points, ball query, maximum of the features), interpolation to all points, and a
label for each cloud and each point. Prints the loss before each step.
"""

import argparse
import itertools

import torch
from torch import nn
from torch_cluster import fps, grid_cluster, knn, nearest, radius
from torch_scatter import scatter, scatter_mean


def mlp(*widths):
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class SetAbstraction(nn.Module):
    def __init__(self, ratio, r, channels, width):
        super().__init__()
        self.ratio, self.r = ratio, r
        self.network = mlp(channels + 3, width, width)

    def forward(self, x, pos, batch):
        idx = fps(pos, batch, ratio=self.ratio)
        row, col = radius(pos, pos[idx], self.r, batch, batch[idx], max_num_neighbors=16)
        relative = pos[col] - pos[idx][row]
        message = self.network(torch.cat([x[col], relative], dim=-1))
        return scatter(message, row, dim=0, dim_size=idx.numel(), reduce="max"), pos[idx], batch[idx]


def interpolate(x, pos, pos_skip, batch, batch_skip, k=3):
    query, found = knn(pos, pos_skip, k, batch_x=batch, batch_y=batch_skip)
    weight = 1.0 / (pos[found] - pos_skip[query]).pow(2).sum(-1, keepdim=True).clamp(min=1e-16)
    total = scatter(x[found] * weight, query, 0, dim_size=pos_skip.size(0), reduce="sum")
    return total / scatter(weight, query, 0, dim_size=pos_skip.size(0), reduce="sum")


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first = SetAbstraction(0.5, 0.4, 3, 32)
        self.second = SetAbstraction(0.25, 0.8, 32, 64)
        self.cloud_head = mlp(64, 32, classes)
        self.point_head = mlp(64 + 3, 32, classes)

    def forward(self, pos, batch):
        x1, pos1, batch1 = self.first(pos, pos, batch)
        x2, pos2, batch2 = self.second(x1, pos1, batch1)
        pooled = scatter_mean(x2, batch2, dim=0)
        cluster = nearest(pos, pos2, batch, batch2)
        interpolated = interpolate(x2, pos2, pos, batch2, batch) + x2[cluster]
        return self.cloud_head(pooled), self.point_head(torch.cat([interpolated, pos], dim=-1))


def shapes(sizes, device):
    """Spheres, cubes and discs."""
    pos = torch.randn(sum(sizes), 3, device=device)
    batch = torch.repeat_interleave(torch.arange(len(sizes), device=device), torch.tensor(sizes, device=device))
    y = torch.arange(len(sizes), device=device) % 3
    sphere, cube = pos / pos.norm(dim=1, keepdim=True), pos / pos.abs().amax(1, keepdim=True)
    disc = pos * torch.tensor([1.0, 1.0, 0.05], device=device)
    kind = y[batch][:, None]
    return torch.where(kind == 0, sphere, torch.where(kind == 1, cube, disc)), batch, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)

    pos, batch, y = shapes([150, 90, 120, 100, 2, 140], args.device)
    voxel = grid_cluster(pos, torch.tensor([0.05, 0.05, 0.05], device=args.device))
    assert voxel.shape == batch.shape
    net = Net(3).to(args.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(args.steps):
        cloud_logits, point_logits = net(pos, batch)
        loss = nn.functional.cross_entropy(cloud_logits, y) + nn.functional.cross_entropy(point_logits, y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")


if __name__ == "__main__":
    main()
