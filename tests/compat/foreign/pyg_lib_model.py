"""A point network in the style of PyG 2.8, written for pyg-lib without any reference to pointgrad.

Set abstraction, a dynamic edge convolution with attention, and interpolation to all points. The search is a scripted
module, as PyG's is. Prints the loss before each step.
"""

import argparse

import pyg_lib
import torch
from torch import Tensor, nn


class Neighbors(nn.Module):
    """Edges (source, target) to the nearest points, like `torch_geometric.nn.knn_graph`."""

    def __init__(self, k: int):
        super().__init__()
        self.k = k

    def forward(self, x: Tensor, ptr: Tensor) -> Tensor:
        edges = torch.ops.pyg.knn(x, x, ptr, ptr, self.k + 1, False, 1)
        return edges[:, edges[0] != edges[1]].flip([0])


class SetAbstraction(nn.Module):
    def __init__(self, ratio, r, channels, width):
        super().__init__()
        self.ratio, self.r = ratio, r
        self.network = nn.Sequential(nn.Linear(channels + 3, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x, pos, ptr):
        index = torch.ops.pyg.fps(pos, ptr, self.ratio, True)
        batch = torch.bucketize(index, ptr[1:], right=True)
        new_ptr = torch._convert_indices_from_coo_to_csr(batch, len(ptr) - 1)
        row, col = torch.ops.pyg.radius(pos, pos[index], ptr, new_ptr, self.r, 32, 1, False)
        message = self.network(torch.cat([x[col], pos[col] - pos[index][row]], dim=-1))
        return pyg_lib.ops.scatter_max(message, row, dim=0, dim_size=len(index))[0], pos[index], new_ptr


class EdgeAttention(nn.Module):
    def __init__(self, k, width):
        super().__init__()
        self.neighbors = torch.jit.script(Neighbors(k))
        self.score, self.value = nn.Linear(width, 1), nn.Linear(width, width)

    def forward(self, x, pos, ptr):
        source, target = self.neighbors(pos, ptr)
        difference = pyg_lib.ops.sampled_sub(x, x, source, target)
        target, order = pyg_lib.ops.index_sort(target, max_value=len(x))
        difference = difference[order]
        bounds = torch._convert_indices_from_coo_to_csr(target, len(x))
        weight = pyg_lib.ops.softmax_csr(self.score(difference), bounds)
        return x + pyg_lib.ops.segment_csr(weight * self.value(difference), bounds)


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.down = SetAbstraction(0.5, 0.5, 3, 32)
        self.attention = EdgeAttention(8, 32)
        self.cloud_head, self.point_head = nn.Linear(32, classes), nn.Linear(32 + 3, classes)

    def forward(self, pos, ptr):
        x, centers, center_ptr = self.down(pos, pos, ptr)
        x = self.attention(x, centers, center_ptr)
        pooled = pyg_lib.ops.segment_mean_csr(x, center_ptr)
        row, col = torch.ops.pyg.knn(centers, pos, center_ptr, ptr, 3, False, 1)
        weight = 1.0 / (centers[col] - pos[row]).pow(2).sum(-1, keepdim=True).clamp(min=1e-16)
        total = pyg_lib.ops.scatter_sum(x[col] * weight, row, 0, dim_size=len(pos))
        x = total / pyg_lib.ops.scatter_sum(weight, row, 0, dim_size=len(pos))
        return self.cloud_head(pooled), self.point_head(torch.cat([x, pos], dim=-1))


def shapes(sizes, device):
    """Spheres, cubes and discs."""
    pos = torch.randn(sum(sizes), 3, device=device)
    ptr = torch.tensor([0, *sizes], device=device).cumsum(0)
    y = torch.arange(len(sizes), device=device) % 3
    kind = y.repeat_interleave(ptr.diff())[:, None]
    sphere, cube = pos / pos.norm(dim=1, keepdim=True), pos / pos.abs().amax(1, keepdim=True)
    disc = pos * torch.tensor([1.0, 1.0, 0.05], device=device)
    return torch.where(kind == 0, sphere, torch.where(kind == 1, cube, disc)), ptr, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)

    pos, ptr, y = shapes([150, 90, 120, 100, 3, 140], args.device)
    labels = y.repeat_interleave(ptr.diff())
    net = Net(3).to(args.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(args.steps):
        cloud_logits, point_logits = net(pos, ptr)
        loss = nn.functional.cross_entropy(cloud_logits, y) + nn.functional.cross_entropy(point_logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")


if __name__ == "__main__":
    main()
