"""A point cloud autoencoder, written for PyTorch3D without any reference to pointgrad.

It samples farthest points, gathers features of their nearest neighbors, and minimizes a chamfer loss with normals, on
clouds of different sizes. Prints the loss before each step.
"""

import argparse

import torch
from pytorch3d.loss import chamfer_distance
from pytorch3d.ops import ball_query, knn_gather, knn_points, packed_to_padded, sample_farthest_points
from pytorch3d.ops.utils import masked_gather
from torch import nn


class Encoder(nn.Module):
    def __init__(self, centers=16, neighbors=8, width=32):
        super().__init__()
        self.centers, self.neighbors = centers, neighbors
        self.near = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width))
        self.ball = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Linear(2 * width, width)

    def forward(self, points, lengths):
        centers, idx = sample_farthest_points(points, lengths=lengths, K=self.centers)
        count = lengths.clamp(max=self.centers)

        dists, nn_idx, nn_points = knn_points(
            centers, points, lengths1=count, lengths2=lengths, K=self.neighbors, return_nn=True
        )
        relative = nn_points - centers[:, :, None]
        size = knn_gather(points.norm(dim=-1, keepdim=True), nn_idx, lengths)
        edges = torch.cat([relative, size, dists[..., None], dists.sqrt().detach()[..., None]], dim=-1)
        near = self.near(edges).max(dim=2).values

        ball = ball_query(centers, points, lengths1=count, lengths2=lengths, K=self.neighbors, radius=0.5)
        inside = (ball.idx >= 0)[..., None]
        around = self.ball(masked_gather(points, ball.idx) - centers[:, :, None])
        ball = around.masked_fill(~inside, 0).sum(2) / inside.sum(2).clamp(min=1)

        valid = (idx >= 0)[..., None]
        both = torch.cat([near, ball], dim=-1).masked_fill(~valid, float("-inf"))
        return self.head(both.max(dim=1).values)


class Decoder(nn.Module):
    def __init__(self, points=64, width=32):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, points * 3))

    def forward(self, code):
        return self.layers(code).view(len(code), -1, 3)


def ellipsoids(sizes, device):
    """Points on ellipsoids and their normals, packed, as from a collate function."""
    normals = nn.functional.normalize(torch.randn(sum(sizes), 3, device=device), dim=1)
    axes = torch.rand(len(sizes), 3, device=device) + 0.5
    axes = axes.repeat_interleave(torch.tensor(sizes, device=device), dim=0)
    return normals * axes, nn.functional.normalize(normals / axes, dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)

    sizes = [200, 150, 7, 180]
    points, normals = ellipsoids(sizes, args.device)
    lengths = torch.tensor(sizes, device=args.device)
    first = lengths.cumsum(0) - lengths
    points = packed_to_padded(points, first, max(sizes))
    normals = packed_to_padded(normals, first, max(sizes))

    encoder, decoder = Encoder().to(args.device), Decoder().to(args.device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=5e-3)
    for _ in range(args.steps):
        cloud = decoder(encoder(points, lengths))
        loss, loss_normals = chamfer_distance(
            cloud, points, y_lengths=lengths, x_normals=cloud, y_normals=normals, abs_cosine=False
        )
        optimizer.zero_grad()
        (loss + 0.1 * loss_normals).backward()
        optimizer.step()
        print(f"{loss.item():.6f}")


if __name__ == "__main__":
    main()
